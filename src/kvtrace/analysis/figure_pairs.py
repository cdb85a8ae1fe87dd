"""One figure of two traces: its value in each trace, and the distance of the two values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .distribution import Distribution

QUANTILES = (0.9, 0.99)
ERRORS = ("mean", "std", "p25", "median", "p75")  # figures with a relative error, besides QUANTILES


@dataclass(frozen=True)
class DistributionPair:
    """The distributions of one quantity in two traces."""

    a: Distribution
    b: Distribution
    distance: float | None  # Kolmogorov-Smirnov; None if neither trace has values

    @property
    def score(self) -> float | None:
        """1 - distance."""
        return None if self.distance is None else 1 - self.distance

    @property
    def errors(self) -> dict[str, float | None]:
        """Relative error of each figure, (b - a) / a; None if it is not defined."""
        a, b = self.a.to_dict(), self.b.to_dict()
        names = (*ERRORS, *(f"q{q:g}" for q in QUANTILES))
        return {name: relative_error(a.get(name), b.get(name)) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of docs/analysis/compare.md."""
        both = {"a": self.a.to_dict(), "b": self.b.to_dict()}
        return {"score": self.score, "distance": self.distance} | both | {"errors": self.errors}

    def to_row(self) -> dict[str, Any]:
        """The row of the CSV of docs/analysis/compare.md: both means, and the relative errors."""
        errors = {f"{name}_error": error for name, error in self.errors.items()}
        return {"score": self.score, "distance": self.distance, "a": self.a.mean, "b": self.b.mean} | errors


@dataclass(frozen=True)
class NumberPair:
    """One number of two traces."""

    a: float | None
    b: float | None
    distance: float | None  # from 0 to 1; None if it is not defined

    @property
    def score(self) -> float | None:
        """1 - distance."""
        return None if self.distance is None else 1 - self.distance

    @property
    def difference(self) -> float | None:
        """b - a."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def ratio(self) -> float | None:
        """b / a."""
        return None if self.a is None or self.b is None or not self.a else self.b / self.a

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of docs/analysis/compare.md."""
        return {"score": self.score, **asdict(self), "difference": self.difference, "ratio": self.ratio}

    def to_row(self) -> dict[str, Any]:
        """The row of the CSV of docs/analysis/compare.md."""
        return {"score": self.score, "distance": self.distance, "a": self.a, "b": self.b}


@dataclass(frozen=True)
class CurvePair:
    """The hit curves of two traces over one axis of capacities."""

    unit: str  # of the axis: blocks, tokens or share (of the working set)
    rate: str  # one of HIT_RATES
    first: float | None  # the compared range: both curves are exact from `first` on, and complete at `last`
    last: float | None
    points: int
    distance: float | None  # the largest difference of the rates; None if neither trace has blocks
    at: float | None  # the capacity of the largest difference
    mean: float | None  # mean difference over the points, which are evenly spaced on a log scale

    @property
    def score(self) -> float | None:
        """1 - distance."""
        return None if self.distance is None else 1 - self.distance

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of docs/analysis/compare.md."""
        return {"score": self.score, **asdict(self)}

    def to_row(self) -> dict[str, Any]:
        """The row of the CSV of docs/analysis/compare.md: the largest difference and its capacity, and the mean."""
        return {"score": self.score, "distance": self.distance, "at": self.at, "mean_distance": self.mean}


def relative_error(a: float | None, b: float | None) -> float | None:
    """(b - a) / a; 0 if both are 0, None if only a is 0.

    >>> relative_error(4.0, 5.0), relative_error(0.0, 0.0), relative_error(0.0, 1.0)
    (0.25, 0.0, None)
    """
    if a is None or b is None or (a == 0 and b != 0):
        return None
    return (b - a) / abs(a) if a else 0.0
