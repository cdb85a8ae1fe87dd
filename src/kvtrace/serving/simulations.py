"""Every setting of a grid on one trace, as `kvtrace simulate` runs it: caches, tiers, instances, or serving in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil
from typing import Any, Unpack

from .._base.errors import UsageError
from .._base.results import PlottedResult, columns_of
from .._base.units import require_lists
from ..analysis.capacities import log_spaced
from ..cache.demand import block_demand, parse_schedule
from ..cache.engines import non_default
from ..cache.isolation import Isolation
from ..cache.layout import CacheLayout
from ..cache.simulation import EngineOptions, Setting, Simulation, gap_to, optimum_of, settings_of, simulate_settings
from ..cache.tiered import simulate_tiers
from ..trace.columns import require_trace
from ..trace.domains import MERGE, SPLIT, count_domains, in_domains
from ..trace.trace import Trace
from .closed_loop import ClosedLoop, ClosedRun
from .deployment import OVERLAP, simulate_instances
from .schedulers.base import Scheduler, Tier
from .simulation import DynamoCost, StepCost, simulate_serving

POINTS = 10  # capacities, if none is named


@dataclass(frozen=True, repr=False)
class Simulations(PlottedResult):
    """The results of `simulate_all`, in the order of the settings, and the offline optimum at each capacity."""

    runs: list[Simulation]
    optima: list[Simulation]
    isolation: list[Isolation] = field(default_factory=list)  # of each run, if the trace has domains

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
        if run.setting.layout is not None:
            return None
        return next((one for one in self.optima if one.setting.capacity == run.setting.capacity), None)

    def _gap_of(self, run: Simulation) -> dict[str, Any]:
        """The gap of a run to the optimum; nothing if the optimum was not simulated."""
        optimum = self.optimum_of(run)
        return {} if optimum is None else gap_to(optimum.hits.to_dict(), run.hits.to_dict())


def simulate_all(
    trace: Trace,
    capacities: Iterable[int] | Mapping[str, Iterable[int]] | None = None,
    policies: Iterable[str | type] = ("lru",),
    *,
    engines: Iterable[str] = ("reference",),
    layouts: Mapping[str, CacheLayout] | None = None,
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
    loop: ClosedLoop | None = None,
    gap: bool = True,
    warm_up: int = 0,
    workers: int | None = None,
    on_start: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
    domains: str | None = None,
    **engine_options: Unpack[EngineOptions],
) -> Simulations:
    """Simulate every engine with every policy at every capacity, behind every router.

    Args:
        trace: The trace.
        capacities: Blocks that a cache holds, or engine -> blocks; the default is ten sizes, from the longest request
            to the working set.
        policies: Eviction policies of docs/cache/policies.md, or classes of your own.
        engines: Engines of docs/cache/simulate.md.
        layouts: Engine -> the cache groups that it makes of a hybrid model, as `layouts_for` has them.
        mode, engine_options: As in `simulate`.
        schedule: As in `simulate`, and as in `simulate_instances` with instances and without a cost.
        tiers: Name -> capacity in blocks, the first tier first, in place of capacities.
        lower: With a cost: the tiers of an instance below the first one, which has the capacities.
        inclusive: A tier also holds the blocks of the tiers above it.
        instances: Instances of a serving engine behind a router, each with a cache of its own.
        routers: Routers of docs/cache/simulate.md; the default is round-robin.
        router_seed: Of the router dynamo, which draws among instances of equal cost.
        cost: The time of a step: the requests are served in simulated time, by one instance or more.
        schedulers: With a cost: engine -> its scheduler; the default is `scheduler_of(engine)`.
        loop: With a cost: run each setting in the open loop, and then in this closed loop.
        gap: Also simulate the offline optimum at each capacity, for caches of one tier on one instance.
        warm_up: The first requests, which `hits` leaves out.
        workers: Simulations at a time; the default is one per core.
        on_start: Receives the number of requests that all simulations together will serve.
        on_progress: Receives the number of requests served since its last call, from any thread.
        domains: For a trace with isolation domains: the view that is simulated, as in `in_domains`. All settings then
            also run with domains merged and split, and `isolation` has the difference.

    Returns:
        The simulations; tiers, instances and cost give `TieredSimulation`, `FleetSimulation` and `ServingRun`.

    Raises:
        UsageError: Options do not fit together, or a setting is not valid.

    >>> from kvtrace.trace.building import toy
    >>> done = simulate_all(toy("0 1", "2", "0 1"), [2, 3], ["lru", "mru"])
    >>> [(run.setting.policy, run.setting.capacity, run.hits.hit_blocks) for run in done.runs]
    [('lru', 2, 1), ('lru', 3, 2), ('mru', 2, 0), ('mru', 3, 2)]
    """
    options = {name: value for name, value in locals().items() if name not in ("trace", "domains", "engine_options")}
    require_trace(trace)
    if trace.domain is not None or domains is not None:
        return _in_each_view(trace, domains or SPLIT, **options, **engine_options)
    given = {"capacities": capacities, "policies": policies, "engines": engines, "routers": routers}
    require_lists(**{name: value for name, value in given.items() if value is not None})
    if loop is not None and not cost:
        raise UsageError("A closed loop is a simulation in time. Give a cost.")
    if (routers and not instances) or (tiers and (instances or cost)) or (lower and not cost):
        raise UsageError("--router needs --instances. With --instances, --tiers needs --gpu or --engine dynamo.")
    schedule = schedule or (OVERLAP if instances and cost is None else "serial")
    common: dict[str, Any] = {
        "mode": mode, "schedule": parse_schedule(schedule), "engine_options": non_default(engine_options),
        "layouts": layouts,
    }  # fmt: skip
    if layouts and (tiers or lower):
        raise UsageError("--tiers does not support cache groups of windows and states. Use --engine reference.")
    if tiers:
        settings = settings_of([1], policies, engines, **common)
        _expect(on_start, trace, len(settings) * (len(tiers) if inclusive else 1))
        how: dict[str, Any] = {"exclusive": not inclusive, "on_progress": on_progress}
        in_tiers = [simulate_tiers(trace, dict(tiers), one.policy, setting=one, **how) for one in settings]
        return _after(warm_up, in_tiers, [])
    if capacities is None:
        capacities = _default_capacities(trace, mode, engines, layouts)
    elif not isinstance(capacities, Mapping):
        capacities = list(dict.fromkeys(capacities))
    settings = settings_of(capacities, policies, engines, **common)
    if instances or cost:
        routed = list(product(routers or ["round-robin"], settings))
        loops = [None] if loop is None else [None, loop]
        _expect(on_start, trace, len(routed) * len(loops))
        chosen = schedulers or {}
        runs = [
            _on_instances(
                trace, one, router, instances, cost, chosen.get(one.engine), router_seed, lower, either, on_progress
            )
            for router, one in routed
            for either in loops
        ]  # fmt: skip
        return _after(warm_up, runs, [])
    # the optimum is that of full attention, whose blocks hold all layers
    bounds = list(dict.fromkeys(optimum_of(one) for one in settings if one.layout is None)) if gap else []
    every = list(dict.fromkeys(settings + bounds))
    _expect(on_start, trace, len(every))
    done = dict(zip(every, simulate_settings(trace, every, threads=workers, on_progress=on_progress), strict=True))
    return _after(warm_up, [done[one] for one in settings], [done[one] for one in bounds])


def _in_each_view(trace: Trace, view: str, *, on_start, on_progress, **options) -> Simulations:
    """The simulations of one view of the domains, and the hits of each run with domains merged and split."""
    viewed, views = in_domains(trace, view), dict.fromkeys((MERGE, SPLIT, view))
    if options["capacities"] is None and not options["tiers"]:
        sizes = viewed, options["mode"], options["engines"], options["layouts"]
        options["capacities"] = _default_capacities(*sizes)  # the same in each view

    def start(requests: int) -> None:
        on_start(len(views) * requests)

    options |= {"on_start": start if on_start else None, "on_progress": on_progress}
    done = simulate_all(viewed, **options)
    runs = {view: done.runs}
    for other in views:
        if other != view:
            without = options | {"on_start": None, "gap": False}
            runs[other] = simulate_all(in_domains(trace, other), **without).runs
    isolation = [
        Isolation(count_domains(trace), view, {name: runs[name][number].hits for name in views})
        for number in range(len(done.runs))
    ]
    return replace(done, isolation=isolation)


def _after(warm_up: int, runs: Sequence[Simulation], optima: Sequence[Simulation]) -> Simulations:
    """The simulations, whose counts leave out the first requests."""
    if not any(isinstance(one, ClosedRun) for one in runs):  # a closed loop has its own warm-up
        runs, optima = ([replace(one, warm_up=warm_up) for one in group] for group in (runs, optima))
    return Simulations(list(runs), list(optima))


def _on_instances(
    trace: Trace, setting: Setting, router: str, instances, cost: StepCost | DynamoCost | None, scheduler, router_seed,
    lower, loop: ClosedLoop | None, on_progress,
):  # fmt: skip
    if cost is None:
        schedule = str(setting.schedule)
        return simulate_instances(trace, instances, router, setting=setting, schedule=schedule, on_progress=on_progress)
    return simulate_serving(
        trace, cost, setting=setting, router=router, router_seed=router_seed, instances=instances or 1,
        scheduler=scheduler, tiers=lower, loop=loop, on_progress=on_progress,
    )  # fmt: skip


def _expect(on_start: Callable[[int], None] | None, trace: Trace, runs: int) -> None:
    if on_start:
        on_start(len(trace) * runs)


def _default_capacities(
    trace: Trace, mode: str, engines: Iterable[str], layouts: Mapping[str, CacheLayout] | None
) -> list[int] | dict[str, list[int]]:
    """Capacities from the longest request to the working set; if layouts have smaller blocks, those of each engine."""
    longest = int(block_demand(trace, mode).max_blocks.max(initial=1))
    whole = log_spaced(longest, max(trace.working_set, longest), POINTS)
    if not layouts:
        return whole
    shares = {name: trace.block_size / layouts[name].tokens_per_block if name in layouts else 1.0 for name in engines}
    return {name: [ceil(blocks * share) for blocks in whole] for name, share in shares.items()}
