"""A plan: hits by memory, time to first token and cost by instances, and the instances if an assumption changes."""

from __future__ import annotations

import numpy as np

from ...serving.planning.plan_result import MemoryPlan, Plan
from ..plots import planned
from ..plots.plot import Axis, Panel, Series, rate_axis
from ..plots.plot import Plot as Panels


def plot(plan: Plan) -> Panels:
    """The parts of a plan that have a shape; the tables have the rest."""
    part = plan.instances
    panels = [
        _memory(plan.memory, plan.setting.capacity_gib),
        planned.at_target(part),
        planned.cost(part),
        planned.needed(plan),
    ]
    return Panels("Capacity plan", "Hits by memory, latency and cost by instances, effect of assumptions.", panels)


def _memory(part: MemoryPlan, gpu_gib: float) -> Panel:
    gib, rate = (np.array([getattr(point, name) for point in part.points]) for name in ("gib", "block_hit_rate"))
    ends = np.array([min(gib[0], gpu_gib), max(gib[-1], gpu_gib)])
    top = part.unlimited_block_hit_rate
    series = [
        Series("LRU", gib, rate, 0, "dots"),
        Series("unlimited", ends, np.full(2, top), 0, "dash"),
        Series("knee", np.array([part.knee.gib]), np.array([part.knee.block_hit_rate]), 1, "points"),
        Series("GPUs of an instance", np.full(2, gpu_gib), np.array([0, top * 1.15 or 1.0]), 2, "dash"),
    ]
    gib_axis = Axis("KV cache (GiB)", log=True, unit="GiB")
    return Panel("Hits by memory", gib_axis, rate_axis("block hit rate", top), series)
