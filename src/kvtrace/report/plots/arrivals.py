"""Arrivals: requests and tokens per second over time, and the gaps between requests."""

from __future__ import annotations

import numpy as np

from ...trace.unknown import OUTPUTS, TIMES
from .plot import BINS, NO_DURATION, Axis, Panel, Plot, Series, Study, cdf, time_bins


def plot(study: Study) -> Plot:
    """Arrival rates over time and the distribution of gaps.

    >>> from kvtrace.trace.building import toy
    >>> len(plot(Study(toy("0", "1", "2"))).panels)
    3
    """
    trace = study.trace
    duration = float(trace.timestamp[-1])
    gap = Axis("gap (ms)", log=True, unit="ms")
    gaps = cdf("Gaps between requests", gap, ("gaps", np.diff(trace.timestamp), None), why=NO_DURATION)
    note, missing = study.unknown.get(TIMES, ""), study.unknown.get(OUTPUTS, "")
    if not duration:
        rates = [Panel(title, missing=NO_DURATION) for title in ("Requests per second", "Tokens per second")]
        return _plot([*rates, gaps])
    which, middle, unit, _ = time_bins(trace)
    seconds, time = duration / BINS / 1000, Axis(f"time ({unit})", limits=(0, 0), unit=unit)
    requests = Series("requests", middle, np.bincount(which, minlength=BINS) / seconds)
    tokens = [
        Series("prompt tokens", middle, np.bincount(which, trace.input_length, BINS) / seconds, 0),
    ]
    if OUTPUTS not in study.unknown:
        tokens.append(Series("output tokens", middle, np.bincount(which, trace.output_length, BINS) / seconds, 1))
    rate = Axis("requests / s", limits=(0, 0), unit="requests / s")
    return _plot([
        Panel("Requests per second", time, rate, [requests], note=note),
        Panel("Tokens per second", time, Axis("tokens / s", limits=(0, 0), unit="tokens / s"), tokens, note=missing),
        gaps,
    ])  # fmt: skip


def _plot(panels):
    return Plot("Arrivals", "The load over time, and its variation.", panels)
