"""Hit rate by capacity: LRU at every capacity, the offline optimum at some, and the upper bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..._base.units import short
from ...analysis.exact_curve import HitCurve
from ...analysis.sampled_curve import SampledCurve
from .plot import Axis, Panel, Plot, Series, Study, log_ticks, rate_axis

POINTS = 200  # capacities of the drawn curve


def plot(study: Study) -> Plot:
    """The exact hit curve, block and token hit rate, beside the offline optimum.

    >>> from kvtrace.trace.building import toy
    >>> [series.name for series in plot(Study(toy("0 1", "2", "0 1"))).panels[0].series]
    ['block hit rate, LRU', 'token hit rate, LRU', 'block, belady', 'block, unlimited', 'token, unlimited']
    """
    rates = np.array([hits.block_hit_rate for hits in study.optimum.values()])
    belady = Series("block, belady", np.array(list(study.optimum)), rates, 2)
    drawn = curve_plot(study.curve, study.kv_bytes_per_token, belady)
    return replace(drawn, explanation=f"{drawn.explanation} belady is the optimum of all eviction orders.")


def curve_plot(curve: HitCurve, kv_bytes_per_token: int | None = None, *others: Series) -> Plot:
    """A hit curve, block and token hit rate, with the rates of a cache that never evicts as dotted lines.

    A sampled curve has its 95 % confidence interval around it.

    >>> from kvtrace import hit_curve, toy
    >>> [series.name for series in curve_plot(hit_curve(toy("0 1", "2", "0 1"))).panels[0].series]
    ['block hit rate, LRU', 'token hit rate, LRU', 'block, unlimited', 'token, unlimited']
    """
    capacity = np.array(curve.capacities(POINTS))
    hits, unlimited = curve.hits(capacity), curve.at(curve.working_set)
    names = {"block": "block_hit_rate", "token": "token_hit_rate"}
    rates = {short_name: np.array([getattr(counts, rate) for counts in hits]) for short_name, rate in names.items()}
    limits = {short_name: getattr(unlimited, rate) for short_name, rate in names.items()}
    series = [
        Series(f"{name} hit rate, LRU", capacity, rate, colour) for colour, (name, rate) in enumerate(rates.items())
    ]
    if isinstance(curve, SampledCurve):
        error = curve.errors(capacity)["block_hit_rate"]
        series += [
            Series(f"block, {name}", capacity, np.clip(rates["block"] + sign * error, 0, 1), 0, "dash")
            for name, sign in (("upper end of 95 %", 1), ("lower end of 95 %", -1))
        ]
    series += [*others]
    series += [
        Series(f"{name}, unlimited", capacity[[0, -1]], np.full(2, rate), colour, "dash")
        for colour, (name, rate) in enumerate(limits.items())
    ]
    units = ["blocks", "share of the working set"] + ["GiB"] * bool(kv_bytes_per_token)
    ticks = {tick: _label(curve, kv_bytes_per_token, tick) for tick in log_ticks(capacity[0], capacity[-1], (1, 3))}
    longest = f"exact at every capacity that holds the longest prompt ({curve.longest:,} blocks)"
    how = "estimated from a sample of the blocks" if curve.sample else longest
    return Plot(
        "Hit rate by capacity",
        f"Required cache size. LRU eviction, one request at a time; {how}.",
        [
            Panel(
                "Hit rate by capacity",
                Axis(f"capacity ({', '.join(units)})", log=True, ticks=ticks, unit="blocks"),
                rate_axis("hit rate", max(limits.values())),
                series,
            )
        ],
    )


def _label(curve, kv_bytes_per_token, capacity):
    lines = [short(capacity), f"{100 * capacity / curve.working_set:.2g}%"]
    if kv_bytes_per_token:
        lines.append(short(capacity * curve.block_size * kv_bytes_per_token / 2**30))
    return "\n".join(lines)
