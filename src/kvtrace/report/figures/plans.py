"""A plan: hits by memory, the cost behind each router, and the instances if an assumption changes."""

from __future__ import annotations

import numpy as np

from ...serving.plan_result import InstancesPlan, MemoryPlan, Plan, RouterPlan
from ..plots.plot import Axis, Panel, Series, bars, rate_axis
from ..plots.plot import Plot as Panels


def plot(plan: Plan) -> Panels:
    """The parts of a plan that have a shape; the tables have the rest."""
    panels = [_memory(plan.memory, plan.setting.capacity_gib), *_instances(plan.instances)]
    if plan.sensitivity is not None and plan.instances.best is not None:
        panels.append(_sensitivity(plan, plan.instances.best))
    return Panels("Capacity plan", "Hits by memory, cost by router, and what the assumptions change.", panels)


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
    return Panel("Hits by memory", Axis("KV cache (GiB)", log=True), rate_axis("block hit rate", top), series)


def _instances(part: InstancesPlan) -> list[Panel]:
    """Two panels with one bar for each router that meets the target: its cost, and its instances."""
    met = [row for row in part.routers if isinstance(row, RouterPlan)]
    goal = f"TTFT {part.target.ttft_s:g} s for {part.target.quantile:.0%}"
    if not met:
        return [Panel(f"Cost, {goal}", missing="no router meets the target.")]
    costs = {f"{row.router}, {row.instances:,} instances": row.usd_per_million_requests for row in met}
    waits = {row.router: row.ttft["p99"] for row in met}
    return [
        bars(f"Cost, {goal}", Axis("USD per million requests", limits=(0, 0)), costs),
        bars("Slowest 1 % of the requests", Axis("TTFT p99 (s)", limits=(0, 0)), waits),
    ]


def _sensitivity(plan: Plan, best: RouterPlan) -> Panel:
    """The instances with each assumption a fifth lower and higher, beside the plan's."""
    rows = [row for row in plan.sensitivity or [] if row.instances is not None]
    names = list(dict.fromkeys(row.what for row in rows))
    series = []
    for colour, factor in enumerate(sorted({row.factor for row in rows})):
        points = [(names.index(row.what), row.instances) for row in rows if row.factor == factor]
        x, y = (np.array(values, dtype=float) for values in zip(*points, strict=True))
        beside = 0.2 * (colour - 0.5)  # so that equal results do not hide each other
        series.append(Series(f"x {factor:g}", y, x + beside, colour, "points"))
    ends = np.array([-0.5, len(names) - 0.5])
    series.append(Series("plan", np.full(2, float(best.instances)), ends, len(series), "dash"))
    ticks = {float(number): name for number, name in enumerate(names)}
    axis = Axis(f"instances, {best.router}", limits=(0, 0), whole=True)
    return Panel("If an assumption changes", axis, Axis("", ticks=ticks, limits=(-0.5, len(names) - 0.5)), series)
