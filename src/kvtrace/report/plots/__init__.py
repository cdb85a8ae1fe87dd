"""The plots of the report, in the order of the page: one file and one row for each plot."""

from __future__ import annotations

from collections.abc import Callable

from ...cache.simulation import Simulation
from ...serving.disaggregated import DisaggregatedRun
from ...trace.unknown import PREFIXES
from . import causes, distributions, hit_rates, over_time, sessions, sources, workers
from .plot import Plot, Study, unknown_plot

PLOTS: dict[str, Callable[[Study], Plot]] = {
    "hit-curve": hit_rates.hit_curve_plot,
    "hits-over-time": over_time.hits_over_time_plot,
    "requests": distributions.requests_plot,
    "waterfall": causes.waterfall_plot,
    "causes-over-time": causes.causes_over_time_plot,
    "policies": hit_rates.policies_plot,
    "block-size": hit_rates.block_size_plot,
    "reuse": distributions.reuse_plot,
    "working-set": over_time.working_set_plot,
    "popularity": distributions.popularity_plot,
    "lengths": distributions.lengths_plot,
    "arrivals": over_time.arrivals_plot,
    "session-timeline": sessions.timeline_plot,
    "sessions": sessions.sessions_plot,
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


def plots_of_run(run: Simulation) -> dict[str, Plot]:
    """The plots of a simulation by name: hits by source, if it has tiers, and prefill and decode workers.

    >>> from kvtrace.cache.tiered import simulate_tiers
    >>> from kvtrace.trace.building import toy
    >>> list(plots_of_run(simulate_tiers(toy("0 1", "0 1"), {"hbm": 2, "dram": 2})))
    ['hits-by-source']
    """
    plots = {"hits-by-source": sources.sources_plot(run)} if sources.sources_of(run) else {}
    return plots | ({"workers": workers.workers_plot(run)} if isinstance(run, DisaggregatedRun) else {})
