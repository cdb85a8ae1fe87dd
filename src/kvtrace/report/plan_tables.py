"""The tables of `kvtrace plan`, one for each question, with the assumptions below each table."""

from __future__ import annotations

from collections.abc import Sequence

from .._base.results import as_json, column, columns_in
from .._base.tables import TextTable, csv_text
from ..serving.planning.plan_result import (
    BlockSizePlan,
    BlockSizesPlan,
    InstancesPlan,
    InstancesPoint,
    LanePoint,
    LanesPlan,
    LeastMemory,
    LoopPlan,
    MemoryPlan,
    MemoryPoint,
    ModelError,
    Plan,
    PlanSetting,
    PricePlan,
    PricesPlan,
    RouterPlan,
    Sensitivity,
    TierPlan,
    TiersPlan,
    TimeTarget,
    UnmetTarget,
    seconds,
)

MARK = {"mark": column(note=True, rank=0)}  # a word after the row


def tables(plan: Plan) -> list[TextTable]:
    """One table for each part of the plan."""
    parts = [_setting(plan.setting), _memory(plan.memory), _least(plan.memory)]
    if plan.tiers is not None:
        parts.append(_tiers(plan.tiers))
    parts += [_instances(plan.instances), *_unmet(plan.instances), _curve(plan.instances)]
    if plan.lanes is not None:
        parts.append(_lanes(plan.lanes, plan.instances.target))
    if plan.loop is not None:
        parts.append(_loop(plan.loop))
    if plan.sensitivity is not None and plan.instances.best is not None:
        parts.append(_sensitivity(plan.sensitivity, plan.instances))
    return [*parts, _block_sizes(plan.block_sizes), _prices(plan.prices)]


def sentence(part: InstancesPlan) -> str:
    """The result of the plan: the fewest instances for the target and their cost, or the reason why none meet it."""
    best, target = part.best, part.target
    if best is None:
        reasons = list(dict.fromkeys(row.reason for row in part.routers if isinstance(row, UnmetTarget)))
        return f"No number of instances meets the target. {' '.join(reasons[:1])}"
    return (
        f"{best.instances:,} instances behind {best.router} give {target.quantile:.0%} of the requests a time to first "
        f"token of at most {target.ttft_s:g} s. Serving the trace costs {best.usd:,.2f} USD.{_error_sentence(part)}"
    )


def _error_sentence(part: InstancesPlan) -> str:
    """What the measured errors of simulated times mean for the number of instances."""
    model_error = part.model_error
    if model_error is None:
        return ""
    few, sure = model_error.fewest_instances, model_error.sure_instances
    many = "no number is sure to meet the target" if sure is None else f"{sure:,} are sure to meet the target"
    some = "" if few is None or few == sure else f"{few:,} may be enough, and "
    return f" Simulated times were wrong by up to {model_error.error:.1%}: {some}{many}."


def _lanes(part: LanesPlan, target: TimeTarget) -> TextTable:
    rows = [
        point.to_dict() | {"mark": "misses" if not point.meets else "largest" if point.lanes == part.lanes else "meets"}
        for point in part.curve
    ]
    shown = ("lanes", "ttft_s", "e2e", "block_hit_rate", "sessions_per_hour", "usd_per_session", "mark")
    table = _table(lanes_sentence(part, target), part.assumes)
    return table.add_results(columns_in(LanePoint) | MARK, rows, shown, ttft_s=f"TTFT {quantile_name(target)}")


def lanes_sentence(part: LanesPlan, target: TimeTarget) -> str:
    """The result of the plan of lanes."""
    goal = f"a time to first token of {target.ttft_s:g} s for {target.quantile:.0%} of the requests"
    if part.lanes is None:
        return f"No number of sessions at once has {goal}. {part.reason}"
    return f"{part.lanes:,} {'session' if part.lanes == 1 else 'sessions'} at once on one instance: {goal}"


def _setting(part: PlanSetting) -> TextTable:
    table = _table("Workload and hardware", part.assumes, has_header=False)
    table.add_column()
    table.add_column(dim=True, rank=0)
    table.add_row("requests", f"{part.requests:,} in blocks of {part.block_size:,} tokens")
    table.add_row("instance", f"{part.gpus_per_instance} x {part.gpu}, {part.usd_per_instance_hour:.2f} USD per hour")
    kv = f"{part.capacity_blocks:,} blocks, {part.kv_bytes_per_token:,} bytes per token"
    table.add_row("KV cache", f"{part.capacity_gib:,.1f} GiB: {kv}")
    return table


def _memory(part: MemoryPlan) -> TextTable:
    rows = [point.to_dict() | {"mark": "knee" if point == part.knee else ""} for point in part.points]
    return _table("Hits by memory", part.assumes).add_results(columns_in(MemoryPoint) | MARK, rows)


def _least(part: MemoryPlan) -> TextTable:
    columns = {"share": column("share", rank=0)} | columns_in(LeastMemory)
    rows = [{"share": share} | smallest.to_dict() for share, smallest in part.least.items()]
    return _table("Smallest memory for a share of the possible hits").add_results(columns, rows)


def _tiers(part: TiersPlan) -> TextTable:
    table = _table("Tiers below the GPUs", part.assumes)
    table.caption = f"fetching pays above {part.break_even_bandwidth / 1e9:,.1f} GB/s; {table.caption}"
    return table.add_results(columns_in(TierPlan), as_json(part.rows))


def _instances(part: InstancesPlan) -> TextTable:
    target = part.target
    title = f"Instances for a time to first token of {target.ttft_s:g} s for {target.quantile:.0%} of the requests"
    table = _table(title, part.assumes)
    rows = [
        row.to_dict() | {"instances": "not met"} if isinstance(row, UnmetTarget)
        else row.to_dict() | {"router": row.router + (" *" if row == part.best else ""), "instances": number_range(row)}
        for row in part.routers
    ]  # fmt: skip
    shown = ("router", "instances", "ttft_s", "tpot", "block_hit_rate", "utilisation", "usd")
    table.add_results(columns_in(RouterPlan), rows, shown, ttft_s=f"TTFT {quantile_name(target)}")
    best = part.best
    if part.model_error is not None:
        table.caption += f"; {_error_caption(part.model_error)}"
    if best is not None:
        saves = f"{best.saved_compute_s:,.0f} s of GPU compute, {best.saved_usd:,.2f} USD"
        table.caption += f"; * fewest instances; its hits save {saves}; all figures are for the smallest number"
    return table


def _error_caption(part: ModelError) -> str:
    """The interval that the errors of simulated times imply."""
    high = "any time" if part.ttft_high is None else f"{seconds(part.ttft_high)} s"
    few, sure = (f"{count:,}" if count else "none" for count in (part.fewest_instances, part.sure_instances))
    return (
        f"TTFT {part.statistic} was wrong by up to {part.error:.1%} ({part.basis}): {seconds(part.ttft_low)} s to "
        f"{high}; {few} instances may be enough, {sure} are sure"
    )


def _unmet(part: InstancesPlan) -> list[TextTable]:
    """The reasons where routers do not meet the target, each once with its routers."""
    reasons: dict[str, list[str]] = {}
    for row in part.routers:
        if isinstance(row, UnmetTarget):
            reasons.setdefault(row.reason, []).append(row.router)
    if not reasons:
        return []
    table = TextTable("Target not met")
    table.add_column("router")
    table.add_column("reason", dim=True)
    for reason, routers in reasons.items():
        table.add_row(", ".join(routers), reason)
    return [table]


def _curve(part: InstancesPlan) -> TextTable:
    table = _table("Time to first token in seconds, and cost, by number of instances")
    table.caption = "hit rate: of blocks; all simulated numbers: kvtrace plan --csv"
    rows = [
        {"router": "" if number else row.router} | point.to_dict()
        for row in part.routers
        for number, point in enumerate(_shown(row))
    ]
    shown = ("router", "instances", "ttft", "block_hit_rate", "usd", "meets")
    return table.add_results(
        columns_in(RouterPlan) | columns_in(InstancesPoint), rows, shown, block_hit_rate="hit rate"
    )


def _shown(row: RouterPlan | UnmetTarget) -> list[InstancesPoint]:
    """The points of a curve for a table: powers of two below the target, its neighbours, and the larger numbers."""
    if row.instances is None:
        return row.curve[-5:]
    near = {row.instances - 1, row.instances} | {2**power for power in range(10) if 8 * 2**power > row.instances}
    return [point for point in row.curve if point.instances > row.instances or point.instances in near]


def number_range(row: RouterPlan) -> str:
    """The numbers of instances that meet the target: "17 to 34", or "17 or more"."""
    if row.most_instances is None:
        return f"{row.instances:,} or more"
    more = row.most_instances > row.instances
    return f"{row.instances:,} to {row.most_instances:,}" if more else f"{row.instances:,} only"


def quantile_name(target: TimeTarget) -> str:
    """The quantile of a target as a label.

    >>> quantile_name(TimeTarget(2.0, 0.9))
    'p90'
    """
    return f"p{100 * target.quantile:g}"


CSV_COLUMNS = (
    "router", "instances", "meets", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "ttft_s", "ttft_low", "ttft_high",
    "tpot_p50_s", "block_hit_rate", "imbalance", "utilisation", "rejected", "usd", "usd_per_million_requests",
)  # fmt: skip


def as_csv(plan: Plan) -> str:
    """The curves of all routers as CSV: one row for each simulated number of instances."""
    rows = [
        {"router": row.router} | vars(point) | {"tpot_p50_s": point.tpot["p50"]}
        | {f"ttft_{name}_s": point.ttft[name] for name in ("p50", "p90", "p99")}  # type: ignore[literal-required]
        for row in plan.instances.routers
        for point in row.curve
    ]  # fmt: skip
    return csv_text([{name: row[name] for name in CSV_COLUMNS} for row in rows], CSV_COLUMNS)


def _loop(part: LoopPlan) -> TextTable:
    table = _table("One-pass estimate against event simulation", part.assumes)
    table.add_column()
    table.add_column("block hit rate", right=True)
    table.add_row(f"one pass, {part.instances} x {part.router}", f"{part.one_pass_block_hit_rate:.4f}")
    table.add_row("event simulation", f"{part.events_block_hit_rate:.4f}")
    return table


def _sensitivity(part: list[Sensitivity], instances: InstancesPlan) -> TextTable:
    best = instances.best
    assert best is not None
    table = _table(f"If an assumption changes: TTFT with {best.instances:,} x {best.router}, and the instances needed")
    table.caption = "interval: bootstrap over windows of consecutive requests"
    columns = columns_in(Sensitivity) | {"interval": column("90 % interval", str)}
    rows = [row.to_dict() | {"interval": f"{seconds(row.ttft_low)} to {seconds(row.ttft_high)} s"} for row in part]
    shown = ("what", "factor", "ttft_s", "interval", "instances", "usd")
    return table.add_results(columns, rows, shown, ttft_s=f"TTFT {quantile_name(instances.target)}")


def _block_sizes(part: BlockSizesPlan) -> TextTable:
    return _table("Larger blocks", part.assumes).add_results(columns_in(BlockSizePlan), as_json(part.rows))


def _prices(part: PricesPlan) -> TextTable:
    rows = [row.to_dict() | {"ttl": row.ttl + (" *" if row.ttl == part.best else "")} for row in part.rows]
    return _table("Costs at a provider's prices", part.assumes).add_results(columns_in(PricePlan), rows)


def _table(title: str, assumes: Sequence[str] = (), *, has_header: bool = True) -> TextTable:
    caption = f"assumes: {'; '.join(assumes)}" if assumes else ""
    return TextTable(title, has_header=has_header, caption=caption, remedy="use --json or a wider terminal")
