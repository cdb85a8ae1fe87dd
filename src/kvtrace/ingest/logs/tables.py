"""Logs as tables: CSV with a heading and one row a line, or a row's cells as a JSON list (layouts.py)."""

from __future__ import annotations

import csv
import re
from typing import Any

import orjson

from ..._base.errors import RowError
from . import fields

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
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
