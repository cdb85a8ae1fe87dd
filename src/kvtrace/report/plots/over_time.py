"""Hit rate over time, in each window and cumulative: without eviction, and of LRU at one capacity."""

from __future__ import annotations

import numpy as np

from .plot import BINS, NO_DURATION, Axis, Panel, Plot, Series, Study, rate_axis, time_bins, time_unit


def plot(study: Study) -> Plot:
    """Block hit rate in windows and cumulative, without eviction and at the study's capacity.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0", "0", "0"))).panels[0].series[1].y[-1].round(3).item()
    0.667
    """
    title, trace = "Block hit rate over time", study.trace
    duration = float(trace.timestamp[-1])
    if not duration:
        return _plot(Panel(title, missing=NO_DURATION))
    which, middle, unit, _ = time_bins(trace)
    blocks = np.bincount(which, trace.prompt_blocks, BINS)
    has_blocks = blocks > 0
    window = f"windows of {duration / BINS / time_unit(duration / BINS)[1]:.3g} {time_unit(duration / BINS)[0]}"
    caches = {"no eviction": study.hit_blocks}
    if (at_capacity := study.at_capacity) is not None:
        caches[f"LRU, {study.capacity:,} blocks"] = at_capacity.hit_blocks
    series = []
    for number, (name, hit_blocks) in enumerate(caches.items()):
        hits = np.bincount(which, hit_blocks, BINS)
        windows, cumulative = hits[has_blocks] / blocks[has_blocks], np.cumsum(hits) / np.maximum(np.cumsum(blocks), 1)
        series.append(Series(f"{name}: {window}", middle[has_blocks], windows, number))
        series.append(Series(f"{name}: cumulative", middle[has_blocks], cumulative[has_blocks], number, "dash"))
    time = Axis(f"time ({unit})", limits=(0, 0), unit=unit)
    return _plot(Panel(title, time, rate_axis("block hit rate", series), series))


def _plot(panel):
    explanation = (
        "The warm-up of a cache, and the variation of reuse over time, without eviction and at one capacity "
        "(--capacity)."
    )
    return Plot("Hit rate over time", explanation, [panel])
