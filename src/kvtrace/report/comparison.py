"""What `kvtrace compare --csv` writes: one row for each figure."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..analysis.comparison import Comparison
    from ..analysis.figure_pairs import Curves, Number, Values


def as_csv(found: Comparison) -> str:
    """A header and a figure a line; errors are relative, and of distributions only."""
    rows = [{"figure": "overall", "score": found.overall}]
    rows += [{"figure": name} | _flat_values(values) for name, values in found.distributions.items()]
    rows += [{"figure": name} | _flat_number(value) for name, value in found.numbers.items()]
    rows += [{"figure": name} | _flat_curve(curve) for name, curve in found.curves.items()]
    names = list(dict.fromkeys(["figure", "score", "distance", "a", "b", *(name for row in rows for name in row)]))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat_values(values: Values) -> dict[str, Any]:
    named = {f"{name}_error": error for name, error in values.errors.items()}
    return {"score": values.score, "distance": values.distance, "a": values.a.mean, "b": values.b.mean} | named


def _flat_number(value: Number) -> dict[str, Any]:
    return {"score": value.score, "distance": value.distance, "a": value.a, "b": value.b}


def _flat_curve(curve: Curves) -> dict[str, Any]:
    return {"score": curve.score, "distance": curve.distance, "at": curve.at, "mean_distance": curve.mean}
