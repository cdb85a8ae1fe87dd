"""The tables and the CSV of `kvtrace tune`: for each capacity, the share of the gap that each policy closes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .._base.tables import TextTable, csv_text
from ..cache.tuning import Tuned, TunedPolicy, looks_ahead


def tables(tuned: Tuned) -> list[TextTable]:
    """A table for each capacity, the policies that close most of the gap first and the bounds last."""
    capacities = dict.fromkeys(row.capacity for row in tuned.rows)
    return [_table(tuned, [row for row in tuned.rows if row.capacity == one], one) for one in capacities]


def notes(tuned: Tuned) -> list[str]:
    """The policies that were not tried, and why; policies with equal reasons are named together."""
    reasons: dict[str, list[str]] = {}
    for policy, reason in tuned.skipped.items():
        clause = reason.removesuffix(" Try lru.").removeprefix("the ").removeprefix(f"policy {policy} ")
        reasons.setdefault(clause, []).append(policy)
    return [
        f"Not tried: {', '.join(names)}, which {reason if len(names) == 1 else reason.replace('needs', 'need', 1)}"
        for reason, names in reasons.items()
    ]


def as_csv(tuned: Tuned) -> str:
    """A header, and one line for each result, with the keys of the JSON."""
    return csv_text([row.to_dict() for row in tuned.rows])


def _table(tuned: Tuned, rows: list[TunedPolicy], capacity: int) -> TextTable:
    counted = tuned.requests - tuned.first_half
    table = TextTable(
        f"Capacity {capacity:,} blocks: settings chosen on the first {tuned.first_half:,} requests, hits of the last "
        f"{counted:,}",
        remedy="use --csv or a wider terminal",
    )
    table.add_column("setting", rank=0)
    table.add_column("pool", rank=0)
    table.add_columns(["gap closed"], right=True, rank=0)
    table.add_columns(["block hit rate", "token hit rate", "settings tried"], right=True)
    table.legend["gap closed"] = "share of the gap from lru (0) to belady (1), the best possible eviction order"
    ordered = sorted(_joined(rows), key=lambda row: (looks_ahead(row.policy), -(row.gap_closed or 0.0)))
    for row in ordered:
        closed = "" if row.gap_closed is None else f"{row.gap_closed:.3f}"
        rates = (f"{row.hits.block_hit_rate:.4f}", f"{row.hits.token_hit_rate:.4f}")
        table.add_row(row.setting, row.pool, closed, *rates, f"{row.tried:,}")
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
