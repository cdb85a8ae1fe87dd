"""The working set over time: distinct blocks, cumulative and in each window."""

from __future__ import annotations

import numpy as np

from ..._base.arrays import offsets_of
from ...trace.trace import first_seen
from .plot import NO_DURATION, Axis, Panel, Plot, Series, Study, time_bins, time_unit

WINDOWS = 30


def plot(study: Study) -> Plot:
    """Distinct blocks, cumulative and in windows.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0 1", "0 2"))).panels[0].series[0].y[-1].item()
    3
    """
    title, trace = "Distinct blocks over time", study.trace
    duration = float(trace.timestamp[-1])
    explanation = "The rate of new blocks, and the number of blocks in use at a time."
    if not duration:
        return Plot("Working set", explanation, [Panel(title, missing=NO_DURATION)])
    which, middle, unit, ms = time_bins(trace, WINDOWS)
    length = duration / WINDOWS
    ends = np.searchsorted(which, np.arange(WINDOWS + 1))  # window -> its first request; rows are in time order
    seen = offsets_of(first_seen(trace))[trace.offsets]
    inside = _distinct_inside(study, which, ends)
    series = [
        Series("cumulative", np.arange(WINDOWS + 1) * length / ms, seen[ends], 0),
        Series(f"in windows of {length / time_unit(length)[1]:.3g} {time_unit(length)[0]}", middle, inside, 1),
    ]
    time, blocks = Axis(f"time ({unit})", limits=(0, 0), unit=unit), Axis("blocks", limits=(0, 0), unit="blocks")
    return Plot("Working set", explanation, [Panel(title, time, blocks, series)])


def _distinct_inside(study, which, ends):
    """The distinct blocks of each window: its block references less those whose last use is in the window, too."""
    trace, segments = study.trace, study.curve.segments
    repeats = which[segments.row] == which[segments.last_row]
    again = np.bincount(which[segments.row[repeats]], segments.blocks[repeats], WINDOWS).astype(np.int64)
    return np.diff(trace.offsets[ends]) - again
