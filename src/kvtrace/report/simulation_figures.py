"""The figures of simulations and sweeps: hits of one run over time, hits of several by capacity, and times.

A sweep has one panel for each trace and block size, and one line for each setting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..cache.simulation import Simulation
from ..cache.sweeps.table import SweepTable
from ..cache.tiered import TieredSimulation
from ..serving.disaggregated import DisaggregatedRun
from ..serving.instances import FleetSimulation
from ..serving.run import Simulations
from ..serving.serving_run import ServingRun
from ..trace.hits import count_hits, unlimited_hits
from .plots import over_time as rates
from .plots.plot import MAX_LINES, Axis, Panel, Plot, Series, bars, cdf, rate_axis, time_unit
from .plots.sources import sources_of, sources_panel
from .plots.workers import worker_panels


def simulation_plot(run: Simulation) -> Plot:
    """The figure of one run, by its type."""
    if isinstance(run, ServingRun):
        return times(run)
    if isinstance(run, FleetSimulation):
        return instances(run)
    return tiers(run) if isinstance(run, TieredSimulation) else over_time(run)


def over_time(run: Simulation) -> Plot:
    """The block hit rate of a run over time, beside that of a cache that never evicts.

    >>> from kvtrace.cache.simulation import simulate
    >>> from kvtrace.trace.building import toy
    >>> [series.name for series in over_time(simulate(toy("0", "1", "0"), 1)).panels[0].series][1::2]
    ['lru, 1 blocks: cumulative', 'no eviction: cumulative']
    """
    setting = run.setting
    name = f"{setting.policy}, {setting.capacity:,} blocks"
    panel = rates.hits_panel(run.trace, {name: run.hit_blocks, "no eviction": unlimited_hits(run.trace)})
    title = f"{setting.engine}, {setting.policy}, {setting.capacity:,} blocks"
    return Plot(title, "The warm-up of the cache, and the cost of eviction.", [panel])


def tiers(run: TieredSimulation) -> Plot:
    """The hit rate over time, and the share of all blocks that each tier serves, in total and over time."""
    panels = [*over_time(run).panels, *_by_source(run)]
    return Plot("A cache in tiers", "The tier that each hit block came from.", panels)


def _by_source(run: Simulation) -> list[Panel]:
    """The share of all blocks that each tier serves, in total and over time; none without tiers."""
    tiers, blocks = sources_of(run), max(1, int(run.trace.prompt_blocks[run.warm_up :].sum()))
    if not tiers:
        return []
    shares = {name: float(hits[run.warm_up :].sum() / blocks) for name, hits in tiers.items()}
    return [bars("Hits by tier", Axis("share of all blocks", percent=True, limits=(0, 0)), shares), sources_panel(run)]


def instances(run: FleetSimulation) -> Plot:
    """The hit rate over time, the tokens of each instance, and with tiers the share of blocks that each serves."""
    tokens = {f"instance {load['instance']}": float(load["tokens"]) for load in run.loads}
    load = bars(f"Load, {run.router}", Axis("prompt tokens", limits=(0, 0)), tokens)
    panels = [*over_time(run).panels, load, *_by_source(run)]
    return Plot("Instances behind a router", "Hits, and the balance of the load.", panels)


def times(run: ServingRun) -> Plot:
    """The distributions of time to first token and of time per output token, and the load of the instances.

    With tiers also the hits of each; of prefill and decode workers the requests that wait and run on each kind.
    """
    panels = [*_times([run]), *([_busy(run)] if len(run.busy_s) > 1 else []), *_by_source(run)]
    if isinstance(run, DisaggregatedRun):
        panels += worker_panels(run)
    return Plot("Serving in time", "The times of the requests that were served.", panels)


def simulations_plot(simulations: Simulations) -> Plot:
    """The hits of all runs by capacity, or by setting at one capacity; times, if the runs are in time.

    >>> from kvtrace.serving.run import simulate_all
    >>> from kvtrace.trace.building import toy
    >>> simulations_plot(simulate_all(toy("0 1", "2", "0 1"), [2, 3])).panels[0].series[0].y.round(2).tolist()
    [0.2, 0.4]
    """
    served = [run for run in simulations.runs if isinstance(run, ServingRun)]
    if len(simulations.runs) == 1:
        return simulation_plot(simulations.runs[0])
    pairs = [(fixed, run) for fixed, run in pairwise(simulations.runs) if _changes(run)]
    if pairs:
        return changing_fleet(*pairs[0])  # type: ignore[arg-type]
    if served:
        return Plot("Serving in time", "The times of the requests that were served.", _times(served))
    panel = (
        _by_capacity(simulations)
        if len({run.setting.capacity for run in simulations.runs}) > 1
        else _by_setting(simulations)
    )
    return Plot("Simulated prefix caches", "The hits of each setting.", [panel])


def _changes(run: Simulation) -> bool:
    return isinstance(run, FleetSimulation) and run.spans is not None and run.spans.changes


def changing_fleet(fixed: FleetSimulation, changing: FleetSimulation) -> Plot:
    """The hits over time of a fixed and of a changing fleet, and the instances that take requests.

    >>> from kvtrace.serving.fleet_schedule import FleetChange, FleetSchedule
    >>> from kvtrace.serving.run import simulate_all
    >>> from kvtrace.trace.building import toy
    >>> fleet = FleetSchedule((FleetChange(1.0, start=1),))
    >>> runs = simulate_all(toy("0", "1", "0", gap_ms=1000.0), [2], instances=1, fleet=fleet).runs
    >>> changing_fleet(*runs).panels[1].series[1].y.tolist()
    [1, 2, 2]
    """
    runs = {"fixed fleet": fixed, "changing fleet": changing}
    if len(fixed.trace) == len(changing.trace):
        hits = [rates.hits_panel(changing.trace, {name: run.hit_blocks for name, run in runs.items()})]
    else:  # a closed loop gives each its own arrivals
        hits = [rates.hits_panel(run.trace, {name: run.hit_blocks}) for name, run in runs.items()]
    unit, ms = time_unit(float(changing.trace.timestamp[-1]))
    series = []
    for number, (name, run) in enumerate(runs.items()):
        assert run.spans is not None
        at = np.append(run.spans.phases_s, max(run.spans.phases_s[-1], float(run.trace.timestamp[-1]) / 1000))
        series.append(Series(name, at * 1000 / ms, run.spans.taking_at(at), number, "step"))
    time, count = Axis(f"time ({unit})", limits=(0, 0), unit=unit), Axis("instances", limits=(0, 0))
    panel = Panel("Instances that take requests", time, count, series)
    return Plot("A changing fleet", f"Router {changing.router}.", [*hits, panel])


def _by_capacity(simulations: Simulations) -> Panel:
    lines: dict[str, list[Simulation]] = {}
    for run in simulations.runs:
        lines.setdefault(label(run, simulations.runs, capacity=False), []).append(run)
    series = [_line(name, runs, number) for number, (name, runs) in enumerate(list(lines.items())[:MAX_LINES])]
    if simulations.optima:
        series.append(_line("belady, the optimum", simulations.optima, len(series), style="dash"))
    capacities = np.concatenate([line.x for line in series])
    unlimited = _unlimited(simulations.runs[0])
    ends = np.array([capacities.min(), capacities.max()])
    series.append(Series("unlimited", ends, np.full(2, unlimited), len(series), "dash"))
    left = len(lines) - MAX_LINES
    note = f"{left} more settings are not drawn." if left > 0 else ""
    axis = Axis("capacity (blocks)", log=True)
    return Panel("Block hit rate by capacity", axis, rate_axis("block hit rate", unlimited), series, note=note)


def _line(name: str, runs: list[Simulation], colour: int, style: str = "dots") -> Series:
    runs = sorted(runs, key=lambda run: run.setting.capacity)
    x = np.array([run.setting.capacity for run in runs])
    return Series(name, x, np.array([run.hits.block_hit_rate for run in runs]), colour, style)


def _by_setting(simulations: Simulations) -> Panel:
    values = {label(run, simulations.runs): run.hits.block_hit_rate for run in simulations.runs}
    unlimited = _unlimited(simulations.runs[0])
    title = f"Block hit rate, {simulations.runs[0].setting.capacity:,} blocks"
    panel = bars(title, rate_axis("block hit rate", unlimited), values)
    panel.series[0] = replace(panel.series[0], name="simulated")
    ends = np.array([-0.5, len(values) - 0.5])
    panel.series.append(Series("unlimited", np.full(2, unlimited), ends, 1, "dash"))
    for optimum in simulations.optima:
        panel.series.append(Series("belady, the optimum", np.full(2, optimum.hits.block_hit_rate), ends, 2, "dash"))
    return panel


def _unlimited(run: Simulation) -> float:
    return count_hits(run.trace, unlimited_hits(run.trace), slice(run.warm_up, None)).block_hit_rate


def label(run: Simulation, runs: list[Simulation], *, capacity: bool = True) -> str:
    """The values of a run that differ among the runs, as its label."""

    def values(each: Simulation) -> dict[str, str]:
        setting = each.setting
        named = {"engine": setting.engine, "policy": setting.policy, "mode": setting.mode}
        if isinstance(each, FleetSimulation):
            named |= {"router": each.router}
        return named | ({"capacity": f"{setting.capacity:,} blocks"} if capacity else {})

    every = [values(each) for each in runs]
    different = [name for name, value in values(run).items() if any(each.get(name) != value for each in every)]
    return ", ".join(values(run)[name] for name in different) or values(run)["policy"]


def _times(runs: list[ServingRun]) -> list[Panel]:
    drawn = runs[:MAX_LINES]
    note = f"{len(runs) - MAX_LINES} more settings are not drawn." if len(runs) > MAX_LINES else ""
    names = [label(run, list(runs)) if len(runs) > 1 else "requests" for run in drawn]
    why = "no request was served."
    ttft = [(name, run.ttft_s, None) for name, run in zip(names, drawn, strict=True)]
    tpot = [(name, run.tpot_s, None) for name, run in zip(names, drawn, strict=True)]
    return [
        cdf("Time to first token", Axis("TTFT (s)", log=True), *ttft, why=why, note=note),
        cdf("Time per output token", Axis("TPOT (s)", log=True), *tpot, why=why, note=note),
    ]


def _busy(run: ServingRun) -> Panel:
    """Instances by their use of the time."""
    span = run.makespan_s
    names = zip(run.instance_names, run.busy_s, strict=True)
    busy = {name: seconds / span if span else 0.0 for name, seconds in names}
    return bars("Busy instances", Axis("share of the time", percent=True, limits=(0, 1)), busy)


MAX_PANELS = 6
LINES = ("engine", "policy", "mode", "schedule")


def sweep_plot(sweep: SweepTable) -> Plot:
    """The mean over seeds of the block hit rate of each setting. Failed cells are left out.

    >>> sweep_plot(SweepTable([])).panels[0].missing
    'no cell has a result.'
    """
    rows = [row for row in sweep.rows if not row["error"]]
    if not rows:
        return Plot("Sweep", "", [Panel("Sweep", missing="no cell has a result.")])
    groups = _grouped(rows, ("trace", "block_size"))
    names = [name for name in LINES if len({row[name] for row in rows}) > 1]
    panels = [_panel(_title(key, groups), group, names) for key, group in list(groups.items())[:MAX_PANELS]]
    left = len(groups) - MAX_PANELS
    more = f" {left} more traces and block sizes are not drawn." if left > 0 else ""
    return Plot("Hits of a sweep", f"Block hit rate by capacity; the mean over seeds.{more}", panels)


def _title(key: tuple[Any, ...], groups: Iterable[tuple[Any, ...]]) -> str:
    """The label of a panel: the trace, the block size, or both, as far as they differ."""
    trace, size = key
    parts = [str(trace)] if len({part for part, _ in groups}) > 1 else []
    parts += [f"blocks of {size:,} tokens"] if len({part for _, part in groups}) > 1 else []
    return ", ".join(parts) or "Block hit rate"


def _panel(title: str, rows: list[dict[str, Any]], names: list[str]) -> Panel:
    lines = {", ".join(map(str, key)) or rows[0]["policy"]: group for key, group in _grouped(rows, names).items()}
    top = max(row["block_hit_rate"] for row in rows)
    axis = rate_axis("block hit rate", top)
    if len({row["capacity"] for row in rows}) == 1:
        means = {name: float(np.mean([row["block_hit_rate"] for row in group])) for name, group in lines.items()}
        return bars(f"{title}, {rows[0]['capacity']:,} blocks", axis, means)
    series = [_sweep_line(name, group, number) for number, (name, group) in enumerate(list(lines.items())[:MAX_LINES])]
    note = f"{len(lines) - MAX_LINES} more settings are not drawn." if len(lines) > MAX_LINES else ""
    return Panel(title, Axis("capacity (blocks)", log=True), axis, series, note=note)


def _sweep_line(name: str, rows: list[dict[str, Any]], colour: int) -> Series:
    points = sorted(_grouped(rows, ("capacity",)).items())
    rates = [float(np.mean([row["block_hit_rate"] for row in group])) for _, group in points]
    return Series(name, np.array([key[0] for key, _ in points]), np.array(rates), colour, "dots")


def _grouped(rows: list[dict[str, Any]], names: Iterable[str]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups
