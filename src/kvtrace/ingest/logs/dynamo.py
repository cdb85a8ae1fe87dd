"""Dynamo's request traces, `dynamo.request.trace.v1`: arrival, lengths, and the engine's hash of each block.

https://docs.nvidia.com/dynamo, "Request Trace Reference". A row is a record, or {"event": record}; a `request_end` is a
request, and every other event is left out. The hashes are public functions of the prompt's tokens, as secret as the
prompt: they leave only under the run's key, renumbered.
"""

from __future__ import annotations

from array import array
from typing import Any

from ..._base.errors import EmptyPrompt, NotARequest, RowError
from . import fields
from .record import Record

SCHEMA = "dynamo.request.trace.v1"
NO_HASHES = "Log request_end records with their replay hashes."


def read(row: dict) -> Record:
    """The Record of one request; NotARequest where the row is another event, RowError where it is not of this form.

    >>> replay = {"trace_block_size": 16, "input_length": 20, "input_sequence_hashes": [2**64 - 1, 7]}
    >>> request = {"request_received_ms": 1900000000000, "output_tokens": 9, "replay": replay}
    >>> read({"schema": SCHEMA, "event_type": "request_end", "request": request}).hashes
    array('Q', [18446744073709551615, 7])
    """
    event, prefix = _event(row)
    if event.get("event_type") != "request_end":
        raise NotARequest("the event is not the end of a request.", field=f"{prefix}event_type")
    places = _places(row, event, prefix)
    record = fields.common(places, *_time(places))
    if record.output_length is None:
        record.output_length = fields.count(*fields.find(places[1:], "output_tokens"))
    fields.put_output(record, None, f"{prefix}request.output_tokens")
    record.prompt_tokens = fields.count(*fields.find(places, "prompt_tokens", "input_tokens"))
    record.type = record.type or "text"
    _put_hashes(record, places[1][1].get("replay"), f"{prefix}request.replay")
    return record


def matches(row: dict) -> bool:
    """Whether the row looks like one of this form."""
    return _event(row)[0].get("schema") == SCHEMA


def small_unit(row: dict) -> str | None:
    """The unit of a time too small for an epoch: the field's name says milliseconds."""
    return None if row.get("timestamp") is not None and "event" not in row else "ms"


def _event(row) -> tuple[dict[str, Any], str]:
    """The record, whether or not the sink has wrapped it, and its JSON path."""
    inner = row.get("event")
    return (inner, "event.") if type(inner) is dict else (row, "")


def _places(row, event, prefix) -> fields.Places:
    """Where to look: the row under the names that a map writes, then the request, then who sent it."""
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
        raise RowError("is missing; it holds the hashes of the prompt's blocks.", field=path, hint=NO_HASHES)
    place = [(f"{path}.", replay)]
    record.input_length = fields.count(*fields.find(place, "input_length"))
    record.block_size = fields.count(*fields.find(place, "trace_block_size"))
    if record.input_length is None or not record.block_size:
        missing = "input_length" if record.input_length is None else "trace_block_size"
        raise RowError("is missing, or no number of tokens above 0.", field=f"{path}.{missing}")
    if not record.input_length:
        raise EmptyPrompt("the prompt is empty.", field=f"{path}.input_length")
    record.hashes = _hashes(replay.get("input_sequence_hashes"), f"{path}.input_sequence_hashes")
    if len(record.hashes) != -(-record.input_length // record.block_size):  # a tail has a hash too
        reason = "holds another number of hashes than its input_length has blocks of trace_block_size, tail included."
        raise RowError(reason, field=f"{path}.input_sequence_hashes")


def _hashes(values, path) -> array[int]:
    """The hashes as uint64: those that a writer took for signed numbers are the same 64 bits."""
    if type(values) is not list:
        raise fields.wrong(values, path, "a list of hashes")
    if list(map(type, values)).count(int) == len(values) and min(values, default=0) >= -(2**63):
        try:
            return array("Q", [value + 2**64 if value < 0 else value for value in values])
        except OverflowError:
            pass
    raise RowError("holds more than hashes, whole numbers of 64 bits.", field=path)
