"""The users of a trace, from a file beside it: numbered on reading, never written."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .._base.errors import InputError
from .._base.files import name_of
from .._base.input_files import open_read
from ..formats import reading
from ..trace.trace import Trace

COLUMN = "\0user"  # an extra column during reading, so that users stay with their rows


def read_with_users(
    trace: str | Path, users: str | Path | None, *, block_size: int | None = None
) -> tuple[Trace, np.ndarray | None]:
    """Read a trace and the users of its requests (request -> number, -1 = unknown; None without `users`).

    `users` is a file with one line for each row of the trace; InputError if their numbers differ.
    """
    if users is None:
        return reading.read(trace, block_size=block_size), None
    whole = reading.read(trace, block_size=block_size, add_columns=lambda rows: {COLUMN: numbered(users, rows)})
    user_numbers = whole.extra.pop(COLUMN)
    return whole, user_numbers


def numbered(users: str | Path, rows: int) -> np.ndarray:
    """The user number of each line of a file, -1 for an empty line; InputError if it does not have `rows` lines."""
    with open_read(users) as stream:
        lines = stream.read().split(b"\n")
    if lines and not lines[-1]:
        del lines[-1]
    if len(lines) != rows:
        raise InputError(
            f"{name_of(users)}: the file has {len(lines):,} lines, but the trace has {rows:,} rows. Give one line for "
            "each row."
        )
    number: dict[bytes, int] = {}
    names = (line.strip() for line in lines)
    return np.array([number.setdefault(name, len(number)) if name else -1 for name in names], dtype=np.int64)
