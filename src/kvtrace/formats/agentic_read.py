"""Read agentic Mooncake: rows in any order become columns in the order of time, each after those that it waits for.

A row is a request of version 2, or of the first version, which had no header.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError, RowError
from .._base.files import MAX_LINE
from ..trace.columns import MEASURED, TAILS, BlockRule, Columns
from ..trace.dependencies import COMPLETION, JOIN, RELATIONS, SEQUENCE, TRIGGERS, Dependencies, dependencies_between
from ..trace.invariants import expected_blocks
from ..trace.meta import PREFIXES_UNKNOWN
from ..trace.session_trees import session_trees
from . import scalars
from .block_size import MAX_TOKENS
from .jsonl_read import OnError, decode_object, id_list, output_of, time_of, whole_number
from .mooncake import measured_number
from .sidecar import ReadResult, Sidecar

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
    waits = _waits_of_version_1(values) if version == 1 else [_wait(item) for item in _list(values, "dependencies")]
    return AgenticRow(
        _text(values["request_id"], "request_id"),
        None if version == 1 else _text(values["play_id"], "play_id"),
        _text(values.get("session_id") or "agentic-session", "session_id"),
        whole_number(values["input_length"], "input_length"), output_of(values),
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


HEAD = 1 << 12  # bytes that decide
NO_MODEL = "unknown"  # as kvtrace and Dynamo write it where the model is not known


def is_of(format: str | None, stream: io.BufferedReader) -> bool:
    """Whether a stream is agentic Mooncake: by its header, or by a key of its first version.

    >>> is_of(None, io.BufferedReader(io.BytesIO(b'{"schema": "dynamo.agentic_mooncake", "version": 2}')))
    True
    """
    if format is not None:
        return format == "agentic-mooncake"
    head = stream.peek(HEAD)[:HEAD]
    return f'"{SCHEMA}"'.encode() in head.partition(b"\n")[0] or (b'"wait_for"' in head and b'"hash_ids"' in head)


def read(stream: io.BufferedReader, path: str, *, extra: str = "keep", on_error: OnError | None = None) -> ReadResult:
    """Read all rows of a file.

    Args:
        stream: The file at its beginning.
        path: Its name in messages.
        extra: "keep" or "ignore" other keys.
        on_error: Receives the errors of bad rows, which are left out; without it, the first one is raised.

    Raises:
        InputError: The header or a row is not valid.
    """
    file = _File(path, on_error)
    number = 0
    while line := stream.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise InputError(f"{path}: line {number:,} is longer than {MAX_LINE:,} bytes. Is it JSON Lines?")
        if line.strip():
            file.add(line, number)
    return file.result(extra)


class _File:
    """The header and the rows of a file, as they are decoded."""

    def __init__(self, path: str, on_error: OnError | None):
        self._path, self._on_error = path, on_error
        self._header: dict[str, Any] | None = None
        self._rows: list[AgenticRow] = []
        self._lines: list[int] = []
        self._row_of: dict[str, int] = {}  # request_id -> row
        self._nested: dict[str, int] = {}

    def add(self, line: bytes, number: int) -> None:
        """Decode a line."""
        is_header = False
        try:
            values = decode_object(line)
            is_header = "schema" in values and not self._lines
            if is_header:
                self._header = header_of(values)
            else:
                self._add(agentic_row(values, 1 if self._header is None else VERSION), number)
        except RowError as error:
            error.at(self._path, number)
            if self._on_error is None or is_header:
                raise
            self._on_error(error)

    def _add(self, row: AgenticRow, number: int) -> None:
        if row.request_id in self._row_of:
            raise RowError("an earlier row has the same request_id.")
        for name, value in list(row.others.items()):
            if isinstance(value, dict | list):
                self._nested[name] = self._nested.get(name, 0) + 1
                del row.others[name]
        self._row_of[row.request_id] = len(self._rows)
        self._rows.append(row)
        self._lines.append(number)

    def result(self, extra: str) -> ReadResult:
        """The columns of all rows, in the order of time."""
        own = _own_settings(self._header)
        times, order = _in_time(self._rows, has_times=bool(own.get("recorded_times")))
        rows = [self._rows[row] for row in order.tolist()]
        columns = _columns(rows, times[order])
        if extra == "keep":
            columns.extra = _extra(rows, bool(own), self._path)
        _add_links(columns, rows, own.get("links", ()), own.get("without", ()))
        if own and "service_ms" not in own.get("without", ()):
            columns.service_ms = _service_times(rows)
        if own.get("tail") == "dropped" and self._header:
            _drop_tails(columns, self._header["block_size"])
        return ReadResult(
            columns, self._path, "agentic-mooncake", lines=np.array(self._lines, dtype=np.int64)[order],
            sidecar=self._sidecar(own), nested=self._nested,
        )  # fmt: skip

    def _sidecar(self, own: dict[str, Any]) -> Sidecar | None:
        if self._header is None:
            return None
        tail: BlockRule = own["tail"] if own.get("tail") in TAILS else "kept"
        meta = {"prefixes": PREFIXES_UNKNOWN} if "prefixes" in own.get("without", []) else {}
        return Sidecar(self._path, block_size=self._header["block_size"], tail=tail, meta=meta, part="header")


def derived_links(play: np.ndarray, label: np.ndarray, waits: Dependencies) -> dict[str, np.ndarray]:
    """The session, agent and parent of each request by its play, the label of its agent, and its dependencies.

    Agents are numbered within a play by first appearance. A parent is the request of the same agent whose end is waited
    for, in sequence; the last one of several.

    >>> waits = Dependencies.of([[], [(0, "completion", "spawn", 0.0)], [(0, "completion", "sequence", 5.0)]])
    >>> {name: links.tolist() for name, links in derived_links(np.array([0, 0, 0]), np.array([7, 3, 7]), waits).items()}
    {'session': [0, 0, 0], 'agent': [0, 1, 0], 'parent': [-1, -1, 0]}
    """
    numbers: dict[int, dict[int, int]] = {}
    agent = np.empty(len(play), dtype=np.int64)
    for row, (tree, name) in enumerate(zip(play.tolist(), label.tolist(), strict=True)):
        agent_of_label = numbers.setdefault(tree, {})
        agent[row] = agent_of_label.setdefault(name, len(agent_of_label))
    parent = np.full(len(play), -1, dtype=np.int64)
    chosen = (waits.row >= 0) & (waits.relation == SEQUENCE) & (waits.trigger == COMPLETION)
    request, row = waits.request[chosen], waits.row[chosen]
    same = (play[request] == play[row]) & (agent[request] == agent[row])
    np.maximum.at(parent, request[same], row[same])
    return {"session": play, "agent": agent, "parent": parent}


# -- helpers -----------------------------------------------------------------------------------------------------


def _columns(rows: list[AgenticRow], times: np.ndarray) -> Columns:
    """The columns of rows, without sessions and extra columns."""
    columns = Columns(
        times, [row.input_length for row in rows], [row.output_length for row in rows],
        _end_to_end([row.hash_ids for row in rows]), offsets_of([len(row.hash_ids) for row in rows]),
        dependencies=_dependencies(rows),
    )  # fmt: skip
    if any(row.service_ms is not None for row in rows):
        columns.service_ms = _service_times(rows)
    for name, number in MEASURED.items():
        if any(name in row.measured for row in rows):
            values = [row.measured.get(name, number.unknown) for row in rows]
            setattr(columns, name, np.array(values, dtype=number.dtype))
    if any(row.output_ids is not None for row in rows):
        outputs = [np.empty(0, np.int64) if row.output_ids is None else row.output_ids for row in rows]
        columns.output_ids, columns.output_offsets = _end_to_end(outputs), offsets_of([len(ids) for ids in outputs])
    if any("domain" in row.links for row in rows):
        columns.domain = scalars.labels(scalars.objects([row.links.get("domain") for row in rows]))
    return columns


def _service_times(rows: list[AgenticRow]) -> np.ndarray:
    return np.array([np.nan if row.service_ms is None else row.service_ms for row in rows])


def _dependencies(rows: list[AgenticRow]) -> Dependencies:
    """The dependencies of rows on each other; -1 for a request that the file does not have."""
    row_of = {row.request_id: number for number, row in enumerate(rows)}
    flat = [(number, row_of.get(name, -1), *rest) for number, row in enumerate(rows) for name, *rest in row.waits]
    request, row, trigger, relation, delay = zip(*flat, strict=True) if flat else [()] * 5
    return dependencies_between(request, row, trigger, relation, delay, len(rows))


def _own_settings(header: dict[str, Any] | None) -> dict[str, Any]:
    """What kvtrace states in a header; nothing of what has the wrong type."""
    own = (header or {}).get("kvtrace")
    types = {"tail": str, "recorded_times": bool, "links": list, "without": list}
    if not isinstance(own, dict):
        return {}
    return {name: own[name] for name, kind in types.items() if isinstance(own.get(name), kind)}


def _in_time(rows: list[AgenticRow], *, has_times: bool) -> tuple[np.ndarray, np.ndarray]:
    """The time of each request in ms, and the rows in the order of time.

    A request that waits and has the time 0 gets the one at which it would start if all took the recorded times, unless
    the file is known to have the times of all requests.
    """
    waits, times = _dependencies(rows), np.array([row.time_ms for row in rows])
    rank = np.empty(len(rows), dtype=np.int64)
    for place, row in enumerate(_after_their_dependencies(waits)):
        rank[row] = place
        starts = []
        for at in range(waits.offsets[row], waits.offsets[row + 1]):
            if (before := int(waits.row[at])) >= 0:
                times[row] = max(times[row], times[before])
                service = (rows[before].service_ms or 0.0) if waits.trigger[at] == COMPLETION else 0.0
                starts.append(times[before] + service + waits.delay_ms[at])
        if starts and rows[row].time_ms == 0 and not has_times:
            times[row] = max(times[row], round(max(starts), 6))  # ns: sums of times that were subtracted before
    return times, np.lexsort((rank, times))


def _after_their_dependencies(waits: Dependencies) -> list[int]:
    """The rows, each after those that it waits for and else as early as it can be; those of a cycle come last."""
    in_file = waits.row >= 0
    request, row = waits.request[in_file], waits.row[in_file]
    left = np.bincount(request, minlength=len(waits))
    by_row = np.argsort(row, kind="stable")
    waiting, bounds = request[by_row], np.searchsorted(row[by_row], np.arange(len(waits) + 1))
    ready, order = np.flatnonzero(left == 0).tolist(), []
    while ready:
        order.append(first := heappop(ready))
        for waiter in waiting[bounds[first] : bounds[first + 1]].tolist():
            left[waiter] -= 1
            if left[waiter] == 0:
                heappush(ready, waiter)
    return order + np.flatnonzero(left > 0).tolist()


def _end_to_end(ids: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(ids) if ids else np.empty(0, dtype=np.int64)


def _extra(rows: list[AgenticRow], is_own: bool, path: str) -> dict[str, np.ndarray]:
    """The other keys as extra columns; a model that is not known is no model in a file of ours."""
    columns: dict[str, np.ndarray] = {}
    names = dict.fromkeys(name for row in rows for name in row.others)
    scalars.require_few_keys(names, path)
    for name in names:
        values = [row.others.get(name) for row in rows]
        if name == "model" and is_own:
            values = [None if value == NO_MODEL else value for value in values]
        if any(value is not None for value in values):
            columns[name] = scalars.column(len(rows), [(np.arange(len(rows)), values)])
    return columns


def _add_links(columns: Columns, rows: list[AgenticRow], own, without) -> None:
    """Add sessions, agents and parents: the keys of kvtrace's own, or what the other keys determine."""
    waits, trees = columns.dependencies or Dependencies.none(len(rows)), session_trees(columns).tolist()
    play = scalars.objects([tree if row.play is None else row.play for row, tree in zip(rows, trees, strict=True)])
    links = derived_links(scalars.labels(play), scalars.labels(scalars.objects([row.session for row in rows])), waits)
    row_of = {row.request_id: number for number, row in enumerate(rows)}
    for name in LINKS:
        if name in own:
            values = [row.links.get(name, -1) for row in rows]
            values = [row_of.get(value, -1) for value in values] if name == "parent" else values
            numbers = [value if type(value) is int and -1 <= value < 2**63 else -1 for value in values]
            links[name] = np.array(numbers, dtype=np.int64)
    columns.session, columns.parent = (None if name in without else links[name] for name in ("session", "parent"))
    if "agent" not in without:
        columns.extra["agent"] = links["agent"]
    if "dependencies" in without:
        columns.dependencies = None


def _drop_tails(columns: Columns, block_size: int) -> None:
    """Remove the ids of partial blocks."""
    blocks = np.diff(columns.offsets)
    partial = blocks > expected_blocks(columns.input_length, block_size, "dropped")
    columns.hash_ids = np.delete(columns.hash_ids, columns.offsets[1:][partial] - 1)
    columns.offsets = offsets_of(blocks - partial)
