"""What a service measured, as keys of JSON rows: named as its columns, and omitted where a number is unknown."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.errors import RowError, UsageError
from ..trace.columns import Columns
from ..trace.measured import MEASURED, measured_of
from .jsonl_read import OnError, time_of, whole
from .read_result import ReadResult


def measured_number(value: Any, name: str) -> float:
    """The value of a key; null is the value for unknown, RowError if it is not a number of its kind.

    >>> measured_number(2, "ttft_ms"), measured_number(None, "cached_tokens")
    (2.0, -1)
    """
    if value is None:
        return MEASURED[name].unknown
    return whole(value, name) if MEASURED[name].dtype is np.int64 else time_of(value, name)


def take_measured(result: ReadResult, on_error: OnError | None = None) -> None:
    """Move the measured columns of a file from its extra columns to columns of their own.

    A value that is not a number is an error of its row: it is raised, or passed to `on_error` and read as unknown.
    """
    columns = result.columns
    for name in [name for name in MEASURED if name in columns.extra]:
        setattr(columns, name, _numbers(columns.extra.pop(name), name, result, on_error))


def measured_keys(columns: Columns) -> dict[str, np.ndarray]:
    """The measured columns by key, None where a number is unknown; whole numbers have no decimal point.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> measured_keys(replace_columns(toy("0", "1"), cached_tokens=[1, 0], ttft_ms=[2.5, np.nan]))
    {'cached_tokens': array([1, 0]), 'ttft_ms': array([2.5, None], dtype=object)}
    """
    return {name: _printable(values, MEASURED[name].is_known(values)) for name, values in measured_of(columns).items()}


def require_other_names(extra: dict[str, Any]) -> None:
    """UsageError if an extra column has the name of a measured one: it would be read back as that."""
    if clash := [name for name in MEASURED if name in extra]:
        raise UsageError(f"the extra column {clash[0]!r} conflicts with the measured column. Rename it.")


def _numbers(values: np.ndarray, name: str, result: ReadResult, on_error: OnError | None) -> np.ndarray:
    number = MEASURED[name]
    if values.dtype == np.int64 or (values.dtype == np.float64 and number.dtype is np.float64):
        return values.astype(number.dtype)
    numbers: np.ndarray = np.full(len(values), number.unknown, dtype=number.dtype)
    for row, value in enumerate(values.tolist()):
        try:
            numbers[row] = measured_number(value, name)
        except RowError as error:
            located = result.error(row, error.reason)
            if on_error is None:
                raise located from None
            on_error(located)
    return numbers


def _printable(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    is_whole = known & (np.floor(values) == values)
    if is_whole.all():
        return values.astype(np.int64)
    printable = values.astype(object)
    printable[is_whole] = values[is_whole].astype(np.int64)
    printable[~known] = None
    return printable
