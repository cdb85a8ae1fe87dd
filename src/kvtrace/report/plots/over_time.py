"""Hit rate over time, in each window and cumulative: without eviction, and of LRU at one capacity."""

from __future__ import annotations

import numpy as np

from ...trace.trace import Trace
from .plot import BINS, NO_DURATION, Axis, Panel, Plot, Series, Study, highest, rate_axis, time_bins, time_unit


def plot(study: Study) -> Plot:
    """Block hit rate in windows and cumulative, without eviction and at the study's capacity.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0", "0", "0"))).panels[0].series[1].y[-1].round(3).item()
    0.667
    """
    caches = {"no eviction": study.hit_blocks}
    if (at_capacity := study.at_capacity) is not None:
        caches[f"LRU, {study.capacity:,} blocks"] = at_capacity.hit_blocks
    explanation = (
        "The warm-up of a cache, and the variation of reuse over time, without eviction and at one capacity "
        "(--capacity)."
    )
    return Plot("Hit rate over time", explanation, [panel(study.trace, caches)])


def panel(trace: Trace, caches: dict[str, np.ndarray]) -> Panel:
    """The block hit rate of each window, and cumulative, which is dotted.

    Args:
        trace: The trace.
        caches: Name of a cache -> the hit blocks of each request.
    """
    title = "Block hit rate over time"
    duration = float(trace.timestamp[-1])
    if not duration:
        return Panel(title, missing=NO_DURATION)
    which, middle, unit, _ = time_bins(trace)
    blocks = np.bincount(which, trace.prompt_blocks, BINS)
    has_blocks = blocks > 0
    window = f"windows of {duration / BINS / time_unit(duration / BINS)[1]:.3g} {time_unit(duration / BINS)[0]}"
    series = []
    for number, (name, hit_blocks) in enumerate(caches.items()):
        hits = np.bincount(which, hit_blocks, BINS)
        windows, cumulative = hits[has_blocks] / blocks[has_blocks], np.cumsum(hits) / np.maximum(np.cumsum(blocks), 1)
        series.append(Series(f"{name}: {window}", middle[has_blocks], windows, number))
        series.append(Series(f"{name}: cumulative", middle[has_blocks], cumulative[has_blocks], number, "dash"))
    time = Axis(f"time ({unit})", limits=(0, 0), unit=unit)
    return Panel(title, time, rate_axis("block hit rate", highest(series)), series)
