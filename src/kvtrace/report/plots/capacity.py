"""Hit rate by capacity: LRU at every capacity, the offline optimum at some, and the upper bound."""

from __future__ import annotations

import numpy as np

from .plot import Axis, Panel, Plot, Series, Study, log_ticks, rate_axis, short

POINTS = 200  # capacities of the drawn curve


def plot(study: Study) -> Plot:
    """The exact hit curve, block and token hit rate.

    >>> from kvtrace.trace.building import toy
    >>> [series.name for series in plot(Study(toy("0 1", "2", "0 1"))).panels[0].series]
    ['block hit rate, LRU', 'token hit rate, LRU', 'block, belady', 'block, unlimited', 'token, unlimited']
    """
    curve = study.curve
    capacity = np.array(curve.capacities(POINTS))
    hits = curve.hits(capacity)
    unlimited = curve.at(curve.working_set)
    series = [
        Series("block hit rate, LRU", capacity, np.array([counts.block_hit_rate for counts in hits]), 0),
        Series("token hit rate, LRU", capacity, np.array([counts.token_hit_rate for counts in hits]), 1),
        Series(
            "block, belady", np.array(list(study.optimum)),
            np.array([counts.block_hit_rate for counts in study.optimum.values()]), 2,
        ),
        *(
            Series(name, capacity[[0, -1]], np.full(2, rate), colour, "dash")
            for colour, (name, rate) in enumerate(
                (("block, unlimited", unlimited.block_hit_rate), ("token, unlimited", unlimited.token_hit_rate))
            )
        ),
    ]  # fmt: skip
    units = ["blocks", "share of the working set"] + ["GiB"] * bool(study.kv_bytes_per_token)
    labels = {tick: _label(study, tick) for tick in log_ticks(capacity[0], capacity[-1], (1, 3))}
    return Plot(
        "Hit rate by capacity",
        "Required cache size. LRU eviction, one request at a time; exact at every capacity that holds the longest "
        f"prompt ({curve.longest:,} blocks). belady is the optimum of all eviction orders.",
        [
            Panel(
                "Hit rate by capacity",
                Axis(f"capacity ({', '.join(units)})", log=True, ticks=labels, unit="blocks"),
                rate_axis("hit rate", series),
                series,
            )
        ],
    )


def _label(study, capacity):
    lines = [short(capacity), f"{100 * capacity / study.curve.working_set:.2g}%"]
    if study.kv_bytes_per_token:
        lines.append(short(capacity * study.trace.block_size * study.kv_bytes_per_token / 2**30))
    return "\n".join(lines)
