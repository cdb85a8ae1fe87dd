"""The simulations of a plan: each is a run, served in time with the costs of `kvtrace simulate --gpu`.

The numbers of instances that meet a target are found by bisection; each simulation is computed once. The assumptions of
a plan are changed one by one: each change is one simulation at the planned number of instances, and a bisection for the
number that the target needs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from ..._base.errors import UsageError
from ..._base.step_work import part_of_work, report_work
from ...trace.hits import unlimited_hits
from ...trace.trace import Trace
from ..hardware import Roofline
from ..hardware.room import TENSOR_SIZES
from ..latencies import quantile_interval
from ..routers import RouterName
from ..run import Run
from ..run_options import TimeSetup
from ..schedulers.base import BatchLimits
from ..service_times import ServiceModel
from ..serving_run import ServingRun
from ..simulation import StepCost
from .plan_result import InstancesPoint, PrefillFloor, RouterPlan, Sensitivity
from .plan_target import Planned, PlanTarget

MAX_INSTANCES = 512
MAX_GPUS = 8  # of an instance, in advice: one machine
FACTORS = (0.6, 0.8, 1.2, 1.4)
EXPECTED_RUNS = 3  # simulations of a row, for its progress


def served(trace: Trace, run: Run) -> ServingRun:
    """Simulate a run of one setting in time, and report its requests as work of the present part."""
    (simulation,) = run.simulate(trace, on_progress=report_simulated).runs
    assert isinstance(simulation, ServingRun)
    return simulation


def report_simulated(requests: int) -> None:
    """Report requests that a simulation of a plan has served, as work of the present part."""
    report_work(requests, requests=requests)


def prefill_alone_s(trace: Trace, cost: StepCost, limits: BatchLimits, cached: np.ndarray | int = 0) -> np.ndarray:
    """The time of each prompt on an idle instance, in steps of at most `limits.step_tokens`: no queue, no batch.

    Args:
        trace: The trace.
        cost: The time of a step.
        limits: The tokens of a step.
        cached: Prompt tokens of each request that hit; at least one token is computed.

    Returns:
        Request -> seconds, a lower bound of its time to first token.

    >>> from kvtrace.trace.building import toy
    >>> prefill_alone_s(toy("0 1 2"), StepCost(token_s=1.0, overhead_s=0.5), BatchLimits(step_tokens=2))
    array([4.])
    """
    tokens = trace.input_length
    model = ServiceModel(cost, {})
    return model.prefill_s(np.broadcast_to(np.asarray(cached), tokens.shape), tokens, limits.step_tokens)


def prefill_floor(trace: Trace, planned: Planned) -> PrefillFloor:
    """The time of prefill alone at the target's quantile, without hits and with every possible hit.

    >>> from kvtrace.serving.deployment import Deployment
    >>> from kvtrace.serving.run_options import TimeSetup
    >>> from kvtrace.trace.building import toy
    >>> planned = PlanTarget(quantile=0.5).on(TimeSetup(deployment=Deployment("llama-3.1-8b", gpu="h100")))
    >>> floor = prefill_floor(toy("0 1", "0 1", block_size=512), planned)
    >>> floor.with_hits_s < floor.without_hits_s
    True
    """
    target, cost = planned.target, planned.time.cost
    assert isinstance(cost, StepCost)
    hit_tokens = unlimited_hits(trace, outputs=target.mode == "grow") * trace.block_size
    times = [prefill_alone_s(trace, cost, planned.limits, cached) for cached in (0, hit_tokens)]
    return PrefillFloor(*(float(np.quantile(seconds, target.quantile)) if len(seconds) else 0.0 for seconds in times))


def least_gpus_for(trace: Trace, target: PlanTarget, time: TimeSetup) -> int | None:
    """The smallest number of GPUs per instance that hold each request and whose floor meets the target.

    The number is one that the model can be divided by, at most 8; None if 8 GPUs are too few.
    """
    for size in TENSOR_SIZES:
        deployment = replace(time.deployment, tensor_parallel_size=size)
        if time.deployment.tensor_parallel_size <= size and deployment.gpus_per_instance <= MAX_GPUS:
            with suppress(UsageError):  # of a model that cannot be divided like this
                if prefill_floor(trace, target.on(replace(time, deployment=deployment))).with_hits_s <= target.ttft_s:
                    return deployment.gpus_per_instance
    return None


@dataclass
class InstanceRuns:
    """The simulations of one router, each computed once: number of instances -> point of the curve."""

    trace: Trace
    planned: Planned
    router: RouterName
    blocks: int = 0  # of KV in an instance's GPUs; 0: what fits
    points: dict[int, InstancesPoint] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.blocks = self.blocks or self.planned.capacity(self.trace.block_size)

    @property
    def target(self) -> PlanTarget:
        """What is asked for."""
        return self.planned.target

    @property
    def roofline(self) -> Roofline:
        """The model on the GPUs of an instance."""
        return self.planned.roofline

    def served(self, count: int) -> ServingRun:
        """The simulation of one number of instances."""
        run = self.planned.run(self.trace.block_size, self.blocks, self.router)
        return served(self.trace, run.changed(instances=count))

    def served_hours(self, count: int) -> float:
        """Hours from the first arrival to the last token with a number of instances."""
        point = self.at(count)
        return point.usd / point.usd_per_hour if point.usd_per_hour else 0.0

    @property
    def largest(self) -> int:
        """The largest number to try: an instance without a request changes nothing."""
        return max(1, min(MAX_INSTANCES, len(self.trace)))

    def at(self, count: int) -> InstancesPoint:
        """The point of one number of instances."""
        if count not in self.points:
            self.points[count] = _point(self.served(count), self.roofline, self.target)
        return self.points[count]

    def fewest(self, near: int = 1) -> int | None:
        """The smallest number of instances that meets the target, by bisection; None if none up to `largest` does.

        Args:
            near: A number to start from, which may be close to the result.
        """
        if near > 1 and prefill_floor(self.trace, self.planned).with_hits_s > self.target.ttft_s:
            return None
        return fewest(lambda count: self.at(count).meets, min(near, self.largest), self.largest)

    def fewest_within(self, limit_s: float, near: int = 1) -> int | None:
        """As `fewest`, with a TTFT of at most `limit_s` in place of the target."""
        if prefill_floor(self.trace, self.planned).with_hits_s > limit_s:
            return None

        def meets(count: int) -> bool:
            point = self.at(count)
            return point.serves_all and point.ttft_s <= limit_s and self.target.allows(point.utilisation)

        return fewest(meets, min(near, self.largest), self.largest)

    def curve(self) -> list[InstancesPoint]:
        """The points that are known, from the smallest number of instances."""
        return [self.points[count] for count in sorted(self.points)]


def changed(runs: InstanceRuns, **what) -> InstanceRuns:
    """The same question with another trace, costs or capacity; no simulation is shared."""
    return replace(runs, points={}, **what)


def fewest(meets: Callable[[int], bool], near: int, largest: int) -> int | None:
    """The smallest number that meets the target, by doubling from `near` and bisection."""
    low, high = 0, near  # the number `low` does not meet the target
    while not meets(high):
        if high >= largest:
            return None
        low, high = high, min(2 * high, largest)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _point(run: ServingRun, roofline: Roofline, target: PlanTarget) -> InstancesPoint:
    figures, times = run.to_dict(), run.ttft_s
    usd_per_hour = run.instances * roofline.gpus * roofline.gpu.price_per_hour
    usd, tokens = usd_per_hour * run.makespan_s / 3600, int((run.trace.input_length + run.trace.output_length).sum())
    busy = float(np.mean(figures["utilisation"]))
    ttft_s = float(np.quantile(times, target.quantile)) if len(times) else 0.0
    low, high = quantile_interval(times, target.quantile)
    point = InstancesPoint(
        instances=run.instances, meets=target.met_by(ttft_s, busy), ttft_s=ttft_s, ttft_low=low,
        ttft_high=high, ttft=figures["ttft_s"], tpot=figures["tpot_s"], requests_per_s=figures["requests_per_s"],
        block_hit_rate=figures["block_hit_rate"], imbalance=figures["imbalance"],
        requests_at_once=run.requests_at_once,
        utilisation=busy, rejected=run.rejected, overload=run.overload, usd=usd, usd_per_hour=usd_per_hour,
        usd_per_million_requests=usd * 1e6 / max(1, len(run.trace)), usd_per_million_tokens=usd * 1e6 / max(1, tokens),
    )  # fmt: skip
    return replace(point, meets=point.meets and point.serves_all)


def sensitivity(runs: InstanceRuns, best: RouterPlan) -> list[Sensitivity]:
    """The time to first token with the planned number of instances, and the fewest instances, for each change.

    Args:
        runs: The simulations of the planned router.
        best: Its plan.

    Returns:
        A row for each assumption and factor; the factor 1 is the plan itself.
    """
    rows = []
    for what, factor, change in CASES:
        with part_of_work(1 / len(CASES), EXPECTED_RUNS * len(runs.trace)):
            rows.append(_row(what, factor, change(runs, factor), best.instances))
    return rows


def replace_times(trace: Trace, factor: float) -> Trace:
    """The trace with the time between arrivals multiplied by `factor`."""
    from ...trace.columns import replace_columns

    columns = replace_columns(trace, timestamp=trace.timestamp * factor)
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta)


def with_unshared(trace: Trace, share: float, *, seed: int = 0) -> Trace:
    """The trace in which a random share of the requests has blocks of its own: these requests cannot hit.

    >>> from kvtrace.trace.building import toy
    >>> with_unshared(toy("0 1", "0 1", "0 1"), 0.34).working_set
    4
    """
    from ...trace.columns import replace_columns

    alone = np.random.default_rng(seed).permutation(len(trace)) < round(share * len(trace))
    columns = {}
    next_id = trace.distinct
    for name, offsets in (("hash_ids", trace.offsets), ("output_ids", trace.output_offsets)):
        if offsets is None:
            continue
        ids = getattr(trace, name).copy()
        own = np.repeat(alone, np.diff(offsets))
        ids[own] = next_id + np.arange(own.sum())
        next_id += int(own.sum())
        columns[name] = ids
    return Trace.from_columns(
        replace_columns(trace, **columns), block_size=trace.block_size, tail=trace.tail, meta=trace.meta
    )


def _row(what: str, factor: float, runs: InstanceRuns, planned: int) -> Sensitivity:
    point, fewest = runs.at(planned), runs.fewest(planned)
    return Sensitivity(
        what, factor, fewest, None if fewest is None else runs.at(fewest).usd_per_hour, point.ttft_s, point.ttft_low,
        point.ttft_high,
    )  # fmt: skip


def _arrivals(runs: InstanceRuns, factor: float) -> InstanceRuns:
    return changed(runs, trace=replace_times(runs.trace, 1 / factor))


def _sharing(runs: InstanceRuns, factor: float) -> InstanceRuns:
    return changed(runs, trace=with_unshared(runs.trace, 1 - factor))


def _memory(runs: InstanceRuns, factor: float) -> InstanceRuns:
    longest = int(runs.trace.prompt_blocks.max(initial=1))
    return changed(runs, blocks=max(longest, int(runs.blocks * factor)))


def _gpu(name: str) -> Callable[[InstanceRuns, float], InstanceRuns]:
    """A change of the GPU's peak arithmetic or bandwidth."""

    def change(runs: InstanceRuns, factor: float) -> InstanceRuns:
        gpu, time = runs.roofline.gpu, runs.planned.time
        other = replace(runs.roofline, gpu=replace(gpu, **{name: getattr(gpu, name) * factor}))
        return changed(runs, planned=replace(runs.planned, time=time.with_roofline(other)))

    return change


def with_steps(runs: InstanceRuns, factor: float) -> InstanceRuns:
    """The same question where steps take so many times as long."""
    return changed(runs, planned=replace(runs.planned, time=runs.planned.time.with_steps(factor)))


CHANGES: dict[str, tuple[tuple[float, ...], Callable[[InstanceRuns, float], InstanceRuns]]] = {
    "load": (FACTORS, _arrivals),
    "shared prompts": (FACTORS[:2], _sharing),
    "KV memory": (FACTORS, _memory),
    "compute": (FACTORS, _gpu("flops")),
    "bandwidth": (FACTORS, _gpu("bandwidth")),
}
CASES = [("plan", 1.0, lambda runs, factor: runs)]
CASES += [(what, factor, change) for what, (factors, change) in CHANGES.items() for factor in factors]
