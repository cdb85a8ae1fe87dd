"""Does it pay to have prefill and decode on different workers: the fewest of each kind that meet a target.

A prefill worker decides TTFT, a decode worker TPOT: the fewest prefill workers are those whose TTFT is within the
target beside decode workers that nothing waits for, and the fewest decode workers are those whose TPOT and TTFT are
within it beside them. Neighbours of that split with fewer workers are tried, too. Instances with chunked prefill, as
many as meet both limits, are what it is compared with, at the step's tokens of the deployment, or a quarter or a
sixteenth of them: shorter steps let tokens wait less for others' prompts. A worker costs what an instance costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from ...trace.trace import Trace
from ..disaggregation import Disaggregation
from ..routers import RouterName
from ..schedulers.base import Scheduler
from ..serving_run import ServingRun
from .plan_result import DisaggregatePlan, SplitPoint, percentile
from .plan_runs import fewest, served
from .plan_target import Planned

MOST = 256  # workers of a kind, or instances, that are tried
PARTS = (1, 4, 16)  # of the tokens of a step: instances are tried with each
ROUTER: RouterName = "least-loaded"  # of instances and of both kinds of workers


@dataclass
class SplitRuns:
    """The simulations of splits, each computed once; 0 decode workers are instances that have both kinds of work."""

    trace: Trace
    planned: Planned
    points: dict[tuple[int, int, int], SplitPoint] = field(default_factory=dict)

    def at(self, prefill: int, decode: int, part: int = 1) -> SplitPoint:
        """The point of a split, with steps of the deployment's tokens / part."""
        if (prefill, decode, part) not in self.points:
            planned = _with_steps(self.planned, part)
            run = planned.run(self.trace.block_size, router=ROUTER)
            if decode:
                apart = Disaggregation(
                    prefill, decode, ROUTER, kv_transfer_bandwidth=planned.target.kv_transfer_bandwidth
                )
                run = replace(run.changed(instances=None), disaggregation=apart)
            else:
                run = run.changed(instances=prefill)
            self.points[prefill, decode, part] = self._point(served(self.trace, run), planned, prefill, decode)
        return self.points[prefill, decode, part]

    def instances(self, largest: int) -> SplitPoint | None:
        """The fewest instances that meet the target: with the longest steps of those that need as many."""
        found, most = None, largest
        for part in PARTS:
            count = fewest(self._meets(part), 1, most) if most else None
            if count is not None:
                found, most = self.at(count, 0, part), count - 1
        return found

    def _meets(self, part: int) -> Callable[[int], bool]:
        """Whether so many instances meet the target with these steps."""
        return lambda number: self.at(number, 0, part).meets

    def enough(self, prefill: int) -> Callable[[int], bool]:
        """Whether so many decode workers meet the target beside these prefill workers."""
        return lambda number: self.at(prefill, number).meets

    def _point(self, run: ServingRun, planned: Planned, prefill: int, decode: int) -> SplitPoint:
        target, roofline = planned.target, planned.roofline
        ttft_s, tpot_s = (
            float(np.quantile(times, target.quantile)) if len(times) else 0.0 for times in (run.ttft_s, run.tpot_s)
        )
        assert target.tpot_s is not None
        meets = not run.rejected and ttft_s <= target.ttft_s and tpot_s <= target.tpot_s
        cost = (prefill + decode) * roofline.gpus * roofline.gpu.price_per_hour
        tokens = planned.limits.step_tokens
        return SplitPoint(prefill, decode, tokens, meets, ttft_s, tpot_s, run.hits.block_hit_rate, cost)

    @property
    def curve(self) -> list[SplitPoint]:
        """The points that are known, by the number of workers."""
        return sorted(
            self.points.values(), key=lambda point: (point.workers, point.prefill_workers, -point.step_tokens)
        )


def _with_steps(planned: Planned, part: int) -> Planned:
    """The plan with steps of a part of its tokens."""
    if part == 1:
        return planned
    limits, time = planned.limits, planned.time
    tokens = max(1, limits.step_tokens // part)
    deployment = replace(time.deployment, max_num_batched_tokens=tokens)
    schedulers: dict[str, Scheduler] = {planned.engine: planned.scheduler.limited(replace(limits, step_tokens=tokens))}
    return replace(planned, time=replace(time, deployment=deployment, schedulers=schedulers))


def disaggregate_plan(trace: Trace, planned: Planned) -> DisaggregatePlan:
    """The fewest prefill and decode workers that meet the target, and whether they are fewer than instances."""
    runs, target = SplitRuns(trace, planned), planned.target
    largest = max(1, min(MOST, len(trace)))
    aggregated = runs.instances(largest)
    best = _fewest_workers(runs, largest, aggregated.workers if aggregated else None)
    pays = None if best is None or aggregated is None else best.workers < aggregated.workers
    goal = f"TTFT {target.ttft_s:g} s and TPOT {1000 * (target.tpot_s or 0):g} ms at {percentile(target.quantile)}"
    return DisaggregatePlan(
        _sentence(best, aggregated, goal), pays, best, aggregated, target.tpot_s or 0.0, runs.curve,
        [
            f"instances and workers of both kinds behind the router {ROUTER}; a worker costs as much as an instance",
            "instances with steps of the deployment's tokens, a quarter or a sixteenth of them",
            "a KV transfer takes "
            + ("no time" if target.kv_transfer_bandwidth is None else f"{target.kv_transfer_bandwidth / 1e9:g} GB/s"),
            "the fewest prefill workers by TTFT, then the fewest decode workers, and splits with one worker less",
        ],
    )  # fmt: skip


def _fewest_workers(runs: SplitRuns, largest: int, count: int | None) -> SplitPoint | None:
    """The split with the fewest workers that meets the target, of those that the search tries."""
    many = min(largest, 2 * (count or largest))
    target = runs.planned.target

    def in_time(number: int) -> bool:
        return runs.at(number, many).ttft_s <= target.ttft_s

    prefill = fewest(in_time, 1, largest)
    if prefill is None:
        return None
    decode = fewest(runs.enough(prefill), 1, largest)
    if decode is None:
        return None
    best = runs.at(prefill, decode)
    while decode > 1:  # a prefill worker more may save a decode worker or more: it takes the queues of both
        fewer = fewest(runs.enough(prefill + 1), 1, decode - 1)
        if fewer is None or prefill + 1 + fewer >= best.workers:
            break
        prefill, decode = prefill + 1, fewer
        best = runs.at(prefill, decode)
    return best


def _sentence(best: SplitPoint | None, aggregated: SplitPoint | None, goal: str) -> str:
    """What the comparison says."""
    if best is None and aggregated is None:
        return f"Neither instances nor prefill and decode workers meet {goal}"
    needed = "" if aggregated is None else _counted(aggregated.workers, "instance")
    meet = "meets" if aggregated is not None and aggregated.workers == 1 else "meet"
    if best is None:
        return f"Keep prefill and decode together: {needed} {meet} {goal}, and no split does"
    split = f"{best.prefill_workers:,} prefill and {_counted(best.decode_workers, 'decode worker')}"
    if aggregated is None:
        return f"Disaggregate: {split} meet {goal}, and no number of instances does"
    if best.workers < aggregated.workers:
        return f"Disaggregate: {split} meet {goal} where {needed} are needed"
    if best.workers == aggregated.workers:
        return f"Keep prefill and decode together: {split} are as many as the instances that meet {goal}"
    return f"Keep prefill and decode together: {needed} {meet} {goal}; apart it takes {split}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
