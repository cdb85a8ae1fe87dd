"""Who sent each request of a trace: read from a file beside it, numbered, and forgotten."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .._base.errors import InputError
from .._base.files import name_of, open_read
from ..formats import trace_files as formats
from ..trace.trace import Trace

COLUMN = "\0user"  # an extra column while a trace is read, so that users move with their rows


def read_with_users(
    trace: str | Path, users: str | Path | None, *, block_size: int | None = None
) -> tuple[Trace, np.ndarray | None]:
    """The Trace in a file, and request -> number of its user (-1 = unknown), None without `users`.

    `users` is a file of one line for each row of the trace file; InputError where their numbers differ.
    """
    if users is None:
        return formats.read(trace, block_size=block_size), None
    whole = formats.read(trace, block_size=block_size, add_columns=lambda rows: {COLUMN: numbered(users, rows)})
    held = whole.extra.pop(COLUMN)
    return whole, held


def numbered(users: str | Path, rows: int) -> np.ndarray:
    """The number of the user on each line of a file, -1 where it is empty; InputError if there are not so many."""
    with open_read(users) as stream:
        lines = stream.read().split(b"\n")
    if lines and not lines[-1]:
        del lines[-1]
    if len(lines) != rows:
        raise InputError(f"{name_of(users)}: has {len(lines):,} lines; the trace has {rows:,} rows.")
    number: dict[bytes, int] = {}
    found = (line.strip() for line in lines)
    return np.array([number.setdefault(line, len(number)) if line else -1 for line in found], dtype=np.int64)
