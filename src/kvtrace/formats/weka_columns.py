"""The sessions of Weka files as columns of one trace, and what those cannot hold as a section of its metadata.

Requests are in the order of their starts, each on the clock of its session. The columns `agent`, `parent`, `session`,
`service_ms` and `dependencies` are those of any trace with agents. All other fields of requests are extra columns:
scalars as they are, lists and objects as JSON. The section `weka` holds the fields of sessions and of subagents. It is
verified when it is used: a sidecar may hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from .._base.arrays import offsets_of
from .._base.errors import InputError
from .._native import numbering
from .._native.rows import number_rows
from ..trace.columns import MAX_TIME, STATED, BlockRule, Columns
from ..trace.invariants import expected_blocks
from ..trace.meta import WekaSection
from ..trace.session_trees import previous_turn, recorded_dependencies
from ..trace.unknown import UNKNOWN_LENGTH
from .bailian import milliseconds
from .scalars import narrow, objects
from .weka_session import GLOBAL, LOCAL, Session, WekaRequest

PREFIX = "weka_"  # of extra columns that only a round trip needs
SESSION = PREFIX + "session"  # the place of the request's session in the section `weka`
EMPTY = PREFIX + "empty"  # the fields that are null, as JSON; and hash_ids, if the request has none
PLACE = PREFIX + "place"  # the place in its list of requests, if lists are not in the order of times
EXACT = {"t": PREFIX + "t", "api_time": PREFIX + "api_time"}  # as written, if milliseconds do not give them back
FIELD = PREFIX + "field_"  # before the names of fields that have the name of another column
NUMBERS = ("t", "in", "out", "api_time")  # fields that are columns of their own
OWN = ("agent",)


def columns_of(
    sessions: Sequence[Session], numbers: np.ndarray, files: Sequence[str], *, extra: bool = True
) -> tuple[Columns, WekaSection]:
    """The columns of sessions, sorted by time and numbered by first appearance, and the section `weka`.

    Args:
        sessions: The sessions, of one block size.
        numbers: Their `numbers`, end to end.
        files: The name of each session's file, without its folder.
        extra: Whether to keep extra columns.
    """
    listed = [(number, row) for number, session in enumerate(sessions) for row in session.rows]
    start = milliseconds(np.array([row.start_s for _, row in listed], dtype=np.float64))
    order = np.argsort(start, kind="stable")
    start, rows = start[order], [listed[place][1] for place in order.tolist()]
    session = np.array([number for number, _ in listed], dtype=np.int64)[order]
    agent = np.array([row.agent for row in rows], dtype=np.int64)
    hash_ids, blocks = _numbered(sessions, numbers, session, order)
    first_ms = float(start[0]) if len(start) else 0.0
    service = _floats(rows, "api_time")
    columns = Columns(
        start - first_ms, _whole(rows, "in"), _whole(rows, "out"), hash_ids, offsets_of(blocks), session=session,
        parent=previous_turn(session * (int(agent.max(initial=0)) + 1) + agent), service_ms=milliseconds(service),
    )  # fmt: skip
    columns.dependencies = recorded_dependencies(columns, agent)
    section: WekaSection = {"sessions": [_described(*pair) for pair in zip(sessions, files, strict=True)]}
    if first_ms:
        section["start_ms"] = first_ms
    if extra:
        columns.extra = {"agent": agent, SESSION: session} | _extra(rows, section) | _exact(columns, rows, section)
    return columns, section


def seconds_of(time_ms: np.ndarray) -> np.ndarray:
    """Milliseconds with at most six decimals as seconds.

    >>> seconds_of(np.array([61114.0, 0.1 + 0.2]))
    array([6.1114e+01, 3.0000e-04])
    """
    has_decimals = np.abs(time_ms) < 2.0**53 / 10**6  # larger doubles do not have six, and rounding would change them
    return np.where(has_decimals, np.round(time_ms, 6), time_ms) / 1000


def since(start_s: np.ndarray, base_s: np.ndarray) -> np.ndarray:
    """Times on a clock that starts at `base_s`, both in seconds, as `seconds_of` gives them."""
    return seconds_of(1000 * np.asarray(start_s) - milliseconds(np.asarray(base_s)))


def block_rule(columns: Columns, block_size: int) -> BlockRule:
    """The tail that fits all prompts: dropped, as the format has it, or kept; else their counts are stated."""
    blocks = np.diff(columns.offsets)
    rules: tuple[BlockRule, ...] = ("dropped", "kept")
    for tail in rules:
        if np.array_equal(expected_blocks(columns.input_length, block_size, tail), blocks):
            return tail
    return STATED


# -- block ids ---------------------------------------------------------------------------------------------------


def _numbered(
    sessions: Sequence[Session], numbers: np.ndarray, session_of_row: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all rows in order, by first appearance, and the blocks of each row.

    Equal global ids are one key, local ones are keys of their session.
    """
    references = offsets_of([int(session.offsets[-1]) for session in sessions])
    tables = offsets_of([len(session.values) for session in sessions])
    keys = np.empty(int(tables[-1]), dtype=np.int64)
    is_global = np.repeat([session.scope == GLOBAL for session in sessions], np.diff(tables)).astype(bool)
    values = np.concatenate([session.values for session in sessions] or [np.empty(0, np.int64)])
    keys[is_global], distinct = numbering.renumber(values[is_global])
    keys[~is_global] = distinct + np.arange(np.count_nonzero(~is_global))
    nothing = np.empty(0, dtype=np.int64)
    starts = [session.offsets[:-1] + references[number] for number, session in enumerate(sessions)]
    blocks = np.concatenate([np.diff(session.offsets) for session in sessions] or [nothing])[order]
    first = np.concatenate(starts or [nothing])[order]
    return number_rows(numbers, first, blocks, tables[session_of_row], keys, len(keys)), blocks


# -- fields ------------------------------------------------------------------------------------------------------


def _described(session: Session, file: str) -> dict[str, Any]:
    """A session in the section `weka`: what its rows do not hold. Its ids are runs of (first, count)."""
    values = session.values
    heads = np.flatnonzero(np.diff(values, prepend=values[:1] - 2) != 1)
    runs = np.stack([values[heads], np.diff(heads, append=len(values))], axis=1)
    relative = [False] * len(session.agents)
    for row in session.rows:
        if row.is_relative:
            relative[row.agent - 1] = True
    agents = [
        {"fields": agent.fields, "place": agent.place, "relative": relative[number]}
        for number, agent in enumerate(session.agents)
    ]
    described: dict[str, Any] = {"file": file, "fields": session.fields, "requests": len(session.rows)}
    return described | {"ids": runs.tolist()} | ({"agents": agents} if agents else {})


def _extra(rows: Sequence[WekaRequest], section: WekaSection) -> dict[str, np.ndarray]:
    """The other fields of all requests as columns; the section lists their names."""
    names = list(dict.fromkeys(name for row in rows for name in row.fields))
    section["fields"] = names
    section["json"] = []
    extra: dict[str, np.ndarray] = {}
    for name in names:
        if name in NUMBERS:
            continue
        values = [row.fields.get(name) for row in rows]
        if any(isinstance(value, list | dict) for value in values):
            section["json"].append(name)
            values = [orjson.dumps(row.fields[name]).decode() if name in row.fields else None for row in rows]
        extra[column_of(name)] = narrow(objects(values))
    empty = [
        [name for name, value in row.fields.items() if value is None and name not in (*section["json"], "out")]
        + ([] if row.has_ids else ["hash_ids"])
        for row in rows
    ]
    if any(empty):
        extra[EMPTY] = objects([orjson.dumps(empty_names).decode() if empty_names else None for empty_names in empty])
    return extra


def _exact(columns: Columns, rows: Sequence[WekaRequest], section: WekaSection) -> dict[str, np.ndarray]:
    """The columns of times as written, and of places, where the trace does not give them back."""
    assert columns.session is not None and columns.service_ms is not None
    extra: dict[str, np.ndarray] = {}
    start, written = seconds_of(columns.timestamp + section.get("start_ms", 0.0)), _floats(rows, "t")
    agents = [section["sessions"][number].get("agents", []) for number in columns.session.tolist()]
    entry = [of[row.agent - 1] if row.agent else None for of, row in zip(agents, rows, strict=True)]
    base = np.array([agent["fields"]["t"] if agent and agent["relative"] else 0.0 for agent in entry], dtype=np.float64)
    if not np.array_equal(np.where(base > 0, since(start, base), start), written):
        extra[EXACT["t"]] = written
    service = _floats(rows, "api_time")
    if not np.array_equal(seconds_of(columns.service_ms), service, equal_nan=True):
        extra[EXACT["api_time"]] = service
    place = np.array([row.place for row in rows], dtype=np.int64)
    before = np.full(len(rows), -1) if columns.parent is None else columns.parent
    if (place[before[before >= 0]] > place[before >= 0]).any():
        extra[PLACE] = place
    return extra


def column_of(field: str) -> str:
    """The name of a field's extra column.

    >>> column_of("model"), column_of("agent")
    ('model', 'weka_field_agent')
    """
    return FIELD + field if field in OWN or field.startswith(PREFIX) else field


def _whole(rows: Sequence[WekaRequest], name: str) -> np.ndarray:
    lengths = [row.fields[name] for row in rows]
    return np.array([UNKNOWN_LENGTH if tokens is None else int(tokens) for tokens in lengths], dtype=np.int64)


def _floats(rows: Sequence[WekaRequest], name: str) -> np.ndarray:
    """A field of numbers, NaN where it is missing or null."""
    return np.array([np.nan if (value := row.fields.get(name)) is None else value for row in rows], dtype=np.float64)


BROKEN = "the section weka of the trace's sidecar is not as kvtrace writes it. Delete that section."
MAX_ID = 1 << 64


def section_of(meta: Mapping[str, Any] | None) -> WekaSection:
    """The section of some metadata, empty if there is none; InputError if it is not valid.

    >>> section_of({"weka": {"sessions": 5}})
    Traceback (most recent call last):
    kvtrace._base.errors.InputError: the section weka of the trace's sidecar is not as kvtrace writes it. Delete that \
section.
    """
    section = (meta or {}).get("weka")
    if section is None:
        return {}
    if not (
        isinstance(section, dict)
        and _is_list(section.get("sessions"), _is_session)
        and _is_list(section.get("fields", []), _is_text)
        and _is_list(section.get("json", []), _is_text)
        and _is_time(section.get("start_ms", 0))
    ):
        raise InputError(BROKEN)
    return section  # type: ignore[return-value]


def id_runs(session: Mapping[str, Any], distinct: int) -> np.ndarray | None:
    """The ids of a session by first appearance, as uint64; None unless there are as many as `distinct`."""
    runs = [(int(first), int(count)) for first, count in session.get("ids", [])]
    if sum(count for _, count in runs) != distinct:
        return None
    names = [np.uint64(first % MAX_ID) + np.arange(count, dtype=np.uint64) for first, count in runs if count]
    return np.concatenate(names or [np.empty(0, dtype=np.uint64)])


def _is_session(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("fields"), dict)
        and value["fields"].get("hash_id_scope", LOCAL) in (LOCAL, GLOBAL)
        and _is_count(value.get("requests"))
        and isinstance(value.get("file", ""), str)
        and _is_list(value.get("ids", []), _is_run)
        and _is_list(value.get("agents", []), _is_agent)
    )


def _is_agent(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("fields"), dict)
        and _is_time(value["fields"].get("t"))
        and _is_count(value.get("place"))
        and type(value.get("relative")) is bool
    )


def _is_run(value: Any) -> bool:
    return _is_list(value, lambda item: type(item) is int) and len(value) == 2 and value[1] >= 0


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MAX_TIME


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any, is_valid: Any) -> bool:
    return isinstance(value, list) and all(map(is_valid, value))
