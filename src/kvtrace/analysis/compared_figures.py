"""One figure of two traces: its values, the distance of the two, and the tables of `kvtrace compare`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .._base.results import Described, column, columns_in
from .._base.tables import TextTable, number, printable
from .distribution import Distribution

Unit = Literal["blocks", "tokens", "share"]
QUANTILES = (0.9, 0.99)
ERRORS = ("mean", "std", "p25", "median", "p75")  # figures with a relative error, besides QUANTILES


class Scored(Described):
    """A figure of two traces: its score comes first."""

    distance: float | None

    @property
    @column("score", ",.4f", rank=0, none="-")
    def score(self) -> float | None:
        """1 - distance."""
        return None if self.distance is None else 1 - self.distance


@dataclass(frozen=True)
class DistributionPair(Scored):
    """The distributions of one quantity in two traces."""

    distance: float | None  # Kolmogorov-Smirnov; None if neither trace has values
    a: Distribution
    b: Distribution

    @property
    @column()
    def errors(self) -> dict[str, float | None]:
        """Relative error of each figure, (b - a) / a; None if it is not defined."""
        a, b = self.a.to_dict(), self.b.to_dict()
        names = (*ERRORS, *(f"q{q:g}" for q in QUANTILES))
        return {name: relative_error(a.get(name), b.get(name)) for name in names}

    def to_row(self) -> dict[str, Any]:
        """The row of the CSV of docs/analysis/compare.md: both means, and the relative errors."""
        errors = {f"{name}_error": error for name, error in self.errors.items()}
        return {"score": self.score, "distance": self.distance, "a": self.a.mean, "b": self.b.mean} | errors


@dataclass(frozen=True)
class NumberPair(Scored):
    """One number of two traces."""

    a: float | None
    b: float | None
    distance: float | None = field(  # from 0 to 1; None if it is not defined
        metadata=column("distance", ",.4f", rank=2, none="-")
    )

    @property
    @column()
    def difference(self) -> float | None:
        """b - a."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    @column()
    def ratio(self) -> float | None:
        """b / a."""
        return None if self.a is None or self.b is None or not self.a else self.b / self.a

    def to_row(self) -> dict[str, Any]:
        """The row of the CSV of docs/analysis/compare.md."""
        return {"score": self.score, "distance": self.distance, "a": self.a, "b": self.b}


@dataclass(frozen=True)
class CurvePair(Scored):
    """The hit curves of two traces over one axis of capacities."""

    unit: Unit = field(metadata=column("by", rank=0))  # of the axis; share: of the working set
    rate: str  # one of RATES
    first: float | None = field(  # the compared range: both curves are exact from `first` on, and complete at `last`
        metadata=column("from", ",.0f", none="-")
    )
    last: float | None = field(metadata=column("to", ",.0f", none="-"))
    points: int
    distance: float | None = field(  # the largest difference of the rates; None if neither trace has blocks
        metadata=column("largest", ",.4f", none="-")
    )
    at: float | None = field(metadata=column("at", ",.0f", none="-"))  # the capacity of the largest difference
    mean: float | None = field(  # mean difference over the points, which are evenly spaced on a log scale
        metadata=column("mean", ",.4f", none="-")
    )

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


NAMES = {
    "input_length": "Input length (ISL), tokens",
    "output_length": "Output length (OSL), tokens",
    "hit_tokens": "Hit tokens of a request",
    "gap_ms": "Gap between arrivals, ms",
    "turns": "Turns of a session",
    "turn_gap_ms": "Time to the next turn, ms",
    "growth": "Context growth, tokens",
    "reuse_time_ms": "Reuse time, ms",
    "reuse_distance": "Reuse distance",
    "compactions": "Compactions of a session",
    "think_ms": "Think time, ms",
    "service_ms": "Service time, ms",
    "subagents": "Subagents of a session",
    "spawn_width": "Subagents at once",
    "session_hit_tokens": "Same-session hit tokens",
    "cross_session_hit_tokens": "Cross-session hit tokens",
    "length_correlation": "ISL-OSL rank correlation",
    "block_hit_rate": "Block hit rate, unlimited",
    "token_hit_rate": "Token hit rate, unlimited",
    "request_hit_rate": "Request hit rate, unlimited",
    "session_block_hit_rate": "Same-session block hit rate",
    "cross_session_block_hit_rate": "Cross-session block hit rate",
    "first_turns": "Requests that begin a session",
    "dispersion_1s": "Dispersion of the rate, 1 s",
    "dispersion_10s": "Dispersion of the rate, 10 s",
    "dispersion_60s": "Dispersion of the rate, 60 s",
    "curve_by_capacity": "Hit curve by capacity",
    "curve_by_share": "Hit curve by share",
}
ERROR_NAMES = {"q0.9": "p90", "q0.99": "p99"}


def score_table(
    names: tuple[str, str],
    overall: float,
    distributions: Mapping[str, DistributionPair],
    numbers: Mapping[str, NumberPair],
    curves: Mapping[str, CurvePair],
) -> TextTable:
    """Score, distance and both values of each figure. A distribution is shown by its mean."""
    table = TextTable(f"Fidelity: {overall:.4f}, the mean of the scores (lengths and times are shown by their means)")
    table.remedy = "use --csv or a wider terminal"
    rows = [_row(name, pair, number(pair.a.mean), number(pair.b.mean)) for name, pair in distributions.items()]
    rows += [_row(name, pair, *map(_four_digits, (pair.a, pair.b))) for name, pair in numbers.items()]
    rows += [_row(name, pair) for name, pair in curves.items()]
    columns = {"name": column(rank=0)} | columns_in(NumberPair) | {"a": column("a", str), "b": column("b", str)}
    a, b = map(printable, names)
    return table.add_results(columns, rows, ("name", "score", "distance", "a", "b"), a=a, b=b)


def _row(name: str, pair: Scored, a: str = "", b: str = "") -> dict[str, Any]:
    return {"name": NAMES[name], "score": pair.score, "distance": pair.distance, "a": a, "b": b}


def error_table(distributions: Mapping[str, DistributionPair]) -> TextTable:
    """Relative errors of the figures of each distribution, second trace against first."""
    columns = {
        name: column(ERROR_NAMES.get(name, name), "+z.1%", none="-")
        for name in next(iter(distributions.values())).errors
    }
    rows = [{"name": NAMES[name].split(",")[0]} | pair.errors for name, pair in distributions.items()]
    table = TextTable("Relative errors, second trace against first")
    return table.add_results({"name": column(rank=0)} | columns, rows, ("name", *columns))


def curve_table(curves: Mapping[str, CurvePair]) -> TextTable:
    """The difference of the hit curves, and the compared range of capacities."""
    rate = next(iter(curves.values())).rate.replace("_", " ")
    rows: list[dict[str, Any]] = []
    for curve in curves.values():
        rows.append(curve.to_dict() | {"unit": f"capacity ({curve.unit})"})
        if curve.unit == "share":
            shares = {name: getattr(curve, name) for name in ("first", "last", "at")}
            percents = {name: f"{value:.2%}" for name, value in shares.items() if value is not None}
            rows[-1] |= {"unit": "share of the working set"} | percents
    shown = ("unit", "first", "last", "distance", "at", "mean")
    return TextTable(f"Difference of the {rate}s of an LRU cache").add_results(columns_in(CurvePair), rows, shown)


def _four_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4f}"
