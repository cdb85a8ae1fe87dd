"""The tables of `kvtrace plan`, one for each question, with the assumptions below each table."""

from __future__ import annotations

from .._base.tables import TextTable
from ..serving.plan_result import (
    BlockSizesPlan,
    InstancesPlan,
    LoopPlan,
    MemoryPlan,
    Plan,
    PlanSetting,
    PricesPlan,
    RouterPlan,
    Sensitivity,
    TiersPlan,
    UnmetTarget,
)

PROGRESS = {  # part of the plan -> what the command prints while it computes the part
    "memory": "hits by memory",
    "tiers": "tiers below the GPUs",
    "instances": "instances for the target, for each router",
    "block_sizes": "larger blocks",
    "prices": "a provider's prices",
    "loop": "one-pass estimate against event simulation",
    "sensitivity": "assumptions 20 % lower and 20 % higher",
}


def tables(plan: Plan) -> list[TextTable]:
    """One table for each part of the plan."""
    parts = [_setting(plan.setting), _memory(plan.memory)]
    if plan.tiers is not None:
        parts.append(_tiers(plan.tiers))
    parts.append(_instances(plan.instances))
    if plan.loop is not None:
        parts.append(_loop(plan.loop))
    if plan.sensitivity is not None and plan.instances.best is not None:
        parts.append(_sensitivity(plan.sensitivity, plan.instances.best))
    return [*parts, _block_sizes(plan.block_sizes), _prices(plan.prices)]


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
    for share, smallest in part.least.items():
        table.add_row(
            f"{smallest.capacity:,}", f"{smallest.gib:,.1f}", "", "", "", f"smallest for {share} of the possible hits"
        )
    return table


def _tiers(part: TiersPlan) -> TextTable:
    names = ["tier", "blocks", "hit blocks", "share of blocks", "fetch time per block", "fetching pays"]
    table = _table("Tiers below the GPUs", names, part.assumes)
    for row in part.rows:
        fetch_time = "" if row.fetch_seconds_per_block is None else f"{1000 * row.fetch_seconds_per_block:.2f} ms"
        pays = "" if row.fetch_pays is None else "yes" if row.fetch_pays else "no"
        table.add_row(row.name, f"{row.capacity:,}", f"{row.hit_blocks:,}", f"{row.share:.4f}", fetch_time, pays)
    table.add_row("break-even bandwidth", "", "", "", f"{part.break_even_bandwidth / 1e9:,.1f} GB/s", "")
    return table


def _instances(part: InstancesPlan) -> TextTable:
    target = part.target
    title = f"Instances for a time to first token of {target.ttft_s:g} s for {target.quantile:.0%} of the requests"
    names = ["router", "instances", "TTFT p50", "p90", "p99", "TPOT p50", "block hit rate", "imbalance", "busy", "USD"]
    table = _table(title, names, part.assumes)
    for row in part.routers:
        if isinstance(row, UnmetTarget):
            table.add_row(row.router, "target not met")
            continue
        mark = " *" if row == part.best else ""
        table.add_row(
            row.router + mark, f"{row.instances:,}",
            f"{row.ttft['p50']:.2f} s", f"{row.ttft['p90']:.2f} s", f"{row.ttft['p99']:.2f} s",
            f"{1000 * row.tpot['p50']:.1f} ms", f"{row.block_hit_rate:.4f}", f"{row.imbalance:.2f}",
            f"{row.utilisation:.0%}", f"{row.usd:,.2f}",
        )  # fmt: skip
    best = part.best
    if best is not None:
        saves = f"{best.saved_compute_s:,.0f} s of GPU compute, {best.saved_usd:,.2f} USD"
        table.caption += f"; * fewest instances; its hits save {saves}"
    return table


def _loop(part: LoopPlan) -> TextTable:
    table = _table("One-pass estimate against event simulation", ["", "block hit rate"], part.assumes)
    table.add_row(f"one pass, {part.instances} x {part.router}", f"{part.one_pass_block_hit_rate:.4f}")
    table.add_row("event simulation", f"{part.events_block_hit_rate:.4f}")
    return table


def _sensitivity(part: list[Sensitivity], best: RouterPlan) -> TextTable:
    title = f"Sensitivity: instances behind {best.router} if an assumption changes (plan: {best.instances:,})"
    table = _table(title, ["assumption", "factor", "instances"], [])
    for row in part:
        table.add_row(row.what, f"{row.factor:g}", "target not met" if row.instances is None else f"{row.instances:,}")
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
