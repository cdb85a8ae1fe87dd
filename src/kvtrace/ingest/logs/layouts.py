"""The layout of the rows of a log: one per line, in a JSON array, or in a table whose cells have line breaks.

Rows of an array, and records of such a table, become one line each while the file is read, so that all else sees lines.
A row is in memory at a time, and so are the rows of a piece. The first bytes of a file decide its layout:

    lines   anything else; each line is a row
    json    an array of objects; objects over several lines, one after the other; {"data": [...]} and {"runs": [...]},
            as APIs answer
    parquet     a Parquet table, as data warehouses export logs
    kv-events   a batch of KV events a line, which kv_events.py turns into rows
    table   a heading of column names, unless the columns are those of logs of lengths only, which need no quotes
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import orjson

from ..._base.errors import InputError, RowError
from ..._base.files import MAX_LINE
from ..._base.json_values import parsed_json
from ...formats import parquet
from . import fields, kv_batches

_NAME = re.compile(r"[A-Za-z_][\w .()/-]{0,63}", re.ASCII)  # a column name; fragments of JSON or prose do not match
_WHOLE = re.compile(r"-?[0-9]{1,18}(\.0*)?", re.ASCII)  # data frames write 12.0


def heading(line: bytes) -> tuple[str, ...] | None:
    """The column names if the line is a table's heading (at least two different names), else None.

    >>> heading(b"TIMESTAMP,ContextTokens,GeneratedTokens")
    ('TIMESTAMP', 'ContextTokens', 'GeneratedTokens')
    """
    names = _cells(line)
    if names is None or not 1 < len(names) == len(set(names)) or not all(_NAME.fullmatch(name) for name in names):
        return None
    return tuple(names)


def row(line: bytes, columns: tuple[str, ...]) -> dict[str, str] | None:
    """Column -> cell, without empty cells; None if the line repeats the heading. RowError if it is not such a row."""
    cells = _cells(line)
    if cells is None:
        raise RowError("is not a CSV row in UTF-8.")
    if tuple(cells) == columns:
        return None
    if len(cells) != len(columns):
        raise RowError(f"has {len(cells):,} cells, but the heading has {len(columns):,}.")
    return {name: cell for name, cell in zip(columns, cells, strict=True) if cell}


def token_count(row: dict[str, Any], *names: str) -> int:
    """The number of tokens in the first of these columns that is set; RowError if none is.

    >>> token_count({"ContextTokens": "4808"}, "input_length", "ContextTokens")
    4808
    """
    cell, path = fields.find([("", row)], *names)
    if type(cell) is str:
        if not _WHOLE.fullmatch(cell):
            raise RowError("is not a whole number of tokens.", field=path)
        cell = int(cell.partition(".")[0])
    number = fields.count(cell, path)
    if number is None:
        raise RowError("is missing. It must hold a number of tokens.", field=names[-1])
    return number


def _cells(line) -> list[str] | None:
    if line[:2] == b'["' and type(cells := _json(line)) is list and all(type(cell) is str for cell in cells):
        return [cell.strip() for cell in cells]
    try:
        rows = list(csv.reader([line.decode()], strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    return [cell.strip() for cell in rows[0]] if len(rows) == 1 else None


def _json(line):
    try:
        return parsed_json(line)
    except (orjson.JSONDecodeError, RowError):
        return None


LENGTHS_ONLY = frozenset(("ContextTokens", "GeneratedTokens", "Request tokens", "Response tokens"))
HEAD = 4096  # bytes that decide
_ENVELOPE = re.compile(rb'\{\s*"(data|runs)"\s*:\s*\[\s*\{')
_ARRAY = re.compile(rb"\[\s*\{")
_OBJECTS = re.compile(rb"\{[ \t\r]*\n")  # an object over several lines
# a whole string, a bracket, or the start of a string whose end is not read yet
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[][{}"]', re.DOTALL)
_SEPARATORS = b" \t\r\n,["


def layout_of(head: bytes) -> str:
    """The layout of a log that begins with these bytes: lines, json, parquet, kv-events or table.

    >>> layout_of(b'[\\n {"a": 1}'), layout_of(b'{"a": 1}\\n{"a": 2}'), layout_of(b"time,prompt\\n0,Hello")
    ('json', 'lines', 'table')
    """
    if head[:4] == parquet.MAGIC:
        return "parquet"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if kv_batches.is_events(text):
        return "kv-events"
    if _base_depth(text) is not None:
        return "json"
    first, newline, _ = text.partition(b"\n")
    columns = heading(first.strip()) if newline and first[:1] not in b"[{" else None
    return "lines" if columns is None or LENGTHS_ONLY & set(columns) else "table"


PARQUET_ROWS = 256  # at a time: a row of a log may have a megabyte


def parquet_lines(path: str) -> Iterator[bytes]:
    """The rows of a Parquet table as JSON, one a line, without empty cells; InputError if it cannot be read."""
    for table in parquet.tables(path, PARQUET_ROWS):
        for cells in table.to_pylist():
            row = {name: cell for name, cell in cells.items() if cell is not None}
            yield orjson.dumps(row, default=_plain_cell)


def _plain_cell(cell):
    """A cell that JSON does not have: bytes hold text, and a decimal number or a duration is written out."""
    return cell.decode(errors="replace") if type(cell) is bytes else str(cell)


def json_lines(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The objects of a JSON array or of objects over several lines, one a line; InputError if the array is cut.

    Text between them that is not JSON's comes as a line of its own, which is then a bad row.

    >>> list(json_lines([b'[{"a": ', b'"x]"},\\n {"b":\\n 2}', b"]"], "a.json"))
    [b'{"a": "x]"}', b'{"b":  2}']
    """
    chunks = iter(chunks)
    first = b""
    while len(first) < HEAD and (chunk := next(chunks, b"")):
        first += chunk
    first = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    text, place, depth, start, base = b"", 0, 0, -1, _base_depth(first) or 0
    for chunk in chain([first], chunks):
        text += chunk
        # what comes before is not needed again; an API's answer has other fields, too
        consumed = place if base == 2 else 0
        for match in _TOKEN.finditer(text, place):
            token = text[match.start() : match.start() + 1]
            if token == b'"' and match.end() - match.start() == 1:
                place = match.start()  # the rest of the string is in the next chunk
                break
            place = match.end()
            if token in b"{[":
                if token == b"{" and depth == base and start < 0:
                    if base < 2 and (stray := text[consumed : match.start()].strip(_SEPARATORS)):
                        yield _one_line(stray)
                    start = match.start()
                depth += 1
            elif token in b"}]":
                depth -= 1
                if depth == base and start >= 0:
                    yield _one_line(text[start : match.end()])
                    start, consumed = -1, match.end()
        keep = start if start >= 0 else consumed
        text, place, start = text[keep:], place - keep, start - keep if start >= 0 else -1
        if len(text) > MAX_LINE:
            raise InputError(f"{name}: a row is longer than {MAX_LINE:,} bytes.")
    if depth > 0 or start >= 0:
        raise InputError(f"{name}: ends inside its JSON. The file is incomplete.")
    if base < 2 and (stray := text.strip(_SEPARATORS + b"]")):
        yield _one_line(stray)


def table_lines(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The records of a table, one a line: its cells as a JSON list, so that they may have line breaks.

    >>> list(table_lines([b'time,prompt\\n0,"Hello', b'\\nyou"\\n'], "a.csv"))
    [b'["time","prompt"]', b'["0","Hello\\\\nyou"]']
    """
    csv.field_size_limit(MAX_LINE)
    physical: list[str] = []  # the lines of the present record
    reader = csv.reader(_noted(_lines(chunks, name), physical), strict=True)
    while True:
        record = None
        try:
            record = next(reader)
            line = orjson.dumps(record)
        except StopIteration:
            return
        except (csv.Error, orjson.JSONEncodeError):  # not such a row, or not UTF-8
            line = "".join(physical).encode("utf-8", "surrogateescape").replace(b"\n", b" ").replace(b"\r", b" ")
        physical.clear()
        if record != []:  # a blank line
            yield line


def _base_depth(text: bytes) -> int | None:
    """The depth of brackets at which the rows stand; None if each line is a row."""
    if _ENVELOPE.match(text):
        return 2
    if _ARRAY.match(text):
        return 1
    return 0 if _OBJECTS.match(text) else None


def _one_line(row: bytes) -> bytes:
    """The row without line breaks: in valid JSON they are between values only."""
    return row.replace(b"\n", b" ").replace(b"\r", b" ")


def _lines(chunks, name) -> Iterator[str]:
    """Physical lines, with their ends; bytes that are not UTF-8 are escaped."""
    for line in physical_lines(chunks, name):
        yield line.decode("utf-8", "surrogateescape")


def physical_lines(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The lines of a stream, with their ends and without a byte order mark.

    >>> list(physical_lines([b"a\\nb", b"c"], "log.csv"))
    [b'a\\n', b'bc']
    """
    rest, at_start = b"", True
    for chunk in chunks:
        rest = (rest + chunk).lstrip(b"\xef\xbb\xbf\r\n") if at_start else rest + chunk
        at_start = at_start and not rest
        *lines, rest = rest.split(b"\n")
        yield from (line + b"\n" for line in lines)
        if len(rest) > MAX_LINE:
            raise InputError(f"{name}: a line is longer than {MAX_LINE:,} bytes.")
    if rest:
        yield rest


def _noted(lines, seen: list[str]) -> Iterator[str]:
    for line in lines:
        seen.append(line)
        yield line
