"""Tables and CSV with a row or a table for each capacity: those of `kvtrace curve` and `kvtrace tune`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._base.results import columns_in
from .._base.tables import TextTable, csv_text

if TYPE_CHECKING:
    from ..cache.tuning import Tuned, TunedPolicy

GIB = 1 << 30
RATES = {"block_hit_rate": "block", "token_hit_rate": "token", "request_hit_rate": "request"}


def curve_table(curve: dict[str, Any]) -> TextTable:
    """A table with one row for each point of a curve's `to_dict()`; the last row is a cache that never evicts."""
    table = TextTable(f"LRU hit rates, one request at a time, blocks of {curve['block_size']:,} tokens")
    table.remedy = "use --csv or a wider terminal"
    table.add_column("capacity (blocks)", right=True)
    table.add_column("tokens", right=True, rank=2)
    if curve["kv_bytes_per_token"]:
        table.add_column("GiB", right=True)
    table.add_column("of the working set", right=True)
    table.add_columns((f"{name} hit rate" for name in RATES.values()), right=True)
    for point in curve["points"]:
        mark = "" if point["exact"] or curve["sample"] else "*"
        table.add_row(f"{mark}{point['capacity']:,}", *_sizes(point), f"{point['share']:.2%}", *_rates(point))
    blank = [""] * (3 if curve["kv_bytes_per_token"] else 2)
    table.add_row("unlimited", *blank, *_rates(curve["unlimited"]))
    return table


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
    return csv_text([_flat(point) for point in curve["points"]])


def _sizes(point):
    yield f"{point['capacity_tokens']:,}"
    if "capacity_bytes" in point:
        yield f"{point['capacity_bytes'] / GIB:,.2f}"


def _rates(point):
    errors = point.get("error", {})
    return [f"{point[rate]:.4f}" + (f" ±{errors[rate]:.4f}" if rate in errors else "") for rate in RATES]


def _flat(point):
    errors = point.get("error", {})
    flat = {name: value for name, value in point.items() if name != "error"}
    return flat | {f"{rate}_error": error for rate, error in errors.items()}


def tune_tables(tuned: Tuned) -> list[TextTable]:
    """A table for each capacity, the policies that close most of the gap first and the bounds last."""
    capacities = dict.fromkeys(row.capacity for row in tuned.rows)
    return [_table(tuned, [row for row in tuned.rows if row.capacity == one], one) for one in capacities]


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
