"""Write columns as JSON Lines, a few thousand rows at a time: the kernel `rows_out` prints numbers, Python the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError, UsageError
from .._base.step_work import report_work
from .._base.workers import thread_map
from .._native.texts import IDS, MICROSECONDS, SECONDS, TEXT, WHOLE, dump
from ..trace.columns import Columns
from ..trace.unknown import UNKNOWN_LENGTH

REFERENCES, ROWS = 1 << 17, 1 << 13  # limits of a batch, about 1 MB of text; a single row may exceed them
MAX_MS = 10**12  # up to this, a double holds whole microseconds, and their milliseconds have no shorter text
MAX_WHOLE_MS = 10**15  # below this, a double holds whole milliseconds, and their seconds have no shorter text

Printed = tuple[int, Any]  # a kind of the kernel, and values
Field = Callable[[int, int], Printed]  # returns them for the rows from start to stop


def write_rows(
    stream: BinaryIO,
    columns: Columns,
    fields: Mapping[str, Field],
    *,
    first_id: int = 0,
    extra: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the rows as JSON Lines: the fields by key, in order, then the extra columns.

    Rows omit an extra key if its value is None. `first_id` is added to each id.
    """
    fields, extra = all_fields(fields, extra)

    def printed(batch):
        start, stop = batch
        return stop - start, print_rows(fields, start, stop, first_id=first_id, extra=extra)

    for rows, text in thread_map(printed, _batches(columns)):
        stream.write(text)
        report_work(rows)


def all_fields(
    fields: Mapping[str, Field], extra: Mapping[str, np.ndarray] | None
) -> tuple[dict[str, Field], Mapping[str, np.ndarray] | None]:
    """The fields, with those extra columns that the kernel can print, and the others; UsageError if names clash."""
    require_no_clash(fields, extra)
    if extra and all(values.dtype == np.int64 for values in extra.values()):  # the kernel prints the same text, faster
        return {**fields, **{name: whole(values) for name, values in extra.items()}}, None
    return dict(fields), extra


def print_rows(
    fields: Mapping[str, Field],
    start: int,
    stop: int,
    *,
    first_id: int = 0,
    extra: Mapping[str, np.ndarray] | None = None,
) -> memoryview:
    """The text of some rows; the options are those of `write_rows`."""
    printed = [
        (f"{', ' if place else '{'}{json.dumps(key)}: ".encode(), *field(start, stop))
        for place, (key, field) in enumerate(fields.items())
    ]
    if extra:
        printed.append((b"", TEXT, _tails(extra, start, stop)))
    return dump(printed, stop - start, first_id).data


def require_no_clash(fields: Mapping[str, Field], extra: Mapping[str, np.ndarray] | None) -> None:
    """UsageError if an extra column has the name of a field."""
    if clash := sorted(set(extra or {}) & set(fields)):
        raise UsageError(f"the extra column {clash[0]!r} conflicts with a key of the format. Rename it.")


def whole(values: np.ndarray) -> Field:
    """A field of integers."""
    return lambda start, stop: (WHOLE, values[start:stop])


def lengths(values: np.ndarray) -> Field:
    """A field of output lengths: null where one is unknown."""

    def printed(start, stop):
        part = values[start:stop]
        if (part != UNKNOWN_LENGTH).all():
            return WHOLE, part
        return TEXT, _cut([b"null" if value == UNKNOWN_LENGTH else b"%d" % value for value in part.tolist()])

    return printed


def lists(ids: np.ndarray, offsets: np.ndarray) -> Field:
    """A field of id lists."""
    return lambda start, stop: (IDS, (ids, offsets[start : stop + 1]))


def scalars(values: np.ndarray) -> Field:
    """A field of any JSON scalars."""
    if values.dtype == np.int64:
        return whole(values)
    return lambda start, stop: (TEXT, _cut([_text(value) for value in values[start:stop].tolist()]))


def text(of_row: Callable[[int], bytes]) -> Field:
    """A field whose JSON text is a function of the row."""
    return lambda start, stop: (TEXT, _cut([of_row(row) for row in range(start, stop)]))


def milliseconds(timestamp: np.ndarray) -> Field:
    """Times in ms: integers without a decimal point, others as the shortest text of the same double."""

    def printed(start, stop):
        times = timestamp[start:stop]
        if _are_whole(times, 2**62):
            return WHOLE, times.astype(np.int64)
        us = np.rint(1000 * np.clip(times, -MAX_MS, MAX_MS))
        if (us / 1000 == times).all():
            return MICROSECONDS, us.astype(np.int64)
        return TEXT, _cut([repr(int(time) if time.is_integer() else time).encode() for time in times.tolist()])

    return printed


def seconds(timestamp: np.ndarray) -> Field:
    """Times in ms, written in seconds: the shortest text of time / 1000."""

    def printed(start, stop):
        times = timestamp[start:stop]
        if _are_whole(times, MAX_WHOLE_MS):
            return SECONDS, times.astype(np.int64)
        return TEXT, _cut([repr(time / 1000).encode() for time in times.tolist()])

    return printed


def require_writable(columns: Columns, first_id: int) -> None:
    """InputError or UsageError if the columns cannot be written as JSON numbers and lists."""
    wrong = np.flatnonzero(~np.isfinite(columns.timestamp))
    if wrong.size:
        raise InputError(f"row {wrong[0]}: the timestamp is not finite.")
    for ids in (columns.hash_ids, columns.output_ids):
        if ids is not None and len(ids) and not -(2**63) <= int(ids.max()) + first_id < 2**63:
            raise UsageError(f"--first-id {first_id} makes an id larger than 64 bits. Use a smaller one.")


# -- helpers -----------------------------------------------------------------------------------------------------


def _batches(columns) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about REFERENCES block references each."""
    start, rows = 0, len(columns)
    while start < rows:
        full = int(np.searchsorted(columns.offsets, columns.offsets[start] + REFERENCES, side="right")) - 1
        stop = min(max(full, start + 1), start + ROWS, rows)
        yield start, stop
        start = stop


def _are_whole(times, limit) -> bool:
    return bool((np.abs(times) < limit).all() and (times == np.floor(times)).all())


def _cut(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenated texts, and their offsets."""
    return np.frombuffer(b"".join(texts), dtype=np.uint8), offsets_of([len(text) for text in texts])


def _tails(extra, start, stop) -> tuple[np.ndarray, np.ndarray]:
    """The text of the extra columns for each row, with keys and commas."""
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
