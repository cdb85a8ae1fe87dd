"""Raw logs, read: sources are cut into pieces, lines become Records, and times nanoseconds.

A log reader is one file here and one row in READERS: a module with `read(row)`, which gives a Record, `matches(row)`,
and `small_unit(row)`, the unit of a time that is too small for an epoch. Here rows still hold text: errors name the
place and the reason, and never what a row holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from ..errors import RowError, UsageError
from . import block_hash, openai, times, tokens
from .fieldmap import FieldMap
from .record import Record
from .times import Unit

READERS = {"tokens": tokens, "block-hash": block_hash, "openai": openai}  # in the order that detection tries them


def open_reader(
    name: str,
    sample_rows: Iterable[bytes],
    *,
    field_map: Mapping[str, str] | None = None,
    time_unit: str = "auto",
    allow_truncated: bool = False,
) -> LogReader:
    """The reader of that name, or for `auto` the one that the sample's rows (lines of JSON) fit; its times likewise.

    UsageError where an argument names nothing; RowError where the sample fits no reader or no unit of time.

    >>> reader = open_reader("auto", [b'{"timestamp": 0, "input": "Hello", "output": 3}'])
    >>> reader.describe()
    {'reader': 'block-hash (detected)', 'time': 'milliseconds from the start (detected)'}
    """
    if name != "auto" and name not in READERS:
        raise UsageError(f"there is no log reader {name!r}; it is one of auto, {', '.join(READERS)}.")
    stated = None if time_unit == "auto" else times.stated(time_unit)
    fields = FieldMap.of(field_map)
    rows = [fields.overlay(row) for row in map(_row_or_none, sample_rows) if row is not None]
    chosen = name if name != "auto" else "block-hash" if "input" in fields else detect(rows)
    reader = LogReader(
        chosen, stated, fields, allow_truncated, name_detected=name == "auto", unit_detected=time_unit == "auto"
    )
    return reader if stated else reader.with_unit_of(rows)


def detect(rows: Iterable[dict]) -> str:
    """The name of the reader that most of the rows fit; RowError where none fits any.

    >>> detect([{"messages": [], "created": 0}])
    'openai'
    """
    fits = Counter(next((name for name, reader in READERS.items() if reader.matches(row)), "none") for row in rows)
    if set(fits) == {"none"}:
        reason = "the first rows fit no log reader: there is no input, messages, prompt or prompt_token_ids."
        raise RowError(reason, hint="Try --map input=FIELD.")
    del fits["none"]
    return max(fits, key=fits.__getitem__, default="block-hash")  # without rows, any will do


@dataclass(frozen=True)
class LogReader:
    """Reads lines of one log; made by open_reader, the same in every worker."""

    name: str
    unit: Unit | None  # None where the sample held no time
    fields: FieldMap
    allow_truncated: bool = False
    name_detected: bool = False
    unit_detected: bool = False

    def read(self, line: bytes) -> Record:
        """The Record of one line; RowError, with JSON path and without content, where it is not a good one."""
        row = self._row(line)
        try:
            record = READERS[self.name].read(row)
        except RowError as error:
            error.field = self.fields.source(error.field)
            raise
        if record.cut and not self.allow_truncated:
            hint = "Log whole texts, or take them as they are with --allow-truncated."
            raise RowError("was cut by the logger.", field=self.fields.source(record.cut), hint=hint)
        return record

    def time_ns(self, record: Record) -> int:
        """The record's time in nanoseconds; RowError where it does not fit the log's unit."""
        if self.unit is None:
            raise RowError("the unit of times is not known: the first rows held none.", hint="Try --time-unit.")
        return self.unit.parse(record.time)

    def describe(self) -> dict[str, str]:
        """Words for what was stated or detected."""
        unit = "none found in the first rows" if self.unit is None else _how(str(self.unit), self.unit_detected)
        return {"reader": _how(self.name, self.name_detected), "time": unit}

    def with_unit_of(self, rows: list[dict]) -> LogReader:
        """The same reader with the unit that the times of these rows fit."""
        reader = READERS[self.name]
        found: list[Any] = []
        small: Counter[str | None] = Counter()
        for row in rows:
            try:
                found.append(reader.read(row).time)
            except RowError:
                continue
            small[reader.small_unit(row)] += 1
        default = max(small, key=small.__getitem__, default=None)
        return replace(self, unit=times.detect(found, default))

    def _row(self, line: bytes) -> dict[str, Any]:
        fault = None
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            fault = error.colno
        if fault is not None:  # raised out here, so that orjson's error, which holds the line, does not hang on ours
            raise _not_json(line, fault)
        if type(row) is not dict:
            raise RowError("is JSON, but not an object.", hint="A row is one object a line.")
        return self.fields.overlay(row) if self.fields else row


def _row_or_none(line):
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return row if type(row) is dict else None


def _how(words, detected):
    return f"{words} ({'detected' if detected else 'stated'})"


def _not_json(line, column):
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return RowError(f"not UTF-8 at byte {error.start}.")
    hint = None
    if line.strip() in (b"{", b"["):
        hint = "A row is one object a line: try jq -c to make lines of one JSON text."
    return RowError(f"not valid JSON at column {column}.", hint=hint)
