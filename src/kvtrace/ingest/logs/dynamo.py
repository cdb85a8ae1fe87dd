"""Dynamo's request traces, `dynamo.request.trace.v1`: arrival, lengths, and the engine's hash of each block.

https://docs.nvidia.com/dynamo, "Request Trace Reference". A row is a record, or {"event": record}. A `request_end` is a
request; all other events are left out. The hashes are public functions of the prompt's tokens, and so as secret as the
prompt. They are hashed again under the run's key, and renumbered. Measured are `cached_tokens`, `ttft_ms`,
`prefill_wait_time_ms` (the queue) and `total_time_ms`.
"""

from __future__ import annotations

from array import array
from typing import Any

from ..._base.errors import EmptyPrompt, NotARequest, RowError
from . import fields
from .record import Record, put_measured

SCHEMA = "dynamo.request.trace.v1"
NO_HASHES = "Log request_end records with their replay hashes."


def read(row: dict[str, Any]) -> Record:
    """The Record of one request; NotARequest for other events, RowError if the row does not have this format.

    >>> replay = {"trace_block_size": 16, "input_length": 20, "input_sequence_hashes": [2**64 - 1, 7]}
    >>> request = {"request_received_ms": 1900000000000, "output_tokens": 9, "replay": replay}
    >>> read({"schema": SCHEMA, "event_type": "request_end", "request": request}).hashes
    array('Q', [18446744073709551615, 7])
    """
    event, prefix = _event(row)
    if event.get("event_type") != "request_end":
        raise NotARequest("is not request_end.", field=f"{prefix}event_type")
    places = _places(row, event, prefix)
    record = fields.common(places, *_time(places))
    record.service_s = fields.service_in(places, total_time_ms=1e-3)
    put_measured(
        record, places[1:2], cached=("cached_tokens",), ttft={"ttft_ms": 1e-3}, queue={"prefill_wait_time_ms": 1e-3}
    )
    if record.output_length is None:
        record.output_length = fields.count(*fields.find(places[1:], "output_tokens"))
    fields.put_output(record, None, f"{prefix}request.output_tokens")
    record.prompt_tokens = fields.count(*fields.find(places, "prompt_tokens", "input_tokens"))
    record.type = record.type or "text"
    _put_hashes(record, places[1][1].get("replay"), f"{prefix}request.replay")
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    return _event(row)[0].get("schema") == SCHEMA


def small_unit(row: dict[str, Any]) -> str | None:
    """Milliseconds, by the field's name, unless a field map sets the time."""
    return None if row.get("timestamp") is not None and "event" not in row else "ms"


def _event(row) -> tuple[dict[str, Any], str]:
    """The record, which a sink may have wrapped in `event`, and its JSON path."""
    inner = row.get("event")
    return (inner, "event.") if type(inner) is dict else (row, "")


def _places(row, event, prefix) -> fields.Places:
    """The places of fields: the row (where a field map writes), the request, its agent context."""
    request, context = event.get("request"), event.get("agent_context")
    if type(request) is not dict:
        raise fields.wrong(request, f"{prefix}request", "the request's metrics")
    mapped = row if not prefix else {name: value for name, value in row.items() if name not in ("event", "timestamp")}
    places = [("", mapped), (f"{prefix}request.", request)]
    return [*places, (f"{prefix}agent_context.", context)] if type(context) is dict else places


def _time(places):
    time, path = fields.find(places[:1], "timestamp")
    return (time, path) if time is not None else fields.find(places[1:2], "request_received_ms")


def _put_hashes(record, replay, path):
    if type(replay) is not dict:
        raise RowError("is missing. It must hold the hashes of the prompt's blocks.", field=path, hint=NO_HASHES)
    place = [(f"{path}.", replay)]
    record.input_length = fields.count(*fields.find(place, "input_length"))
    record.block_size = fields.count(*fields.find(place, "trace_block_size"))
    if record.input_length is None or not record.block_size:
        missing = "input_length" if record.input_length is None else "trace_block_size"
        raise RowError("must be a number of tokens above 0.", field=f"{path}.{missing}")
    if not record.input_length:
        raise EmptyPrompt("the prompt is empty.", field=f"{path}.input_length")
    record.hashes = _hashes(replay.get("input_sequence_hashes"), f"{path}.input_sequence_hashes")
    if len(record.hashes) != -(-record.input_length // record.block_size):  # the tail has a hash, too
        reason = "does not have one hash for each block of trace_block_size in input_length, tail block included."
        raise RowError(reason, field=f"{path}.input_sequence_hashes")


def _hashes(values, path) -> array[int]:
    """The hashes as uint64. Some writers store the same 64 bits as signed numbers."""
    if type(values) is not list:
        raise fields.wrong(values, path, "a list of hashes")
    if list(map(type, values)).count(int) == len(values) and min(values, default=0) >= -(2**63):
        try:
            return array("Q", [value + 2**64 if value < 0 else value for value in values])
        except OverflowError:
            pass
    raise RowError("is not a list of hashes: each must be a whole number of 64 bits.", field=path)
