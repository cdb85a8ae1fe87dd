"""Every setting of a grid on one trace, as `kvtrace simulate` runs it: caches, tiers, instances, or serving in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil
from typing import Any, TypedDict, Unpack

from .._base.errors import UsageError
from .._base.memory import MemoryNeed
from .._base.options import names_of, record_of
from .._base.results import Described, PlottedResult, column, columns_of
from .._base.units import require_lists
from ..analysis.capacities import log_spaced
from ..cache.demand import Mode, block_demand
from ..cache.engines import EngineName, non_default
from ..cache.layout import CacheLayout, Drafting
from ..cache.setup import CacheSetup
from ..cache.simulation import EngineOptions, Setting, Simulation, gap_to, optimum_of, simulate_settings
from ..cache.tiered import simulate_tiers
from ..cache.tiers import Tier, as_tiers
from ..formats.dataset import Dataset
from ..formats.memory_needs import simulating
from ..trace.columns import require_trace
from ..trace.domains import MERGE, SPLIT, count_domains, in_domains
from ..trace.hits import Hits
from ..trace.trace import Trace
from .disaggregation import Disaggregation
from .fleet_schedule import FleetSchedule
from .instances import OVERLAP, FleetSimulation, simulate_instances
from .lanes import ClosedLoop, ClosedRun
from .routers import RouterName, check_fleet, in_lockstep
from .run_options import InstanceSetup, TimeSetup
from .schedulers.base import Scheduler
from .serve_command import worker_options
from .simulation import DynamoCost, ServingOptions, StepCost, closed_loop, open_loop
from .workers import ENGINES as APART
from .workers import Workers

POINTS = 10  # capacities, if none is named


@dataclass(frozen=True, repr=False)
class Simulations(PlottedResult):
    """The results of `simulate_all`, in the order of the settings, and the offline optimum at each capacity."""

    runs: list[Simulation]
    optima: list[Simulation]
    isolation: list[Isolation] = field(default_factory=list)  # of each run, if the trace has domains
    capacity_bytes: list[int] = field(default_factory=list)  # of each run, if the KV of a token is known

    _shown = (
        "engine", "policy", "router", "capacity", "hit_blocks", "block_hit_rate", "token_hit_rate", "gap_to_belady",
    )  # fmt: skip

    def _headline(self) -> str:
        settings = [run.setting for run in self.runs]
        engines, policies = {setting.engine for setting in settings}, {setting.policy for setting in settings}
        capacities = {setting.capacity for setting in settings}
        return f"runs={len(settings)}, engines={len(engines)}, policies={len(policies)}, capacities={len(capacities)}"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of(self.to_dict()["results"])

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Simulation]:
        return iter(self.runs)

    def __getitem__(self, place: int) -> Simulation:
        return self.runs[place]

    def to_dict(self) -> dict[str, Any]:
        """One dictionary for each run, with its gap to the optimum, and the bytes of its capacity if they are known."""
        sizes = [{"capacity_bytes": size} for size in self.capacity_bytes] or [{}] * len(self.runs)
        runs = zip(self.runs, sizes, strict=True)
        return {"results": [{**run.to_dict(), **size, **self._gap_of(run)} for run, size in runs]}

    def optimum_of(self, run: Simulation) -> Simulation | None:
        """The offline optimum at the capacity of a run; None if it was not simulated."""
        if run.setting.layout is not None:
            return None
        return next((bound for bound in self.optima if bound.setting.capacity == run.setting.capacity), None)

    def _gap_of(self, run: Simulation) -> dict[str, Any]:
        """The gap of a run to the optimum; nothing if the optimum was not simulated."""
        optimum = self.optimum_of(run)
        return {} if optimum is None else gap_to(optimum.hits.to_dict(), run.hits.to_dict())


def simulate_all(
    trace: Trace,
    capacities: Iterable[int] | Mapping[str, Iterable[int]] | None = None,
    policies: Iterable[str | type] = ("lru",),
    *,
    engines: Iterable[EngineName] = ("reference",),
    layouts: Mapping[str, CacheLayout] | None = None,
    drafting: Mapping[str, Drafting] | None = None,
    mode: Mode = "block",
    schedule: str | None = None,
    tiers: Mapping[str, int] | Sequence[Tier] | None = None,
    lower: Sequence[Tier] = (),
    inclusive: bool = False,
    instances: int | None = None,
    routers: Iterable[RouterName] | None = None,
    router_seed: int = 0,
    router_options: str | None = None,
    instances_per_host: int | None = None,
    fleet: FleetSchedule | None = None,
    lockstep: bool = False,
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
        policies: Eviction policies of https://github.com/kvtrace/kvtrace/blob/main/docs/cache/policies.md, or classes
            of your own.
        engines: Engines of https://github.com/kvtrace/kvtrace/blob/main/docs/cache/simulate.md.
        layouts: Engine -> the cache groups that it makes of a hybrid model, as `layouts_for` has them.
        drafting: Engine -> what a drafter changes in its cache, as `kvtrace.cache.engines.drafting` has it.
        mode, engine_options: As in `simulate`.
        schedule: As in `simulate`, and as in `simulate_instances` with instances and without a cost.
        tiers: Tiers, or name -> capacity in blocks, the first tier first, in place of capacities.
        lower: With a cost: the tiers of an instance below the first one, which has the capacities.
        inclusive: A tier also holds the blocks of the tiers above it.
        instances: Instances of a serving engine behind a router, each with a cache of its own.
        routers: Routers of https://github.com/kvtrace/kvtrace/blob/main/docs/cache/simulate.md; the default is
            round-robin.
        router_seed: Of the router dynamo, which draws among instances of equal cost.
        router_options: Options of the router sglang-cache-aware, as `cache_threshold=0.5`.
        instances_per_host: The instances that share a tier of scope "host"; the default is all.
        fleet: Changes of the fleet, which begins with `instances`: run each setting without them, and then with them.
        lockstep: With a cost: the instances are ranks that begin and end their steps together, as in `open_loop`.
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
    non_default(engine_options)  # TypeError for an option that no engine has
    values = {**locals(), **engine_options}
    run = Run(
        record_of(CacheSetup, values),
        record_of(InstanceSetup, values),
        TimeSetup(cost=cost, schedulers=schedulers),
        loop,
    )
    return run.simulate(trace, workers=workers, on_start=on_start, on_progress=on_progress)


@dataclass(frozen=True)
class Run:
    """What is simulated: a cache, the instances that have one each, what serves them in time, and a closed loop.

    >>> from kvtrace.trace.building import toy
    >>> Run(CacheSetup([2])).simulate(toy("0 1", "2", "0 1")).runs[0].hits.hit_blocks
    1
    """

    cache: CacheSetup = field(default_factory=CacheSetup)
    instances: InstanceSetup = field(default_factory=InstanceSetup)
    time: TimeSetup = field(default_factory=TimeSetup)
    loop: ClosedLoop | None = None  # each setting runs in this closed loop
    open_too: bool = True  # each setting first runs in the open loop, or with a fixed fleet
    disaggregation: Disaggregation | None = None  # prefill and decode on different workers

    def changed(self, **fields: Any) -> Run:
        """The run with other values of some fields of its cache and instances; TypeError for any other name.

        >>> Run(CacheSetup([2])).changed(policies=["fifo"], instances=2).instances.instances
        2
        """
        of_cache = {name: fields.pop(name) for name in names_of(CacheSetup) if name in fields}
        return replace(self, cache=replace(self.cache, **of_cache), instances=replace(self.instances, **fields))

    @property
    def schedule(self) -> str:
        """The requests that are active together."""
        return self.cache.schedule or (OVERLAP if self.instances.instances and not self.time.cost else "serial")

    @property
    def has_tiers(self) -> bool:
        """Whether there are tiers below the first one."""
        return bool(self.cache.tiers or self.instances.lower)

    def with_more_blocks(self, blocks: int) -> Run:
        """The run with `blocks` more blocks in its cache: in the lowest tier, if there are tiers.

        >>> Run(CacheSetup([4])).with_more_blocks(3).cache.capacities
        [7]
        >>> Run(CacheSetup(tiers={"hbm": 2, "dram": 8})).with_more_blocks(3).cache.tiers
        {'hbm': 2, 'dram': 11}
        """
        if self.instances.lower:
            *above, last = self.instances.lower
            return self.changed(lower=(*above, replace(last, capacity=last.capacity + blocks)))
        if self.cache.tiers:
            *above, last = as_tiers(self.cache.tiers)
            tiers = (*above, replace(last, capacity=last.capacity + blocks))
            if isinstance(self.cache.tiers, Mapping):
                return self.changed(tiers={tier.name: tier.capacity for tier in tiers})
            return self.changed(tiers=tiers)
        assert self.cache.capacities is not None and not isinstance(self.cache.capacities, Mapping)
        return self.changed(capacities=[size + blocks for size in self.cache.capacities])

    def settings(self) -> list[Setting]:
        """The setting of each cache."""
        return self.cache.settings(self.schedule)

    def bounds(self, settings: Iterable[Setting]) -> list[Setting]:
        """The offline optimum at each capacity: that of full attention, whose blocks hold all layers."""
        if not self.cache.gap or self.cache.tiers:
            return []
        return list(dict.fromkeys(optimum_of(setting) for setting in settings if setting.layout is None))

    def needs(self) -> list[str]:
        """What the result uses of a trace, of `kvtrace.trace.unknown.NEEDS`."""
        overlaps = bool(self.time.cost) or self.schedule.startswith("open-loop")
        outputs = ["outputs"] if overlaps or self.cache.mode == "grow" else []
        return ["prefixes", *outputs, *(["times"] if overlaps else [])]

    def memory_need(
        self, dataset: Dataset, capacities: int, workers: int | None = None, *, per_request: bool, beyond: str | None
    ) -> MemoryNeed:
        """The memory that the simulations need. It depends on the number of capacities, not on their values.

        Args:
            dataset: The data set that is read.
            capacities: Their number.
            workers: Simulations at a time.
            per_request: Whether the hits of each request are written.
            beyond: An option whose memory is not bounded, if nothing of the run is such.
        """
        settings = self.changed(capacities=range(1, capacities + 1), tiers=None).settings()
        unbounded = {
            "--tiers": self.has_tiers, "--instances": self.instances.instances, "--gpu": self.time.roofline,
            "--engine dynamo": self.time.cost,
        }  # fmt: skip
        first = next((name for name, used in unbounded.items() if used), beyond)
        every = dict.fromkeys(settings + self.bounds(settings))
        return simulating(dataset, every, workers, per_request=per_request, beyond=first)

    def simulate(
        self,
        trace: Trace,
        *,
        workers: int | None = None,
        on_start: Callable[[int], None] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Simulations:
        """Every setting on a trace, as `simulate_all` describes it.

        Raises:
            UsageError: Options do not fit together, or a setting is not valid.
        """
        require_trace(trace)
        work = _Work(workers, on_start, on_progress)
        if trace.domain is not None or self.cache.domains is not None:
            return self._in_each_view(trace, self.cache.domains or SPLIT, work)
        self._check()
        if self.cache.tiers:
            return self._counted(self._in_tiers(trace, work), [])
        settings = self.changed(capacities=self._capacities(trace)).settings()
        if self.instances.instances or self.time.cost:
            return self._counted(self._on_instances(trace, settings, work), [])
        bounds = self.bounds(settings)
        every = list(dict.fromkeys(settings + bounds))
        work.expect(len(trace) * len(every))
        simulations = simulate_settings(trace, every, threads=workers, on_progress=on_progress)
        by_setting = dict(zip(every, simulations, strict=True))
        return self._counted([by_setting[setting] for setting in settings], [by_setting[bound] for bound in bounds])

    def _check(self) -> None:
        """UsageError if options do not fit together."""
        cache, instances, cost = self.cache, self.instances, self.time.cost
        lists = {
            "capacities": cache.capacities, "policies": cache.policies, "engines": cache.engines,
            "routers": instances.routers,
        }  # fmt: skip
        require_lists(**{name: value for name, value in lists.items() if value is not None})
        if self.loop is not None and not cost:
            raise UsageError("A closed loop is a simulation in time. Give a cost.")
        if self.disaggregation is not None and not cost:
            raise UsageError("--prefill-workers is a simulation in time. Add --model and --gpu, or --engine dynamo.")
        routed = bool(instances.instances or self.disaggregation)
        if instances.fleet is not None and not routed:
            raise UsageError("--fleet needs --instances: the number at the beginning.")
        if instances.fleet is not None and self.disaggregation is not None:
            raise UsageError("--fleet does not change prefill and decode workers yet. Leave out one of them.")
        if (instances.routers and not routed) or (cache.tiers and cost) or (instances.lower and not cost):
            raise UsageError("--router needs --instances. In time, the tiers are those below the capacity.")
        tiers = (*as_tiers(cache.tiers), *instances.lower)
        if instances.instances_per_host is not None and not any(tier.scope == "host" for tier in tiers):
            raise UsageError("--instances-per-host needs a tier of a host. Example: --tiers hbm=5000,dram=50000@host.")
        if cache.layouts and self.has_tiers:
            raise UsageError("--tiers does not support cache groups of windows and states. Use --engine reference.")

    def _capacities(self, trace: Trace) -> Iterable[int] | Mapping[str, Iterable[int]]:
        """The capacities, each once; by default ten sizes of this trace."""
        cache, capacities = self.cache, self.cache.capacities
        if capacities is None:
            return _default_capacities(trace, cache.mode, cache.engines, cache.layouts)
        return capacities if isinstance(capacities, Mapping) else list(dict.fromkeys(capacities))

    def _in_tiers(self, trace: Trace, work: _Work) -> list[Simulation]:
        """Caches in tiers, one after another."""
        cache = self.cache
        settings, sizes = self.settings(), as_tiers(cache.tiers)
        if self.instances.instances or any(tier != Tier(tier.name, tier.capacity) for tier in sizes):
            return self._on_instances(trace, settings, work)
        tiers = {tier.name: tier.capacity for tier in sizes}
        work.expect(len(trace) * len(settings) * (len(tiers) if cache.inclusive else 1))
        return [
            simulate_tiers(
                trace, tiers, setting.policy, setting=setting, exclusive=not cache.inclusive,
                on_progress=work.on_progress,
            )
            for setting in settings
        ]  # fmt: skip

    def _on_instances(self, trace: Trace, settings: Sequence[Setting], work: _Work) -> list[Simulation]:
        """Instances behind each router, request by request or in time."""
        routers: Iterable[RouterName] = self.instances.routers or ("round-robin",)
        routed = list(product(routers, settings))
        fleet, fleets = self.instances.fleet, [self.instances.fleet]
        loops = [None, self.loop] if self.loop and self.open_too and not fleet else [self.loop]
        if fleet is not None:
            for router in routers:
                check_fleet(router, lockstep=self.instances.lockstep)
            fleet.spans(self.instances.instances or 1)  # UsageError before a run
            fleets = [None, fleet] if self.open_too else fleets
        work.expect(len(trace) * len(routed) * len(loops) * len(fleets))
        ways = list(product(routed, loops, fleets))
        return [self._routed(trace, setting, router, loop, changes, work) for (router, setting), loop, changes in ways]

    def _routed(
        self, trace: Trace, setting: Setting, router: RouterName, loop: ClosedLoop | None, fleet: FleetSchedule | None,
        work: _Work,
    ) -> FleetSimulation:  # fmt: skip
        """One run; without changes of a fleet that has a schedule, it keeps the phases of the schedule."""
        run = self._served(trace, setting, router, loop, fleet, work)
        beside = self.instances.fleet
        return run if beside is None or fleet else replace(run, spans=beside.fixed(run.instances))

    def _served(
        self, trace: Trace, setting: Setting, router: RouterName, loop: ClosedLoop | None, fleet: FleetSchedule | None,
        work: _Work,
    ) -> FleetSimulation:  # fmt: skip
        instances, time = self.instances.instances or 1, self.time
        if time.cost is None:
            schedule = str(setting.schedule)
            return simulate_instances(
                trace, instances, router, setting=setting, schedule=schedule, tiers=as_tiers(self.cache.tiers),
                instances_per_host=self.instances.instances_per_host, inclusive=self.cache.inclusive,
                router_options=self.instances.router_options, fleet=fleet, on_progress=work.on_progress,
            )  # fmt: skip
        options: ServingOptions = {
            "router": router, "router_seed": self.instances.router_seed, "instances": instances,
            "scheduler": (time.schedulers or {}).get(setting.engine), "tiers": self.instances.lower,
            "lockstep": self.instances.lockstep, "instances_per_host": self.instances.instances_per_host,
            "disaggregation": self._transferring(setting, trace.block_size),
            "fleet": fleet, "router_options": self.instances.router_options,
        }  # fmt: skip
        how: dict[str, Any] = {"setting": setting, "on_progress": work.on_progress, **options}
        run = open_loop(trace, time.cost, **how) if loop is None else closed_loop(trace, time.cost, loop=loop, **how)
        return replace(run, unfitted=time.unfitted(setting.engine))

    def _transferring(self, setting: Setting, block_size: int) -> Disaggregation | None:
        """The prefill and decode workers, with their deployments, or the bytes of a token by the model."""
        apart = self.disaggregation
        if apart is None:
            return None
        if self.time.roofline is not None and setting.engine in APART:
            kinds = {"prefill": apart.prefill_options, "decode": apart.decode_options}
            workers = {kind: self._workers(setting, block_size, text, kind) for kind, text in kinds.items()}
            return replace(apart, prefill=workers["prefill"], decode=workers["decode"])
        if apart.prefill_options or apart.decode_options:
            raise UsageError("--prefill-options and --decode-options need --gpu, and --engine vllm or sglang.")
        if apart.kv_transfer_bytes_per_token is not None:
            return apart
        return replace(apart, kv_transfer_bytes_per_token=self.time.kv_bytes_per_token)

    def _workers(self, setting: Setting, block_size: int, options: str | None, kind: str) -> Workers:
        """Workers of a kind, whose deployment differs in some options; their cache then has what its GPUs hold."""
        from .hardware.roofline import deployed_shape

        time, engine = self.time, setting.engine
        deployment = replace(time.deployment, engine=engine)
        if options:
            changes = worker_options(deployment, options, kind)
            deployment = replace(deployment, **changes.stated)
            time = replace(time, deployment=deployment, scheduler=changes.scheduler or time.scheduler)
            time = time.resolved([engine])
            setting = replace(setting, capacity=time.blocks_of(engine, block_size))
        assert time.cost is not None
        lockstep = in_lockstep(deployment, has_experts=getattr(time.cost, "expert_step_s", 0) > 0)
        return Workers(
            time.cost, setting, (time.schedulers or {}).get(engine), ranks=deployment.data_parallel_size,
            lockstep=lockstep, shape=deployed_shape(deployment),
        )  # fmt: skip

    def _in_each_view(self, trace: Trace, view: str, work: _Work) -> Simulations:
        """The simulations of one view of the domains, and the hits of each run with domains merged and split."""
        viewed, views, run = in_domains(trace, view), dict.fromkeys((MERGE, SPLIT, view)), self.changed(domains=None)
        if self.cache.capacities is None and not self.cache.tiers:
            run = run.changed(capacities=self._capacities(viewed))  # the same in each view

        def start(requests: int) -> None:
            work.expect(len(views) * requests)

        how: dict[str, Any] = {"workers": work.workers, "on_progress": work.on_progress}
        simulations = run.simulate(viewed, on_start=start, **how)
        runs = {view: simulations.runs}
        for other in views:
            if other != view:
                runs[other] = run.changed(gap=False).simulate(in_domains(trace, other), **how).runs
        isolation = [
            Isolation(count_domains(trace), view, {name: runs[name][number].hits for name in views})
            for number in range(len(simulations.runs))
        ]
        return replace(simulations, isolation=isolation)

    def _counted(self, runs: Sequence[Simulation], optima: Sequence[Simulation]) -> Simulations:
        """The simulations, whose counts leave out the first requests."""
        if not any(isinstance(run, ClosedRun) for run in runs):  # a closed loop has its own warm-up
            runs, optima = ([replace(run, warm_up=self.cache.warm_up) for run in group] for group in (runs, optima))
        return Simulations(list(runs), list(optima))


@dataclass(frozen=True)
class _Work:
    """How many simulations run at a time, and who hears of their progress."""

    workers: int | None
    on_start: Callable[[int], None] | None
    on_progress: Callable[[int], None] | None

    def expect(self, requests: int) -> None:
        if self.on_start:
            self.on_start(requests)


def _default_capacities(
    trace: Trace, mode: Mode, engines: Iterable[EngineName], layouts: Mapping[str, CacheLayout] | None
) -> list[int] | dict[str, list[int]]:
    """Capacities from the longest request to the working set; if layouts have smaller blocks, those of each engine."""
    longest = int(block_demand(trace, mode).max_blocks.max(initial=1))
    whole = log_spaced(longest, max(trace.working_set, longest), POINTS)
    if not layouts:
        return whole
    shares = {name: trace.block_size / layouts[name].tokens_per_block if name in layouts else 1.0 for name in engines}
    return {name: [ceil(blocks * share) for blocks in whole] for name, share in shares.items()}


class DomainsDict(TypedDict):
    """The object `domains` of `curve --json` and `analyze --json`, for a trace with domains."""

    domains: int  # requests without a domain are one together
    view: str


class MergedAndSplit(TypedDict):
    """The hits of one setting with all domains merged, and with all split."""

    merged_hit_tokens: int
    merged_token_hit_rate: float
    split_hit_tokens: int
    split_token_hit_rate: float
    isolation_cost_tokens: int


class IsolationCost(MergedAndSplit, total=False):
    """What isolation costs; these three keys are for `shared:N`."""

    shared_hit_tokens: int
    shared_token_hit_rate: float
    shared_saved_tokens: int


def cost_of(hits: Mapping[str, Hits]) -> IsolationCost:
    """What isolation costs, from the hits in each view."""
    merged, split = hits[MERGE], hits[SPLIT]
    cost: IsolationCost = {
        "merged_hit_tokens": merged.hit_tokens, "merged_token_hit_rate": merged.token_hit_rate,
        "split_hit_tokens": split.hit_tokens, "split_token_hit_rate": split.token_hit_rate,
        "isolation_cost_tokens": merged.hit_tokens - split.hit_tokens,
    }  # fmt: skip
    for shared in (hits[view] for view in hits if view not in (MERGE, SPLIT)):
        cost["shared_hit_tokens"], cost["shared_token_hit_rate"] = shared.hit_tokens, shared.token_hit_rate
        cost["shared_saved_tokens"] = shared.hit_tokens - split.hit_tokens
    return cost


@dataclass(frozen=True)
class Isolation(Described):
    """The hits of one setting in each view of the domains; docs/cache/simulate.md lists the keys.

    >>> merged, split = Hits(2, 4, 8, 16, 32, 1.0, 2), Hits(2, 2, 8, 8, 32, 0.5, 2)
    >>> print(Isolation(3, "split", {"merge": merged, "split": split}))
    isolation of 3 domains costs 8 hit tokens (25.0 points of token hit rate: 50.0 % merged, 25.0 % split)
    """

    domains: int  # requests without a domain are one together
    view: str  # of the simulation: "merge", "split" or "shared:N"
    hits: Mapping[str, Hits] = field(  # view -> hits; merge and split at least
        metadata=column(spread={}, value=cost_of)
    )

    def __str__(self) -> str:
        return sentence(self.to_dict())


def sentence(values: Mapping[str, Any]) -> str:
    """What isolation costs, and what sharing the first tokens saves, from the keys of `Isolation.to_dict`."""
    merged, split = values["merged_token_hit_rate"], values["split_token_hit_rate"]
    domains = f"{values['domains']:,} domain{'' if values['domains'] == 1 else 's'}"
    rates = f"{100 * merged:.1f} % merged, {100 * split:.1f} % split"
    cost = (
        f"isolation of {domains} costs {values['isolation_cost_tokens']:,} hit tokens "
        f"({100 * (merged - split):.1f} points of token hit rate: {rates})"
    )
    if "shared_saved_tokens" not in values:
        return cost
    saved, points = values["shared_saved_tokens"], 100 * (values["shared_token_hit_rate"] - split)
    tokens = int(values["view"].partition(":")[2])
    return f"{cost}; sharing the first {tokens:,} tokens saves {saved:,} of them ({points:.1f} points)"
