"""Numbers and columns of numbers for the formulas: float64, not negative, all of one shape."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from ..._base.errors import UsageError

MOST = float(1 << 53)  # up to here float64 represents every whole number


def columns(**given: Any) -> tuple[np.ndarray, ...]:
    """Each named number or array as float64, broadcast to one shape; UsageError names the faulty one.

    >>> [column.tolist() for column in columns(new=[1, 2], cached=3)]
    [[1.0, 2.0], [3.0, 3.0]]
    """
    checked = [column(name, values) for name, values in given.items()]
    shape: tuple[int, ...] | None = None
    with suppress(ValueError):
        shape = np.broadcast_shapes(*(values.shape for values in checked))
    if shape is None:
        raise UsageError(f"{', '.join(given)}: columns of different lengths. Give each one row per request.")
    return tuple(np.broadcast_to(values, shape) for values in checked)


def column(name: str, values: Any, *, endless: bool = False) -> np.ndarray:
    """A number or an array as float64, from 0 to 2**53; infinite values are valid only with `endless`."""
    array: np.ndarray | None = None
    with suppress(TypeError, ValueError):  # lists of different lengths
        array = np.asarray(values)
    if array is None or array.dtype.kind not in "iuf":
        raise UsageError(f"{name}: not a number or an array of numbers.")
    wide = array.astype(np.float64)
    fine = (wide >= 0) & ((wide <= MOST) | (endless & np.isinf(wide)))
    if not fine.all():
        raise UsageError(f"{name}: negative, not finite or beyond 2**53 in {np.count_nonzero(~fine):,} places.")
    return wide


def number(name: str, value: Any, least: float, most: float) -> None:
    """Raise UsageError unless the value is a number within the bounds, inclusive."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # nan is not within any bounds
        raise UsageError(f"{name} must be a number from {least:g} to {most:g}.")
