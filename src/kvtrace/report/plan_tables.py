"""The tables of `kvtrace plan`, one for each question, with the assumptions below each table."""

from __future__ import annotations

from .._base.tables import TextTable, csv_text
from ..serving.planning.plan_result import (
    BlockSizesPlan,
    CurvePoint,
    InstancesPlan,
    LanesPlan,
    LoopPlan,
    MemoryPlan,
    ModelError,
    Plan,
    PlanSetting,
    PricesPlan,
    RouterPlan,
    Sensitivity,
    TiersPlan,
    TimeTarget,
    UnmetTarget,
)


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
    known = part.model_error
    if known is None:
        return ""
    few, sure = known.fewest_instances, known.sure_instances
    many = "no number is sure to meet the target" if sure is None else f"{sure:,} are sure to meet the target"
    some = "" if few is None or few == sure else f"{few:,} may be enough, and "
    return f" Simulated times were wrong by up to {known.error:.1%}: {some}{many}."


def _lanes(part: LanesPlan, target: TimeTarget) -> TextTable:
    names = ["lanes", f"TTFT {quantile_name(target)}", "end to end p50", "block hit rate", "sessions per hour",
             "USD per session", ""]  # fmt: skip
    table = _table(lanes_sentence(part, target), names, part.assumes)
    for point in part.curve:
        usd = "" if point.usd_per_session is None else f"{point.usd_per_session:,.3f}"
        table.add_row(
            f"{point.lanes:,}", f"{seconds(point.ttft_s)} s", f"{seconds(point.e2e['p50'])} s",
            f"{point.block_hit_rate:.4f}", f"{point.sessions_per_hour:,.1f}", usd,
            "misses" if not point.meets else "largest" if point.lanes == part.lanes else "meets",
        )  # fmt: skip
    return table


def lanes_sentence(part: LanesPlan, target: TimeTarget) -> str:
    """The result of the plan of lanes."""
    goal = f"a time to first token of {target.ttft_s:g} s for {target.quantile:.0%} of the requests"
    if part.lanes is None:
        return f"No number of sessions at once has {goal}. {part.reason}"
    return f"{part.lanes:,} {'session' if part.lanes == 1 else 'sessions'} at once on one instance: {goal}"


def _setting(part: PlanSetting) -> TextTable:
    table = _table("Workload and hardware", ["", ""], part.assumes)
    table.add_row("requests", f"{part.requests:,} in blocks of {part.block_size:,} tokens")
    table.add_row("instance", f"{part.gpus_per_instance} x {part.gpu}, {part.usd_per_instance_hour:.2f} USD per hour")
    kv = f"{part.capacity_blocks:,} blocks, {part.kv_bytes_per_token:,} bytes per token"
    table.add_row("KV cache", f"{part.capacity_gib:,.1f} GiB: {kv}")
    return table


def _memory(part: MemoryPlan) -> TextTable:
    names = ["blocks", "GiB", "block hit rate", "gap to unlimited", "gap to belady", ""]
    table = _table("Hits by memory", names, part.assumes)
    for point in part.points:
        gap = point.gap_to_belady
        table.add_row(
            f"{point.capacity:,}", f"{point.gib:,.1f}", f"{point.block_hit_rate:.4f}",
            f"{point.gap_to_unlimited:.4f}", "" if gap is None else f"{gap:.4f}",
            "knee" if point == part.knee else "",
        )  # fmt: skip
    return table


def _least(part: MemoryPlan) -> TextTable:
    table = _table("Smallest memory for a share of the possible hits", ["share", "blocks", "GiB"], [])
    for share, smallest in part.least.items():
        table.add_row(share, f"{smallest.capacity:,}", f"{smallest.gib:,.1f}")
    return table


def _tiers(part: TiersPlan) -> TextTable:
    names = ["tier", "blocks", "hit blocks", "share of blocks", "fetch per block", "fetching pays"]
    table = _table("Tiers below the GPUs", names, part.assumes)
    for row in part.rows:
        fetch_time = "" if row.fetch_seconds_per_block is None else f"{1000 * row.fetch_seconds_per_block:.2f} ms"
        pays = "" if row.fetch_pays is None else "yes" if row.fetch_pays else "no"
        table.add_row(row.name, f"{row.capacity:,}", f"{row.hit_blocks:,}", f"{row.share:.4f}", fetch_time, pays)
    table.caption = f"fetching pays above {part.break_even_bandwidth / 1e9:,.1f} GB/s; {table.caption}"
    return table


def _instances(part: InstancesPlan) -> TextTable:
    target = part.target
    title = f"Instances for a time to first token of {target.ttft_s:g} s for {target.quantile:.0%} of the requests"
    names = ["router", "instances", f"TTFT {quantile_name(target)}", "TPOT p50", "block hit rate", "busy", "USD"]
    table = _table(title, names, part.assumes)
    for row in part.routers:
        if isinstance(row, UnmetTarget):
            table.add_row(row.router, "not met", *[""] * (len(names) - 2))
            continue
        table.add_row(
            row.router + (" *" if row == part.best else ""), number_range(row), f"{seconds(row.ttft_s)} s",
            f"{1000 * row.tpot['p50']:.1f} ms", f"{row.block_hit_rate:.4f}", f"{row.utilisation:.0%}",
            f"{row.usd:,.2f}",
        )  # fmt: skip
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
    names = ["router", "instances", "TTFT p50", "p90", "p99", "hit rate", "USD", "target"]
    table = _table("Time to first token in seconds, and cost, by number of instances", names, [])
    for row in part.routers:
        for number, point in enumerate(_shown(row)):
            table.add_row(
                "" if number else row.router, f"{point.instances:,}",
                *(seconds(point.ttft[name]) for name in ("p50", "p90", "p99")), f"{point.block_hit_rate:.4f}",
                f"{point.usd:,.2f}", "met" if point.meets else "not met",
            )  # fmt: skip
    table.caption = "hit rate: of blocks; all simulated numbers: kvtrace plan --csv"
    return table


def _shown(row: RouterPlan | UnmetTarget) -> list[CurvePoint]:
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


def seconds(value: float) -> str:
    """A time in a table: two digits after the point below 100 s.

    >>> seconds(1.9931), seconds(11377.99)
    ('1.99', '11,378')
    """
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


CSV_COLUMNS = (
    "router", "instances", "meets", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "ttft_s", "ttft_low", "ttft_high",
    "tpot_p50_s", "block_hit_rate", "imbalance", "utilisation", "rejected", "usd", "usd_per_million_requests",
)  # fmt: skip


def as_csv(plan: Plan) -> str:
    """The curves of all routers as CSV: one row for each simulated number of instances."""
    rows = []
    for row in plan.instances.routers:
        for point in row.curve:
            times = {"p50": point.ttft["p50"], "p90": point.ttft["p90"], "p99": point.ttft["p99"]}
            values = vars(point) | {f"ttft_{name}_s": time for name, time in times.items()}
            values |= {"router": row.router, "tpot_p50_s": point.tpot["p50"]}
            rows.append({name: values[name] for name in CSV_COLUMNS})
    return csv_text(rows, CSV_COLUMNS)


def _loop(part: LoopPlan) -> TextTable:
    table = _table("One-pass estimate against event simulation", ["", "block hit rate"], part.assumes)
    table.add_row(f"one pass, {part.instances} x {part.router}", f"{part.one_pass_block_hit_rate:.4f}")
    table.add_row("event simulation", f"{part.events_block_hit_rate:.4f}")
    return table


def _sensitivity(part: list[Sensitivity], instances: InstancesPlan) -> TextTable:
    best, place = instances.best, quantile_name(instances.target)
    assert best is not None
    title = f"If an assumption changes: TTFT with {best.instances:,} x {best.router}, and the instances needed"
    names = ["assumption", "factor", f"TTFT {place}", "90 % interval", "instances", "USD"]
    table = _table(title, names, [])
    for row in part:
        table.add_row(
            row.what, f"{row.factor:g}", f"{seconds(row.ttft_s)} s",
            f"{seconds(row.ttft_low)} to {seconds(row.ttft_high)} s",
            "not met" if row.instances is None else f"{row.instances:,}",
            "" if row.usd is None else f"{row.usd:,.2f}",
        )  # fmt: skip
    table.caption = "interval: bootstrap over windows of consecutive requests"
    return table


def _block_sizes(part: BlockSizesPlan) -> TextTable:
    table = _table("Larger blocks", ["block size", "block hit rate", "token hit rate"], part.assumes)
    for row in part.rows:
        table.add_row(f"{row.block_size:,}", f"{row.block_hit_rate:.4f}", f"{row.token_hit_rate:.4f}")
    return table


def _prices(part: PricesPlan) -> TextTable:
    table = _table("Costs at a provider's prices", ["time to live", "token hit rate", "USD", "saved"], part.assumes)
    for row in part.rows:
        best = " *" if row.ttl == part.best else ""
        table.add_row(row.ttl + best, f"{row.token_hit_rate:.4f}", f"{row.usd:,.2f}", f"{row.saved:,.2f}")
    return table


def _table(title, names, assumes) -> TextTable:
    table = TextTable(title, has_header=any(names), caption=f"assumes: {'; '.join(assumes)}" if assumes else "")
    for number, name in enumerate(names):
        is_key = number == 0 or name in ("", "instances", "USD")  # never left out on a narrow terminal
        is_note = number > 0 and not name
        table.add_column(name, right=number > 0 and bool(name), dim=is_note, rank=0 if is_key else 1)
    table.remedy = "use --json or a wider terminal"
    return table
