"""Every setting of a grid on one trace, as `kvtrace simulate` runs it: caches, tiers, instances, or serving in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Unpack

from .._base.errors import UsageError
from .._base.lists import require_lists
from .._base.results import PlottedResult, columns_of
from ..analysis.capacities import log_spaced
from ..cache.demand import block_demand
from ..cache.engines import non_default
from ..cache.layout import CacheLayout
from ..cache.many_settings import gap_to, optimum_of, settings_of, simulate_settings
from ..cache.schedules import parse_schedule
from ..cache.simulation import EngineOptions, Setting, Simulation
from ..cache.tiered import simulate_tiers
from ..trace.columns import require_trace
from ..trace.trace import Trace
from .instances import OVERLAP, simulate_instances
from .schedulers.base import Scheduler, Tier
from .simulation import DynamoCost, StepCost, simulate_serving

POINTS = 10  # capacities, if none is named


@dataclass(frozen=True, repr=False)
class Simulations(PlottedResult):
    """The results of `simulate_all`, in the order of the settings, and the offline optimum at each capacity."""

    runs: list[Simulation]
    optima: list[Simulation]

    _shown = (
        "engine", "policy", "router", "capacity", "hit_blocks", "block_hit_rate", "token_hit_rate", "gap_to_belady",
    )  # fmt: skip

    def _headline(self) -> str:
        settings = [run.setting for run in self.runs]
        engines, policies = {one.engine for one in settings}, {one.policy for one in settings}
        capacities = {one.capacity for one in settings}
        return f"runs={len(settings)}, engines={len(engines)}, policies={len(policies)}, capacities={len(capacities)}"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of({**run.to_dict(), **self._gap_of(run)} for run in self.runs)

    def optimum_of(self, run: Simulation) -> Simulation | None:
        """The offline optimum at the capacity of a run; None if it was not simulated."""
        return next((one for one in self.optima if one.setting.capacity == run.setting.capacity), None)

    def _gap_of(self, run: Simulation) -> dict[str, Any]:
        """The gap of a run to the optimum; nothing if the optimum was not simulated."""
        optimum = self.optimum_of(run)
        return {} if optimum is None else gap_to(optimum.hits.to_dict(), run.hits.to_dict())


def simulate_all(
    trace: Trace,
    capacities: Iterable[int] | None = None,
    policies: Iterable[str | type] = ("lru",),
    *,
    engines: Iterable[str] = ("reference",),
    mode: str = "block",
    schedule: str | None = None,
    tiers: Mapping[str, int] | None = None,
    lower: Sequence[Tier] = (),
    inclusive: bool = False,
    instances: int | None = None,
    routers: Iterable[str] | None = None,
    router_seed: int = 0,
    cost: StepCost | DynamoCost | None = None,
    schedulers: Mapping[str, Scheduler] | None = None,
    layout: CacheLayout | None = None,
    gap: bool = True,
    warm_up: int = 0,
    workers: int | None = None,
    on_start: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    **engine_options: Unpack[EngineOptions],
) -> Simulations:
    """Simulate every engine with every policy at every capacity, behind every router.

    Args:
        trace: The trace.
        capacities: Blocks that a cache holds; the default is ten sizes, from the longest request to the working set.
        policies: Eviction policies of docs/cache/policies.md, or classes of your own.
        engines: Engines of docs/cache/simulate.md.
        mode, engine_options: As in `simulate`.
        schedule: As in `simulate`, and as in `simulate_instances` with instances and without a cost.
        tiers: Name -> capacity in blocks, the first tier first, in place of capacities.
        lower: With a cost: the tiers of an instance below the first one, which has the capacities.
        inclusive: A tier also holds the blocks of the tiers above it.
        instances: Instances of a serving engine behind a router, each with a cache of its own.
        routers: Routers of docs/serving/instances.md; the default is round-robin.
        router_seed: Of the router dynamo, which draws among instances of equal cost.
        cost: The time of a step: the requests are served in simulated time, by one instance or more.
        schedulers: With a cost: engine -> its scheduler; the default is `scheduler_of(engine)`.
        layout: The cache groups of a hybrid model, which engine vllm serves; None is full attention.
        gap: Also simulate the offline optimum at each capacity, for caches of one tier on one instance.
        warm_up: The first requests, which `hits` leaves out.
        workers: Simulations at a time; the default is one per core.
        on_start: Receives the number of requests that all simulations together will serve.
        on_progress: Receives the number of requests served since its last call, from any thread.

    Returns:
        The simulations; tiers, instances and cost give `TieredSimulation`, `FleetSimulation` and `ServingRun`.

    Raises:
        UsageError: Options do not fit together, or a setting is not valid.

    >>> from kvtrace.trace.building import toy
    >>> done = simulate_all(toy("0 1", "2", "0 1"), [2, 3], ["lru", "mru"])
    >>> [(run.setting.policy, run.setting.capacity, run.hits.hit_blocks) for run in done.runs]
    [('lru', 2, 1), ('lru', 3, 2), ('mru', 2, 0), ('mru', 3, 2)]
    """
    require_trace(trace)
    given = {"capacities": capacities, "policies": policies, "engines": engines, "routers": routers}
    require_lists(**{name: value for name, value in given.items() if value is not None})
    if (routers and not instances) or (tiers and (instances or cost)) or (lower and not cost):
        raise UsageError("--router needs --instances. With --instances, --tiers needs --gpu or --engine dynamo.")
    schedule = schedule or (OVERLAP if instances and cost is None else "serial")
    common = {
        "mode": mode, "schedule": parse_schedule(schedule), "engine_options": non_default(engine_options),
        "layout": None if layout is None or layout.is_full else layout,
    }  # fmt: skip
    if tiers and common["layout"]:
        raise UsageError("Tiers do not support cache groups. Leave out --tiers, or the cache groups.")
    if tiers:
        settings = settings_of([1], policies, engines, **common)
        _expect(on_start, trace, len(settings) * (len(tiers) if inclusive else 1))
        how: dict[str, Any] = {"exclusive": not inclusive, "on_progress": on_progress}
        in_tiers = [simulate_tiers(trace, dict(tiers), one.policy, setting=one, **how) for one in settings]
        return _after(warm_up, in_tiers, [])
    capacities = _default_capacities(trace, mode) if capacities is None else dict.fromkeys(capacities)
    settings = settings_of(capacities, policies, engines, **common)
    if instances or cost:
        routed = list(product(routers or ["round-robin"], settings))
        _expect(on_start, trace, len(routed))
        chosen = schedulers or {}
        runs = [
            _on_instances(trace, one, router, instances, cost, chosen.get(one.engine), router_seed, lower, on_progress)
            for router, one in routed
        ]
        return _after(warm_up, runs, [])
    bounds = list(dict.fromkeys(map(optimum_of, settings))) if gap and common["layout"] is None else []
    every = list(dict.fromkeys(settings + bounds))
    _expect(on_start, trace, len(every))
    done = dict(zip(every, simulate_settings(trace, every, threads=workers, on_progress=on_progress), strict=True))
    return _after(warm_up, [done[one] for one in settings], [done[one] for one in bounds])


def _after(warm_up: int, runs: Sequence[Simulation], optima: Sequence[Simulation]) -> Simulations:
    """The simulations, whose counts leave out the first requests."""
    return Simulations(*([replace(one, warm_up=warm_up) for one in group] for group in (runs, optima)))


def _on_instances(
    trace: Trace, setting: Setting, router: str, instances, cost: StepCost | DynamoCost | None, scheduler, router_seed,
    lower, on_progress,
):  # fmt: skip
    if cost is None:
        schedule = str(setting.schedule)
        return simulate_instances(trace, instances, router, setting=setting, schedule=schedule, on_progress=on_progress)
    return simulate_serving(
        trace, cost, setting=setting, router=router, router_seed=router_seed, instances=instances or 1,
        scheduler=scheduler, tiers=lower, on_progress=on_progress,
    )  # fmt: skip


def _expect(on_start: Callable[[int], None] | None, trace: Trace, runs: int) -> None:
    if on_start:
        on_start(len(trace) * runs)


def _default_capacities(trace: Trace, mode: str) -> list[int]:
    """Capacities from the longest request to the working set."""
    longest = int(block_demand(trace, mode).max_blocks.max(initial=1))
    return log_spaced(longest, max(trace.working_set, longest), POINTS)
