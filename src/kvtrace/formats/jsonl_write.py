"""Columns to JSON Lines, a few thousand rows at a time: the kernel `rows_out` prints numbers, Python what is rare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from .._base.errors import InputError, UsageError
from .._native.rows_out import IDS, SECONDS, TEXT, WHOLE, dump
from ..trace.columns import Columns

REFERENCES, ROWS = 1 << 17, 1 << 13  # the most of one batch, unless one row has more: about 1 MB of text
MOST_MS = 10**15  # up to here a double holds the milliseconds, and their thousandths have no shorter text

Printed = tuple[int, Any]  # a kind of the kernel's, and values
Field = Callable[[int, int], Printed]  # gives them for the rows from start up to stop


def write_rows(
    stream: BinaryIO,
    columns: Columns,
    fields: Mapping[str, Field],
    *,
    first_id: int = 0,
    extra: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the rows as lines of JSON: the fields by key, in their order, and then the values of the extra columns.

    An extra key is left out of rows where its value is None; `first_id` is added to each id.
    """
    if clash := sorted(set(extra or {}) & set(fields)):
        raise UsageError(f"extra column {clash[0]!r} has the name of a key that the format has already.")
    for start, stop in _batches(columns):
        printed = [
            (f"{', ' if place else '{'}{json.dumps(key)}: ".encode(), *field(start, stop))
            for place, (key, field) in enumerate(fields.items())
        ]
        if extra:
            printed.append((b"", TEXT, _tails(extra, start, stop)))
        stream.write(dump(printed, stop - start, first_id).data)


def whole(values: np.ndarray) -> Field:
    """Whole numbers."""
    return lambda start, stop: (WHOLE, values[start:stop])


def lists(ids: np.ndarray, offsets: np.ndarray) -> Field:
    """Lists of ids."""
    return lambda start, stop: (IDS, (ids, offsets[start : stop + 1]))


def scalars(values: np.ndarray) -> Field:
    """Values of any JSON scalar."""
    if values.dtype == np.int64:
        return whole(values)
    return lambda start, stop: (TEXT, _cut([_text(value) for value in values[start:stop].tolist()]))


def milliseconds(timestamp: np.ndarray) -> Field:
    """Times in ms: whole ones without a point, others as the shortest text that reads back as the same double."""

    def printed(start, stop):
        times = timestamp[start:stop]
        if _are_whole(times, 2**62):
            return WHOLE, times.astype(np.int64)
        return TEXT, _cut([repr(int(time) if time.is_integer() else time).encode() for time in times.tolist()])

    return printed


def seconds(timestamp: np.ndarray) -> Field:
    """Times in ms, printed in seconds: the shortest text of time / 1000."""

    def printed(start, stop):
        times = timestamp[start:stop]
        if _are_whole(times, MOST_MS):
            return SECONDS, times.astype(np.int64)
        return TEXT, _cut([repr(time / 1000).encode() for time in times.tolist()])

    return printed


def require_writable(columns: Columns, first_id: int) -> None:
    """InputError or UsageError if the columns can't be written as JSON numbers and lists."""
    wrong = np.flatnonzero(~np.isfinite(columns.timestamp))
    if wrong.size:
        raise InputError(f"row {wrong[0]}: the timestamp is not finite.")
    for ids in (columns.hash_ids, columns.output_ids):
        if ids is not None and len(ids) and not -(2**63) <= int(ids.max()) + first_id < 2**63:
            raise UsageError(f"first id {first_id} takes an id past 64 bits.")


# -- helpers -----------------------------------------------------------------------------------------------------


def _batches(columns) -> Iterator[tuple[int, int]]:
    """Runs of rows, each with not much more references than REFERENCES."""
    start, rows = 0, len(columns)
    while start < rows:
        full = int(np.searchsorted(columns.offsets, columns.offsets[start] + REFERENCES, side="right")) - 1
        stop = min(max(full, start + 1), start + ROWS, rows)
        yield start, stop
        start = stop


def _are_whole(times, most) -> bool:
    return bool((np.abs(times) < most).all() and (times == np.floor(times)).all())


def _cut(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Texts end to end, and the offsets that cut them."""
    offsets = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return np.frombuffer(b"".join(texts), dtype=np.uint8), offsets


def _tails(extra, start, stop) -> tuple[np.ndarray, np.ndarray]:
    """What the extra columns add to each row, keys and commas included."""
    parts = []
    for name, values in extra.items():
        key = f", {json.dumps(name)}: ".encode()
        parts.append([b"" if value is None else key + _text(value) for value in values[start:stop].tolist()])
    return _cut([b"".join(row) for row in zip(*parts, strict=True)])


def _text(value) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, default=np.generic.item).encode()
    except (TypeError, ValueError):
        raise InputError("an extra column holds a value that JSON does not know.") from None
