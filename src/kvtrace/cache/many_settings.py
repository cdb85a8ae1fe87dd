"""Many settings on one trace, in threads: policies x capacities x engines, and the offline optimum of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from .._base.workers import stoppable_threads
from ..trace.trace import Trace
from .demand import block_demand
from .layout import CacheLayout
from .policies import name_of
from .simulation import Setting, Simulation, run, runs_by_runs


def simulate_settings(
    trace: Trace,
    settings: Iterable[Setting],
    *,
    threads: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[Simulation]:
    """Simulate each setting; the results are in the order of the settings.

    Compiled policies run in parallel, Python policies one after another in the calling thread, which Ctrl-C interrupts.
    The first error stops the other simulations.

    Args:
        trace: The trace.
        settings: The settings.
        threads: Simulations at once; the default is one per core.
        on_progress: Receives the number of requests served since its last call, from any thread.

    >>> from kvtrace.trace.building import toy
    >>> [done.hits.hit_blocks for done in simulate_settings(toy("0 1", "2", "0 1"), [Setting(2), Setting(3)])]
    [1, 2]
    """
    settings = list(settings)
    demand = {options: block_demand(trace, *options) for options in {setting.demand_options for setting in settings}}
    for setting in settings:
        if runs_by_runs(setting, trace):
            _ = demand[setting.demand_options].optimum  # once, before threads share it
    with stoppable_threads(threads or os.cpu_count(), on_progress) as (pool, served):

        def one(setting: Setting) -> Simulation:
            return run(setting, trace, demand[setting.demand_options], served)

        compiled = {setting: pool.submit(one, setting) for setting in settings if not setting.in_python}
        in_python = {setting: one(setting) for setting in settings if setting.in_python}
        return [in_python[key] if key.in_python else pool.result(compiled[key]) for key in settings]


def settings_of(
    capacities: Iterable[int] | Mapping[str, Iterable[int]],
    policies: Iterable[str | type],
    engine_names: Iterable[str] = ("reference",),
    layouts: Mapping[str, CacheLayout] | None = None,
    **common,
) -> list[Setting]:
    """Every engine with every policy at every capacity. An upper bound has no engine: it comes once per capacity.

    Args:
        capacities: Blocks; a mapping has those of each engine.
        policies: Names, or classes of the user's.
        engine_names: Engines.
        layouts: Engine -> the cache groups that it makes of the model, if it has some.
        common: Other fields of each Setting.

    >>> [(setting.policy, setting.capacity) for setting in settings_of([1, 2], ["lru", "belady"])]
    [('lru', 1), ('lru', 2), ('belady', 1), ('belady', 2)]
    """
    made = []
    for engine in engine_names:
        own = capacities[engine] if isinstance(capacities, Mapping) else capacities
        layout = (layouts or {}).get(engine)
        made += [
            Setting(blocks, name_of(policy), engine, **common, layout=layout) for policy in policies for blocks in own
        ]
    return list(dict.fromkeys(replace(one, engine="reference", layout=None) if one.bound else one for one in made))


def optimum_of(setting: Setting) -> Setting:
    """The setting of the offline optimum that bounds another setting."""
    return replace(setting, policy="belady", engine="reference", layout=None)


def gap_to(optimum: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """The hits of the offline optimum, and the gap of a run to it, from the counts of both.

    >>> gap_to({"hit_blocks": 3, "block_hit_rate": 0.75}, {"hit_blocks": 1, "block_hit_rate": 0.25})
    {'belady_hit_blocks': 3, 'gap_to_belady': 0.5}
    """
    gap = optimum["block_hit_rate"] - run["block_hit_rate"]
    return {"belady_hit_blocks": optimum["hit_blocks"], "gap_to_belady": gap}
