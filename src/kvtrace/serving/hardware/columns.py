"""Numbers and columns of numbers as the formulas take them: float64, none negative, all of one shape."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from ..._base.errors import UsageError

MOST = float(1 << 53)  # up to here every whole number is one in float64


def columns(**given: Any) -> tuple[np.ndarray, ...]:
    """Each of the named numbers or arrays as float64, broadcast to one shape; UsageError names the one that is wrong.

    >>> [column.tolist() for column in columns(new=[1, 2], cached=3)]
    [[1.0, 2.0], [3.0, 3.0]]
    """
    checked = [column(name, values) for name, values in given.items()]
    shape: tuple[int, ...] | None = None
    with suppress(ValueError):
        shape = np.broadcast_shapes(*(values.shape for values in checked))
    if shape is None:
        raise UsageError(f"{', '.join(given)}: columns of different lengths. Give each a row a request.")
    return tuple(np.broadcast_to(values, shape) for values in checked)


def column(name: str, values: Any, *, endless: bool = False) -> np.ndarray:
    """A number or an array as float64, from 0 to 2**53, infinite ones only where `endless`."""
    found: np.ndarray | None = None
    with suppress(TypeError, ValueError):  # lists of different lengths
        found = np.asarray(values)
    if found is None or found.dtype.kind not in "iuf":
        raise UsageError(f"{name}: no number, and no array of numbers.")
    wide = found.astype(np.float64)
    fine = (wide >= 0) & ((wide <= MOST) | (endless & np.isinf(wide)))
    if not fine.all():
        raise UsageError(f"{name}: negative, not finite or beyond 2**53 in {np.count_nonzero(~fine):,} places.")
    return wide


def number(name: str, value: Any, least: float, most: float) -> None:
    """UsageError unless the value is one number within bounds, both included."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # nan is not within any bounds
        raise UsageError(f"{name} is no number from {least:g} to {most:g}.")
