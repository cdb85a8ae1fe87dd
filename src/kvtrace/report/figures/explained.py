"""The causes of misses of one simulation: from all prompt tokens to the hits, and over time."""

from __future__ import annotations

from ...serving.misses.explanation import Explanation
from ..plots import causes_over_time, waterfall
from ..plots.causes import title_of
from ..plots.plot import Plot


def plot(explanation: Explanation) -> Plot:
    """The waterfall, and the share of each cause over time.

    >>> from kvtrace.serving.misses.explanation import explain
    >>> from kvtrace.trace.building import toy
    >>> [panel.title for panel in plot(explain(toy("0 1", "2 3", "0 1"), 2)).panels]
    ['From all tokens to the hits', 'Share of prompt tokens by cause']
    """
    drawn = [waterfall.panel(explanation), *causes_over_time.panels(explanation)[:1]]
    return Plot(f"Why prompts miss, {title_of(explanation)}", causes_over_time.EXPLANATION, drawn)
