"""Distributions: the seven figures that datagen and AIPerf print, plus any quantiles; and the distance of two samples.

`distribution_of_sorted` takes sorted values with counts, of which only one piece is in memory at a time. The sums do
not depend on the source of the values: a streamed trace and a trace in memory have the same mean to the last bit. The
data frames of `DistributionFrames` have a row for each distribution. `distance` is that of Kolmogorov and Smirnov,
`spearman` a rank correlation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, floor, fsum, sqrt
from typing import Any

import numpy as np

from .._base.arrays import offsets_of
from .._base.results import DescribedResult, PlottedResult, column, columns_of, headed
from .._base.tables import TextTable, html, number

FIGURES = ("mean", "std", "min", "p25", "median", "p75", "max")


@dataclass(frozen=True, repr=False)
class Distribution(DescribedResult):
    """Mean, population standard deviation (ddof 0), extremes and linear percentiles; None for an empty sample."""

    count: int
    mean: float | None = field(default=None, metadata=column("mean", number, none="-"))
    std: float | None = field(default=None, metadata=column("std", number, rank=3, none="-"))
    min: float | None = field(default=None, metadata=column("min", number, rank=2, none="-"))
    p25: float | None = field(default=None, metadata=column("p25", number, none="-"))
    median: float | None = field(default=None, metadata=column("median", number, none="-"))
    p75: float | None = field(default=None, metadata=column("p75", number, none="-"))
    max: float | None = field(default=None, metadata=column("max", number, none="-"))
    quantiles: dict[float, float] = field(
        default_factory=dict,
        metadata=column(spread={}, value=lambda values: {f"q{q:g}": value for q, value in values.items()}),
    )

    @classmethod
    def of(cls, values: np.ndarray, quantiles: Sequence[float] = ()) -> Distribution:
        """The distribution of the values.

        >>> Distribution.of(np.array([1, 2, 3, 4]), [0.9]).quantiles
        {0.9: 3.7}
        """
        if not len(values):
            return cls(0)
        shares = [0.25, 0.5, 0.75, *quantiles]
        percentiles = [float(value) for value in np.percentile(values, [100 * q for q in shares])]
        return cls._of_figures(
            len(values), values.mean(), values.std(), values.min(), percentiles, values.max(), quantiles
        )

    @classmethod
    def of_counted(cls, values: np.ndarray, counts: np.ndarray, quantiles: Sequence[float] = ()) -> Distribution:
        """The distribution of values with counts: `of(np.repeat(values, counts))` in less memory.

        >>> Distribution.of_counted(np.array([5, 1]), np.array([1, 3])) == Distribution.of(np.array([1, 1, 1, 5]))
        True
        """
        values, counts = values[counts > 0], counts[counts > 0]
        total = int(counts.sum())
        if not total:
            return cls(0)
        order = np.argsort(values, kind="stable")
        values, cumulative = values[order].astype(np.float64), np.cumsum(counts[order])
        mean = float(np.average(values, weights=counts[order]))
        std = float(np.sqrt(np.average((values - mean) ** 2, weights=counts[order])))
        percentiles = [_quantile(values, cumulative, total, q) for q in (0.25, 0.5, 0.75, *quantiles)]
        return cls._of_figures(total, mean, std, values[0], percentiles, values[-1], quantiles)

    @classmethod
    def _of_figures(cls, count, mean, std, low, percentiles, high, quantiles) -> Distribution:
        p25, median, p75, *rest = percentiles
        extra = dict(zip(quantiles, rest, strict=True))
        return cls(count, float(mean), float(std), float(low), p25, median, p75, float(high), extra)

    def figures(self) -> tuple[float | None, ...]:
        """The seven figures, in the order of FIGURES."""
        return tuple(self.named().values())

    def named(self) -> dict[str, float | None]:
        """The seven figures by name."""
        return {name: getattr(self, name) for name in FIGURES}

    def _headline(self) -> str:
        figures = {name: getattr(self, name) for name in ("mean", "min", "median", "max")}
        return ", ".join([f"{self.count:,} values", *(f"{name}={number(value)}" for name, value in figures.items())])


def _quantile(values, cumulative, total, q) -> float:
    """Linear interpolation at position q * (total - 1), as in NumPy."""
    at = q * (total - 1)
    low, high = (values[np.searchsorted(cumulative, end, side="right")] for end in (np.floor(at), np.ceil(at)))
    return float(low + (high - low) * (at - np.floor(at)))


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


class DistributionFrames(PlottedResult):
    """A result that exports its distributions as data frames, and shows its tables in a notebook."""

    def distributions(self) -> dict[str, Distribution]:
        """The distributions by name."""
        raise NotImplementedError

    def tables(self) -> Iterable[TextTable]:
        """The result as text tables."""
        raise NotImplementedError

    def _columns(self) -> dict[str, list[Any]]:
        """One row for each distribution: name, count, the seven figures, and the quantiles."""
        return columns_of({"name": name, **values.to_dict()} for name, values in self.distributions().items())

    def _repr_html_(self) -> str:
        return headed(self, html(self.tables()))


WeightedValues = tuple[np.ndarray, np.ndarray | None]  # values, and the count of each value (None: 1)


def distance(a: WeightedValues, b: WeightedValues) -> float:
    """The Kolmogorov-Smirnov distance: the largest gap between the two cumulative distributions.

    Neither sample may be empty.

    >>> distance((np.array([1, 2]), None), (np.array([2, 3]), None))
    0.5
    """
    of_a, of_b = _cumulative(*a), _cumulative(*b)
    gaps = [np.abs(_share_up_to(values, *of_a) - _share_up_to(values, *of_b)).max() for values in (of_a[0], of_b[0])]
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
