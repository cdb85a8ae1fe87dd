"""The distributions of `analyze`, from the quantiles that it keeps: a point for each."""

from __future__ import annotations

import numpy as np

from ...analysis.distribution import Distribution
from ...analysis.distribution_frames import DistributionFrames
from ..plots.plot import Axis, Panel, Plot, Series

SHARES = {"min": 0.0, "p25": 0.25, "median": 0.5, "p75": 0.75, "max": 1.0}
PANELS = {  # title -> title of the axis, and the distributions
    "Lengths": ("tokens", {"input_length": "input length", "output_length": "output length"}),
    "Reuse distance": ("distinct blocks since the last use", {"reuse_distance": "reuse distance"}),
    "Reuse time": ("time since the last use (s)", {"reuse_time_ms": "reuse time"}),
    "Gaps between requests": ("gap (s)", {"gap_ms": "gap"}),
}


def plot(statistics: DistributionFrames) -> Plot:
    """The quantiles of the main distributions; more `quantiles` in `analyze` give more points.

    >>> from kvtrace.analysis.summary import basics
    >>> from kvtrace.trace.building import toy
    >>> plot(basics(toy("0 1", "0"))).panels[0].series[0].x.tolist()
    [1.0, 1.25, 1.5, 1.75, 2.0]
    """
    known = statistics.distributions()
    panels = [
        _panel(title, axis, {label: (known[name], name) for name, label in names.items()})
        for title, (axis, names) in PANELS.items()
        if names.keys() <= known.keys()
    ]
    return Plot("Distributions", "Minimum, quartiles, maximum, and the quantiles that you chose.", panels)


def _panel(title: str, axis: str, distributions: dict[str, tuple[Distribution, str]]) -> Panel:
    series: list[Series] = []
    for label, (values, name) in distributions.items():
        points = np.array(_points(values, 1000 if name.endswith("_ms") else 1))
        if len(points):
            positive = points[points[:, 0] > 0]
            series.append(Series(label, positive[:, 0], positive[:, 1], len(series), "dots"))
    if not any(len(one.x) for one in series):
        return Panel(title, missing="no value is above 0.")
    share = Axis("cumulative share", percent=True, limits=(0, 1))
    return Panel(title, Axis(axis, log=True), share, series)


def _points(values: Distribution, divisor: int) -> list[tuple[float, float]]:
    """(value, share of the sample up to it) of each known quantile."""
    if not values.count:
        return []
    known = {share: getattr(values, name) for name, share in SHARES.items()} | values.quantiles
    return [(known[share] / divisor, share) for share in sorted(known)]
