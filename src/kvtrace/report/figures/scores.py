"""A comparison: the score of each figure, from 0 (nothing in common) to 1 (equal)."""

from __future__ import annotations

import numpy as np

from ...analysis.comparison import Comparison
from ...analysis.comparison_tables import NAMES
from ..plots.plot import Axis, Panel, Plot, Series


def plot(comparison: Comparison) -> Plot:
    """One point for each figure that a trace has, the first figure on top.

    >>> from kvtrace.analysis.comparison import compare
    >>> from kvtrace.trace.building import toy
    >>> plot(compare(toy("0 1", "0 2"), toy("0 1", "0 2"))).panels[0].series[0].x.min().item()
    1.0
    """
    scores = {name: score for name, score in comparison.scores.items() if score is not None}
    names = [NAMES[name].split(",")[0] for name in scores][::-1]
    x, y = np.array(list(scores.values()))[::-1], np.arange(len(names), dtype=float)
    ends = np.array([-0.5, len(names) - 0.5])
    series = [
        Series("score", x, y, 0, "points"),
        Series(f"mean, {comparison.overall:.3f}", np.full(2, comparison.overall), ends, 1, "dash"),
    ]
    ticks = {float(number): name for number, name in enumerate(names)}
    axis = Axis("", ticks=ticks, limits=(-0.5, len(names) - 0.5))
    panel = Panel("Fidelity", Axis("score", limits=(0, 1.02)), axis, series)
    return Plot("Fidelity of one trace to another", "A score of 1 means equal values in both traces.", [panel])
