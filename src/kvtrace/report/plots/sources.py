"""Hits by source: the share of prompt blocks that each tier serves over time, of a simulation with tiers."""

from __future__ import annotations

import numpy as np

from ...cache.simulation import Simulation
from ...cache.tiered import TieredSimulation
from ...serving.instances import FleetSimulation
from ...serving.serving_run import FIRST_TIER, ServingRun
from .causes import COLOURS, named, round_window, warm_up_note
from .plot import NO_DURATION, Axis, Panel, Plot, Series, time_unit

TITLE = "Prompt blocks by source"
TIERS = (0, -1, -4, -3, -5, -7, -2)  # colours of the tiers, the first one first; a miss has that of a first use


def sources_of(run: Simulation) -> dict[str, np.ndarray]:
    """Tier -> the hit blocks of each request that came from it, the first tier first; empty without tiers.

    >>> from kvtrace.cache.tiered import simulate_tiers
    >>> from kvtrace.trace.building import toy
    >>> run = simulate_tiers(toy("0 1", "2 3", "0 1"), {"hbm": 2, "dram": 2})
    >>> {name: hits.tolist() for name, hits in sources_of(run).items()}
    {'hbm, 2 blocks': [0, 0, 0], 'dram, 2 blocks': [0, 0, 2]}
    """
    if isinstance(run, ServingRun) and run.lower_tier_hits is not None:
        sizes = [(FIRST_TIER, run.setting.capacity), *((tier.name, tier.capacity) for tier in run.tiers)]
        hits = np.vstack([run.hit_blocks - run.lower_tier_hits.sum(axis=0), run.lower_tier_hits])
    elif isinstance(run, FleetSimulation) and run.sources is not None:
        sizes, hits = [(tier.name, tier.capacity) for tier in run.sources.tiers], run.sources.hits
    elif isinstance(run, TieredSimulation) and run.tier_hits is not None:
        sizes, hits = list(run.tiers), run.tier_hits
    else:
        return {}
    return {f"{name}, {size:,} blocks": each for (name, size), each in zip(sizes, hits, strict=True)}


def sources_plot(run: Simulation) -> Plot:
    """The share of prompt blocks that each tier serves, in windows of time.

    >>> from kvtrace.cache.tiered import simulate_tiers
    >>> from kvtrace.trace.building import toy
    >>> run = simulate_tiers(toy("0 1", "2 3", "0 1", gap_ms=60_000), {"hbm": 2, "dram": 2})
    >>> {series.name: series.y[-1].item() for series in sources_plot(run).panels[0].series}
    {'hbm, 2 blocks': 0.0, 'dram, 2 blocks': 1.0, 'miss': 0.0}
    """
    explanation = "Which tier served the prompt blocks of the requests that arrived in each window; the rest missed."
    if isinstance(run, FleetSimulation) and run.instances > 1:
        explanation += f" {run.instances:,} instances behind the router {run.router}."
    return Plot("Hits by source over time", explanation, [sources_panel(run)])


def sources_panel(run: Simulation) -> Panel:
    """Bars on one another: each tier, the blocks that missed, and those of requests that were rejected."""
    trace = run.trace
    duration = float(trace.timestamp[-1]) if len(trace) else 0.0
    if not duration:
        return Panel(TITLE, missing=NO_DURATION)
    window_ms, (unit, ms) = round_window(duration), time_unit(duration)
    which = (trace.timestamp // window_ms).astype(np.int64)  # request -> its window
    windows = int(which[-1]) + 1
    middle = (np.arange(windows) + 0.5) * window_ms / ms
    blocks = np.bincount(which, trace.prompt_blocks, windows)
    rejected = np.isnan(run.ended_s) if isinstance(run, ServingRun) else np.zeros(len(trace), dtype=bool)
    tiers = sources_of(run)
    served = np.where(rejected, 0, trace.prompt_blocks)
    parts = [(name, hits, TIERS[number % len(TIERS)]) for number, (name, hits) in enumerate(tiers.items())]
    parts.append(("miss", served - sum(tiers.values()), COLOURS["first_use"]))
    if rejected.any():
        parts.append(("rejected", trace.prompt_blocks - served, COLOURS["not_served"]))
    series = []
    for name, counts, colour in parts:
        share = np.divide(np.bincount(which, counts, windows), blocks, out=np.zeros(windows), where=blocks > 0)
        series.append(Series(name, middle, share, colour, "stack"))
    time = Axis(f"time ({unit})", limits=(0, 0), unit=unit)
    share_axis = Axis(f"share of blocks in {named(window_ms)}", percent=True, limits=(0, 1))
    return Panel(TITLE, time, share_axis, series, note=warm_up_note(run.warm_up))
