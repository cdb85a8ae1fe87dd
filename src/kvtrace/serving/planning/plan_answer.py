"""The answer of a plan: the instances to run, and their cost and service; or what would meet the target.

The number to run is sure to meet the target, even if simulated times are too short by the error that was measured, plus
the spare instances. It is the number that meets the target in simulation, or the one that may be enough if that is
larger, if none is sure, if only more than twice as many are, or if too little was measured.

What would meet a target that is missed is simulated, too: a longer time, more GPUs per instance, another GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import ceil, floor, log10

from ..._base.errors import UsageError
from ..deployment import Deployment
from ..hardware import GPUS
from ..hardware.gpus import gpu_label
from ..hardware.room import TENSOR_SIZES
from ..models.engine_layout import layouts_for
from ..routers import RouterName
from .plan_result import InstancesPlan, InstancesPoint, PlanAnswer, TimeTarget, seconds, usd
from .plan_runs import MAX_GPUS, InstanceRuns, prefill_floor
from .plan_target import Planned, PlanTarget

GIVEN = "as given"  # the source of a price of --gpu-price
MOST_FOR_SURE = 2  # times the instances that meet the target in simulation
UNCERTAIN = "too few measurements to say how sure that is"
NEAR = 1.1
MOST_TRIES = 3  # simulations of other GPUs


def plan_answer(part: InstancesPlan, runs: Mapping[RouterName, InstanceRuns]) -> PlanAnswer:
    """The answer of a plan.

    Args:
        part: The instances for the target.
        runs: Router -> its simulations.
    """
    if part.best is None:
        return _unmet(part, list(runs.values()))
    best, error, target = runs[part.best.router], part.model_error, part.target
    few, sure = (error.fewest_instances, error.sure_instances) if error else (None, None)
    number = max(part.best.instances, few or 0)
    if sure is not None and sure <= MOST_FOR_SURE * number:
        number = sure
    alone, point = best.at(number), best.at(number + target.spare)
    roofline = best.roofline
    answer = PlanAnswer(
        sentence="", instances=point.instances, gpus=point.instances * roofline.gpus, router=best.router,
        spare=target.spare, may_be_enough=few, enough=part.best.instances,
        sure=sure, usd_per_hour=point.usd_per_hour, usd_per_day=24 * point.usd_per_hour,
        usd_per_million_tokens=point.usd_per_million_tokens, ttft=point.ttft_s, busy=point.utilisation,
        ttft_without_spare=alone.ttft_s, busy_without_spare=alone.utilisation, block_hit_rate=point.block_hit_rate,
        remedies=[],
    )  # fmt: skip
    return replace(answer, sentence=_sentence(answer, target, roofline.gpu.name, is_sized=error is not None))


def instances_of(count: int, gpus: int, name: str) -> str:
    """A number of instances with their GPUs.

    >>> instances_of(7, 1, "h100"), instances_of(1, 4, "h100")
    ('7 x H100', '1 instance of 4 x H100')
    """
    if gpus == 1:
        return f"{count:,} x {gpu_label(name)}"
    return f"{count:,} instance{'' if count == 1 else 's'} of {gpus:,} x {gpu_label(name)}"


def _sentence(answer: PlanAnswer, target: TimeTarget, name: str, *, is_sized: bool) -> str:
    assert answer.instances and answer.gpus and answer.ttft is not None and answer.busy is not None
    run = instances_of(answer.instances, answer.gpus // answer.instances, name)
    behind = f" behind {answer.router}" if answer.instances > 1 else ""
    spare = f", {answer.spare:,} of them spare" if answer.spare else ""
    return (
        f"Run {run}{behind}{spare} ({usd(answer.usd_per_hour)} USD an hour): {target.place} TTFT "
        f"{seconds(answer.ttft)} s at {100 * answer.busy:.0f} % busy; "
        f"{certainty(answer) if is_sized else UNCERTAIN}"
    )


def certainty(answer: PlanAnswer) -> str:
    """The numbers of instances that may be enough, and are sure."""
    few, sure = answer.may_be_enough, answer.sure
    if few is None:
        return "by the measured errors no number is enough"
    without = " without the spare" if answer.spare else ""
    if sure is None:
        return f"{few:,} may be enough{without}, no number is sure"
    verb = "is" if sure == 1 else "are"
    return f"{sure:,} {verb} sure{without}" if few == sure else f"{few:,} may be enough, {sure:,} {verb} sure{without}"


# -- a target that no number meets -------------------------------------------------------------------------------


def _unmet(part: InstancesPlan, runs: list[InstanceRuns]) -> PlanAnswer:
    remedies = list(_remedies(runs))
    target, roofline = part.target, runs[0].roofline
    label = gpu_label(roofline.gpu.name)
    name = label if roofline.gpus == 1 else f"instances of {roofline.gpus} x {label}"
    goal = f"a {target.place} TTFT of {target.ttft_s:g} s" + (
        "" if target.max_busy is None else f" at {100 * target.max_busy:g} % busy"
    )
    would = f": use {', or '.join(remedies)}" if remedies else f" on up to {MAX_GPUS} GPUs each"
    nothing = dict.fromkeys((
        "instances", "gpus", "router", "may_be_enough", "enough", "sure", "usd_per_hour", "usd_per_day",
        "usd_per_million_tokens", "ttft", "busy", "ttft_without_spare", "busy_without_spare", "block_hit_rate",
    ))  # fmt: skip
    return PlanAnswer(
        sentence=f"No number of {name} meets {goal}{would}", spare=target.spare, remedies=remedies,
        **nothing,  # type: ignore[arg-type]
    )  # fmt: skip


def _remedies(runs: list[InstanceRuns]) -> Iterator[str]:
    """What would meet the target, each by a simulation: a longer time or busier instances, more GPUs, another GPU."""
    rows = [(point, each) for each in runs for point in each.curve()]
    target, steady = runs[0].target, [(point, each) for point, each in rows if point.serves_all]
    if steady:
        yield _longer([row for row in steady if target.allows(row[0].utilisation)] or steady, target)
    point, fastest = min(steady or rows, key=lambda row: (row[0].ttft_s, row[0].instances))
    if fastest.planned.time.costs is None:
        yield from _more_gpus(fastest, point.instances)
        yield from _faster_gpu(fastest, point.instances)


def _longer(rows: list[tuple[InstancesPoint, InstanceRuns]], target: PlanTarget) -> str:
    """The options that the fewest instances meet whose time is at most a tenth above the smallest."""
    limit = NEAR * max(target.ttft_s, min(point.ttft_s for point, _ in rows))
    point, runs = min(
        ((point, each) for point, each in rows if point.ttft_s <= limit),
        key=lambda row: (row[0].instances, row[0].ttft_s),
    )
    longer = "" if point.ttft_s <= target.ttft_s else f" --ttft {rounded_up(point.ttft_s):g}s"
    busier = "" if target.allows(point.utilisation) else f" --max-busy {ceil(100 * point.utilisation)}%"
    where = instances_of(point.instances, runs.roofline.gpus, runs.roofline.gpu.name)
    return f"{longer}{busier} ({where} behind {runs.router})".strip()


def rounded_up(seconds: float) -> float:
    """A time rounded up to two digits, so that what takes it meets it.

    >>> rounded_up(2.4512), rounded_up(0.0301), rounded_up(12.01)
    (2.5, 0.031, 13.0)
    """
    scale = 10.0 ** (floor(log10(seconds)) - 1) if seconds > 0 else 1.0
    return float(f"{ceil(seconds / scale - 1e-9) * scale:.2g}")


def _more_gpus(runs: InstanceRuns, count: int) -> Iterator[str]:
    """The smallest number of GPUs per instance, up to one machine's, with which the target is met."""
    deployment = runs.planned.time.deployment
    sizes = (size for size in TENSOR_SIZES if size > deployment.tensor_parallel_size)
    for other in (replace(deployment, tensor_parallel_size=size) for size in sizes):
        if other.gpus_per_instance <= MAX_GPUS and _meets(runs, other, count):
            yield f"--gpus {other.gpus_per_instance} (tensor parallelism)"
            return


def _faster_gpu(runs: InstanceRuns, count: int) -> Iterator[str]:
    """The GPU of the smallest price with which the target is met, of the few cheapest that are faster."""
    gpu, deployment = runs.roofline.gpu, runs.planned.time.deployment
    faster = [each for each in GPUS.values() if each.flops > gpu.flops and each.bandwidth >= gpu.bandwidth]
    tries = 0
    for other in sorted(faster, key=lambda each: (each.price_per_hour, each.name)):
        replaced = replace(deployment, gpu=other.name)
        if _is_possible(runs, replaced):
            tries += 1
            if _meets(runs, replaced, count):
                yield f"--gpu {other.name}"
                return
        if tries == MOST_TRIES:
            return


def _planned(runs: InstanceRuns, deployment: Deployment) -> Planned:
    """The target on another deployment; UsageError if that cannot be."""
    block_size = runs.trace.block_size
    layout = layouts_for(deployment, ["vllm"], block_size).get("vllm")
    planned = runs.target.on(replace(runs.planned.time, deployment=deployment), layout)
    planned.capacity(block_size)
    return planned


def _is_possible(runs: InstanceRuns, deployment: Deployment) -> bool:
    """Whether prefill alone, with every possible hit, meets the target on a deployment."""
    with suppress(UsageError):  # of a model that does not fit, or cannot be divided like this
        return prefill_floor(runs.trace, _planned(runs, deployment)).with_hits_s <= runs.target.ttft_s
    return False


def _meets(runs: InstanceRuns, deployment: Deployment, count: int) -> bool:
    """Whether so many instances of another deployment meet the target."""
    if not _is_possible(runs, deployment):
        return False
    with suppress(UsageError):
        return InstanceRuns(runs.trace, _planned(runs, deployment), runs.router).at(count).meets
    return False
