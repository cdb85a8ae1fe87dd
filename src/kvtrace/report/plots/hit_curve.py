"""Hit rate against capacity: an LRU cache at every size, the offline optimum at some, and what no cache exceeds."""

from __future__ import annotations

import numpy as np

from ...cache.many_settings import settings_of, simulate_settings
from .plot import Axis, Panel, Plot, Series, Study, log_ticks, short

POINTS = 200  # capacities that the curve is drawn through
OPTIMA = 12  # and those at which the optimum is simulated


def plot(study: Study) -> Plot:
    """The exact hit curve, block and token hit rate.

    >>> from kvtrace.trace.building import toy
    >>> [series.name for series in plot(Study(toy("0 1", "2", "0 1"))).panels[0].series]
    ['block hit rate, LRU', 'token hit rate, LRU', 'block, belady', 'block, unlimited', 'token, unlimited']
    """
    curve = study.curve
    capacity = np.array(curve.capacities(POINTS))
    hits = curve.hits(capacity)
    best = curve.at(curve.working_set)
    optimum = simulate_settings(study.trace, settings_of(curve.capacities(OPTIMA), ["belady"]))
    series = [
        Series("block hit rate, LRU", capacity, np.array([found.block_hit_rate for found in hits]), 0),
        Series("token hit rate, LRU", capacity, np.array([found.token_hit_rate for found in hits]), 1),
        Series(
            "block, belady", np.array([done.setting.capacity for done in optimum]),
            np.array([done.hits.block_hit_rate for done in optimum]), 2,
        ),
        *(
            Series(name, capacity[[0, -1]], np.full(2, rate), colour, "dash")
            for colour, (name, rate) in enumerate(
                (("block, unlimited", best.block_hit_rate), ("token, unlimited", best.token_hit_rate))
            )
        ),
    ]  # fmt: skip
    units = ["blocks", "share of the working set"] + ["GiB"] * bool(study.kv_bytes_per_token)
    labels = {tick: _label(study, tick) for tick in log_ticks(capacity[0], capacity[-1], (1, 3))}
    top = max(best.block_hit_rate, best.token_hit_rate)
    return Plot(
        "Hit rate against capacity",
        "How large a cache must be. LRU eviction, one request at a time, exact at every capacity that holds the "
        f"longest prompt ({curve.longest:,} blocks); belady is the best that any eviction order could do.",
        [
            Panel(
                "Hit rate by capacity",
                Axis(f"capacity ({', '.join(units)})", log=True, ticks=labels),
                Axis("hit rate", percent=True, limits=(0, min(1.0, top * 1.15) or 1.0)),
                series,
            )
        ],
    )


def _label(study, capacity):
    lines = [short(capacity), f"{100 * capacity / study.curve.working_set:.2g}%"]
    if study.kv_bytes_per_token:
        lines.append(short(capacity * study.trace.block_size * study.kv_bytes_per_token / 2**30))
    return "\n".join(lines)
