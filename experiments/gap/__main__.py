"""`python -m experiments.gap DATA`: the tables of experiments/gap.md, from a folder of shared data."""

from __future__ import annotations

from pathlib import Path

import click

import kvtrace
from experiments.gap.bounds import bounds_of
from experiments.gap.load import CONVERSATIONS, capacities_of, traces_of
from experiments.gap.tuned import tuned_table
from experiments.hints.tables import put, table
from kvtrace.cache.tuning import TunedPolicy, looks_ahead
from kvtrace.trace.trace import Trace

LEAST = 50  # hit blocks between LRU and belady, below which shares are chance
SHOWN = ("arc", "lfu-da", "slru", "s3fifo", "2q", "pgdsf", "lhd", "workload", "agent-hints", "reuse-density")
BOUNDS = ("classes in hindsight", "fine in hindsight", "dead blocks")


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False))
@click.option("--page", type=click.Path(dir_okay=False, exists=True), help="Also replace the tables of this page.")
def main(data: str, page: str | None) -> None:
    """Print the share of the gap from LRU to belady that each policy closes on held-out halves, and the bounds."""
    orders, bounds = [], []
    for name, trace in traces_of(Path(data)):
        click.echo(name, err=True)
        for cells, more in rows_of(name, trace):
            orders.append(cells)
            bounds.append(more)
    heads = ["trace, tokens per block", "capacity", "LRU", "belady"]
    tables = {
        "orders": table([*heads, *(f"`{one}`" for one in SHOWN)], orders),
        "bounds": table([*heads[:2], "best policy", "`reuse-density`", *BOUNDS], bounds),
    }
    tables["conversation"] = tuned_table(kvtrace.read(Path(data) / CONVERSATIONS))
    for mark, text in tables.items():
        click.echo(f"{mark}\n\n{text}\n")
    if page:
        put(Path(page), tables)


def rows_of(name: str, trace: Trace) -> list[tuple[list[str], list[str]]]:
    """For each capacity the cells of both tables; capacities without a gap to close are left out.

    >>> trace = kvtrace.toy(*["0 1", "2", "3", "0 1", "4", "0 1"] * 40, gap_ms=1000)
    >>> [cells[:4] for cells, _ in rows_of("toy", trace)]
    [['toy', '2 (40 %)', '0.3333', '0.6667']]
    """
    rows = []
    tuned = kvtrace.cache.tune(trace, capacities_of(trace))
    for capacity in dict.fromkeys(row.capacity for row in tuned.rows):
        here = [row for row in tuned.rows if row.capacity == capacity]
        lru, belady = (next(row.hits for row in here if row.policy == one) for one in ("lru", "belady"))
        gap = belady.hit_blocks - lru.hit_blocks
        if gap < LEAST:
            continue
        closed = {one: closed_by(one, here) for one in SHOWN}
        best = max((row for row in here if not looks_ahead(row.policy)), key=lambda row: row.hits.hit_blocks)
        first = [name, f"{capacity:,} ({capacity / trace.working_set:.0%})".replace("%", " %")]
        rates = [f"{one.block_hit_rate:.4f}" for one in (lru, belady)]
        known = bounds_of(trace, capacity)
        shares = [_share((known[one] - lru.hit_blocks) / gap) for one in BOUNDS]
        orders = [*first, *rates, *(_share(closed[one]) for one in SHOWN)]
        rows.append(
            (orders, [*first, f"`{best.policy}` {_share(best.gap_closed)}", _share(closed["reuse-density"]), *shares])
        )
    return rows


def closed_by(policy: str, rows: list[TunedPolicy]) -> float | None:
    """The share that a policy closes in the pool that was better on the first half; None if it was not tried."""
    pools = [row for row in rows if row.policy == policy]
    return max(pools, key=lambda row: row.first_half_hit_blocks).gap_closed if pools else None


def _share(value: float | None) -> str:
    return "" if value is None else f"{round(value, 2) + 0.0:.2f}"  # no -0.00


if __name__ == "__main__":
    main()
