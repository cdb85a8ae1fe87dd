"""Hit rate over time: in each window, and cumulative."""

from __future__ import annotations

import numpy as np

from .plot import BINS, NO_DURATION, Axis, Panel, Plot, Series, Study, time_bins, time_unit


def plot(study: Study) -> Plot:
    """Block hit rate in windows and cumulative, without eviction.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0", "0", "0"))).panels[0].series[1].y[-1].round(3).item()
    0.667
    """
    title, trace = "Block hit rate over time", study.trace
    duration = float(trace.timestamp[-1])
    if not duration:
        return _plot(Panel(title, missing=NO_DURATION))
    which, middle, unit, _ = time_bins(trace)
    hits = np.bincount(which, study.hit_blocks, BINS)
    blocks = np.bincount(which, trace.prompt_blocks, BINS)
    has_blocks = blocks > 0
    window = f"windows of {duration / BINS / time_unit(duration / BINS)[1]:.3g} {time_unit(duration / BINS)[0]}"
    series = [
        Series(window, middle[has_blocks], hits[has_blocks] / blocks[has_blocks], 0),
        Series("cumulative", middle[has_blocks], np.cumsum(hits)[has_blocks] / np.cumsum(blocks)[has_blocks], 1),
    ]
    time, rate = Axis(f"time ({unit})", limits=(0, 0)), Axis("block hit rate", percent=True, limits=(0, 1))
    return _plot(Panel(title, time, rate, series))


def _plot(panel):
    explanation = "The warm-up of a cache, and the variation of reuse over time. Without eviction."
    return Plot("Hit rate over time", explanation, [panel])
