"""The figure of each result, for `plot()` in a notebook and for the options --png and --svg: one row for each type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._base.errors import UsageError
from ...analysis.comparison import Comparison
from ...analysis.distribution_frames import DistributionFrames
from ...analysis.exact_curve import HitCurve
from ...cache.simulation import Simulation
from ...cache.sweeps.table import SweepTable
from ...serving.misses.explanation import Explanation
from ...serving.planning.plan_result import Plan
from ...serving.simulations import Simulations
from ...serving.validation import Validation
from ...trace.trace import Trace
from .. import interactive
from ..plots import PLOTS, plot_named, validated
from ..plots.capacity import curve_plot
from ..plots.plot import Plot, Study
from . import explained, overview, plans, runs, scores, statistics, sweeps

FIGURES: dict[type, Callable[..., Plot]] = {
    Trace: lambda trace, **options: overview.plot(Study(trace, **options)),
    DistributionFrames: statistics.plot,
    HitCurve: curve_plot,
    Comparison: scores.plot,
    Simulation: runs.single,
    Simulations: runs.plot,
    Explanation: explained.plot,
    SweepTable: sweeps.plot,
    Plan: plans.plot,
    Validation: validated.overview,
}


def plot_of(result: object, name: str = "overview", **options: Any) -> Plot:
    """The panels of a result's figure.

    Args:
        result: A result of one of the types in FIGURES.
        name: For a Trace: "overview", or one of the plots of the report.
        options: Of the overview of a Trace and of a HitCurve: `kv_bytes_per_token`, to show capacities in GiB, too.

    Raises:
        UsageError: The name is unknown.

    >>> from kvtrace.trace.building import toy
    >>> plot_of(toy("0 1", "0 1"), "reuse").title
    'Reuse time and distance'
    """
    if name != "overview" and isinstance(result, Trace):
        if name not in PLOTS:
            raise UsageError(f"{name!r} is not a plot. Choose one of overview, {', '.join(PLOTS)}.")
        return plot_named(name, Study(result))
    return next(FIGURES[kind] for kind in type(result).__mro__ if kind in FIGURES)(result, **options)


def figure_of(result: object, name: str = "overview") -> Any:
    """The plotly Figure of a result; UsageError if plotly is not installed."""
    return interactive.plotly_figure(plot_of(result, name))
