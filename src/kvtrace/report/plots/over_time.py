"""A trace over time: its hit rate, its working set and its arrivals, in windows and cumulative."""

from __future__ import annotations

import numpy as np

from ..._base.arrays import offsets_of
from ...trace.trace import Trace, first_seen
from ...trace.unknown import OUTPUTS, TIMES
from .plot import BINS, NO_DURATION, Axis, Panel, Plot, Series, Study, cdf, highest, rate_axis, time_bins, time_unit


def hits_over_time_plot(study: Study) -> Plot:
    """Block hit rate in windows and cumulative, without eviction and at the study's capacity.

    >>> from kvtrace.trace.building import toy
    >>> hits_over_time_plot(Study(toy("0", "0", "0"))).panels[0].series[1].y[-1].round(3).item()
    0.667
    """
    caches = {"no eviction": study.hit_blocks}
    if (at_capacity := study.at_capacity) is not None:
        caches[f"LRU, {study.capacity:,} blocks"] = at_capacity.hit_blocks
    explanation = (
        "The warm-up of a cache, and the variation of reuse over time, without eviction and at one capacity "
        "(--capacity)."
    )
    return Plot("Hit rate over time", explanation, [hits_panel(study.trace, caches)])


def hits_panel(trace: Trace, caches: dict[str, np.ndarray]) -> Panel:
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


WINDOWS = 30


def working_set_plot(study: Study) -> Plot:
    """Distinct blocks, cumulative and in windows.

    >>> from kvtrace.trace.building import toy
    >>> working_set_plot(Study(toy("0 1", "0 2"))).panels[0].series[0].y[-1].item()
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


def arrivals_plot(study: Study) -> Plot:
    """Arrival rates over time and the distribution of gaps.

    >>> from kvtrace.trace.building import toy
    >>> len(arrivals_plot(Study(toy("0", "1", "2"))).panels)
    3
    """
    trace = study.trace
    duration = float(trace.timestamp[-1])
    gap = Axis("gap (ms)", log=True, unit="ms")
    gaps = cdf("Gaps between requests", gap, ("gaps", np.diff(trace.timestamp), None), why=NO_DURATION)
    note, missing = study.unknown.get(TIMES, ""), study.unknown.get(OUTPUTS, "")
    if not duration:
        rates = [Panel(title, missing=NO_DURATION) for title in ("Requests per second", "Tokens per second")]
        return _arrivals_plot([*rates, gaps])
    which, middle, unit, _ = time_bins(trace)
    seconds, time = duration / BINS / 1000, Axis(f"time ({unit})", limits=(0, 0), unit=unit)
    requests = Series("requests", middle, np.bincount(which, minlength=BINS) / seconds)
    tokens = [
        Series("prompt tokens", middle, np.bincount(which, trace.input_length, BINS) / seconds, 0),
    ]
    if OUTPUTS not in study.unknown:
        tokens.append(Series("output tokens", middle, np.bincount(which, trace.output_length, BINS) / seconds, 1))
    rate = Axis("requests / s", limits=(0, 0), unit="requests / s")
    return _arrivals_plot([
        Panel("Requests per second", time, rate, [requests], note=note),
        Panel("Tokens per second", time, Axis("tokens / s", limits=(0, 0), unit="tokens / s"), tokens, note=missing),
        gaps,
    ])  # fmt: skip


def _arrivals_plot(panels):
    return Plot("Arrivals", "The load over time, and its variation.", panels)
