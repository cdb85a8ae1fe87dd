"""Reuse: the time, and the number of other blocks, between two uses of a block."""

from __future__ import annotations

from ...analysis.reuse import reuse_distances, reuse_times
from .plot import Axis, Panel, Plot, Study, cdf, time_unit


def plot(study: Study) -> Plot:
    """Cumulative distributions of reuse time and reuse distance.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0 1", "2", "0 1"))).panels[1].series[0].x.tolist()
    [0.0, 1.0, 2.0, 2.0]
    """
    why = "no block is used twice."
    times, counts = reuse_times(study.trace, study.curve.segments)
    unit, ms = time_unit(float(times.max(initial=0)))
    panels: list[Panel] = [
        cdf(
            "Reuse time",
            Axis(f"time since the last use ({unit})", log=True, unit=unit),
            ("reuse times", times / ms, counts),
            why=why,
        ),
        cdf(
            "Reuse distance",
            Axis("distinct blocks since the last use", log=True, unit="blocks"),
            ("reuse distances", *reuse_distances(study.trace, study.curve.segments)),
            why=why,
        ),
    ]
    explanation = (
        "How long must a cache keep blocks, in time and in blocks? Each use of a block except the first counts once."
    )
    return Plot("Reuse time and distance", explanation, panels)
