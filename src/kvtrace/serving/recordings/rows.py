"""JSON rows and columns of numbers for the readers of recordings; errors name a field and show no value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ..._base.errors import InputError
from ..._base.input_files import open_read

MAX_BYTES = 1 << 31
NAN = float("nan")


def read_json(path: str | Path) -> Any:
    """The JSON value of a file; the last one, if each line holds one, as benchmarks append their runs."""
    with open_read(path) as file:
        text = file.read(MAX_BYTES)
    for part in (text, text.strip().rpartition(b"\n")[2]):
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(part)
        with suppress(ValueError, RecursionError):  # a benchmark without a limit on its rate writes Infinity
            return json.loads(part)
    raise InputError(f"{path}: not valid JSON.")


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one a line, or of one JSON array."""
    rows: list[Any] = []
    with open_read(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                rows.append(_row(line, path, number))
    if len(rows) == 1 and isinstance(rows[0], list):
        rows = rows[0]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: holds no rows of JSON objects.")
    return rows


def _row(line: bytes, path: str | Path, number: int) -> Any:
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(line)
    raise InputError(f"{path}:{number}: not valid JSON.")


def column(
    rows: Iterable[Mapping[str, Any]], get: Callable[[Mapping[str, Any]], Any], name: str, path: str | Path
) -> np.ndarray:
    """A number of each row, NaN where it is missing; InputError if no row has one.

    >>> column([{"a": 1}, {}], lambda row: row.get("a"), "a", "log").tolist()
    [1.0, nan]
    """
    values = np.array([number_of(get(row)) for row in rows])
    if np.isnan(values).all():
        raise InputError(f"{path}: lacks {name}, which a recording needs.")
    return values


def number_of(value: Any) -> float:
    """A number, or a time in ISO 8601 as seconds since 1970; NaN for anything else.

    >>> number_of(3), number_of("1970-01-01T00:00:02Z"), number_of(None)
    (3.0, 2.0, nan)
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    with suppress(TypeError, ValueError):
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return NAN


def lists(described: Mapping[str, Any], names: Sequence[str], path: str | Path, hint: str) -> list[list[Any]]:
    """The named lists of a benchmark's result, all of one length; InputError names those that are missing."""
    missing = [name for name in names if not isinstance(described.get(name), list) or not described[name]]
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}. {hint}")
    columns = [described[name] for name in names]
    if len({len(values) for values in columns}) > 1:
        raise InputError(f"{path}: {', '.join(names)} have different lengths.")
    return columns


def object_of(value: Any, path: str | Path) -> dict[str, Any]:
    """The value of a file, which must be a JSON object."""
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object.")
    return value


def whole_setting(described: Mapping[str, Any], name: str, path: str | Path) -> int | None:
    """A setting of an engine, a whole number from 1 on; None if it is missing.

    >>> whole_setting({"max_num_seqs": 128}, "max_num_seqs", "meta.json")
    128
    """
    value = described.get(name)
    if value is not None and (type(value) is not int or not 1 <= value < 1 << 31):
        raise InputError(f"{path}: {name} is not a whole number from 1 on.")
    return value


def whole(values: np.ndarray) -> np.ndarray:
    """Token counts as whole numbers, 0 where one is missing."""
    return np.nan_to_num(values, nan=0.0).astype(np.int64)
