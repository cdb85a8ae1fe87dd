"""The distribution of sorted values with counts, of which only one piece is in memory at a time.

The sums do not depend on the source of the values: a streamed trace and a trace in memory have the same mean to the
last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil, floor, fsum, sqrt

import numpy as np

from .distribution import Distribution

ValuePieces = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]  # yields (values, counts), the same on each call


def distribution_of_sorted(pieces: ValuePieces, quantiles=()) -> Distribution:
    """The distribution of values that rise within and across pieces: `Distribution.of_counted` of all of them.

    >>> pieces = [(np.array([1.0, 2.0]), np.array([1, 2])), (np.array([5.0]), np.array([1]))]
    >>> distribution = distribution_of_sorted(lambda: pieces)
    >>> distribution.count, distribution.mean, distribution.median, distribution.max
    (4, 2.5, 2.0, 5.0)
    """
    total, sums, ends = 0, [], []
    for values, counts in pieces():
        total += int(counts.sum())
        sums.append(float((values * counts).sum()))
        ends += [values[0], values[-1]]
    if not total:
        return Distribution(0)
    mean = fsum(sums) / total
    squares = fsum(float(((values - mean) ** 2 * counts).sum()) for values, counts in pieces())
    shares = [0.25, 0.5, 0.75, *quantiles]
    p25, median, p75, *rest = _values_at(pieces, [q * (total - 1) for q in shares])
    extra = dict(zip(quantiles, rest, strict=True))
    return Distribution(total, mean, sqrt(squares / total), float(ends[0]), p25, median, p75, float(ends[-1]), extra)


def _values_at(pieces, positions) -> list[float]:
    """The value at each position, with linear interpolation between whole positions."""
    whole = np.unique([end(position) for position in positions for end in (floor, ceil)])
    value_at: dict[int, float] = {}
    before = 0
    for values, counts in pieces():
        cumulative = before + np.cumsum(counts)
        inside = whole[(whole >= before) & (whole < cumulative[-1])]
        value_at |= zip(
            inside.tolist(), values[np.searchsorted(cumulative, inside, side="right")].tolist(), strict=True
        )
        before = int(cumulative[-1])
    return [_interpolate(value_at[floor(at)], value_at[ceil(at)], at - floor(at)) for at in positions]


def _interpolate(low, high, share) -> float:
    return float(low + (high - low) * share)
