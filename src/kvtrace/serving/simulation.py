"""Serve a trace in simulated time: instances, each with a scheduler and a prefix cache, behind a router.

Hits shorten prefills, prefills decide when requests end, and the ends decide what hits later. This simulation follows
that loop step by step; the hit curve of one pass is a quick estimate. docs/serving/serving.md states the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

import numpy as np

from .._base.errors import UsageError
from ..cache.demand import BlockDemand
from ..cache.simulation import Setting, advance_all
from ..trace.domains import in_domains
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, PREFIXES, require_known
from .apart import engine_workers
from .disaggregated import DisaggregatedRun as DisaggregatedRun
from .disaggregated import serve_workers
from .disaggregation import Disaggregation as Disaggregation
from .dynamo_workers import dynamo_workers
from .fleet_schedule import FleetSchedule
from .instances import CHUNK, InstanceGroup
from .lanes import ClosedLoop as ClosedLoop
from .lanes import ClosedRun, run_closed
from .routers import FULL_ATTENTION, RouterName, check_balancer, check_fleet, check_router
from .schedulers import scheduler_of
from .schedulers.base import BatchLimits as BatchLimits
from .schedulers.base import Scheduler
from .schedulers.base import Tier as Tier
from .schedulers.dynamo import DynamoCost as DynamoCost
from .serving_run import ServingRun as ServingRun


@dataclass(frozen=True)
class StepCost:
    """The seconds of a step, and of what comes before a request's first one.

    A step takes the larger of its compute time and its read time, plus what overlaps with neither. Computing takes
    `token_s` per token, and `pair_s` per pair of tokens that attend to each other, counted as n^2 - p^2 for a prompt
    that grows from p to n tokens. Reading takes `step_s`, and `read_s` per cached token. Beside both, a step takes
    `overhead_s`, `request_s` per request in it, `attention_pair_s` per pair and `attention_read_s` per cached token.

    Routed experts come on top: the larger of `expert_token_s` per token and the reading of those that the step's tokens
    use. A token uses `expert_share` of them, so n tokens read 1 - (1 - `expert_share`)^n of `expert_step_s`.

    Layers with windows of `window_tokens` take `window_read_s` per cached token, at most a window a request, and
    `window_pair_s` per pair, at most two windows a token.

    What the GPUs of an instance exchange takes `exchange_s` per token. Another way, for large steps, takes
    `bulk_exchange_step_s`, and `bulk_exchange_s` per token (0: there is none); each step takes the shorter way, but a
    step of more than `bulk_exchange_tokens` tokens (0: no limit) always the other one.

    A step that computes prompts, of more than `graph_tokens` tokens in all, has no CUDA graph: it takes at least
    `launch_s`, in which the host launches its kernels.

    An API server takes requests in the order in which they are sent, one after another: `front_request_s` for each, and
    `front_token_s` per prompt token. With several instances there are as many API servers, so these two times are
    divided by their number. Then a request takes `front_delay_s` to the engine. TTFT and E2E count from its sending.

    >>> from kvtrace.trace.building import toy
    >>> cost = StepCost(token_s=0.01, exchange_s=0.004, bulk_exchange_s=0.001, bulk_exchange_step_s=0.01)
    >>> two = toy("0 1", "2 3", block_size=16, gap_ms=0.0)  # a step of 64 tokens: 0.64 s and 0.01 + 0.064 s
    >>> open_loop(two, cost, setting=Setting(4)).ttft_s.round(3).tolist()
    [0.714, 0.714]
    >>> cost = replace(cost, front_request_s=0.1, front_delay_s=0.05)
    >>> open_loop(two, cost, setting=Setting(4)).queued_s.round(3).tolist()
    [0.15, 0.512]
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
    bulk_exchange_s: float = 0.0
    bulk_exchange_step_s: float = 0.0
    bulk_exchange_tokens: float = 0.0  # not a time
    expert_token_s: float = 0.0
    expert_step_s: float = 0.0
    expert_share: float = 0.0  # not a time: from 0 to 1
    window_read_s: float = 0.0
    window_pair_s: float = 0.0
    window_tokens: float = 0.0  # not a time: the length of a window
    launch_s: float = 0.0
    graph_tokens: float = 0.0  # not a time
    front_request_s: float = 0.0
    front_token_s: float = 0.0
    front_delay_s: float = 0.0

    def terms(self, cache_tokens: int) -> dict[str, float]:
        """The terms of the kernel. The size of the cache, in tokens, has no part in them."""
        return {name: value for name, value in vars(self).items() if not name.startswith("front_")}

    def front(self, tokens: np.ndarray, servers: int | np.ndarray) -> tuple[np.ndarray, float]:
        """Seconds of an API server for each prompt of so many tokens, and seconds from there to the engine."""
        return (self.front_request_s + self.front_token_s * tokens) / servers, self.front_delay_s


class ServingOptions(TypedDict, total=False):
    """How the instances of a simulation in time serve.

    Keys:
        instances: The number of instances; the default is 1.
        router: A router of docs/cache/simulate.md; the default is round-robin.
        router_seed: Of the routers that draw: dynamo among instances of equal cost, vllm-dp an API server for each
            request.
        router_options: Options of the router sglang-cache-aware, as `cache_threshold=0.5`.
        api_server_count: With the router vllm-dp: the API servers, which balance each by itself. The default is one
            for each instance, as vllm serve has.
        lockstep: The instances are data-parallel ranks that begin and end their steps together, as those of vLLM with
            experts and of SGLang with data-parallel attention. The cost is that of one of them alone: the experts are
            spread over the GPUs of all, and compute the tokens of all.
        fleet: Changes of the fleet, which begins with `instances`.
        limits: Tokens per step and requests at once; the default is that of the scheduler.
        scheduler: A scheduler with other options, such as `VllmScheduler(watermark=0.01)`, in place of limits.
        tiers: Tiers below the first one of each instance, the fastest first; vllm and dynamo have one.
        instances_per_host: The instances that share a tier of scope "host"; the default is all.
        prefetch: With the engine reference: fetch blocks from lower tiers while their request waits (the default).
        timelines: Keep the time line of each instance: requests that run and wait, and blocks in use.
        disaggregation: Prefill and decode on different workers, in place of instances; dynamo has such workers.
    """

    instances: int
    router: RouterName
    router_seed: int
    router_options: str | None
    api_server_count: int | None
    lockstep: bool
    fleet: FleetSchedule | None
    limits: BatchLimits | None
    scheduler: Scheduler | None
    tiers: Sequence[Tier]
    instances_per_host: int | None
    prefetch: bool
    timelines: bool
    disaggregation: Disaggregation | None


# engine -> how it builds prefill and decode workers, and the unit of their times in ms
WORKERS: dict[str, tuple[Any, float]] = {
    "dynamo": (dynamo_workers, 1), "vllm": (engine_workers, 1000), "sglang": (engine_workers, 1000)
}  # fmt: skip


def open_loop(
    trace: Trace,
    cost: StepCost | DynamoCost,
    *,
    setting: Setting,
    demand: BlockDemand | None = None,
    on_progress: Callable[[int], None] | None = None,
    **options: Unpack[ServingOptions],
) -> ServingRun:
    """Serve a trace in simulated time: instances that batch continuously, behind a router, each with a prefix cache.

    The engine of the setting decides the scheduler: vllm, sglang and dynamo take the steps of those engines' own ones.
    The other engines admit a request when all blocks that it may need (of the prompt and, in mode grow, of the output)
    fit beside those of the active requests. A request that does not fit into an empty instance is rejected.

    With `tiers`, vllm copies each block of a prompt to the tier below when it is computed, and loads what it finds
    there while other requests run, as its offloading connector does. The engine reference moves blocks that the first
    tier evicts to the tiers below it, and fetches a hit there if that is faster than computing the block again; with
    `prefetch` its transfer starts while the request waits. dynamo does as vLLM's connector does, with a tier of each
    worker or one that all share. Other engines have no lower tiers.

    Args:
        trace: The trace; requests arrive at its times.
        cost: The time that a step of an instance takes.
        setting: The cache of each instance; its schedule is not used. vllm, sglang and dynamo imply mode grow. With a
            `layout`, vllm serves a hybrid model: its capacity is in blocks of the pool that the cache groups share.
        demand: The block demand of the trace, if it is already known.
        on_progress: Receives the number of requests served since its last call.
        options: How the instances serve: `ServingOptions` has the keys.

    Returns:
        The times of each request in seconds, its hits and preemptions, and the load of each instance.

    Raises:
        UsageError: An argument is not valid.

    >>> from kvtrace.trace.building import toy
    >>> run = open_loop(toy("0 1", "0 1", gap_ms=5000.0), StepCost(token_s=1.0), setting=Setting(4))
    >>> run.ttft_s.tolist(), run.cached_tokens.tolist()
    ([2.0, 1.0], [0, 1])
    """
    trace = _servable(trace)
    fleet = _instances(trace, cost, setting, options)
    if (apart := options.get("disaggregation")) is not None:
        return _serve_apart(fleet, apart, trace, demand, None, on_progress)
    deployed = fleet.deploy(trace, demand)
    run = deployed.serving()
    advance_all(run, len(trace), on_progress, CHUNK)
    run.close()
    return ServingRun(**deployed.results(), trace=trace)


def _serve_apart(
    fleet: InstanceGroup, apart: Disaggregation, trace: Trace, demand: BlockDemand | None, loop: ClosedLoop | None,
    on_progress: Callable[[int], None] | None,
) -> DisaggregatedRun:  # fmt: skip
    """Serve a trace with prefill and decode on different workers."""
    engine = fleet.setting.engine
    if engine not in WORKERS:
        raise UsageError(
            f"--prefill-workers is not simulated with engine {engine}. Use --engine {' or '.join(WORKERS)}."
        )
    if fleet.instances > 1 or fleet.lockstep or fleet.tiers:
        raise UsageError(
            "--prefill-workers does not go with --instances, --tiers or data-parallel ranks. Leave them out."
        )
    build, unit_ms = WORKERS[engine]

    def built(played: Trace) -> Any:
        known = demand if played is trace else None
        return build(
            played, fleet.cost, fleet.scheduler, fleet.setting, apart, fleet.router, fleet.router_seed, known
        )  # fmt: skip

    return serve_workers(trace, built, loop, unit_ms=unit_ms, timelines=fleet.timelines, on_progress=on_progress)


def closed_loop(
    trace: Trace,
    cost: StepCost | DynamoCost,
    *,
    loop: ClosedLoop,
    setting: Setting,
    demand: BlockDemand | None = None,
    on_progress: Callable[[int], None] | None = None,
    **options: Unpack[ServingOptions],
) -> ClosedRun:
    """Serve a trace in simulated time, as `open_loop`, but requests arrive when what they wait for has ended.

    Args:
        trace: The trace, with dependencies.
        loop: The lanes, and the time that the run takes.
        cost, setting, demand, on_progress, options: As in `open_loop`.

    Returns:
        The requests in order of arrival, with the columns of a `ServingRun`, and the plays of the session trees.

    Raises:
        UsageError: An argument is not valid, or the trace has no dependencies.
    """
    trace = _servable(trace)
    fleet = _instances(trace, cost, setting, options)
    if not isinstance(loop, ClosedLoop):
        raise UsageError(f"loop must be a ClosedLoop, not {loop!r}. Example: ClosedLoop(lanes=8).")
    if (apart := options.get("disaggregation")) is not None:
        run = _serve_apart(fleet, apart, trace, demand, loop, on_progress)
        assert isinstance(run, ClosedRun)
        return run
    return run_closed(fleet, trace, loop, demand, on_progress)


def _servable(trace: Trace) -> Trace:
    """The trace with its isolation domains kept apart; UnknownError if it lacks what decides the times."""
    trace = in_domains(trace)
    require_known(trace, trace.meta, "the outcome of a simulation in time", PREFIXES, OUTPUTS)
    return trace


def _instances(trace: Trace, cost: StepCost | DynamoCost, setting: Setting, options: ServingOptions) -> InstanceGroup:
    """The instances that serve a trace; UsageError if the options do not fit together."""
    if unknown := options.keys() - ServingOptions.__annotations__.keys():
        raise TypeError(
            f"unexpected argument {min(unknown)!r}; options are {', '.join(ServingOptions.__annotations__)}"
        )
    router, instances = options.get("router", "round-robin"), options.get("instances", 1)
    check_router(router)
    check_balancer(router, setting.engine)
    limits, scheduler = options.get("limits"), options.get("scheduler")
    if scheduler is not None and limits is not None:
        raise UsageError("Give limits or a scheduler, which has its own limits, not both.")
    scheduler = scheduler or scheduler_of(setting.engine, limits)
    servers = options.get("api_server_count")
    for name, size in (("instances", instances), ("capacity", setting.capacity), ("api-server-count", servers or 1)):
        if size < 1:
            raise UsageError(f"--{name} must be at least 1.")
    if setting.schedule.kind != "serial":
        raise UsageError("A simulation in time has its own schedule. Leave out --schedule.")
    if setting.bound:
        raise UsageError(
            f"A simulation in time does not support the upper bound {setting.policy}. Try another --policy."
        )
    fleet = options.get("fleet")
    if fleet is not None:
        check_fleet(router, lockstep=options.get("lockstep", False))
    setting = _with_groups(scheduler.setting_of(setting), scheduler, router, trace.block_size)
    return InstanceGroup(
        cost, setting, scheduler, instances, router, options.get("router_seed", 0), tuple(options.get("tiers", ())),
        prefetch=options.get("prefetch", True), timelines=options.get("timelines", False), api_server_count=servers,
        lockstep=options.get("lockstep", False), instances_per_host=options.get("instances_per_host"),
        spans=None if fleet is None else fleet.spans(instances), router_options=options.get("router_options"),
    )  # fmt: skip


def _with_groups(setting: Setting, scheduler: Scheduler, router: RouterName, block_size: int) -> Setting:
    """The setting; its layout is None for full attention. UsageError if something cannot hold its cache groups."""
    layout = setting.layout
    if layout is None or (layout.is_full and layout.groups[0].block_size == block_size):
        return replace(setting, layout=None)
    if not scheduler.layouts:
        raise UsageError(f"Engine {setting.engine} does not support cache groups in time. Use --engine vllm.")
    if router in FULL_ATTENTION:
        raise UsageError(f"--router {router} counts blocks of full attention, not of cache groups. Try round-robin.")
    return setting
