"""The distribution of values that each stand for so many, of which only a piece is in memory at a time.

The values come sorted. What is summed does not depend on how they came to be, so that a trace read in a stream and one
in memory have the same mean to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil, floor, fsum, sqrt

import numpy as np

from .distribution import Distribution

Pieces = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]  # (values, how many each stands for), twice the same


def of_sorted(pieces: Pieces, quantiles=()) -> Distribution:
    """The distribution of values that rise, from piece to piece too: as `Distribution.of_counted` of them all.

    >>> parts = [(np.array([1.0, 2.0]), np.array([1, 2])), (np.array([5.0]), np.array([1]))]
    >>> found = of_sorted(lambda: parts)
    >>> found.count, found.mean, found.median, found.max
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
    wanted = [0.25, 0.5, 0.75, *quantiles]
    p25, median, p75, *rest = _at(pieces, [q * (total - 1) for q in wanted])
    asked = dict(zip(quantiles, rest, strict=True))
    return Distribution(total, mean, sqrt(squares / total), float(ends[0]), p25, median, p75, float(ends[-1]), asked)


def _at(pieces, places) -> list[float]:
    """The value at each place, linear between the two values that it lies between."""
    whole = np.unique([side(place) for place in places for side in (floor, ceil)])
    found: dict[int, float] = {}
    before = 0
    for values, counts in pieces():
        reached = before + np.cumsum(counts)
        here = whole[(whole >= before) & (whole < reached[-1])]
        found |= zip(here.tolist(), values[np.searchsorted(reached, here, side="right")].tolist(), strict=True)
        before = int(reached[-1])
    return [_between(found[floor(place)], found[ceil(place)], place - floor(place)) for place in places]


def _between(low, high, share) -> float:
    return float(low + (high - low) * share)
