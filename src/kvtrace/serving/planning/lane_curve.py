"""How many lanes of a closed loop meet the target on one instance, and what the sessions get there.

The numbers are 1, 2, 4, ... until one misses the target, then those of a bisection for the largest one that meets it.
More lanes share the cache and the GPU, so times rise with them; near the target they may go up and down.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...trace.session_trees import session_trees
from ...trace.trace import Trace
from ..bootstrap import quantile_interval
from ..closed_loop import ClosedLoop
from ..closed_run import ClosedRun
from ..hardware import Roofline
from .plan_result import LanePoint, LanesPlan
from .plan_runs import PlanTarget, served

MAX_LANES = 4096


def lanes_plan(trace: Trace, roofline: Roofline, target: PlanTarget, blocks: int) -> LanesPlan | None:
    """The largest number of lanes that meets the target on one instance; None in the open loop."""
    if target.loop is None:
        return None
    points: dict[int, LanePoint] = {}

    def meets(lanes: int) -> bool:
        if lanes not in points:
            loop = replace(target.loop, lanes=lanes) if target.loop else None
            run = served(trace, roofline, target, blocks, 1, "round-robin", loop)
            assert isinstance(run, ClosedRun)
            points[lanes] = _point(run, roofline, target)
        return points[lanes].meets

    largest = most_lanes(meets, _all_lanes(trace, target.loop))
    curve = [points[lanes] for lanes in sorted(points)]
    return LanesPlan(
        lanes=largest, best=points[largest] if largest else None, curve=curve,
        reason=None if largest else _reason(curve[0], target), assumes=_assumes(target.loop),
    )  # fmt: skip


def most_lanes(meets, largest: int) -> int | None:
    """The largest number up to `largest` that meets the target, by doubling and bisection; None if 1 misses it.

    >>> most_lanes(lambda lanes: lanes <= 11, 100), most_lanes(lambda lanes: False, 9)
    (11, None)
    """
    low, high = 0, 1  # the number `low` meets the target
    while meets(high):
        if high >= largest:
            return high
        low, high = high, min(2 * high, largest)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low or None


def _all_lanes(trace: Trace, loop: ClosedLoop) -> int:
    """The largest number of lanes to try: without a duration, each session is played once."""
    sessions = int(session_trees(trace).max(initial=0)) + 1
    return MAX_LANES if loop.duration_s is not None else min(MAX_LANES, sessions)


def _point(done: ClosedRun, roofline: Roofline, target: PlanTarget) -> LanePoint:
    figures, times = done.to_dict(), done.ttft_s
    ttft_s = float(np.quantile(times, target.quantile)) if len(times) else 0.0
    low, high = quantile_interval(times, target.quantile)
    per_hour = figures["loop"]["sessions_per_hour"]
    cost = roofline.gpus * roofline.gpu.price_per_hour
    return LanePoint(
        lanes=done.loop.lanes, meets=not done.rejected and ttft_s <= target.ttft_s, ttft_s=ttft_s, ttft_low=low,
        ttft_high=high, tpot=figures["tpot_s"], e2e=figures["e2e_s"], requests_per_s=figures["requests_per_s"],
        sessions_per_hour=per_hour, block_hit_rate=figures["block_hit_rate"], rejected=done.rejected,
        usd_per_session=cost / per_hour if per_hour else None,
    )  # fmt: skip


def _reason(point: LanePoint, target: PlanTarget) -> str:
    """Why even one lane misses the target."""
    if point.rejected:
        return f"{point.rejected:,} requests do not fit into an instance. Use more GPUs per instance."
    return (
        f"Even one session alone has a TTFT of {point.ttft_s:.3g} s at p{100 * target.quantile:g}, above "
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
