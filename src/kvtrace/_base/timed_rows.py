"""Rows of a small file that a person writes by time: CSV with named columns, or JSON lines; errors name the line.

A rate profile and a fleet's schedule are such files.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import InputError, UsageError
from .input_files import open_read
from .units import milliseconds

MAX_BYTES = 1 << 24  # of a file
MAX_TIME_S = 1e9
CLOCK = re.compile(r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?")  # HH:MM or HH:MM:SS


def timed_rows(path: str | Path, name: str, what: str, columns: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, values by column) of each row.

    Args:
        path: The file.
        name: Its name in errors.
        what: What it is, such as "a rate profile".
        columns: The columns of its first line as CSV, such as "time,rate"; one of them is `time`.

    Raises:
        InputError: The file is too long, not text, or not CSV or JSON lines.
    """
    with open_read(path) as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InputError(f"{name}: the file is longer than {MAX_BYTES:,} bytes; it is not {what}.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{name}: not {what} (it is not UTF-8 text).") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if lines and lines[0][1].lstrip().startswith("{"):
        return _json_rows(lines, name)
    return _csv_rows(lines, name, columns)


def _json_rows(lines, name):
    for number, line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{name}:{number}: the line is not a JSON object.")
        yield number, row


def _csv_rows(lines, name, columns):
    heads: list[str] = []
    for number, line in lines:
        try:
            values = [value.strip() for value in next(csv.reader([line]))]
        except csv.Error:
            raise InputError(f"{name}:{number}: the line is not valid CSV.") from None
        if not heads:
            heads = [value.lower() for value in values]
            if "time" not in heads or len(set(heads)) != len(heads):
                raise InputError(f"{name}:{number}: the first line must name the columns: {columns}.")
        elif len(values) != len(heads):
            raise InputError(f"{name}:{number}: {len(values)} values for {len(heads)} columns.")
        else:
            yield number, dict(zip(heads, values, strict=True))


def seconds_of(value: object, where: str) -> float:
    """Seconds of a number, a duration or a time of day; InputError if it is none of them.

    >>> seconds_of("08:30", "a:1"), seconds_of("90m", "a:1"), seconds_of(5, "a:1")
    (30600.0, 5400.0, 5.0)
    """
    clock = CLOCK.fullmatch(str(value).strip())
    if clock:
        hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return hours * 3600.0 + minutes * 60 + seconds
    amount = number_of(value)
    if amount is None and isinstance(value, str):
        try:
            amount = milliseconds(value) / 1000
        except UsageError:
            amount = None
    if amount is None or not 0 <= amount <= MAX_TIME_S:
        raise InputError(
            f"{where}: the time is not valid. Use seconds (28800), a duration (8h) or a time of day (08:00)."
        )
    return amount


def number_of(value: object) -> float | None:
    """A number, or the number that a text states; None if it is neither."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
