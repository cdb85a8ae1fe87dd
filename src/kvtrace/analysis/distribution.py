"""A distribution as the seven figures that datagen and AIPerf print, plus any quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._base.results import Result, columns_of
from .._base.tables import number

FIGURES = ("mean", "std", "min", "p25", "median", "p75", "max")


@dataclass(frozen=True, repr=False)
class Distribution(Result):
    """Mean, population standard deviation (ddof 0), extremes and linear percentiles; None for an empty sample."""

    count: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    p25: float | None = None
    median: float | None = None
    p75: float | None = None
    max: float | None = None
    quantiles: dict[float, float] = field(default_factory=dict)

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

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of([self.to_dict()])

    def to_dict(self) -> dict[str, Any]:
        """The count, the seven figures, and the extra quantiles."""
        return {"count": self.count, **self.named(), **{f"q{q:g}": value for q, value in self.quantiles.items()}}


def _quantile(values, cumulative, total, q) -> float:
    """Linear interpolation at position q * (total - 1), as in NumPy."""
    at = q * (total - 1)
    low, high = (values[np.searchsorted(cumulative, end, side="right")] for end in (np.floor(at), np.ceil(at)))
    return float(low + (high - low) * (at - np.floor(at)))
