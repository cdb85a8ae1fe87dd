"""The distance of two samples (Kolmogorov-Smirnov), and the rank correlation of two columns (Spearman)."""

from __future__ import annotations

import numpy as np

from .._base.arrays import offsets_of

WeightedValues = tuple[np.ndarray, np.ndarray | None]  # values, and the count of each value (None: 1)


def distance(a: WeightedValues, b: WeightedValues) -> float:
    """The Kolmogorov-Smirnov distance: the largest gap between the two cumulative distributions.

    Neither sample may be empty.

    >>> distance((np.array([1, 2]), None), (np.array([2, 3]), None))
    0.5
    """
    one, other = _cumulative(*a), _cumulative(*b)
    gaps = [np.abs(_share_up_to(values, *one) - _share_up_to(values, *other)).max() for values in (one[0], other[0])]
    return float(max(gaps))


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:
    """The rank correlation of two columns, with the mean rank for ties; None if a column is constant.

    >>> spearman(np.array([1, 2, 9]), np.array([10, 20, 30]))
    1.0
    """
    ranks = [_ranks(np.asarray(values)) for values in (x, y)]
    first, second = (rank - rank.mean() if len(rank) else rank for rank in ranks)
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(np.clip(first @ second / scale, -1, 1)) if scale else None


def _cumulative(values, counts):
    """Sorted values, and the share of the sample up to each position."""
    if counts is None:
        return np.sort(values), np.arange(len(values) + 1) / len(values)
    order = np.argsort(values, kind="stable")
    reached = offsets_of(counts[order])
    return values[order], reached / reached[-1]


def _share_up_to(at, values, share):
    return share[np.searchsorted(values, at, side="right")]


def _ranks(values):
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[which]
