"""A trace in four panels: its hit curve, its hit rate over time, its reuse distances, and its arrivals."""

from __future__ import annotations

from ...trace.unknown import PREFIXES
from ..plots import arrivals, capacity, lengths, over_time, reuse
from ..plots.plot import Plot, Study, unknown_plot


def plot(study: Study) -> Plot:
    """The four panels; the offline optimum, which takes simulations, is in the plot `hit-curve` only.

    >>> from kvtrace.trace.building import toy
    >>> [panel.title for panel in plot(Study(toy("0 1", "0 1"))).panels]
    ['Hit rate by capacity', 'Block hit rate over time', 'Reuse distance', 'Requests per second']
    """
    if PREFIXES in study.unknown:
        known = [lengths.plot(study).panels[0], arrivals.plot(study).panels[0]]
        hits = [unknown_plot("Hit rate by capacity", study.unknown[PREFIXES]).panels[0]]
        return Plot("A trace at a glance", "Lengths and load.", hits + known)
    panels = [
        capacity.curve_plot(study.curve, study.kv_bytes_per_token).panels[0],
        over_time.plot(study).panels[0],
        reuse.plot(study).panels[1],
        arrivals.plot(study).panels[0],
    ]
    return Plot("A trace at a glance", "Hits of an LRU cache by size, hits over time, reuse and load.", panels)
