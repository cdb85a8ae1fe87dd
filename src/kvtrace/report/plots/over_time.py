"""Hit rate over time: in each window, and cumulative."""

from __future__ import annotations

import numpy as np

from ...trace.trace import Trace
from .plot import BINS, NO_DURATION, Axis, Panel, Plot, Series, Study, time_bins, time_unit


def plot(study: Study) -> Plot:
    """Block hit rate in windows and cumulative, without eviction.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0", "0", "0"))).panels[0].series[1].y[-1].round(3).item()
    0.667
    """
    explanation = "The warm-up of a cache, and the variation of reuse over time. Without eviction."
    return Plot("Hit rate over time", explanation, [panel(study.trace, study.hit_blocks)])


def panel(trace: Trace, hit_blocks: np.ndarray, unlimited: np.ndarray | None = None) -> Panel:
    """The block hit rate of each window, and cumulative; dotted, the cumulative one of a cache that never evicts.

    Args:
        trace: The trace.
        hit_blocks: Request -> its hit blocks.
        unlimited: Request -> its hit blocks without eviction.
    """
    title = "Block hit rate over time"
    duration = float(trace.timestamp[-1])
    if not duration:
        return Panel(title, missing=NO_DURATION)
    which, middle, unit, _ = time_bins(trace)
    blocks = np.bincount(which, trace.prompt_blocks, BINS)
    has_blocks = blocks > 0
    window = f"windows of {duration / BINS / time_unit(duration / BINS)[1]:.3g} {time_unit(duration / BINS)[0]}"

    def cumulative(hit_blocks):
        return np.cumsum(np.bincount(which, hit_blocks, BINS))[has_blocks] / np.cumsum(blocks)[has_blocks]

    rate = np.bincount(which, hit_blocks, BINS)[has_blocks] / blocks[has_blocks]
    series = [
        Series(window, middle[has_blocks], rate, 0),
        Series("cumulative", middle[has_blocks], cumulative(hit_blocks), 1),
    ]
    if unlimited is not None:
        series.append(Series("cumulative, unlimited", middle[has_blocks], cumulative(unlimited), 1, "dash"))
    return Panel(
        title, Axis(f"time ({unit})", limits=(0, 0)), Axis("block hit rate", percent=True, limits=(0, 1)), series
    )
