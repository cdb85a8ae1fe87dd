"""Hit rate over time: in each window, and since the beginning."""

from __future__ import annotations

import numpy as np

from .plot import BINS, NO_DURATION, Axis, Panel, Plot, Series, Study, time_bins, time_unit


def plot(study: Study) -> Plot:
    """Block hit rate in windows and cumulative, nothing ever evicted.

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
    some = blocks > 0
    window = f"windows of {duration / BINS / time_unit(duration / BINS)[1]:.3g} {time_unit(duration / BINS)[0]}"
    series = [
        Series(window, middle[some], hits[some] / blocks[some], 0),
        Series("since the beginning", middle[some], np.cumsum(hits)[some] / np.cumsum(blocks)[some], 1),
    ]
    time, rate = Axis(f"time ({unit})", limits=(0, 0)), Axis("block hit rate", percent=True, limits=(0, 1))
    return _plot(Panel(title, time, rate, series))


def _plot(panel):
    says = "How long a cache takes to warm up, and whether reuse is steady. Nothing is ever evicted."
    return Plot("Hit rate over time", says, [panel])
