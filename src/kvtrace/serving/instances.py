"""Instances of a serving engine behind a router, each with its own cache: request by request, or as a run in time.

An instance hits only blocks that it has cached itself, so the router decides what can hit. docs/cache/simulate.md
explains the routers, and why pure overlap fails if all prompts begin with the same block. An InstanceGroup builds the
schedulers, caches and clocks of a simulation in time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol, TypedDict

import numpy as np

from .._base.errors import UsageError
from .._base.results import Rows, column
from ..cache.demand import BlockDemand, block_demand, parse_schedule
from ..cache.simulation import Setting, Simulation, advance_all, build
from ..cache.tiered import HitSources, SharedTierDict, hits_by_tier, lower_tiers
from ..cache.tiers import Tier, require_fields
from ..trace.domains import in_domains
from ..trace.hits import count_hits
from ..trace.trace import Trace
from .fleet_phases import FleetDict, fleet_of, imbalance_of
from .fleet_schedule import MAX_INSTANCES, FleetSchedule, FleetSpans, require_own_tiers
from .routers import OWN, RouterName, check_gateway, check_router, gateway_options
from .schedulers.base import Scheduler
from .schedulers.simple import ReserveScheduler, is_pooled


@dataclass(frozen=True, eq=False)
class Timeline:
    """One row for each change; a row is valid until the time of the next one. Before the first row all counts are 0."""

    seconds: np.ndarray
    running: np.ndarray  # requests that the scheduler has admitted
    waiting: np.ndarray  # requests that have arrived, or were preempted, and wait
    blocks: np.ndarray  # that requests hold; of `ReserveScheduler`, that are reserved for them

    @classmethod
    def of(cls, rows: list[tuple[float, int, int, int]]) -> Timeline:
        """A time line of the rows that an instance kept; of rows at the same time, the last one counts."""
        seconds = np.array([row[0] for row in rows], dtype=np.float64)
        counts = np.array([row[1:] for row in rows], dtype=np.int64).reshape(-1, 3)
        last = np.append(seconds[1:] > seconds[:-1], True)[: len(seconds)]
        return cls(seconds[last], *counts[last].T)

    def at(self, moments: np.ndarray) -> Timeline:
        """The state at other moments, in seconds.

        >>> line = Timeline.of([(0.0, 1, 0, 2), (2.0, 1, 1, 3)])
        >>> line.at(np.array([-1.0, 1.0, 2.0])).blocks.tolist()
        [0, 2, 3]
        """
        place = np.searchsorted(self.seconds, moments, "right")
        columns = (np.append(0, column)[place] for column in (self.running, self.waiting, self.blocks))
        return Timeline(np.asarray(moments, dtype=np.float64), *columns)

    @classmethod
    def sum_at(cls, lines: Sequence[Timeline], moments: np.ndarray) -> Timeline:
        """The sums over instances at some moments.

        >>> Timeline.sum_at([Timeline.of([(0.0, 1, 0, 2)]), Timeline.of([(2.0, 1, 1, 3)])], np.array([2.0])).blocks
        array([5])
        """
        states = [line.at(moments) for line in lines]
        names = ("running", "waiting", "blocks")
        return cls(states[0].seconds, *(np.sum([getattr(one, name) for one in states], axis=0) for name in names))


# The trace's own times and output lengths decide which requests overlap. 30 ms per output token is a usual TPOT, and
# the hits of the routers hardly depend on it (docs/cache/simulate.md). One request at a time would leave every
# instance idle at each arrival, so that no router could see a load.
OVERLAP = "open-loop:30"
IMBALANCE = "the tokens of the busiest instance, divided by the mean over the instances"
FEW_OVERLAP = "Few requests overlap, so one instance may be enough for this load."
NEARLY_ALL = 0.9  # share of the requests on one instance that is worth a warning


class InstanceLoad(TypedDict):
    """The requests that one instance served."""

    instance: int
    requests: int
    blocks: int
    tokens: int
    hit_blocks: int
    block_hit_rate: float


def is_routed(_key: str, rows: Rows) -> bool:
    """Whether a router had a choice."""
    return bool(rows[0].get("instances", 1) > 1)


@dataclass(frozen=True, eq=False, repr=False)
class FleetSimulation(Simulation):
    """The result of the caches of several instances on a trace."""

    router: RouterName = field(default="round-robin", metadata=column("router", rank=0, place=6, when=is_routed))
    instance: np.ndarray = field(
        default_factory=lambda: np.empty(0, np.int32)
    )  # request -> the instance that served it
    instances: int = field(default=1, metadata=column())  # all that ran
    spans: FleetSpans | None = None  # of a fleet with a schedule, or of the fixed fleet beside it
    sources: HitSources | None = None  # where the hits came from, with tiers

    def _headline(self) -> str:
        tiers = f", tiers {self.sources}" if self.sources else ""
        return (
            f"{super()._headline()}{tiers}, {self.instances} instances, {self.router}, imbalance={self.imbalance:.2f}"
        )

    def _columns(self) -> dict[str, np.ndarray]:
        return super()._columns() | (self.sources.columns() if self.sources else {}) | {"instance": self.instance}

    @property
    @column("in each tier", ",", place=12, parts=hits_by_tier, key="tiers", optional=True)
    def _hits_of_tiers(self) -> list[SharedTierDict] | None:
        """The hit blocks of each tier, the first one first, and what moved over its link; None without tiers."""
        return None if self.sources is None else self.sources.to_list(self.warm_up)

    @property
    @column("imbalance", ".2f", place=20, when=is_routed, meaning=IMBALANCE)
    def imbalance(self) -> float:
        """Tokens of the busiest instance / mean tokens: 1 at best, the number of instances at worst.

        Of a fleet that changes, the mean over its phases, by their tokens and over the instances that take requests.
        """
        if self.spans is not None and self.spans.changes:
            return imbalance_of(self)
        tokens = [load["tokens"] for load in self.loads]
        return max(tokens) * len(tokens) / sum(tokens) if sum(tokens) else 1.0

    @property
    @column()
    def loads(self) -> list[InstanceLoad]:
        """The requests, prompt blocks, prompt tokens and hit blocks of each instance, after the warm-up."""
        loads: list[InstanceLoad] = []
        for number in range(self.instances):
            rows = np.flatnonzero(self.instance == number)
            hits = count_hits(self.trace, self.hit_blocks, rows[rows >= self.warm_up])
            loads.append({"instance": number, "requests": hits.requests, "blocks": hits.blocks, "tokens": hits.tokens,
                          "hit_blocks": hits.hit_blocks, "block_hit_rate": hits.block_hit_rate})  # fmt: skip
        return loads

    @property
    @column("fleet", str, place=7, parts={("kind",): "fleet"}, key="fleet", optional=True)
    def _fleet(self) -> FleetDict | None:
        """The phases of a fleet's schedule; None without one."""
        return fleet_of(self)

    @property
    def warning(self) -> str | None:
        """One line if one of several instances served nearly all requests, and what to change; otherwise None.

        >>> from kvtrace.trace.building import toy
        >>> trace = toy("0 1", "0 2", "0 3", "0 4")
        >>> print(simulate_instances(trace, 2, "overlap", setting=Setting(9)).warning)
        overlap sent 4 of 4 requests to one of 2 instances. Try a --router that weighs load, such as kv-aware.
        >>> simulate_instances(trace, 2, "round-robin", setting=Setting(9)).warning is None
        True
        """
        requests = [load["requests"] for load in self.loads]
        largest, total = max(requests), sum(requests)
        changes = self.spans is not None and self.spans.changes
        if changes or self.instances < 2 or total < 2 * self.instances or largest <= NEARLY_ALL * total:
            return None
        where = f"one of {self.instances:,} instances"
        return f"{self.router} sent {largest:,} of {total:,} requests to {where}. {self._remedy()}"

    def _remedy(self) -> str:
        """The option that spreads the requests of an uneven run."""
        if self.router == "overlap":
            return "Try a --router that weighs load, such as kv-aware."
        if self.router == "sticky":
            return "They have the same session or second block. Try --router kv-aware."
        if self.setting.schedule.kind == "serial":
            return f"Each request ends before the next one arrives. Try --schedule {OVERLAP}."
        return FEW_OVERLAP


def simulate_instances(
    trace: Trace,
    instances: int,
    router: RouterName = "round-robin",
    *,
    setting: Setting,
    schedule: str | None = None,
    router_options: str | None = None,
    tiers: Sequence[Tier] = (),
    instances_per_host: int | None = None,
    inclusive: bool = False,
    fleet: FleetSchedule | None = None,
    demand: BlockDemand | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> FleetSimulation:
    """Run a trace over several instances behind a router, each with a cache of its own, and count the hits.

    Requests overlap as the trace's times and output lengths say, unless `schedule` is "serial".

    Args:
        trace: The trace.
        instances: The number of instances.
        router: A router of https://github.com/kvtrace/kvtrace/blob/main/docs/cache/simulate.md.
        setting: The cache of each instance.
        schedule: "open-loop:MS" or "serial". The default is the schedule of the setting, or open-loop:30 if that is
            serial.
        router_options: Options of the router sglang-cache-aware, as `cache_threshold=0.5`.
        tiers: The first one of each instance, in place of the setting's capacity, and those below it, which instances
            can share. A tier of 0 blocks is none.
        instances_per_host: The instances that share a tier of scope "host"; the default is all.
        inclusive: Tiers are written through, unless they have another way of copies.
        fleet: Changes of the fleet, which begins with `instances`.
        demand: The block demand of the trace, if it is already known.
        on_progress: Receives the number of requests served since its last call.

    Returns:
        The hit blocks and the instance of each request, the load of each instance, and the hits of each tier.

    Raises:
        UsageError: The router is unknown, or the schedule is `concurrency:N`.

    >>> from kvtrace.trace.building import toy
    >>> done = simulate_instances(toy("0 1", "0 1", "0 1"), 2, setting=Setting(2))
    >>> done.hit_blocks.tolist(), done.instance.tolist(), round(done.imbalance, 2)
    ([0, 0, 2], [0, 1, 0], 1.33)
    >>> shared = [Tier("hbm", 2), Tier("pool", 9, scope="cluster")]
    >>> done = simulate_instances(toy("0 1", "0 1", "0 1"), 2, setting=Setting(2), tiers=shared)
    >>> done.sources.hits.tolist()
    [[0, 0, 2], [0, 2, 0]]
    """
    from .core.serving import Fleet

    trace = in_domains(trace)
    check_router(router, in_time=False)
    _require_number(instances, instances_per_host)
    if schedule is not None or setting.schedule.kind == "serial":
        setting = replace(setting, schedule=parse_schedule(schedule or OVERLAP))
    if setting.schedule.kind == "concurrency":
        raise UsageError("--instances supports --schedule serial and open-loop:MS, not concurrency:N.")
    if setting.bound:
        raise UsageError(f"--instances does not support the upper bound {setting.policy}. Try another --policy.")
    spans = None if fleet is None else fleet.spans(instances)
    count = instances if spans is None else len(spans)
    shared, places = None, None
    if tiers:
        if spans is not None:
            require_own_tiers(tiers)
        setting = replace(setting, capacity=tiers[0].capacity)
        demand = demand or block_demand(trace, *setting.demand_options)
        shared = lower_tiers(setting, demand, tiers, count, instances_per_host or count, inclusive=inclusive)
        engines, places = shared.engines, shared.places
    else:
        demand = demand or block_demand(trace, *setting.demand_options)
        engines = [build(setting, demand) for _ in range(count)]
    chooser = make_router(trace, router, engines, router_options)
    if spans is not None:
        chooser.change_fleet(instances, *spans.events)
    run = Fleet(engines, chooser, trace.input_length, places)
    advance_all(run, len(demand), on_progress)
    hit_blocks = sum(engine.hits.astype(np.int64) for engine in engines) if places is None else places.hits
    run.close()
    done = FleetSimulation(
        setting, trace, hit_blocks.astype(np.int64), sum(engine.evictions for engine in engines),
        sum(engine.early_frees for engine in engines), 0, router, run.instances, count, spans=spans,
    )  # fmt: skip
    if shared is None:
        return done
    return replace(done, evictions=shared.dropped, sources=shared.sources())


def anywhere_hits(done: FleetSimulation) -> np.ndarray:
    """Request -> leading blocks that a tier of any instance had at its look-up; runs the simulation of tiers again.

    UsageError for a fleet that changes: tiers of instances that are gone would count.

    >>> from kvtrace.trace.building import toy
    >>> tiers = [Tier("hbm", 2), Tier("dram", 9)]
    >>> done = simulate_instances(toy("0 1", "0 1", "0 1"), 2, setting=Setting(2), tiers=tiers)
    >>> done.hit_blocks.tolist(), anywhere_hits(done).tolist()
    ([0, 0, 2], [0, 2, 2])
    """
    from .core.serving import Fleet, Router

    assert done.sources is not None
    if done.spans is not None and done.spans.changes:
        raise UsageError("explain does not support --tiers with --fleet yet. Leave one of them out.")
    demand = block_demand(done.trace, *done.setting.demand_options)
    tiers = done.sources.tiers
    if done.setting.engine == "sglang":  # its option hicache_write_policy says how it copies
        tiers = tuple(replace(tier, copies=None) for tier in tiers)
    shared = lower_tiers(done.setting, demand, tiers, done.instances, done.sources.per_host, inclusive=False)
    shared.watch()
    # each request goes where it went
    router = Router(shared.engines, "sticky", done.instance, done.trace.input_length, done.trace.block_size)
    run = Fleet(shared.engines, router, done.trace.input_length, shared.places)
    advance_all(run, len(demand), None)
    run.close()
    return shared.elsewhere()


def make_router(trace: Trace, name: str, engines: list[Any], options: str | None = None):
    """The compiled router of a name, for a trace and the engines of its instances; UsageError for wrong options."""
    from .core.serving import Router, SglangGateway

    check_gateway(name, options, len(engines))
    if name == "sglang-cache-aware":
        terms = gateway_options(options).terms
        return SglangGateway(engines, trace.hash_ids, trace.offsets, trace.input_length, trace.block_size, terms)

    keys = _keys(trace) if name == "sticky" else np.zeros(len(trace), dtype=np.int64)  # the others do not read them
    return Router(engines, name, keys, trace.input_length, trace.block_size)


def _keys(trace: Trace) -> np.ndarray:
    """The key of each request for the sticky router: a hash of its session, or of its second block (or only block).

    The hash is the last 32 bits of SHA-256 over the digits of the number: the same on every machine.
    """
    blocks = trace.prompt_blocks
    key = np.arange(len(trace), dtype=np.int64)
    place = trace.offsets[:-1] + np.minimum(1, blocks - 1)
    key[blocks > 0] = trace.hash_ids[place[blocks > 0]]
    if trace.session is not None:
        key = np.where(trace.session >= 0, trace.session, key)
    distinct, number = np.unique(key, return_inverse=True)
    return np.array([_hashed(value) for value in distinct.tolist()], dtype=np.int64)[number]


@lru_cache(1 << 16)  # a plan routes the same trace a hundred times
def _hashed(value: int) -> int:
    return int.from_bytes(hashlib.sha256(str(value).encode()).digest()[-4:], "big")


CHUNK = 1 << 12  # requests between two reports of progress


class Cost(Protocol):
    """The time of a step: a StepCost or a DynamoCost."""

    def terms(self, cache_tokens: int) -> dict[str, float]:
        """The terms of the kernel, for a cache of so many tokens."""
        ...

    def front(self, tokens: np.ndarray, servers: int | np.ndarray) -> tuple[np.ndarray, float]:
        """Seconds of an API server for each prompt of so many tokens, and seconds from there to the engine."""
        ...


def _require_number(instances: int, per_host: int | None) -> None:
    if not 1 <= instances <= MAX_INSTANCES:
        raise UsageError(f"--instances must be from 1 to {MAX_INSTANCES:,}.")
    if per_host is not None and per_host < 1:
        raise UsageError("--instances-per-host must be at least 1.")


@dataclass(frozen=True)
class InstanceGroup:
    """Instances behind a router: what they are, before they have a trace."""

    cost: Cost
    setting: Setting
    scheduler: Scheduler
    instances: int
    router: RouterName
    router_seed: int
    tiers: tuple[Tier, ...]
    prefetch: bool
    timelines: bool
    api_server_count: int | None = None
    lockstep: bool = False
    instances_per_host: int | None = None  # that share a tier of a host; None: all
    spans: FleetSpans | None = None  # of a fleet that changes; it begins with `instances`
    router_options: str | None = None

    def __post_init__(self) -> None:
        _require_number(self.instances, self.instances_per_host)
        check_gateway(self.router, self.router_options, self.count)
        require_fields(self.tiers, self.scheduler.tier_fields, f"The scheduler {self.scheduler.name}")

    @property
    def count(self) -> int:
        """All instances that run at some time."""
        return self.instances if self.spans is None else len(self.spans)

    def deploy(self, trace: Trace, demand: BlockDemand | None = None) -> Deployed:
        """The compiled instances and their router, ready for the requests of a trace."""
        from .core.instance import Requests

        demand = demand or block_demand(trace, *self.setting.demand_options)
        tokens, output = self.scheduler.lengths(demand.trace)
        needs = self.scheduler.needs(demand, self.setting)
        requests = Requests(entered_s(trace, self.front(trace)), tokens, output, needs, priorities(trace))
        if self.spans is not None:
            require_own_tiers(self.tiers)
            if getattr(self.scheduler, "dp_size", 1) > 1:
                raise UsageError("--fleet does not support workers with several ranks. Leave out dp_size.")
        per_host = min(self.instances_per_host or self.count, self.count)
        engines = self.scheduler.engines(self.setting, demand, self.tiers, self.count, per_host)
        terms = self.cost.terms(self.setting.capacity * trace.block_size)
        if self.lockstep and self.instances > 1:
            built = self.scheduler.ranks(engines, requests, terms)
        else:
            built = self.scheduler.workers(engines, requests, terms, prefetch=self.prefetch)
        if self.timelines:
            for instance in built:
                instance.watch()
        chooser = self._chooser(trace, requests, demand, built)
        if self.spans is not None:
            chooser.change_fleet(self.instances, *self.spans.events)
        return Deployed(self, requests, engines, built, chooser)

    @property
    def shares_tiers(self) -> bool:
        """Whether instances affect each other through a tier; one instance has its events, too."""
        pooled = isinstance(self.scheduler, ReserveScheduler) and is_pooled(self.tiers)
        return pooled or any(tier.scope != "rank" for tier in self.tiers)

    def front(self, trace: Trace) -> tuple[np.ndarray, float]:
        """Seconds that the API servers, as many as instances, take for each request, and those to the engine."""
        if not self.scheduler.has_front:
            return np.zeros(len(trace)), 0.0
        servers: int | np.ndarray = self.instances
        if self.spans is not None and self.spans.changes:
            servers = self.spans.taking_at(trace.timestamp / 1000)
        return self.cost.front(trace.input_length, servers)

    def _chooser(self, trace: Trace, requests: Any, demand: BlockDemand, built: list[Any]) -> Any:
        """The compiled router; one that is in time only reads the requests, or what the instances report."""
        from .core.serving import DynamoRouter, SglangController, VllmBalancer

        engines = [instance.engine for instance in built]
        if self.router == "dynamo":
            if demand.drafting is not None:
                raise UsageError("The router dynamo is not modelled with a drafter. Try --router kv-aware.")
            return DynamoRouter(engines, requests, demand.blocks, trace.block_size, self.router_seed)
        if self.router == "vllm-dp":
            servers = self.api_server_count or len(built)
            return VllmBalancer(built, requests, servers, self.router_seed, self.lockstep and len(built) > 1)
        if self.router in OWN:
            return SglangController(built, requests, self.router == "sglang-total-tokens")
        return make_router(trace, self.router, engines, self.router_options)


def entered_s(trace: Trace, front: tuple[np.ndarray, float]) -> np.ndarray:
    """When each request reaches the engine, in seconds: the API server takes one after another.

    `front` has the seconds that it takes for each request, and those from there to the engine.
    """
    sent_s, (front_s, delay_s) = trace.timestamp / 1000, front
    passed = np.cumsum(front_s)  # if the API server never waits for a request
    return np.maximum.accumulate(sent_s - (passed - front_s)) + passed + delay_s


@dataclass(frozen=True)
class Deployed:
    """Compiled instances, their caches and their router; after a run, what it found."""

    fleet: InstanceGroup
    requests: Any
    engines: list[Any]
    instances: list[Any]
    router: Any

    def serving(self) -> Any:
        """The compiled run in an open loop: instances that share a tier take turns in one loop in time."""
        from .core.dynamo import SharedTierServing
        from .core.interleaved import PooledInstance, PooledServing
        from .core.serving import Serving

        kind = SharedTierServing if self.fleet.shares_tiers else Serving
        if any(isinstance(instance, PooledInstance) for instance in self.instances):
            kind = PooledServing
        return kind(self.instances, self.router, self.requests, self.fleet.setting.capacity)

    def results(self, rows: np.ndarray | slice = slice(None)) -> dict[str, Any]:
        """The fields of a ServingRun, except its trace, for some rows in their order."""
        fleet, outcomes, engines = self.fleet, self.requests.outcomes, self.engines
        lines = [Timeline.of(instance.timeline) for instance in self.instances] if fleet.timelines else []
        lower = sum(engine.tier_hits.astype(np.int64) for engine in engines)[:, rows] if fleet.tiers else None
        return {
            "setting": fleet.setting, "hit_blocks": sum(engine.hits.astype(np.int64) for engine in engines)[rows],
            "evictions": sum(engine.evictions for engine in engines), "early_frees": 0, "router": fleet.router,
            "instance": outcomes["instance"][rows], "instances": fleet.count, "spans": fleet.spans,
            "started_s": outcomes["started"][rows], "first_s": outcomes["first"][rows],
            "ended_s": outcomes["ended"][rows], "cached_tokens": outcomes["cached"][rows],
            "busy_s": tuple(instance.busy for instance in self.instances), "lower_tier_hits": lower,
            "scheduler": fleet.scheduler, "steps": tuple(instance.steps for instance in self.instances),
            "preemptions": outcomes["preempted"][rows], "recomputed_tokens": outcomes["recomputed"][rows],
            "timelines": tuple(lines), "tiers": fleet.tiers,
        }  # fmt: skip


def priorities(trace: Trace) -> np.ndarray | None:
    """The column `priority` of a trace, if it has one of whole numbers."""
    column = trace.extra.get("priority")
    return column if isinstance(column, np.ndarray) and column.dtype.kind in "iu" else None
