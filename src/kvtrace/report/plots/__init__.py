"""The plots of the report, in the order of the page: one file and one row for each plot."""

from __future__ import annotations

from collections.abc import Callable

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
from .plot import Plot, Study

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
