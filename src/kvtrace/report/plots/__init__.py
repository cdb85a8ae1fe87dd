"""The plots of the report, in the order of the page: one file and one row for each plot."""

from __future__ import annotations

from collections.abc import Callable

from ...trace.unknown import PREFIXES
from . import (
    arrivals,
    block_size,
    capacity,
    causes_over_time,
    lengths,
    over_time,
    policies,
    popularity,
    requests,
    reuse,
    session_timeline,
    sessions,
    waterfall,
    working_set,
)
from .plot import Plot, Study, unknown_plot

PLOTS: dict[str, Callable[[Study], Plot]] = {
    "hit-curve": capacity.plot,
    "hits-over-time": over_time.plot,
    "requests": requests.plot,
    "waterfall": waterfall.plot,
    "causes-over-time": causes_over_time.plot,
    "policies": policies.plot,
    "block-size": block_size.plot,
    "reuse": reuse.plot,
    "working-set": working_set.plot,
    "popularity": popularity.plot,
    "lengths": lengths.plot,
    "arrivals": arrivals.plot,
    "session-timeline": session_timeline.plot,
    "sessions": sessions.plot,
}
WITHOUT_PREFIXES = frozenset({"lengths", "arrivals", "session-timeline", "sessions"})  # need no shared prefixes


def plot_named(name: str, study: Study) -> Plot:
    """A plot of the report; not drawn, with the reason, if it needs shared prefixes and they are unknown.

    >>> from kvtrace.trace.building import toy
    >>> plot_named("reuse", Study(toy("0 1", "0 1"))).title
    'Reuse time and distance'
    """
    if PREFIXES in study.unknown and name not in WITHOUT_PREFIXES:
        return unknown_plot(name.replace("-", " ").capitalize(), study.unknown[PREFIXES])
    return PLOTS[name](study)
