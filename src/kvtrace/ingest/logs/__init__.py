"""Raw logs, read: sources are cut into pieces, lines become Records, and times nanoseconds.

A log reader is one file here and one row in READERS: a module with `read(row)`, which gives a Record, or
`read_all(row)`, which gives several, since some rows hold a whole conversation or many spans; `matches(row)`; and
`small_unit(row)`, the unit of a time that is too small for an epoch. A row that is no request raises NotARequest. Here
rows still hold text: errors name the place and the reason, and never what a row holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from ..._base.errors import RowError, UsageError
from . import (
    anthropic,
    azure,
    block_hash,
    burstgpt,
    conversations,
    dynamo,
    litellm,
    openai,
    responses,
    sglang,
    tables,
    times,
    tokens,
)
from .fieldmap import FieldMap
from .otel import reader as otel  # fmt: skip
from .record import Record
from .times import NO_TIME, Unit

READERS = {  # in the order that detection tries them
    "litellm": litellm,
    "otel": otel,
    "sglang": sglang,
    "tokens": tokens,
    "dynamo": dynamo,
    "azure": azure,
    "burstgpt": burstgpt,
    "conversations": conversations,
    "responses": responses,
    "anthropic": anthropic,
    "block-hash": block_hash,
    "openai": openai,
}


def open_reader(
    name: str,
    sample_rows: Iterable[bytes],
    *,
    field_map: Mapping[str, str] | None = None,
    time_unit: str = "auto",
    allow_truncated: bool = False,
    untimed: bool = False,
) -> LogReader:
    """The reader of that name, or for `auto` the one that the sample's rows fit; its times likewise.

    Rows are lines of JSON, or of a table whose heading comes first. With `untimed`, requests need no time.

    UsageError where an argument names nothing; RowError where the sample fits no reader or no unit of time.

    >>> reader = open_reader("auto", [b'{"timestamp": 0, "input": "Hello", "output": 3}'])
    >>> reader.describe()
    {'reader': 'block-hash (detected)', 'time': 'milliseconds from the start (detected)'}
    """
    if name != "auto" and name not in READERS:
        raise UsageError(f"there is no log reader {name!r}; it is one of auto, {', '.join(READERS)}.")
    stated = None if time_unit == "auto" else times.stated(time_unit)
    fields = FieldMap.of(field_map)
    lines = list(sample_rows)
    columns = tables.heading(lines[0]) if lines and _row_or_none(lines[0]) is None else None
    rows = [fields.overlay(row) for line in lines if (row := _row_or_none(line, columns)) is not None]
    chosen = name if name != "auto" else "block-hash" if "input" in fields else detect(rows)
    reader = LogReader(
        chosen, stated, fields, allow_truncated, untimed, columns,
        name_detected=name == "auto", unit_detected=time_unit == "auto",
    )  # fmt: skip
    return reader.informed_by(rows)


def detect(rows: Iterable[dict]) -> str:
    """The name of the reader that most of the rows fit; RowError where none fits any.

    >>> detect([{"messages": [], "created": 0}])
    'openai'
    """
    fits = Counter(next((name for name, reader in READERS.items() if reader.matches(row)), "none") for row in rows)
    if set(fits) == {"none"}:
        reason = f"the first rows are of no known form: {', '.join(READERS)}."
        raise RowError(reason, hint="Try --map input=FIELD, or --log-format.")
    del fits["none"]
    return max(fits, key=fits.__getitem__, default="block-hash")  # without rows, any will do


@dataclass(frozen=True)
class LogReader:
    """Reads lines of one log; made by open_reader, the same in every worker."""

    name: str
    unit: Unit | None  # None where the sample held no time
    fields: FieldMap
    allow_truncated: bool = False
    untimed: bool = False  # requests without a time are taken: an arrival model gives them theirs
    columns: tuple[str, ...] | None = None  # of a table; None where rows are JSON
    block_size: int | None = None  # tokens a block, where the log holds an engine's hashes in place of prompts
    name_detected: bool = False
    unit_detected: bool = False

    def read(self, line: bytes) -> Record:
        """The Record of a line that holds one; RowError, with JSON path and without content, where it is not good."""
        (record,) = self.records(line)
        return record

    def records(self, line: bytes) -> list[Record]:
        """The Records of one line, in order; none of a table's heading. RowError where one of them is not good."""
        row = self._row(line)
        if row is None:
            return []
        try:
            records = records_of(READERS[self.name], row)
        except RowError as error:
            error.field = self.fields.source(error.field)
            raise
        if not self.allow_truncated:
            for record in records:
                self._require_whole(record)
        return records

    def _require_whole(self, record):
        if record.cut:
            hint = "Log whole texts, or take them as they are with --allow-truncated."
            raise RowError("was cut by the logger.", field=self.fields.source(record.cut), hint=hint)
        if record.lacks:
            hint = "Log whole prompts, or take them as they are with --allow-truncated."
            raise RowError(f"the prompt lacks {record.lacks}.", hint=hint)

    @property
    def is_conversation(self) -> bool:
        """Whether the requests that one line holds are turns of one conversation, as long as they name no session."""
        return getattr(READERS[self.name], "CONVERSATION", True)

    @property
    def holds_prompts(self) -> bool:
        """Whether the log has texts or tokens of prompts, and not only their hashes or lengths."""
        return self.block_size is None and getattr(READERS[self.name], "PROMPTS", True)

    def time_ns(self, record: Record) -> int:
        """The record's time in nanoseconds, NO_TIME where it has none; RowError where it does not fit the unit."""
        if record.time is None:
            if self.untimed:
                return NO_TIME
            raise RowError("the log has no times; a trace needs one a request.", hint="Try --arrivals rate=1/s.")
        if self.unit is None:
            raise RowError("the unit of times is not known: the first rows held none.", hint="Try --time-unit.")
        return self.unit.parse(record.time)

    def describe(self) -> dict[str, str]:
        """Words for what was stated or detected."""
        unit = "none found in the first rows" if self.unit is None else _how(str(self.unit), self.unit_detected)
        return {"reader": _how(self.name, self.name_detected), "time": unit}

    def informed_by(self, rows: list[dict]) -> LogReader:
        """The same reader, with the unit that the times of these rows fit and the size of their blocks."""
        reader = READERS[self.name]
        records: list[Record] = []
        small: Counter[str | None] = Counter()
        for row in rows:
            try:
                records += records_of(reader, row)
            except RowError:
                continue
            small[reader.small_unit(row)] += 1
        default = max(small, key=small.__getitem__, default=None)
        unit = self.unit or times.detect([record.time for record in records], default)
        sizes = (record.block_size for record in records if record.block_size is not None)
        return replace(self, unit=unit, block_size=next(sizes, None))

    def _row(self, line: bytes) -> dict[str, Any] | None:
        if self.columns is not None:
            cells = tables.row(line, self.columns)
            return self.fields.overlay(cells) if cells and self.fields else cells
        fault = None
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            fault = error.colno
        if fault is not None:  # raised out here, so that orjson's error, which holds the line, does not hang on ours
            raise _not_json(line, fault)
        if type(row) is not dict:
            hint = ARRAY if _is_array(line) else "A row is one object a line."
            raise RowError("is JSON, but not an object.", hint=hint)
        return self.fields.overlay(row) if self.fields else row


def records_of(reader, row: dict) -> list[Record]:
    """What a reader's module makes of one row."""
    return reader.read_all(row) if hasattr(reader, "read_all") else [reader.read(row)]


def _row_or_none(line, columns=None):
    try:
        if columns is not None:
            return tables.row(line, columns)
        row = orjson.loads(line)
    except (orjson.JSONDecodeError, RowError):
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
    if _is_array(line):
        hint = ARRAY
    elif line.strip() == b"{":
        hint = "A row is one object a line: try jq -c to make lines of one JSON text."
    return RowError(f"not valid JSON at column {column}.", hint=hint)


ARRAY = "A row is one object a line, and this begins an array: try jq -c '.[]' to make lines of it."


def _is_array(line):
    """Whether the line is, or begins, an array of objects, as ShareGPT is published: one JSON text in all."""
    text = line.strip()
    return text[:1] == b"[" and text[1:].lstrip()[:1] in (b"", b"{")
