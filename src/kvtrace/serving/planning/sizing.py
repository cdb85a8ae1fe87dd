"""Sizing: how many instances behind a router, and how many lanes of a closed loop on one, meet a target.

The numbers of instances are 1, 2, 4, ... until one meets the target, then those of a bisection for the smallest one,
and a few larger ones; of lanes, until one misses the target, then for the largest one that meets it. Each number is one
simulation in time; nothing in between is interpolated. More lanes share the cache and the GPU, so times rise with them;
near the target they may go up and down.

A time to first token has an interval by the errors of simulated times that were measured (simulated / measured - 1).
With the roofline alone they are those of the nearest measured deployments: steps take longer or shorter by the errors
of TPOT, TTFT by its own. With calibrated costs they are those of TTFT, of the requests that the calibration held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ...trace.session_trees import session_trees
from ...trace.trace import Trace
from ..expectations import ExpectedError
from ..hardware import Roofline
from ..lanes import ClosedLoop, ClosedRun
from ..latencies import quantile_interval
from .plan_result import (
    FleetFigures,
    InstancesPoint,
    LanePoint,
    LanesPlan,
    ModelError,
    PrefillFloor,
    RouterPlan,
    UnmetTarget,
    percentile,
)
from .plan_runs import MAX_INSTANCES, InstanceRuns, fewest, least_gpus_for, served, with_steps
from .plan_target import Planned, PlanTarget

QUANTILES = {"p50": 0.5, "p90": 0.9}  # statistics of TTFT that have errors, beside the mean


@dataclass(frozen=True)
class TimeErrors:
    """The relative errors of TTFT by statistic, and what they rest on."""

    errors: Mapping[str, Sequence[float]]  # "mean", "p50", "p90" -> an error for each recording
    basis: str

    def statistic(self, quantile: float) -> str:
        """The statistic that is nearest to a quantile; the mean if no quantile has errors.

        >>> errors = TimeErrors({"p50": (-0.05, 0.03), "p90": (-0.2, 0.03)}, "two recordings")
        >>> errors.statistic(0.95), errors.statistic(0.6)
        ('p90', 'p50')
        """
        measured = [name for name in QUANTILES if self.errors.get(name)]
        return min(measured, key=lambda name: abs(QUANTILES[name] - quantile), default="mean")

    def largest(self, quantile: float) -> float:
        """The largest error in size at a quantile; 0 without errors.

        >>> TimeErrors({"p90": (-0.2, 0.03)}, "two recordings").largest(0.9)
        0.2
        """
        return max((abs(error) for error in self.errors.get(self.statistic(quantile), ())), default=0.0)


def held_out_errors(errors: Mapping[str, float], basis: str) -> TimeErrors:
    """The errors of a calibration on the requests that it held out.

    Args:
        errors: `Costs.errors`: such as ttft_s_p90 -> relative error.
        basis: What was measured, for people.

    >>> held_out_errors({"ttft_s_mean": -0.01, "ttft_s_p90": 0.02, "e2e_s_mean": 0.5}, "a recording").largest(0.9)
    0.02
    """
    of_ttft = {name: errors[f"ttft_s_{name}"] for name in ("mean", *QUANTILES) if f"ttft_s_{name}" in errors}
    return TimeErrors({name: (error,) for name, error in of_ttft.items()}, basis)


def time_interval(seconds: float, error: float) -> tuple[float, float]:
    """The times that a simulated time stands for, if it is wrong by up to `error` in either direction.

    >>> time_interval(1.5, 0.5)
    (1.0, 3.0)
    >>> time_interval(1.0, 1.5)
    (0.4, inf)
    """
    return seconds / (1 + error), seconds / (1 - error) if error < 1 else float("inf")


def limit_interval(limit_s: float, error: float) -> tuple[float, float]:
    """The simulated times that certainly, and that possibly, stand for a time of at most `limit_s`.

    >>> limit_interval(2.0, 0.25)
    (1.5, 2.5)
    """
    return limit_s * max(0.0, 1 - error), limit_s * (1 + error)


LARGER = (1.25, 1.5, 2.0, 4.0)  # times the smallest number that meets the target


def router_plan(runs: InstanceRuns, floor: PrefillFloor) -> RouterPlan | UnmetTarget:
    """The curve of a router, and the numbers of instances that meet the target, or the reason why none does."""
    least = runs.fewest()
    if least is None:
        curve = runs.curve()
        return UnmetTarget(runs.router, _reason(runs, floor, curve[-1]), curve)
    for factor in LARGER:
        runs.at(min(runs.largest, int(np.ceil(least * factor))))
    best, curve = runs.at(least), runs.curve()
    missing = [point.instances for point in curve if point.instances > least and not point.meets]
    meeting = [point.instances for point in curve if least <= point.instances < min(missing, default=MAX_INSTANCES + 1)]
    saved_s, hours = _saved_s(runs, least), runs.served_hours(least)
    return RouterPlan(
        router=runs.router, **{figure.name: getattr(best, figure.name) for figure in fields(FleetFigures)},
        saved_compute_s=saved_s,
        saved_usd_per_hour=float(runs.roofline.usd(saved_s)) / hours if hours else 0.0,
        most_instances=meeting[-1] if missing else None, curve=curve,
    )  # fmt: skip


def model_error(runs: InstanceRuns, best: RouterPlan, errors: TimeErrors | ExpectedError) -> ModelError | None:
    """What the errors of simulated times mean for a router's TTFT and number of instances.

    Args:
        runs: The simulations of the router.
        best: Its plan.
        errors: The errors that were measured: of TTFT with a recording, of TPOT without one.

    Returns:
        The error and the interval; None if too little was measured for one.
    """
    if isinstance(errors, ExpectedError):
        return _expected(runs, best, errors)
    quantile = runs.target.quantile
    error = errors.largest(quantile)
    low, high = time_interval(best.ttft_s, error)
    sure_s, possible_s = limit_interval(runs.target.ttft_s, error)
    return ModelError(
        statistic=errors.statistic(quantile), error=error, ttft_low=low, ttft_high=high if np.isfinite(high) else None,
        fewest_instances=runs.fewest_within(possible_s), sure_instances=runs.fewest_within(sure_s, best.instances),
        basis=errors.basis,
    )  # fmt: skip


def _expected(runs: InstanceRuns, best: RouterPlan, errors: ExpectedError) -> ModelError | None:
    """What the errors of times without a recording mean: longer or shorter steps, and longer or shorter TTFT.

    The load is simulated again with steps as long as TPOT makes them; both errors have to be borne.
    """
    if errors.tpot_error is None or (steps := errors.tpot_error.factors) is None:
        return None
    ttft = errors.ttft_error.factors if errors.ttft_error else None
    ends = []
    for place, factor in enumerate(steps):
        scaled = with_steps(runs, factor)
        numbers, time_s = [scaled.fewest(best.instances)], scaled.at(best.instances).ttft_s
        if ttft is not None:
            numbers.append(runs.fewest_within(runs.target.ttft_s / ttft[place], best.instances))
            time_s = (min, max)[place](time_s, ttft[place] * best.ttft_s)
        ends.append((None if None in numbers else max(filter(None, numbers)), time_s))
    (fewest_instances, low), (sure, high) = ends
    return ModelError(
        statistic="TPOT", error=errors.tpot_error.mean_absolute, ttft_low=low, ttft_high=high,
        fewest_instances=fewest_instances, sure_instances=sure, basis=errors.measured, step_factors=steps,
        ttft_factors=ttft,
    )  # fmt: skip


def _saved_s(runs: InstanceRuns, count: int) -> float:
    """The compute time that the hits save."""
    run, roofline = runs.served(count), runs.roofline
    tokens = run.trace.input_length
    cached = np.clip(run.cached_tokens, 0, tokens)  # of an empty prompt, or of more blocks than its tokens fill
    return float((roofline.compute_s(tokens) - roofline.compute_s(tokens - cached, cached)).sum())


def _reason(runs: InstanceRuns, floor: PrefillFloor, last: InstancesPoint) -> str:
    """Why no number of instances meets the target."""
    target = runs.target
    limit, place = f"the target of {target.ttft_s:g} s", percentile(target.quantile)
    alone = f"Prefill alone takes {_above(floor.without_hits_s, target.ttft_s)} s at {place} without hits"
    if last.ttft_s <= target.ttft_s and not last.rejected:
        busy = f"they are busy for {last.utilisation:.0%} of the time"
        return f"TTFT is {last.ttft_s:.3g} s at {place} on {last.instances:,} instances, but {busy}."
    if last.rejected:
        return f"{last.rejected:,} requests do not fit into an instance. Use more GPUs per instance."
    if floor.with_hits_s > target.ttft_s:
        best = f"and {_above(floor.with_hits_s, target.ttft_s)} s with every possible hit"
        gpus = least_gpus_for(runs.trace, target, runs.planned.time)
        more = f"--gpus {gpus} or more" if gpus else "faster GPUs"
        return f"{alone} {best}, above {limit}. Use {more}, or a longer target."
    if floor.without_hits_s > target.ttft_s:
        hits = f"On {last.instances:,} instances {last.block_hit_rate:.1%} of the blocks hit, which is not enough"
        return f"{alone}, above {limit}. {hits}; with every possible hit prefill takes {floor.with_hits_s:.3g} s."
    ttft = _above(last.ttft_s, target.ttft_s)
    return (
        f"TTFT is {ttft} s at {place} on {last.instances:,} instances, the largest number that was tried. {alone}; "
        "the rest is waiting."
    )


def _above(seconds: float, limit: float) -> str:
    """A time with three digits, or with more where it would look equal to the limit.

    >>> _above(2.4512, 2.0), _above(2.0004, 2.0)
    ('2.45', '2.0004')
    """
    for digits in range(3, 12):
        if float(text := f"{seconds:.{digits}g}") != limit:
            return text
    return repr(seconds)


MAX_LANES = 4096


def lanes_plan(trace: Trace, planned: Planned) -> LanesPlan | None:
    """The largest number of lanes that meets the target on one instance; None in the open loop."""
    target = planned.target
    if target.loop is None:
        return None
    loop, one_instance = target.loop, planned.run(trace.block_size)
    points: dict[int, LanePoint] = {}

    def meets(lanes: int) -> bool:
        if lanes not in points:
            run = served(trace, replace(one_instance, loop=replace(loop, lanes=lanes)))
            assert isinstance(run, ClosedRun)
            points[lanes] = _lane_point(run, planned.roofline, target)
        return points[lanes].meets

    largest = most_lanes(meets, _all_lanes(trace, loop))
    curve = [points[lanes] for lanes in sorted(points)]
    return LanesPlan(
        lanes=largest, best=points[largest] if largest else None, curve=curve,
        reason=None if largest else _lane_reason(curve[0], target), assumes=_assumes(loop),
    )  # fmt: skip


def most_lanes(meets, largest: int) -> int | None:
    """The largest number up to `largest` that meets the target, by doubling and bisection; None if 1 misses it.

    >>> most_lanes(lambda lanes: lanes <= 11, 100), most_lanes(lambda lanes: False, 9)
    (11, None)
    """
    first_miss = fewest(lambda number: not meets(number), 1, largest)
    return largest if first_miss is None else first_miss - 1 or None


def _all_lanes(trace: Trace, loop: ClosedLoop) -> int:
    """The largest number of lanes to try: without a duration, each session is played once."""
    sessions = int(session_trees(trace).max(initial=0)) + 1
    return MAX_LANES if loop.duration_s is not None else min(MAX_LANES, sessions)


def _lane_point(run: ClosedRun, roofline: Roofline, target: PlanTarget) -> LanePoint:
    figures, times = run.to_dict(), run.ttft_s
    ttft_s = float(np.quantile(times, target.quantile)) if len(times) else 0.0
    low, high = quantile_interval(times, target.quantile)
    per_hour = figures["loop"]["sessions_per_hour"]
    cost, busy = roofline.gpus * roofline.gpu.price_per_hour, figures["utilisation"][0]
    return LanePoint(
        lanes=run.loop.lanes, meets=not run.rejected and target.met_by(ttft_s, busy), ttft_s=ttft_s,
        ttft_low=low, ttft_high=high, utilisation=busy, tpot=figures["tpot_s"], e2e=figures["e2e_s"],
        requests_per_s=figures["requests_per_s"],
        sessions_per_hour=per_hour, block_hit_rate=figures["block_hit_rate"], rejected=run.rejected,
        usd_per_session=cost / per_hour if per_hour else None,
    )  # fmt: skip


def _lane_reason(point: LanePoint, target: PlanTarget) -> str:
    """Why even one lane misses the target."""
    if point.rejected:
        return f"{point.rejected:,} requests do not fit into an instance. Use more GPUs per instance."
    if point.ttft_s <= target.ttft_s:
        return f"Even one session alone keeps the instance busy for {point.utilisation:.0%} of the time."
    return (
        f"Even one session alone has a TTFT of {point.ttft_s:.3g} s at {percentile(target.quantile)}, above "
        f"{target.ttft_s:g} s. Use more or faster GPUs, or a longer target."
    )


def _assumes(loop: ClosedLoop) -> list[str]:
    length = f"{loop.duration_s:,.0f} s" if loop.duration_s is not None else "until each session has been played once"
    warm_up = f", after {loop.warm_up:,} requests of each lane" if loop.warm_up else ""
    return [
        "one instance; a lane runs a session with its subagents, and then the next one",
        f"requests arrive when what they wait for has ended, plus {loop.think_scale:g} x the recorded delay",
        f"{length}{warm_up}",
        "bisection finds the largest number; near the target it is accurate to one or two lanes",
    ]
