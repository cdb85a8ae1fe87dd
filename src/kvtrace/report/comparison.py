"""What `kvtrace compare` shows: tables of scores, distributions and hit curves, and rows for a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from .analysis import number, plain

if TYPE_CHECKING:
    from ..analysis.comparison import Comparison, Curves, Number, Values

NAMES = {
    "input_length": "Input length (ISL), tokens",
    "output_length": "Output length (OSL), tokens",
    "hit_tokens": "Hit tokens of a request",
    "gap_ms": "Gap between arrivals, ms",
    "turns": "Turns of a session",
    "think_ms": "Time to the next turn, ms",
    "growth": "Context growth, tokens",
    "reuse_time_ms": "Reuse time, ms",
    "reuse_distance": "Reuse distance",
    "length_correlation": "ISL-OSL rank correlation",
    "block_hit_rate": "Block hit rate, unlimited",
    "token_hit_rate": "Token hit rate, unlimited",
    "request_hit_rate": "Request hit rate, unlimited",
    "first_turns": "Requests that begin a session",
    "dispersion_1s": "Dispersion of the rate, 1 s",
    "dispersion_10s": "Dispersion of the rate, 10 s",
    "dispersion_60s": "Dispersion of the rate, 60 s",
    "curve_by_capacity": "Hit curve by capacity",
    "curve_by_share": "Hit curve by share",
}
ERROR_NAMES = {"q0.9": "p90", "q0.99": "p99"}


def tables(found: Comparison) -> Iterator[Table]:
    """Scores first, then the errors of each distribution, then the hit curves."""
    yield scores(found)
    yield errors(found)
    yield curves(found)


def scores(found: Comparison) -> Table:
    """Each figure's score, its distance, and its value in both traces: of a distribution, the mean."""
    one, other = (Text(plain(name)) for name in found.names)
    table = _table(
        f"Fidelity: {found.overall:.4f}, the mean of the scores (lengths and times are shown by their means)", ""
    )
    for name in ("score", "distance", one, other):
        table.add_column(name, justify="right", no_wrap=True)
    for name, values in found.distributions.items():
        _add(table, name, number(values.a.mean), number(values.b.mean), values)
    for name, value in found.numbers.items():
        _add(table, name, _four(value.a), _four(value.b), value)
    for name, curve in found.curves.items():
        _add(table, name, "", "", curve)
    return table


def errors(found: Comparison) -> Table:
    """Relative errors of each distribution's figures, second trace against first."""
    table = _table("Relative errors, second trace against first", "")
    names = list(next(iter(found.distributions.values())).errors)
    for name in names:
        table.add_column(ERROR_NAMES.get(name, name), justify="right", no_wrap=True)
    for name, values in found.distributions.items():
        table.add_row(NAMES[name].split(",")[0], *(_percent(values.errors[figure]) for figure in names))
    return table


def curves(found: Comparison) -> Table:
    """How far apart the hit curves are, over which capacities."""
    rate = next(iter(found.curves.values())).rate.replace("_", " ")
    table = _table(f"Difference of the {rate}s of an LRU cache", "by")
    for name in ("from", "to", "greatest", "at", "mean"):
        table.add_column(name, justify="right", no_wrap=True)
    for curve in found.curves.values():
        by = "share of the working set" if curve.unit == "share" else f"capacity ({curve.unit})"
        ends = [_place(curve, value) for value in (curve.first, curve.last)]
        table.add_row(by, *ends, _four(curve.distance), _place(curve, curve.at), _four(curve.mean))
    return table


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


def _add(table, name, a, b, found):
    table.add_row(NAMES[name], _four(found.score), _four(found.distance), a, b)


def _four(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+z.1%}"


def _place(curve: Curves, value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}" if curve.unit == "share" else f"{value:,.0f}"


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    return table
