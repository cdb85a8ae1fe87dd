"""Tables and CSV with a row or a table for each capacity: those of `kvtrace curve` and `kvtrace tune`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._base.results import columns_in
from .._base.tables import TextTable, csv_text
from ..analysis.curves import CurvePoint

if TYPE_CHECKING:
    from ..cache.tuning import Tuned, TunedPolicy


def curve_table(curve: dict[str, Any]) -> TextTable:
    """A table with one row for each point of a curve's `to_dict()`; the last row is a cache that never evicts."""
    table = TextTable(f"LRU hit rates, one request at a time, blocks of {curve['block_size']:,} tokens")
    table.remedy = "use --csv or a wider terminal"
    rows = [*map(_with_errors, curve["points"]), {"capacity": "unlimited"} | curve["unlimited"]]
    for row in rows[:-1]:
        if not (row["exact"] or curve["sample"]):
            row["capacity"] = f"*{row['capacity']:,}"
    return table.add_results(columns_in(CurvePoint), rows)


def _with_errors(point: dict[str, Any]) -> dict[str, Any]:
    errors = point.get("error", {})
    return point | {rate: f"{point[rate]:.4f} ±{error:.4f}" for rate, error in errors.items()}


def notes(curve: dict[str, Any]) -> list[str]:
    """Sentences on how to read the table, and the capacities that most of the hits need."""
    sentences, least = [], list(curve["least"].values()) if curve["unlimited"]["hit_blocks"] else []
    exact = all(point["exact"] for point in curve["points"]) and all(size >= curve["longest"] for size in least)
    if curve["sample"]:
        sentences.append(f"Estimated from {curve['sample']:.2%} of the blocks; ± is a 95 % confidence interval.")
    elif not exact:
        sentences.append(
            f"* smaller than the longest request ({curve['longest']:,} blocks). The part of such a request that stays "
            "in the cache depends on the engine, so the figure is only a guide."
        )
    return [*sentences, _least(curve)] if least else sentences


def _least(curve):
    shares = [share.replace("%", " %") for share in curve["least"]]
    blocks = curve["least"].values()
    marks = ["" if curve["sample"] or size >= curve["longest"] else "*" for size in blocks]
    sizes = [f"{mark}{size:,}" for mark, size in zip(marks, blocks, strict=True)]
    about = "about " if curve["sample"] else ""
    return f"{_and(shares)} of the unlimited block hits need {about}{_and(sizes)} blocks."


def _and(parts):
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def as_csv(curve: dict[str, Any]) -> str:
    """A header, and one line for each point, with the keys of `to_dict()`."""
    rows = [
        point | {f"{rate}_error": error for rate, error in point.get("error", {}).items()} for point in curve["points"]
    ]
    return csv_text([{key: value for key, value in row.items() if key != "error"} for row in rows])


def tune_tables(tuned: Tuned) -> list[TextTable]:
    """A table for each capacity, the policies that close most of the gap first and the bounds last."""
    capacities = dict.fromkeys(row.capacity for row in tuned.rows)
    return [_table(tuned, [row for row in tuned.rows if row.capacity == capacity], capacity) for capacity in capacities]


def tune_notes(tuned: Tuned) -> list[str]:
    """The policies that were not tried, and why; policies with equal reasons are named together."""
    reasons: dict[str, list[str]] = {}
    for policy, reason in tuned.skipped.items():
        clause = reason.removesuffix(" Try lru.").removeprefix("the ").removeprefix(f"policy {policy} ")
        reasons.setdefault(clause, []).append(policy)
    return [
        f"Not tried: {', '.join(names)}, which {reason if len(names) == 1 else reason.replace('needs', 'need', 1)}"
        for reason, names in reasons.items()
    ]


def tune_csv(tuned: Tuned) -> str:
    """A header, and one line for each result, with the keys of the JSON."""
    return csv_text([row.to_dict() for row in tuned.rows])


def _table(tuned: Tuned, rows: list[TunedPolicy], capacity: int) -> TextTable:
    from ..cache.tuning import TunedPolicy, looks_ahead

    counted = tuned.requests - tuned.first_half
    table = TextTable(
        f"Capacity {capacity:,} blocks: settings chosen on the first {tuned.first_half:,} requests, hits of the last "
        f"{counted:,}",
        remedy="use --csv or a wider terminal",
    )
    ordered = sorted(_joined(rows), key=lambda row: (looks_ahead(row.policy), -(row.gap_closed or 0.0)))
    table.add_results(columns_in(TunedPolicy), [row.to_dict() for row in ordered])
    return table


def _joined(rows: list[TunedPolicy]) -> Iterator[TunedPolicy]:
    """The rows; one for both pools if a policy has equal settings and hits in them."""
    by_policy: dict[str, list[TunedPolicy]] = {}
    for row in rows:
        by_policy.setdefault(row.policy, []).append(row)
    for of_policy in by_policy.values():
        if len({(row.setting, row.hits) for row in of_policy}) == 1:
            yield replace(of_policy[0], pool="both" if len(of_policy) > 1 else of_policy[0].pool)
        else:
            yield from of_policy
