"""The capacity planner: hits by memory, tier and number of instances, and the savings.

Each part is a function of this file and a key of the result, and states its assumptions. Hits of one pass are exact;
times come from the event-driven simulation (simulation.py) with the roofline of hardware/roofline.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ..._base.errors import KvtraceError, UsageError
from ..._base.step_work import part_of_work
from ...analysis.block_sizes import by_block_size
from ...analysis.curves import SHARES, HitCurve, hit_curve
from ...cache.demand import check_mode
from ...cache.simulation import simulate
from ...cache.tiered import simulate_tiers
from ...cache.tiers import Tier
from ...trace.domains import in_domains
from ...trace.hits import count_hits, leading_tokens, unlimited_hits
from ...trace.trace import Trace
from ...trace.unknown import OUTPUTS, PREFIXES, require_known
from ..calibration.costs import CalibratedRoofline, Costs, excess
from ..deployment import Deployment
from ..expectations import ExpectedError, expected_error
from ..hardware import GPUS, Roofline
from ..hardware.gpus import ASSUMED_PRICE
from ..hardware.room import kv_room, least_gpus
from ..lanes import require_dependencies
from ..models.engine_layout import layouts_for
from ..routers import TIMED
from ..run_options import TimeSetup
from ..serving_run import ServingRun
from ..workers import ENGINES
from .disaggregate import disaggregate_plan
from .plan_answer import GIVEN, plan_answer
from .plan_result import (
    BEYOND,
    BlockSizePlan,
    BlockSizesPlan,
    InstancesPlan,
    LeastMemory,
    LoopPlan,
    MemoryPlan,
    MemoryPoint,
    Plan,
    PlanAnswer,
    PlanSetting,
    PricePlan,
    PricesPlan,
    RouterPlan,
    TierPlan,
    TiersPlan,
    TimeTarget,
)
from .plan_runs import (
    InstanceRuns,
    least_gpus_for,
    prefill_floor,
    sensitivity,
    served,
)
from .plan_target import Planned, PlanTarget
from .pools import PoolCurve, pool_curve
from .sizing import (
    TimeErrors,
    held_out_errors,
    lanes_plan,
    model_error,
    router_plan,
)

Part = TypeVar("Part")

GIB = 1 << 30
POINTS = 12
EXPECTED_RUNS = 12  # simulations of a router, for its progress
MS_PER_HOUR = 3_600_000
TTLS = {"5m": 300, "1h": 3600}


def plan(
    trace: Trace,
    deployment: Deployment,
    target: PlanTarget | None = None,
    on_part: Callable[[str], None] | None = None,
    errors: TimeErrors | None = None,
    *,
    costs: Costs | None = None,
    extrapolate: bool = False,
    curve: HitCurve | None = None,
) -> Plan:
    """Plan capacity for a trace and a deployment: memory, tiers, instances, block size and prices.

    Args:
        trace: The trace, with its arrivals.
        deployment: The engine, the model and the GPUs of one instance.
        target: The time to first token, lower tiers, prices and routers; the default is `PlanTarget()`.
        on_part: Receives the name of each part before it is computed.
        errors: The measured errors of simulated times; the default is those of the costs, else those of the nearest
            measured deployments, if there are some.
        costs: The costs of a calibration, in place of the roofline; `costs.measured` is what was measured.
        extrapolate: Allow a plan whose instances go beyond what the costs were measured for; it then says so.
        curve: The trace's hit curve, if you have it; otherwise the plan computes it.

    Returns:
        A result for each part, with its assumptions; https://github.com/kvtrace/kvtrace/blob/main/docs/serving/plan.md
        explains them.

    Raises:
        UsageError: The weights or the longest request do not fit into the GPUs, or the plan goes beyond the costs.
        UnknownError: Shared prefixes or output lengths are unknown.

    >>> from kvtrace.serving.deployment import Deployment
    >>> from kvtrace.trace.building import toy
    >>> trace = toy("0 1", "0 1", "0 2", block_size=512, gap_ms=1000.0)
    >>> result = plan(trace, Deployment("llama-3.1-8b", gpu="h100"), PlanTarget(routers=("sticky",)))
    >>> result.instances.best.instances, result.memory.unlimited_block_hit_rate
    (1, 0.5)
    """
    trace = in_domains(trace)
    require_known(trace, trace.meta, "the plan", PREFIXES, OUTPUTS)
    report = on_part or (lambda part: None)
    time = TimeSetup(extrapolate=extrapolate, deployment=deployment, costs=costs)
    layout = layouts_for(deployment, ["vllm"], trace.block_size).get("vllm")
    planned = (target or PlanTarget()).on(time, layout)
    target = planned.target
    check_mode(target.mode)
    if target.loop is not None:
        require_dependencies(trace)
    if target.disaggregate and planned.engine not in ENGINES:
        engines = " or ".join(ENGINES)
        raise UsageError(f"--disaggregate does not support engine {planned.engine}. Use --engine {engines}.")
    _require_fit(trace, planned)
    if errors is None and costs is not None and not costs.kernels:
        errors = held_out_errors(costs.errors, costs.basis)

    def part(name: str, compute: Callable[[], Part]) -> Part:
        report(name)
        return compute()

    def hits() -> HitCurve:
        return hit_curve(trace) if curve is None else curve

    sized, answer, expected = part("instances", lambda: instances(trace, planned, errors))
    result = Plan(
        answer=answer,
        setting=_setting(trace, planned),
        memory=part("memory", lambda: memory(trace, hits(), planned.roofline, layout is not None)),
        tiers=part("tiers", lambda: tiers(trace, planned)),
        instances=sized,
        block_sizes=part("block_sizes", lambda: block_sizes(trace)),
        prices=part("prices", lambda: prices(trace, target)),
        expected_error=expected,
        lanes=part("lanes", lambda: lanes_plan(trace, planned)) if target.loop else None,
        disaggregate=part("disaggregate", lambda: disaggregate_plan(trace, planned)) if target.disaggregate else None,
    )
    best = result.instances.best
    if best is None:
        return result
    if costs is not None:
        run = planned.run(trace.block_size, router=best.router).changed(instances=best.instances)
        result = _within(result, costs, served(trace, run), extrapolate)
    return replace(
        result,
        loop=part("loop", lambda: loop(trace, planned, best)),
        pool=part("pool", lambda: pool(trace, planned, best)) if target.pool else None,
        sensitivity=part("sensitivity", lambda: sensitivity(InstanceRuns(trace, planned, best.router), best)),
    )


def _require_fit(trace: Trace, planned: Planned) -> None:
    """UsageError if an instance does not hold the longest request: with the GPUs that do, and those for the target."""
    longest, deployment = int(trace.prompt_blocks.max(initial=1)), planned.time.deployment
    per_block = planned.groups.tokens_per_block if planned.groups else trace.block_size
    with suppress(UsageError):  # of weights that do not fit
        if planned.capacity(trace.block_size) >= longest * trace.block_size / per_block:
            return
    fitting = least_gpus(planned.time.in_memory(planned.engine), longest * trace.block_size)
    if fitting is None:
        raise UsageError(
            f"No number of {deployment.gpu_name} holds the weights and the longest request of "
            f"{deployment.model_name}. Use GPUs with more memory, or fewer --max-num-batched-tokens."
        )
    needed = least_gpus_for(trace, planned.target, replace(planned.time, deployment=fitting))
    advice = f"Try --gpus {fitting.gpus_per_instance} or more"
    if needed is not None and needed > fitting.gpus_per_instance:
        limit = f"the target of {planned.target.ttft_s:g} s"
        advice += f"; prefill alone takes longer than {limit} below --gpus {needed}"
    raise UsageError(
        f"{deployment.gpus_per_instance} x {deployment.gpu_name} do not hold the weights and the KV of the longest "
        f"request, of {longest:,} blocks. {advice}."
    )


def _within(result: Plan, costs: Costs, run: ServingRun, extrapolate: bool) -> Plan:
    """The plan, which says by how much its instances go beyond what the costs were measured for."""
    if not extrapolate:
        costs.require_seen(run)
    over = costs.extrapolation(run)
    if not over:
        return result
    part = result.instances
    assumes = [*part.assumes, f"these instances go {BEYOND} ({excess(over)})"]
    return replace(result, instances=replace(part, assumes=assumes))


def _setting(trace: Trace, planned: Planned) -> PlanSetting:
    roofline, deployment = planned.roofline, planned.time.deployment
    gpu, model, blocks = roofline.gpu, roofline.model, planned.capacity(trace.block_size)
    block_bytes = planned.groups.block_bytes if planned.groups else trace.block_size * model.kv_bytes_per_token
    return PlanSetting(
        requests=len(trace), block_size=trace.block_size, model=model.name, gpu=gpu.name,
        gpus_per_instance=roofline.gpus, deployment=deployment.to_dict(),
        kv_bytes_per_token=model.kv_bytes_per_token, weight_bytes=model.weight_bytes,
        capacity_blocks=blocks, capacity_gib=blocks * block_bytes / GIB,
        usd_per_instance_hour=roofline.gpus * gpu.price_per_hour, usd_per_gpu_hour=gpu.price_per_hour,
        price_source=_price_source(planned),
        assumes=[
            *_calibrated(roofline),
            f"{roofline.reached_compute_share:.0%} of peak arithmetic, {roofline.reached_bandwidth_share:.0%} of peak "
            f"bandwidth, {roofline.attention_bandwidth_share:.0%} of it in attention",
            *_memory(planned),
            *_exchange(roofline),
            *deployment.not_in_times,
        ],
    )  # fmt: skip


def _price_source(planned: Planned) -> str:
    """Where the price of a GPU comes from."""
    gpu = planned.roofline.gpu
    if planned.target.gpu_price is not None:
        return GIVEN
    row = GPUS.get(gpu.name)
    return ASSUMED_PRICE if row and row.price_per_hour == gpu.price_per_hour else "as the GPU's description has it"


def _calibrated(roofline: Roofline) -> list[str]:
    """What the costs of a step were fitted to."""
    if not isinstance(roofline, CalibratedRoofline):
        return []
    return [f"the time of a step as fitted to {roofline.source}: multiples of what follows"]


def _memory(planned: Planned) -> list[str]:
    """What the memory of a GPU holds beside the KV, and why."""
    room = kv_room(planned.time.in_memory(planned.engine))
    parts = {"weights": room.weight_bytes, "activations": room.activation_bytes, "CUDA graphs": room.graph_bytes,
             "libraries": room.library_bytes}  # fmt: skip
    sizes = ", ".join(f"{(size or 0) / GIB:,.2f} GiB {name}" for name, size in parts.items())
    used = (room.usable_bytes or 0) / GIB
    return [f"each GPU: {used:,.2f} GiB used ({room.sources['usable_bytes']}), of which {sizes}"]


def _exchange(roofline: Roofline) -> list[str]:
    """What the GPUs of an instance exchange."""
    if roofline.gpus == 1:
        return []
    link = roofline.reached_link
    return [
        "the GPUs of an instance share each layer and exchange its results twice, at "
        f"{link.bytes_per_s / 1e9:,.1f} GB/s and {1e6 * link.latency_s:.0f} us each time"
    ]


# -- hits against memory -----------------------------------------------------------------------------------------


def memory(trace: Trace, curve: HitCurve, roofline: Roofline, has_groups: bool = False) -> MemoryPlan:
    """Hit rate against GiB: the knee, the gaps to belady and unlimited, the least memory for a share of the hits."""
    block_bytes = trace.block_size * roofline.model.kv_bytes_per_token
    capacities = curve.capacities(POINTS)
    possible = count_hits(trace, unlimited_hits(trace))
    rates = [hits.block_hit_rate for hits in curve.hits(capacities)]
    knee = _knee(capacities, rates)
    gap_to_belady = {
        place: simulate(trace, capacities[place], "belady").hits.block_hit_rate - rates[place]
        for place in {knee, len(capacities) // 2}
    }
    points = [
        MemoryPoint(size, size * block_bytes / GIB, rate, possible.block_hit_rate - rate, gap_to_belady.get(place))
        for place, (size, rate) in enumerate(zip(capacities, rates, strict=True))
    ]
    least = {f"{share:.0%}": curve.least_capacity(share) for share in SHARES}
    return MemoryPlan(
        unlimited_block_hit_rate=possible.block_hit_rate, points=points, knee=points[knee],
        least={share: LeastMemory(size, size * block_bytes / GIB) for share, size in least.items()},
        assumes=[
            "one cache, LRU, serial schedule: exact hits of one pass",
            *(["all layers count as full attention"] if has_groups else []),
        ],
    )  # fmt: skip


def _knee(capacities, rates) -> int:
    """The point that lies farthest above the line from the first to the last, memory on a log scale."""
    if len(capacities) < 3 or rates[-1] == rates[0]:
        return 0
    x = np.log(capacities)
    x, y = (x - x[0]) / (x[-1] - x[0]), (np.array(rates) - rates[0]) / (rates[-1] - rates[0])
    return int((y - x).argmax())


# -- tiers, instances, the closed loop ---------------------------------------------------------------------------


def tiers(trace: Trace, planned: Planned, blocks: int | None = None) -> TiersPlan | None:
    """The gain of lower tiers in one instance: the hits of each tier, and whether fetching pays."""
    target, roofline = planned.target, planned.roofline
    if not target.own_tiers:
        return None
    blocks = planned.capacity(trace.block_size) if blocks is None else blocks
    copies = planned.scheduler.copies_to_tiers
    beyond = _beyond(trace, planned, blocks)
    below, named = [tier for tier, _ in beyond], {tier.name: capacity for tier, capacity in beyond}
    simulation = simulate_tiers(trace, {"hbm": blocks} | named)
    assert simulation.tier_hits is not None
    hits, references = simulation.tier_hits.sum(axis=1).tolist(), max(1, len(trace.hash_ids))
    rows = [TierPlan("hbm", blocks, hits[0], hits[0] / references)]
    for tier, given, tier_hits in zip(below, target.own_tiers, hits[1:], strict=True):
        rows.append(TierPlan(
            tier.name, tier.capacity, tier_hits, tier_hits / references, fetch_seconds_per_block=tier.fetch_seconds,
            bandwidth=given.bandwidth, fetch_pays=bool(roofline.fetch_pays(trace.block_size, given.bandwidth)),
        ))  # fmt: skip
    how = ["exclusive: evicted blocks go to the next tier, and return when a request uses them"]
    if copies:
        how = ["these hits: one pass, LRU; in time, vLLM copies prompts to the tier as it computes them",
               "vLLM fetches every hit, one transfer after another, also where computing is faster"]  # fmt: skip
    elif target.write_through:
        how = ["write-through: a tier also holds the blocks of the tiers above it"]
    own_links = [] if copies else ["each transfer has its own link"]
    return TiersPlan(rows, float(roofline.break_even_bandwidth(trace.block_size)), assumes=[*how, *own_links])


def _beyond(trace: Trace, planned: Planned, blocks: int) -> list[tuple[Tier, int]]:
    """The tiers of an instance below its GPUs, and the blocks that each adds to those above it."""
    copies = planned.scheduler.copies_to_tiers
    below = planned.lower_tiers(trace.block_size, blocks)
    return [(tier, max(1, tier.capacity - blocks) if copies else tier.capacity) for tier in below]


POOL_SIZES = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)  # of the pool that the target names


def pool(trace: Trace, planned: Planned, best: RouterPlan) -> PoolCurve:
    """What a pool adds to the instances of a plan, by its size: the hits, what is fetched, and when fetching pays."""
    size, roofline = planned.target.pool, planned.roofline
    assert size is not None
    router = best.router if best.router not in TIMED else "kv-aware"
    block_bytes = trace.block_size * roofline.model.kv_bytes_per_token
    blocks = planned.capacity(trace.block_size)
    lower = [  # exclusive ones of the capacity beyond those above: with LRU they hit as those with copies
        replace(tier, capacity=capacity, copies="on-eviction") for tier, capacity in _beyond(trace, planned, blocks)
    ]
    curve = pool_curve(
        trace, [int(share * size.size // block_bytes) for share in POOL_SIZES], instances=best.instances,
        first=blocks, router=router, lower=lower, roofline=roofline, bandwidth=size.bandwidth,
    )  # fmt: skip
    return _pool_in_time(trace, planned, best, replace(curve, planned=int(size.size // block_bytes)))


def _pool_in_time(trace: Trace, planned: Planned, best: RouterPlan, curve: PoolCurve) -> PoolCurve:
    """The curve with the times of the planned instances, and the fewest that meet the target with the pool."""
    rows, runs = [replace(curve.rows[0], ttft_s=best.ttft_s)], {}
    try:
        for row in curve.rows[1:]:
            runs[row.capacity] = InstanceRuns(trace, replace(planned, pooled=row.capacity), best.router)
            rows.append(replace(row, ttft_s=runs[row.capacity].at(best.instances).ttft_s))
        fewest = runs[curve.planned].fewest(best.instances) if curve.planned else None
    except KvtraceError as error:  # the engine has no such pool, or its host tier is too small for one
        return replace(curve, assumes=[*curve.assumes, f"no times with the pool: {error}"])
    assumes = [*curve.assumes, "TTFT: in time; all instances fetch over one link, with a transfer after another"]
    return replace(curve, rows=rows, fewest=fewest, assumes=assumes)


def instances(
    trace: Trace, planned: Planned, errors: TimeErrors | None = None
) -> tuple[InstancesPlan, PlanAnswer, ExpectedError | None]:
    """Times and cost by the number of instances behind each router, the best router for the target, and the answer.

    The last value is the error of times without a recording.
    """
    floor, target = prefill_floor(trace, planned), planned.target
    runs = {router: InstanceRuns(trace, planned, router) for router in target.routers}
    routers = []
    for router in target.routers:
        with part_of_work(1 / len(target.routers), EXPECTED_RUNS * len(trace)):
            routers.append(router_plan(runs[router], floor))
    meeting = [row for row in routers if isinstance(row, RouterPlan)]
    best = min(meeting, key=lambda row: (row.instances, row.ttft_s), default=None)
    unfitted = planned.time.unfitted(planned.engine)
    load = None if best is None else best.requests_at_once
    expected = None if unfitted is None else expected_error(unfitted, load)
    known = errors or expected
    part = InstancesPlan(
        target=TimeTarget(target.ttft_s, target.quantile, target.max_busy, target.spare), floor=floor,
        routers=routers, best=best,
        model_error=None if best is None or known is None else model_error(runs[best.router], best, known),
        assumes=["the trace's own arrivals", _scheduling(planned),
                 f"{planned.limits.step_tokens:,} tokens per step, {planned.limits.requests:,} requests at once",
                 "bisection finds the smallest number; near the target it is accurate to one or two instances"],
    )  # fmt: skip
    return part, plan_answer(part, runs), expected


def _scheduling(planned: Planned) -> str:
    """How requests are admitted, and which of their blocks count."""
    setting, scheduler = planned.setting(1), planned.scheduler
    if scheduler.version:
        lengths = "with the true lengths of outputs" + (", windows and states in groups" if setting.layout else "")
        return f"the scheduler and the cache of {scheduler.name} {scheduler.version}, {lengths}"
    outputs = "outputs are cached too" if setting.mode == "grow" else "no blocks are reserved for outputs"
    return f"a request is admitted when all its blocks fit; mode {setting.mode}: {outputs}"


def loop(trace: Trace, planned: Planned, best: RouterPlan) -> LoopPlan:
    """The error of the quick estimate: hits of one pass with the serial schedule, and hits of the events."""
    target = replace(planned.target, tiers=())
    without_tiers = replace(planned, target=target).run(trace.block_size, router=best.router)
    run = without_tiers.changed(instances=best.instances)
    (serial,) = replace(run.changed(schedule="serial"), time=TimeSetup()).simulate(trace).runs
    one_pass = serial.hits.block_hit_rate
    events = served(trace, run).hits.block_hit_rate
    return LoopPlan(
        instances=best.instances, router=best.router, one_pass_block_hit_rate=one_pass, events_block_hit_rate=events,
        difference=events - one_pass,
        assumes=["the same caches and router, without lower tiers; only the times at which requests are active differ"],
    )  # fmt: skip


# -- other choices -----------------------------------------------------------------------------------------------


def block_sizes(trace: Trace) -> BlockSizesPlan:
    """The possible hits with larger blocks, folded exactly."""
    rows = [
        BlockSizePlan(folded.block_size, folded.blocks, folded.hits.block_hit_rate, folded.hits.token_hit_rate)
        for folded in by_block_size(trace, [1, 2, 4, 8])
    ]
    return BlockSizesPlan(rows, assumes=["unlimited memory", "the trace does not show the hits of smaller blocks"])


def prices(trace: Trace, target: PlanTarget) -> PricesPlan:
    """The cost and savings of a provider's prompt cache, by the time to live of prefixes after their last use."""
    price = target.prices
    plain = float(price.cost(0, trace.input_length, trace.output_length, ttl="none").sum())
    hours = float(np.ptp(trace.timestamp)) / MS_PER_HOUR if len(trace) else 0.0

    def row(ttl: str, token_hit_rate: float, usd: float) -> PricePlan:
        saved = plain - usd
        return PricePlan(
            ttl, token_hit_rate, usd, saved, usd_per_hour=usd / hours if hours else None,
            saved_per_hour=saved / hours if hours else None,
        )  # fmt: skip

    rows = [row("none", 0.0, plain)]
    for ttl, seconds in TTLS.items():
        simulation = simulate(trace, max(1, trace.working_set), f"ttl:{seconds}s")
        hit = leading_tokens(trace, simulation.hit_blocks)
        usd = float(price.cost(hit, trace.input_length, trace.output_length, ttl=ttl).sum())
        rows.append(row(ttl, simulation.hits.token_hit_rate, usd))
    return PricesPlan(
        rows, best=min((row.usd, row.ttl) for row in rows)[1],
        assumes=[f"{price.input_per_token * 1e6:g} USD per million input tokens, "
                 f"{price.output_per_token * 1e6:g} per million output tokens",
                 f"a cached read costs {price.cached_read:g} of an input token, a write {price.write_5m:g} (5m) or "
                 f"{price.write_1h:g} (1h)",
                 "unlimited capacity; every prompt token that does not hit is written"],
    )  # fmt: skip
