"""The figure of each result, for `plot()` in a notebook and for the options --png and --svg: one row for each type.

The figures of simulations and sweeps are in `simulation_figures.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._base.errors import wrong_word
from ..analysis.compared_figures import NAMES
from ..analysis.comparison import Comparison
from ..analysis.curves import HitCurve
from ..analysis.distribution import Distribution, DistributionFrames
from ..cache.simulation import Simulation
from ..cache.sweeps.table import SweepTable
from ..serving.misses.explanation import Explanation
from ..serving.planning.plan_result import MemoryPlan, Plan
from ..serving.run import Simulations
from ..serving.validation import Validation
from ..trace.trace import Trace
from ..trace.unknown import PREFIXES
from . import interactive
from .plots import PLOTS, causes, distributions, hit_rates, over_time, planned, plot_named, validated
from .plots.causes import title_of
from .plots.hit_rates import curve_plot
from .plots.plot import Axis, Panel, Plot, Series, Study, rate_axis, unknown_plot
from .simulation_figures import simulation_plot, simulations_plot, sweep_plot

SHARES = {"min": 0.0, "p25": 0.25, "median": 0.5, "p75": 0.75, "max": 1.0}
PANELS = {  # title -> title of the axis, and the distributions
    "Lengths": ("tokens", {"input_length": "input length", "output_length": "output length"}),
    "Reuse distance": ("distinct blocks since the last use", {"reuse_distance": "reuse distance"}),
    "Reuse time": ("time since the last use (s)", {"reuse_time_ms": "reuse time"}),
    "Gaps between requests": ("gap (s)", {"gap_ms": "gap"}),
}


def distributions_plot(statistics: DistributionFrames) -> Plot:
    """The quantiles of the main distributions; more `quantiles` in `analyze` give more points.

    >>> from kvtrace.analysis.summary import basics
    >>> from kvtrace.trace.building import toy
    >>> distributions_plot(basics(toy("0 1", "0"))).panels[0].series[0].x.tolist()
    [1.0, 1.25, 1.5, 1.75, 2.0]
    """
    by_name = statistics.distributions()
    panels = [
        _panel(title, axis, {label: (by_name[name], name) for name, label in names.items()})
        for title, (axis, names) in PANELS.items()
        if names.keys() <= by_name.keys()
    ]
    return Plot("Distributions", "Minimum, quartiles, maximum, and the quantiles that you chose.", panels)


def _panel(title: str, axis: str, distributions: dict[str, tuple[Distribution, str]]) -> Panel:
    series: list[Series] = []
    for label, (values, name) in distributions.items():
        points = np.array(_points(values, 1000 if name.endswith("_ms") else 1))
        if len(points):
            positive = points[points[:, 0] > 0]
            series.append(Series(label, positive[:, 0], positive[:, 1], len(series), "dots"))
    if not any(len(line.x) for line in series):
        return Panel(title, missing="no value is above 0.")
    share = Axis("cumulative share", percent=True, limits=(0, 1))
    return Panel(title, Axis(axis, log=True), share, series)


def _points(values: Distribution, divisor: int) -> list[tuple[float, float]]:
    """(value, share of the sample up to it) of each known quantile."""
    if not values.count:
        return []
    value_at = {share: getattr(values, name) for name, share in SHARES.items()} | values.quantiles
    return [(value_at[share] / divisor, share) for share in sorted(value_at)]


def comparison_plot(comparison: Comparison) -> Plot:
    """One point for each figure that a trace has, the first figure on top.

    >>> from kvtrace.analysis.comparison import compare
    >>> from kvtrace.trace.building import toy
    >>> comparison_plot(compare(toy("0 1", "0 2"), toy("0 1", "0 2"))).panels[0].series[0].x.min().item()
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


def explanation_plot(explanation: Explanation) -> Plot:
    """The waterfall, and the share of each cause over time.

    >>> from kvtrace.serving.misses.explanation import explain
    >>> from kvtrace.trace.building import toy
    >>> [panel.title for panel in explanation_plot(explain(toy("0 1", "2 3", "0 1"), 2)).panels]
    ['From all tokens to the hits', 'Share of prompt tokens by cause']
    """
    drawn = [causes.waterfall_panel(explanation), *causes.panels_over_time(explanation)[:1]]
    return Plot(f"Why prompts miss, {title_of(explanation)}", causes.EXPLANATION, drawn)


def plan_plot(plan: Plan) -> Plot:
    """The parts of a plan that have a shape; the tables have the rest."""
    part = plan.instances
    panels = [
        _memory(plan.memory, plan.setting.capacity_gib),
        planned.at_target(part),
        planned.cost(part),
        planned.needed(plan),
    ]
    return Plot("Capacity plan", "Hits by memory, latency and cost by instances, effect of assumptions.", panels)


def _memory(part: MemoryPlan, gpu_gib: float) -> Panel:
    gib, rate = (np.array([getattr(point, name) for point in part.points]) for name in ("gib", "block_hit_rate"))
    ends = np.array([min(gib[0], gpu_gib), max(gib[-1], gpu_gib)])
    top = part.unlimited_block_hit_rate
    series = [
        Series("LRU", gib, rate, 0, "dots"),
        Series("unlimited", ends, np.full(2, top), 0, "dash"),
        Series("knee", np.array([part.knee.gib]), np.array([part.knee.block_hit_rate]), 1, "points"),
        Series("GPUs of an instance", np.full(2, gpu_gib), np.array([0, top * 1.15 or 1.0]), 2, "dash"),
    ]
    gib_axis = Axis("KV cache (GiB)", log=True, unit="GiB")
    return Panel("Hits by memory", gib_axis, rate_axis("block hit rate", top), series)


FIGURES: dict[type, Callable[..., Plot]] = {
    Trace: lambda trace, **options: trace_plot(Study(trace, **options)),
    DistributionFrames: distributions_plot,
    HitCurve: curve_plot,
    Comparison: comparison_plot,
    Simulation: simulation_plot,
    Simulations: simulations_plot,
    Explanation: explanation_plot,
    SweepTable: sweep_plot,
    Plan: plan_plot,
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
            raise wrong_word(name, "a plot", ["overview", *PLOTS])
        return plot_named(name, Study(result))
    return next(FIGURES[kind] for kind in type(result).__mro__ if kind in FIGURES)(result, **options)


def figure_of(result: object, name: str = "overview") -> Any:
    """The plotly Figure of a result; UsageError if plotly is not installed."""
    return interactive.plotly_figure(plot_of(result, name))


def trace_plot(study: Study) -> Plot:
    """The four panels; the offline optimum, which takes simulations, is in the plot `hit-curve` only.

    >>> from kvtrace.trace.building import toy
    >>> [panel.title for panel in trace_plot(Study(toy("0 1", "0 1"))).panels]
    ['Hit rate by capacity', 'Block hit rate over time', 'Reuse distance', 'Requests per second']
    """
    if PREFIXES in study.unknown:
        others = [distributions.lengths_plot(study).panels[0], over_time.arrivals_plot(study).panels[0]]
        hits = [unknown_plot("Hit rate by capacity", study.unknown[PREFIXES]).panels[0]]
        return Plot("A trace at a glance", "Lengths and load.", hits + others)
    panels = [
        hit_rates.curve_plot(study.curve, study.kv_bytes_per_token).panels[0],
        over_time.hits_over_time_plot(study).panels[0],
        distributions.reuse_plot(study).panels[1],
        over_time.arrivals_plot(study).panels[0],
    ]
    return Plot("A trace at a glance", "Hits of an LRU cache by size, hits over time, reuse and load.", panels)
