"""Qwen-Bailian's JSON Lines: Mooncake's keys, times in seconds, and `chat_id`, `parent_chat_id`, `type`, `turn`.

https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon. A chat_id names a request; parent_chat_id names the
previous request of the conversation, -1 for the first. A session is the root of a chain of parents. kvtrace also reads
and writes `output_hash_ids`, `domain` and what a service measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..trace.columns import Columns
from ..trace.session_trees import previous_turn
from .jsonl_read import IDS, JsonRows, OnError
from .jsonl_write import Field, lengths, lists, require_writable, scalars, seconds, whole, write_rows
from .mooncake import domains_of, measured_keys, require_other_names, take_measured
from .scalars import labels
from .sidecar import ReadResult

KEYS: tuple[str, ...] = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "type", "turn",
        "hash_ids", "output_hash_ids", "domain")  # fmt: skip
MARKS = ("chat_id", "parent_chat_id")  # keys that identify the format; always read


def result_of(rows: JsonRows, path: str, on_error: OnError | None = None) -> ReadResult:
    """JSON rows as Qwen-Bailian's columns: times in ms, parents as rows, sessions as roots."""
    columns = Columns(
        milliseconds(rows.timestamp), rows.input_length, rows.output_length, rows.hash_ids, rows.offsets,
        extra={name: values for name, values in rows.others.items() if name not in (*MARKS, "domain")},
        output_ids=rows.output_ids, output_offsets=rows.output_offsets,
        domain=labels(rows.others["domain"]) if "domain" in rows.others else None,
    )  # fmt: skip
    result = ReadResult(columns, path, "bailian", lines=rows.lines, nested=rows.nested, lengths_only=rows.lengths_only)
    chat, parent_chat = (_numbers(rows.others.get(name), name, result, on_error) for name in MARKS)
    columns.parent, result.lost_parents, result.repeated = link(chat, parent_chat)
    columns.session = roots(columns.parent, columns.timestamp)
    take_measured(result, on_error)
    return result


def write(
    stream, columns: Columns, *, first_id: int = 0, extra: bool = False, description=None, ids: bool = True
) -> None:
    """Write all keys of the format: the row is the request's name; missing `type` and `turn` get defaults.

    Without `ids` no blocks.
    """
    require_writable(columns, first_id)
    more = extra_of(columns) if extra else domains_of(columns) | measured_keys(columns)
    fields = {name: field for name, field in fields_of(columns).items() if ids or name not in IDS}
    write_rows(stream, columns, fields, first_id=first_id, extra=more)


def fields_of(columns: Columns) -> dict[str, Field]:
    """The fields of the rows by key, in order."""
    parent = parents(columns)
    fields = {
        "chat_id": whole(np.arange(len(columns))),
        "parent_chat_id": whole(parent),
        "timestamp": seconds(columns.timestamp),
        "input_length": whole(columns.input_length),
        "output_length": lengths(columns.output_length),
        "type": scalars(_filled(columns, "type", lambda: np.full(len(columns), "text", dtype=object))),
        "turn": scalars(_filled(columns, "turn", lambda: turns(parent))),
        "hash_ids": lists(columns.hash_ids, columns.offsets),
    }
    if columns.output_ids is not None and columns.output_offsets is not None:
        fields["output_hash_ids"] = lists(columns.output_ids, columns.output_offsets)
    return fields


def extra_of(columns: Columns) -> dict[str, Any]:
    """The extra columns that the format does not have, the domains, and the measured columns."""
    more = {name: values for name, values in columns.extra.items() if name not in KEYS}
    require_other_names(more)
    return more | domains_of(columns) | measured_keys(columns)


def milliseconds(timestamp_s: np.ndarray) -> np.ndarray:
    """Seconds as milliseconds, exact for times of up to nine decimals: 61.114 is 61114, not 61114.00000000001.

    >>> milliseconds(np.array([61.114, 0.0005]))
    array([6.1114e+04, 5.0000e-01])
    """
    with np.errstate(over="ignore", invalid="ignore"):  # a huge time becomes infinite, which the caller reports
        timestamp = timestamp_s * 1000
        for decimals in (6, 3, 0):  # the fewest decimals that still give the same seconds
            rounded = np.round(timestamp, decimals)
            timestamp = np.where(rounded / 1000 == timestamp_s, rounded, timestamp)
    return timestamp


def changed_times(timestamp_ms: np.ndarray) -> int:
    """The number of times that seconds as 64-bit floats do not give back: some with more than five decimals.

    >>> changed_times(np.array([61114.0, 61114.12345, 1000.0000000000001]))
    1
    """
    return int((milliseconds(timestamp_ms / 1000) != timestamp_ms).sum())


def link(chat: np.ndarray, parent_chat: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The row of each request's parent (-1 = none), the rows with a missing parent, and the rows with a repeated name.

    A repeated name refers to the nearest row before the child, or else to the first one.

    >>> link(np.array([7, 8, 9]), np.array([-1, 7, 5]))
    (array([-1,  0, -1]), array([2]), array([], dtype=int64))
    """
    rows = len(chat)
    order = np.argsort(chat, kind="stable")  # by name, then by row
    names = chat[order]
    repeated = np.sort(order[1:][names[1:] == names[:-1]])
    first = np.searchsorted(names, parent_chat)  # place in `order` of the first row with the parent's name, if any
    has_parent = (parent_chat != -1) & (first < rows)
    has_parent[has_parent] = names[first[has_parent]] == parent_chat[has_parent]
    parent = np.full(rows, -1, dtype=np.int64)
    parent[has_parent] = order[first[has_parent]]
    if repeated.size:
        # `first` also numbers the names; one number for each (name, row) pair makes one search find the previous row
        pairs = np.searchsorted(names, names) * rows + order
        before = np.searchsorted(pairs, first[has_parent] * rows + np.flatnonzero(has_parent)) - 1
        near = (before >= 0) & (names[before] == parent_chat[has_parent])
        parent[np.flatnonzero(has_parent)[near]] = order[before[near]]
    return parent, np.flatnonzero((parent_chat != -1) & ~has_parent), repeated


def roots(parent: np.ndarray, timestamp: np.ndarray) -> np.ndarray:
    """The first row of each request's chain of parents; a parent that is later in time is ignored.

    >>> roots(np.array([-1, 0, 1, -1]), np.arange(4.0))
    array([0, 0, 0, 3])
    """
    rows = np.arange(len(parent))
    place = np.empty_like(rows)
    place[np.argsort(timestamp, kind="stable")] = rows
    root = np.where((parent >= 0) & (place[parent] < place), parent, rows)
    while not np.array_equal(root, further := root[root]):  # doubles its reach in each round
        root = further
    return root


def turns(parent: np.ndarray) -> np.ndarray:
    """The length of each request's chain of parents, including the request.

    >>> turns(np.array([-1, 0, 1, -1]))
    array([1, 2, 3, 1])
    """
    turn = np.ones(len(parent), dtype=np.int64)
    above = parent.copy()
    for _ in range(len(parent).bit_length()):  # doubles its reach in each round; unverified columns may have a cycle
        inside = above >= 0
        turn[inside] += turn[above[inside]]
        above[inside] = above[above[inside]]
    return turn


def parents(columns: Columns) -> np.ndarray:
    """The parent column, else the previous row of the same session."""
    if columns.parent is not None or columns.session is None:
        return np.full(len(columns), -1) if columns.parent is None else columns.parent
    return previous_turn(columns.session)


def _numbers(values, name, result: ReadResult, on_error) -> np.ndarray:
    """A column of integers; rows without one are errors, and get unique numbers."""
    rows = len(result.columns)
    if values is None:
        values = np.full(rows, None, dtype=object)
    if values.dtype == np.int64:
        return values
    bad = np.array([not _is_whole(value) for value in values.tolist()], dtype=bool)
    for row in np.flatnonzero(bad).tolist():
        error = result.error(row, f"{name} is missing or not a whole number.")
        if on_error is None:
            raise error
        on_error(error)
    if name == "chat_id":
        return np.where(bad, -2 - np.arange(rows), np.where(bad, 0, values)).astype(np.int64)
    return np.where(bad, -1, values).astype(np.int64)


def _is_whole(value: Any) -> bool:
    return type(value) in (int, float) and value == int(value) and -(2**63) <= value < 2**63


def _filled(columns, name, default) -> np.ndarray:
    """An extra column, with defaults for missing values."""
    values = columns.extra.get(name)
    if values is None:
        return default()
    missing = np.array([value is None for value in values.tolist()], dtype=bool)
    return np.where(missing, default().astype(object), values) if missing.any() else values
