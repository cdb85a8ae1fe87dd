"""The plan: time to first token and cost by number of instances, and what changes if an assumption changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...serving.planning.plan_result import InstancesPlan, InstancesPoint, Plan, RouterPlan, Sensitivity, UnmetTarget
from .plot import Axis, Panel, Plot, Series

OVERLOAD = 10  # times the target: numbers of instances with a longer time to first token are not drawn
INSTANCES = Axis("instances", log=True, unit="instances")
QUANTILES: dict[str, Callable[[InstancesPoint], float]] = {
    "p50": lambda point: point.ttft["p50"],
    "p90": lambda point: point.ttft["p90"],
    "p99": lambda point: point.ttft["p99"],
}
FACTOR = Axis("factor of the assumption", unit="times as large")


def instances(plan: Plan) -> Plot:
    """TTFT at three quantiles, and at the target's, against the number of instances, for each router."""
    part, place = plan.instances, plan.instances.target.place
    panels = [_latency_panel(name, _lines(part, values), None) for name, values in QUANTILES.items() if name != place]
    panels.append(at_target(part))
    return Plot(
        "Time to first token by number of instances",
        "Each point is one simulation in time. Bars are intervals of 90 % by a bootstrap over windows of requests. "
        f"Dotted: the target. Numbers with more than {OVERLOAD} times the target are not drawn.",
        sorted(panels, key=lambda panel: float(panel.title.removeprefix("TTFT p"))),
    )


def sensitivity(plan: Plan) -> Plot:
    """The cost of an hour by number of instances, and TTFT and instances if an assumption changes."""
    panels = [cost(plan.instances), *_changes(plan.sensitivity, plan.instances)]
    return Plot(
        "Cost, and what changes the plan",
        "Left: cost by instances. Right: the plan of the best router if one assumption is 0.6 to 1.4 times as large.",
        panels,
    )


def at_target(part: InstancesPlan) -> Panel:
    """TTFT at the target's quantile by number of instances, with intervals and the target."""
    return _latency_panel(part.target.place, _lines(part, lambda point: point.ttft_s, noise=True), part.target.ttft_s)


def cost(part: InstancesPlan) -> Panel:
    """The cost of an hour by number of instances."""
    lines = _lines(part, lambda point: point.usd_per_hour)
    if not any((line.y > 0).any() for line in lines):
        return Panel("Cost", missing="the GPUs have no price.")
    return Panel("Cost", INSTANCES, Axis("cost (USD an hour)", log=True, unit="USD an hour"), lines)


def needed(plan: Plan) -> Panel:
    """The number of instances that the target needs if an assumption changes."""
    return _changes(plan.sensitivity, plan.instances)[1]


def _latency_panel(place: str, series: list[Series], target_s: float | None) -> Panel:
    if not any((line.y > 0).any() for line in series):
        return Panel(f"TTFT {place}", missing="no request is served.")
    if target_s is not None:
        every = np.concatenate([line.x for line in series])
        ends = np.array([every.min(), every.max()])
        series = [*series, Series("target", ends, np.full(2, target_s), len(series), "dash")]
    return Panel(f"TTFT {place}", INSTANCES, Axis("time to first token (s)", log=True, unit="s"), series)


def _drawn(row: RouterPlan | UnmetTarget, part: InstancesPlan) -> list[InstancesPoint]:
    """The points of a router without those of an overload, whose queues grow for as long as the trace lasts."""
    limit = OVERLOAD * max(part.target.ttft_s, min(point.ttft_s for point in row.curve))
    return [point for point in row.curve if point.ttft_s <= limit]


def _lines(part: InstancesPlan, value: Callable[[InstancesPoint], float], *, noise: bool = False) -> list[Series]:
    """A line for each router."""
    lines = []
    for colour, row in enumerate(part.routers):
        points = _drawn(row, part)
        x, y = np.array([point.instances for point in points]), np.array([value(point) for point in points])
        low, high = ([getattr(point, f"ttft_{end}") for point in points] for end in ("low", "high"))
        bars = (np.array(low), np.array(high)) if noise else (None, None)
        lines.append(Series(row.router, x, y, colour, "dots", *bars))
    return lines


def _changes(rows: list[Sensitivity] | None, part: InstancesPlan) -> list[Panel]:
    """TTFT with the planned number of instances, and the number that the target needs."""
    place = part.target.place
    if not rows or part.best is None:
        why = "no router meets the target."
        return [Panel(f"TTFT {place} of the plan", missing=why), Panel("Instances for the target", missing=why)]
    return [_times(rows, part.best, part.target.ttft_s, place), _needed(rows, part.best)]


def _by_assumption(rows: list[Sensitivity]) -> list[list[Sensitivity]]:
    """The rows of each assumption in order of their factors, with the plan itself in each."""
    plan, changes = rows[0], rows[1:]
    names = list(dict.fromkeys(row.what for row in changes))
    return [sorted([plan, *(r for r in changes if r.what == name)], key=lambda row: row.factor) for name in names]


def _times(rows: list[Sensitivity], best: RouterPlan, target_s: float, place: str) -> Panel:
    series = []
    for colour, group in enumerate(_by_assumption(rows)):
        names = ("factor", "ttft_s", "ttft_low", "ttft_high")
        x, y, low, high = (np.array([getattr(row, name) for row in group]) for name in names)
        series.append(Series(_name(group), x, y, colour, "dots", low=low, high=high))
    ends = np.array([min(row.factor for row in rows), max(row.factor for row in rows)])
    series.append(Series("target", ends, np.full(2, target_s), len(series), "dash"))
    title = f"TTFT {place} with {best.instances:,} x {best.router}"
    return Panel(title, FACTOR, Axis("time to first token (s)", unit="s"), series)


def _needed(rows: list[Sensitivity], best: RouterPlan) -> Panel:
    series, notes = [], []
    for colour, group in enumerate(_by_assumption(rows)):
        met = [row for row in group if row.instances is not None]
        x, y = np.array([row.factor for row in met]), np.array([row.instances for row in met])
        series.append(Series(_name(group), x, y, colour, "dots"))
        notes += [f"{row.what} x {row.factor:g}" for row in group if row.instances is None]
    note = f"No number of instances meets the target: {', '.join(notes)}." if notes else ""
    axis = Axis("instances", limits=(0, 0), unit="instances", whole=True)
    return Panel(f"Instances for the target, {best.router}", FACTOR, axis, series, note=note)


def _name(group: list[Sensitivity]) -> str:
    return next(row.what for row in group if row.factor != 1.0)
