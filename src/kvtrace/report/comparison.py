"""The CSV of `kvtrace compare --csv`: one row for each figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._base.csv_text import csv_text

if TYPE_CHECKING:
    from ..analysis.comparison import Comparison
    from ..analysis.figure_pairs import CurvePair, DistributionPair, NumberPair


def as_csv(comparison: Comparison) -> str:
    """A header, and one line for each figure. Only distributions have relative errors."""
    rows = [{"figure": "overall", "score": comparison.overall}]
    rows += [{"figure": name} | _flat_distribution(pair) for name, pair in comparison.distributions.items()]
    rows += [{"figure": name} | _flat_number(pair) for name, pair in comparison.numbers.items()]
    rows += [{"figure": name} | _flat_curve(pair) for name, pair in comparison.curves.items()]
    return csv_text(rows, ["figure", "score", "distance", "a", "b"])


def _flat_distribution(pair: DistributionPair) -> dict[str, Any]:
    named = {f"{name}_error": error for name, error in pair.errors.items()}
    return {"score": pair.score, "distance": pair.distance, "a": pair.a.mean, "b": pair.b.mean} | named


def _flat_number(pair: NumberPair) -> dict[str, Any]:
    return {"score": pair.score, "distance": pair.distance, "a": pair.a, "b": pair.b}


def _flat_curve(pair: CurvePair) -> dict[str, Any]:
    return {"score": pair.score, "distance": pair.distance, "at": pair.at, "mean_distance": pair.mean}
