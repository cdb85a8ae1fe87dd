"""Logs that are tables: CSV with a heading, a row a line; a cell that holds a line break is not known here."""

from __future__ import annotations

import csv

from ..errors import RowError


def heading(line: bytes) -> tuple[str, ...] | None:
    """The names of the columns, where the line is a table's heading: two names or more, none of them a number.

    >>> heading(b"TIMESTAMP,ContextTokens,GeneratedTokens")
    ('TIMESTAMP', 'ContextTokens', 'GeneratedTokens')
    """
    names = _cells(line)
    is_heading = names is not None and len(names) > 1 and all(name and not name[0].isdigit() for name in names)
    return tuple(names) if names is not None and is_heading and line[:1] not in b"{[" else None


def row(line: bytes, columns: tuple[str, ...]) -> dict[str, str] | None:
    """A line's cells by their columns, empty ones left out; None where it is the heading again. RowError."""
    cells = _cells(line)
    if cells is None:
        raise RowError("is no row of CSV in UTF-8.")
    if tuple(cells) == columns:
        return None
    if len(cells) != len(columns):
        raise RowError(f"has {len(cells)} cells; the heading has {len(columns)}.")
    return {name: cell for name, cell in zip(columns, cells, strict=True) if cell}


def _cells(line) -> list[str] | None:
    try:
        rows = list(csv.reader([line.decode()], strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    return [cell.strip() for cell in rows[0]] if len(rows) == 1 else None
