"""Sums of linear ramps and of steps over a capacity. One value takes a few binary searches.

Integer weights give exact sums: a moment that overflows 64 bits wraps around, and the difference wraps back.
"""

from __future__ import annotations

import numpy as np


class PiecewiseLinear:
    """Sums of functions that are 0 up to `start`, rise by `weight` for each block, and are constant from `end` on.

    >>> ramps = PiecewiseLinear(np.array([1, 4]), np.array([3, 5]), np.array([[1, 1], [10, 20]]))
    >>> ramps.at(np.array([0, 1, 2, 3, 4]))
    array([[ 0,  1,  2,  2,  3],
           [ 0, 10, 20, 20, 40]])
    """

    def __init__(self, start: np.ndarray, end: np.ndarray, weights: np.ndarray):
        self._rises, self._stops = _Rises(start, weights), _Rises(end, weights)

    def at(self, capacity: np.ndarray) -> np.ndarray:
        """(weighting, capacity) -> sum. Capacities need not be integers."""
        return self._rises.at(capacity) - self._stops.at(capacity)


class StepFunction:
    """The sum of the weights of all places up to a capacity.

    >>> StepFunction(np.array([5, 2]), np.array([1, 10])).at(np.array([1, 2, 5]))
    array([ 0, 10, 11])
    """

    def __init__(self, place: np.ndarray, weight: np.ndarray):
        self._place, weights = _by_place(place, weight.reshape(1, -1))
        self._weight = _cumulative(weights)[0]

    def at(self, capacity: np.ndarray) -> np.ndarray:
        """capacity -> sum."""
        return self._weight[np.searchsorted(self._place, capacity, side="right")]


class _Rises:
    """The sum of weight * max(0, capacity - start + 1)."""

    def __init__(self, start, weights):
        self._start, weights = _by_place(start, weights)
        self._weight, self._moment = _cumulative(weights), _cumulative(weights * self._start)

    def at(self, capacity):
        reached = np.searchsorted(self._start, capacity + 1, side="left")
        return (capacity + 1) * self._weight[:, reached] - self._moment[:, reached]


def _by_place(place, weights):
    """Places in order with their weights: summed into a table if the table stays small, else sorted."""
    size = int(place.max(initial=0)) + 1
    if size > 4 * len(place):
        order = np.argsort(place, kind="stable")
        return place[order], weights[:, order]
    sums = np.zeros((len(weights), size), dtype=weights.dtype)
    for total, weight in zip(sums, weights, strict=True):
        np.add.at(total, place, weight)
    return np.arange(size), sums


def _cumulative(values):
    """Sums of the first 0, 1, 2, ... values along the last axis."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1), dtype=values.dtype)
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums
