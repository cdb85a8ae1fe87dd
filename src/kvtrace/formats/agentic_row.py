"""One row of agentic Mooncake as values: a request of version 2, or of the first version, which had no header."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._base.errors import RowError
from ..trace.dependencies import COMPLETION, JOIN, RELATIONS, SEQUENCE, TRIGGERS
from ..trace.measured import MEASURED
from .block_size import MAX_TOKENS
from .jsonl_read import id_list, output_of, time_of, whole
from .measured_keys import measured_number

SCHEMA, VERSION = "dynamo.agentic_mooncake", 2
LINKS = ("session", "agent", "parent")  # kvtrace's own keys, where the others do not determine these columns
RELATION = "kvtrace_relation"  # of a dependency that Dynamo takes as a spawn only
SAME = {"input_tokens": "input_length", "output_tokens": "output_length", "created_time": "timestamp",
        "delay_ms": "delay"}  # fmt: skip
NEEDED = ("request_id", "input_length", "hash_ids")
OF_VERSION_2 = ("play_id", "session_id", "model", "not_before_ms")
CONSUMED = {*NEEDED, *LINKS, "play_id", "session_id", "source_play_ordinal", "not_before_ms", "timestamp", "domain",
            "recorded_api_time_ms", "dependencies", "wait_for", "delay", "tool_wait_ms", "output_length",
            "output_hash_ids", *MEASURED}  # fmt: skip

Wait = tuple[str, int, int, float]  # the name of the request, trigger, relation, delay in ms


@dataclass
class AgenticRow:
    """A request: names as in the file; -1 for an unknown trigger or relation."""

    request_id: str
    play: str | None  # None = of the first version: its tree follows from its dependencies
    session: str
    input_length: int
    output_length: int
    hash_ids: np.ndarray
    time_ms: float
    output_ids: np.ndarray | None = None
    service_ms: float | None = None
    waits: list[Wait] = field(default_factory=list)
    links: dict[str, Any] = field(default_factory=dict)  # kvtrace's own keys, and the domain
    measured: dict[str, float] = field(default_factory=dict)  # the measured columns
    others: dict[str, Any] = field(default_factory=dict)  # extra columns


def agentic_row(values: dict[str, Any], version: int) -> AgenticRow:
    """The request of a decoded row; RowError if it is not valid.

    >>> row = {"request_id": "b", "input_length": 4, "output_length": 1, "hash_ids": [7], "wait_for": ["a"], "delay": 5}
    >>> agentic_row(row, 1).waits
    [('a', 1, 0, 5.0)]
    """
    values = {SAME.get(name, name): value for name, value in values.items()}
    for name in NEEDED if version == 1 else (*NEEDED, *OF_VERSION_2):
        if name not in values:
            raise RowError(f"{name} is missing.")
    waits = _waits_of_version_1(values) if version == 1 else [_wait(one) for one in _list(values, "dependencies")]
    return AgenticRow(
        _text(values["request_id"], "request_id"),
        None if version == 1 else _text(values["play_id"], "play_id"),
        _text(values.get("session_id") or "agentic-session", "session_id"),
        whole(values["input_length"], "input_length"), output_of(values),
        id_list(values["hash_ids"], "hash_ids"),
        _number(values, "timestamp" if version == 1 else "not_before_ms") or 0.0,
        id_list(values["output_hash_ids"], "output_hash_ids") if "output_hash_ids" in values else None,
        _number(values, "recorded_api_time_ms"),
        waits,
        {name: values[name] for name in (*LINKS, "domain") if isinstance(values.get(name), str | int | float)},
        {name: measured_number(values[name], name) for name in MEASURED if name in values},
        {name: value for name, value in values.items() if name not in CONSUMED},
    )  # fmt: skip


def header_of(values: dict[str, Any]) -> dict[str, Any]:
    """A valid header; RowError if its version or block size is not."""
    if values.get("schema") != SCHEMA:
        raise RowError(f"the schema of the header is not {SCHEMA}.")
    if values.get("version") != VERSION:
        raise RowError(f"the version of the header is not {VERSION}; kvtrace reads no other version with a header.")
    if type(values.get("block_size")) is not int or not 1 <= values["block_size"] <= MAX_TOKENS:
        raise RowError(f"the block_size of the header is not a whole number from 1 to {MAX_TOKENS:,}.")
    return values


def _waits_of_version_1(values: dict[str, Any]) -> list[Wait]:
    names = [_text(name, "wait_for") for name in _list(values, "wait_for")]
    delay = (_number(values, "delay") or 0.0) + (_number(values, "tool_wait_ms") or 0.0)
    return [(name, COMPLETION, JOIN if len(names) > 1 else SEQUENCE, delay) for name in names]


def _wait(value: Any) -> Wait:
    if not isinstance(value, dict) or not {"request_id", "trigger", "delay_ms", "relation"} <= value.keys():
        raise RowError("a dependency does not have request_id, trigger, delay_ms and relation.")
    delay = _number(value, "delay_ms")
    if delay is None:
        raise RowError("delay_ms is not a number.")
    trigger, relation = value["trigger"], value.get(RELATION, value["relation"])
    return (
        _text(value["request_id"], "the request_id of a dependency"),
        TRIGGERS.index(trigger) if trigger in TRIGGERS else -1,
        RELATIONS.index(relation) if relation in RELATIONS else -1,
        delay,
    )


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise RowError(f"{name} is not a text.")
    return value


def _list(values: dict[str, Any], name: str) -> list[Any]:
    if not isinstance(values.get(name) or [], list):
        raise RowError(f"{name} is not a list.")
    return values.get(name) or []


def _number(values: dict[str, Any], name: str) -> float | None:
    """A time in ms; None if there is none."""
    if (value := values.get(name)) is None:
        return None
    return time_of(value, name)
