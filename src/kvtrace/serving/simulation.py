"""Serve a trace in simulated time: instances, each with a scheduler and a prefix cache, behind a router.

Hits shorten prefills, prefills decide when requests end, and the ends decide what hits later. This simulation follows
that loop step by step; the hit curve of one pass is a quick estimate. docs/serving/serving.md states the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypedDict

import numpy as np

from .._base.errors import UsageError
from ..cache.demand import BlockDemand, block_demand
from ..cache.simulation import Setting, advance_all
from ..cache.tiered import TierDict
from ..trace.domains import in_domains
from ..trace.trace import Trace
from .closed_loop import ClosedLoop as ClosedLoop
from .instances import FleetDict, FleetSimulation, make_router
from .routers import FULL_ATTENTION, check_router
from .schedulers import scheduler_of
from .schedulers.base import BatchLimits as BatchLimits
from .schedulers.base import Scheduler
from .schedulers.base import Tier as Tier
from .schedulers.dynamo import DynamoCost as DynamoCost
from .timeline import Timeline

CHUNK = 1 << 12  # requests between two reports of progress
FIRST_TIER = "hbm"


@dataclass(frozen=True)
class StepCost:
    """The seconds of a step: the larger of its compute time and its read time, plus what overlaps with neither.

    Computing takes `token_s` per token, and `pair_s` per pair of tokens that attend to each other, counted as n^2 - p^2
    for a prompt that grows from p to n tokens. Reading takes `step_s`, and `read_s` per cached token. Beside both, a
    step takes `overhead_s`, `request_s` per request in it, `attention_pair_s` per pair, `attention_read_s` per cached
    token, and `exchange_s` per token, for what the GPUs of an instance exchange.

    Routed experts come on top: the larger of `expert_token_s` per token and the reading of those that the step's tokens
    use. A token uses `expert_share` of them, so n tokens read 1 - (1 - `expert_share`)^n of `expert_step_s`.

    Layers with windows of `window_tokens` take `window_read_s` per cached token, at most a window a request, and
    `window_pair_s` per pair, at most two windows a token.
    """

    token_s: float
    pair_s: float = 0.0
    step_s: float = 0.0
    read_s: float = 0.0
    overhead_s: float = 0.0
    request_s: float = 0.0
    attention_pair_s: float = 0.0
    attention_read_s: float = 0.0
    exchange_s: float = 0.0
    expert_token_s: float = 0.0
    expert_step_s: float = 0.0
    expert_share: float = 0.0  # not a time: from 0 to 1
    window_read_s: float = 0.0
    window_pair_s: float = 0.0
    window_tokens: float = 0.0  # not a time: the length of a window

    def terms(self, cache_tokens: int) -> dict[str, float]:
        """The terms of the kernel. The size of the cache, in tokens, has no part in them."""
        return asdict(self)


class Quantiles(TypedDict):
    """The mean and three quantiles of a time in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class TimedTiersDict(TypedDict, total=False):
    """The tiers of each instance, the first one first; absent without lower tiers."""

    tiers: list[TierDict]


class ServingDict(FleetDict, TimedTiersDict):
    """The result of `ServingRun.to_dict`; docs/serving/serving.md explains the keys."""

    served: int
    rejected: int
    cached_tokens: int
    makespan_s: float
    requests_per_s: float
    utilisation: list[float]
    scheduler: str
    preemptions: int
    recomputed_tokens: int
    steps: int
    queued_s: Quantiles
    ttft_s: Quantiles
    tpot_s: Quantiles
    e2e_s: Quantiles


@dataclass(frozen=True, eq=False, repr=False)
class ServingRun(FleetSimulation):
    """The result of each request: its times in seconds, NaN if it was rejected."""

    started_s: np.ndarray = None  # type: ignore[assignment]  # when the request was admitted
    first_s: np.ndarray = None  # type: ignore[assignment]  # when its first token was computed
    ended_s: np.ndarray = None  # type: ignore[assignment]
    cached_tokens: np.ndarray = None  # type: ignore[assignment]  # prompt tokens that were not computed
    busy_s: tuple[float, ...] = ()  # compute time of each instance
    lower_tier_hits: np.ndarray | None = None  # (tier below the first, request) -> hit blocks that came from the tier
    scheduler: Scheduler | None = None
    steps: tuple[int, ...] = ()  # that each instance took
    preemptions: np.ndarray = None  # type: ignore[assignment]  # request -> times that it was preempted
    recomputed_tokens: np.ndarray = None  # type: ignore[assignment]  # request -> tokens computed again after that
    timelines: tuple[Timeline, ...] = ()  # of each instance, if they were kept
    tiers: tuple[Tier, ...] = ()  # below the first one of each instance

    def _headline(self) -> str:
        ttft = quantiles_of(self.ttft_s)
        return f"{super()._headline()}, ttft_p50_s={ttft['p50']:.4g}, ttft_p99_s={ttft['p99']:.4g}"

    def _columns(self) -> dict[str, np.ndarray]:
        names = ("started_s", "first_s", "ended_s", "cached_tokens", "preemptions", "recomputed_tokens")
        times = {name: getattr(self, name) for name in names}
        return super()._columns() | times | {"ttft_s": self.first_s - self.trace.timestamp / 1000}

    @property
    def rejected(self) -> int:
        """Requests that do not fit into an instance."""
        return int(np.isnan(self.ended_s).sum())

    @property
    def queued_s(self) -> np.ndarray:
        """Time from arrival to admission, of the requests that were served."""
        return served_only(self.started_s - self.trace.timestamp / 1000)

    @property
    def ttft_s(self) -> np.ndarray:
        """Time to first token, from arrival, of the requests that were served."""
        return served_only(self.first_s - self.trace.timestamp / 1000)

    @property
    def tpot_s(self) -> np.ndarray:
        """Time per output token after the first, of the served requests with two output tokens or more."""
        several = self.trace.output_length > 1
        return served_only((self.ended_s - self.first_s)[several] / (self.trace.output_length[several] - 1))

    @property
    def e2e_s(self) -> np.ndarray:
        """Time from arrival to the last token, of the requests that were served."""
        return served_only(self.ended_s - self.trace.timestamp / 1000)

    @property
    def makespan_s(self) -> float:
        """Time from the start of the trace to the last end."""
        return float(np.nanmax(self.ended_s)) if self.rejected < len(self.ended_s) else 0.0

    def to_dict(self) -> ServingDict:
        """Keys as docs/serving/serving.md lists them: those of a simulation of instances, and times."""
        span = self.makespan_s
        served = len(self.ended_s) - self.rejected
        return {
            **super().to_dict(), "schedule": "events", "served": served, "rejected": self.rejected,
            "cached_tokens": int(self.cached_tokens.sum()), "makespan_s": span,
            "requests_per_s": served / span if span else 0.0,
            "utilisation": [busy / span if span else 0.0 for busy in self.busy_s],
            "scheduler": f"{self.scheduler.name} {self.scheduler.version}".strip() if self.scheduler else "",
            "preemptions": int(self.preemptions.sum()), "recomputed_tokens": int(self.recomputed_tokens.sum()),
            "steps": sum(self.steps), "queued_s": quantiles_of(self.queued_s), "ttft_s": quantiles_of(self.ttft_s),
            "tpot_s": quantiles_of(self.tpot_s), "e2e_s": quantiles_of(self.e2e_s), **self._tiers(),
        }  # fmt: skip

    def _tiers(self) -> TimedTiersDict:
        """The hit blocks of each tier, the first one first; nothing without lower tiers."""
        if self.lower_tier_hits is None:
            return {}
        lower = self.lower_tier_hits[:, self.warm_up :].sum(axis=1).tolist()
        first = int(self.hit_blocks[self.warm_up :].sum()) - sum(lower)
        rows: list[TierDict] = [{"name": FIRST_TIER, "capacity": self.setting.capacity, "hit_blocks": first}]
        for tier, hits in zip(self.tiers, lower, strict=True):
            rows.append({"name": tier.name, "capacity": tier.capacity, "hit_blocks": hits})
        return {"tiers": rows}


def simulate_serving(
    trace: Trace,
    cost: StepCost | DynamoCost,
    *,
    setting: Setting,
    instances: int = 1,
    router: str = "round-robin",
    router_seed: int = 0,
    limits: BatchLimits | None = None,
    scheduler: Scheduler | None = None,
    tiers: Sequence[Tier] = (),
    prefetch: bool = True,
    demand: BlockDemand | None = None,
    timelines: bool = False,
    loop: ClosedLoop | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ServingRun:
    """Serve a trace in simulated time: instances that batch continuously, behind a router, each with a prefix cache.

    The engine of the setting decides the scheduler: vllm, sglang and dynamo take the steps of those engines' own ones.
    The other engines admit a request when all blocks that it may need (of the prompt and, in mode grow, of the output)
    fit beside those of the active requests. A request that does not fit into an empty instance is rejected.

    With `tiers`, vllm copies each block of a prompt to the tier below when it is computed, and loads what it finds
    there while other requests run, as its offloading connector does. The engine reference moves blocks that the first
    tier evicts to the tiers below it, and fetches a hit there if that is faster than computing the block again; with
    `prefetch` its transfer starts while the request waits. Other engines have no lower tiers.

    Args:
        trace: The trace, with its arrivals.
        cost: The time that a step of an instance takes.
        setting: The cache of each instance; its schedule is not used. vllm, sglang and dynamo imply mode grow. With a
            `layout`, vllm serves a hybrid model: its capacity is in blocks of the pool that the cache groups share.
        instances: The number of instances.
        router: A router of docs/serving/instances.md.
        router_seed: Of the router dynamo, which draws among instances of equal cost.
        limits: Tokens per step and requests at once; the default is that of the scheduler.
        scheduler: A scheduler with other options, such as `VllmScheduler(watermark=0.01)`, in place of limits.
        tiers: Tiers below the first one of each instance, the fastest first; vllm has one.
        prefetch: With the engine reference: fetch blocks from lower tiers while their request waits.
        demand: The block demand of the trace, if it is already known.
        timelines: Keep the time line of each instance: requests that run and wait, and blocks in use.
        loop: A closed loop: requests arrive when what they wait for has arrived or ended. The default is the open
            loop: they arrive at the times of the trace.
        on_progress: Receives the number of requests served since its last call.

    Returns:
        The times of each request in seconds, its hits and preemptions, and the load of each instance. With a closed
        loop a `ClosedRun`: the requests in order of arrival, and the plays of the session trees.

    Raises:
        UsageError: An argument is not valid.

    >>> from kvtrace.trace.building import toy
    >>> done = simulate_serving(toy("0 1", "0 1", gap_ms=5000.0), StepCost(token_s=1.0), setting=Setting(4))
    >>> done.ttft_s.tolist(), done.cached_tokens.tolist()
    ([2.0, 1.0], [0, 1])
    """
    from .core.serving import Serving

    trace = in_domains(trace)
    check_router(router)
    if scheduler is not None and limits is not None:
        raise UsageError("Give limits or a scheduler, which has its own limits, not both.")
    scheduler = scheduler or scheduler_of(setting.engine, limits)
    for name, size in (("instances", instances), ("capacity", setting.capacity)):
        if size < 1:
            raise UsageError(f"--{name} must be at least 1.")
    if setting.schedule.kind != "serial":
        raise UsageError("A simulation in time has its own schedule. Leave out --schedule.")
    if setting.bound:
        raise UsageError(
            f"A simulation in time does not support the upper bound {setting.policy}. Try another --policy."
        )
    setting = _with_groups(scheduler.setting_of(setting), scheduler, router, trace.block_size)
    fleet = Fleet(
        cost, setting, scheduler, instances, router, router_seed, tuple(tiers), prefetch=prefetch, timelines=timelines
    )
    if loop is not None:
        from .closed_run import run_closed

        return run_closed(fleet, trace, loop, demand, on_progress)
    deployed = fleet.deploy(trace, demand)
    run = Serving(deployed.instances, deployed.router, deployed.requests, setting.capacity)
    advance_all(run, len(trace), on_progress, CHUNK)
    run.close()
    return ServingRun(**deployed.results(), trace=trace)


@dataclass(frozen=True)
class Fleet:
    """Instances behind a router: what they are, before they have a trace."""

    cost: StepCost | DynamoCost
    setting: Setting
    scheduler: Scheduler
    instances: int
    router: str
    router_seed: int
    tiers: tuple[Tier, ...]
    prefetch: bool
    timelines: bool

    def deploy(self, trace: Trace, demand: BlockDemand | None = None) -> Deployed:
        """The compiled instances and their router, ready for the requests of a trace."""
        from .core.dynamo_router import DynamoRouter
        from .core.requests import Requests

        demand = demand or block_demand(trace, *self.setting.demand_options)
        tokens, output = self.scheduler.lengths(trace)
        needs = self.scheduler.needs(demand, self.setting)
        requests = Requests(trace.timestamp / 1000, tokens, output, needs, _priorities(trace))
        engines = [self.scheduler.engine(self.setting, demand, self.tiers) for _ in range(self.instances)]
        terms = self.cost.terms(self.setting.capacity * trace.block_size)
        built = [self.scheduler.instance(engine, requests, terms, prefetch=self.prefetch) for engine in engines]
        if self.timelines:
            for one in built:
                one.watch()
        if self.router == "dynamo":
            chooser: Any = DynamoRouter(engines, requests, demand.blocks, trace.block_size, self.router_seed)
        else:
            chooser = make_router(trace, self.router, engines)
        return Deployed(self, requests, engines, built, chooser)


@dataclass(frozen=True)
class Deployed:
    """Compiled instances, their caches and their router; after a run, what it found."""

    fleet: Fleet
    requests: Any
    engines: list[Any]
    instances: list[Any]
    router: Any

    def results(self, rows: np.ndarray | slice = slice(None)) -> dict[str, Any]:
        """The fields of a ServingRun, except its trace, for some rows in their order."""
        fleet, outcomes, engines = self.fleet, self.requests.outcomes, self.engines
        lines = [Timeline.of(one.timeline) for one in self.instances] if fleet.timelines else []
        lower = sum(engine.tier_hits.astype(np.int64) for engine in engines)[:, rows] if fleet.tiers else None
        return {
            "setting": fleet.setting, "hit_blocks": sum(engine.hits.astype(np.int64) for engine in engines)[rows],
            "evictions": sum(engine.evictions for engine in engines), "early_frees": 0, "router": fleet.router,
            "instance": outcomes["instance"][rows], "instances": fleet.instances,
            "started_s": outcomes["started"][rows], "first_s": outcomes["first"][rows],
            "ended_s": outcomes["ended"][rows], "cached_tokens": outcomes["cached"][rows],
            "busy_s": tuple(one.busy for one in self.instances), "lower_tier_hits": lower,
            "scheduler": fleet.scheduler, "steps": tuple(one.steps for one in self.instances),
            "preemptions": outcomes["preempted"][rows], "recomputed_tokens": outcomes["recomputed"][rows],
            "timelines": tuple(lines), "tiers": fleet.tiers,
        }  # fmt: skip


def _with_groups(setting: Setting, scheduler: Scheduler, router: str, block_size: int) -> Setting:
    """The setting; its layout is None for full attention. UsageError if something cannot hold its cache groups."""
    layout = setting.layout
    if layout is None or (layout.is_full and layout.groups[0].block_size == block_size):
        return replace(setting, layout=None)
    if not scheduler.layouts:
        raise UsageError(f"Engine {setting.engine} does not support cache groups in time. Use --engine vllm.")
    if router in FULL_ATTENTION:
        raise UsageError(f"--router {router} counts blocks of full attention, not of cache groups. Try round-robin.")
    return setting


def _priorities(trace: Trace) -> np.ndarray | None:
    """The column `priority` of a trace, if it has one of whole numbers."""
    column = trace.extra.get("priority")
    return column if isinstance(column, np.ndarray) and column.dtype.kind in "iu" else None


def served_only(values) -> np.ndarray:
    return values[~np.isnan(values)]


def quantiles_of(values: np.ndarray) -> Quantiles:
    """Mean and quantiles; zeros if there are no values."""
    if not len(values):
        return {"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0}
    p50, p90, p99 = (float(np.quantile(values, quantile)) for quantile in (0.5, 0.9, 0.99))
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99}
