"""The tables of `kvtrace plan`, one for each question, with the assumptions below each table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .._base.results import as_json, column, columns_in
from .._base.tables import TextTable, csv_text
from ..serving.deployment import NOT_IN_TIMES
from ..serving.planning.plan_answer import GIVEN, certainty
from ..serving.planning.plan_result import (
    BEYOND,
    BlockSizePlan,
    BlockSizesPlan,
    DisaggregatePlan,
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
    PlanAnswer,
    PlanSetting,
    PricePlan,
    PricesPlan,
    RouterPlan,
    Sensitivity,
    SplitPoint,
    TierPlan,
    TiersPlan,
    TimeTarget,
    UnmetTarget,
    seconds,
    usd,
)
from ..serving.planning.pools import PoolCurve, PoolPoint, gigabytes

MOST_REASONS = 2  # why no number meets the target; routers differ in their figures
MARK = {"mark": column(note=True, rank=0)}  # a word after the row


def tables(plan: Plan, *, verbose: bool = True) -> list[TextTable]:
    """The answer of the plan with its reasons, then one table for each part; without `verbose`, those of 40 lines."""
    answer = _answer(plan)
    if not verbose:
        return [answer, *_short(plan)]
    parts = [answer, _setting(plan.setting), _memory(plan.memory), _least(plan.memory)]
    if plan.tiers is not None:
        parts.append(_tiers(plan.tiers))
    if plan.pool is not None:
        parts.append(pool_table(plan.pool))
    parts += [_instances(plan.instances), *_unmet(plan.instances), _curve(plan.instances, plan.instances.routers)]
    if plan.lanes is not None:
        parts.append(_lanes(plan.lanes, plan.instances.target))
    if plan.disaggregate is not None:
        parts.append(_disaggregate(plan.disaggregate))
    if plan.loop is not None:
        parts.append(_loop(plan.loop))
    if plan.sensitivity is not None and plan.instances.best is not None:
        parts.append(_sensitivity(plan.sensitivity, plan.instances))
    return [*parts, _block_sizes(plan.block_sizes), _prices(plan.prices)]


def _short(plan: Plan) -> list[TextTable]:
    """The tables of 40 lines: the routers, and what changes the number; if no number meets the target, the curve."""
    part = plan.instances
    if part.best is None:
        closest = min(part.routers, key=lambda row: min(point.ttft_s for point in row.curve))
        return [_curve(part, [closest])]
    routers = _instances(part, short=True)
    return [routers, _needed(plan.sensitivity, part)] if plan.sensitivity else [routers]


def _answer(plan: Plan) -> TextTable:
    """The answer, and why: a line for each reason."""
    table = TextTable(f"{plan.answer.sentence}.", has_header=False)
    table.add_column()
    table.add_column(dim=True, rank=0)
    for name, reason in _reasons(plan):
        table.add_row(name, reason)
    return table


def _reasons(plan: Plan) -> Iterator[tuple[str, str]]:
    """What the answer rests on: a name and a sentence or two each."""
    part, answer, setting = plan.instances, plan.answer, plan.setting
    reasons = dict.fromkeys(row.reason for row in part.routers if isinstance(row, UnmetTarget))
    yield from (("why", reason) for reason in list(reasons)[: MOST_REASONS if part.best is None else 0])
    if part.best is not None:
        yield "target", _met(part.target, part.best)
    if plan.expected_error is not None:
        yield "errors", plan.expected_error.text
    if part.model_error is not None:
        yield ("errors" if part.model_error.step_factors is None else "steps"), _how_sure(part.model_error, answer)
    for text in (*part.assumes, *setting.assumes):  # what is not modelled stands here, too
        if BEYOND in text or text.startswith(NOT_IN_TIMES):
            yield "times", f"{text[0].upper()}{text[1:]}."
    if answer.spare and answer.instances:
        down = _service(part.target, answer.ttft_without_spare or 0.0, answer.busy_without_spare or 0.0)
        yield "spare", f"With {answer.spare:,} of {answer.instances:,} down: {down}."
    if answer.usd_per_hour is not None:
        tokens = f"{answer.usd_per_million_tokens:,.2f} USD per million tokens"
        yield "cost", f"{usd(answer.usd_per_day)} USD a day, {tokens}."
    yours = "" if setting.price_source == GIVEN else " Set yours with --gpu-price."
    yield "price", f"{usd(setting.usd_per_gpu_hour)} USD for a GPU and hour, {setting.price_source}.{yours}"
    hits = "" if answer.block_hit_rate is None else f", and {100 * answer.block_hit_rate:.1f} % of the blocks hit"
    unlimited = f"{100 * plan.memory.unlimited_block_hit_rate:.1f} % of the blocks hit"
    yield "cache", f"An instance has {setting.capacity_gib:,.1f} GiB of KV{hits}. With unlimited memory {unlimited}."
    if plan.tiers is not None:
        pays = f"Fetching pays above {plan.tiers.break_even_bandwidth / 1e9:,.1f} GB/s"
        yield "tiers", f"{_tier_shares(plan.tiers)} of the blocks hit. {pays}."
    if plan.pool is not None:
        yield "pool", pool_sentence(plan.pool)
    if plan.disaggregate is not None:
        yield "disaggregate", f"{plan.disaggregate.sentence}."
    if plan.lanes is not None:
        yield "sessions", f"{lanes_sentence(plan.lanes, part.target).removesuffix('.')}."


def _how_sure(error: ModelError, answer: PlanAnswer) -> str:
    """What the errors of simulated times mean for the number of instances."""
    if error.step_factors is None:
        wrong = f"{error.statistic} was wrong by up to {100 * error.error:.1f} %"
        return f"Simulated TTFT {wrong} where servers were measured: {certainty(answer)}."
    return f"Measured there: {_factors(error)} as long as simulated: {certainty(answer)}."


def _factors(error: ModelError) -> str:
    """The intervals of measured times, as multiples of simulated ones."""
    pairs = {"steps": error.step_factors, "TTFT": error.ttft_factors}
    return ", ".join(f"{name} {pair[0]:.2f} to {pair[1]:.2f} times" for name, pair in pairs.items() if pair)


def _service(target: TimeTarget, ttft_s: float, busy: float) -> str:
    return f"{target.place} TTFT {seconds(ttft_s)} s at {100 * busy:.0f} % busy"


def _met(target: TimeTarget, best: RouterPlan) -> str:
    """The target, the fewest instances that meet it, and what the next smaller number has."""
    meet = "meets" if best.instances == 1 else "meet"
    service = f"{seconds(best.ttft_s)} s at {100 * best.utilisation:.0f} % busy"
    fewer = max((p for p in best.curve if p.instances < best.instances), key=lambda p: p.instances, default=None)
    below = "" if fewer is None else f"; with {fewer.instances:,}, {_service(target, fewer.ttft_s, fewer.utilisation)}"
    return f"{_goal(target)}: {best.instances:,} behind {best.router} {meet} it in simulation, with {service}{below}."


def _goal(target: TimeTarget) -> str:
    """The target in words.

    >>> _goal(TimeTarget(2.0, 0.9, 0.7))
    'p90 TTFT of 2 s, at most 70 % busy'
    """
    return f"{target.place} TTFT of {target.ttft_s:g} s{_most_busy(target)}"


def _most_busy(target: TimeTarget) -> str:
    return "" if target.max_busy is None else f", at most {100 * target.max_busy:g} % busy"


def _tier_shares(part: TiersPlan) -> str:
    """The share of blocks that each tier hits, in an instance that serves the whole trace."""
    return "In one cache " + ", ".join(f"{row.name} {100 * row.share:.1f} %" for row in part.rows)


def _needed(part: list[Sensitivity], instances: InstancesPlan) -> TextTable:
    """The instances that the target needs, one row for each assumption, one column for each factor."""
    assert instances.best is not None
    table = TextTable("Instances in simulation if an assumption is so many times as large", remedy="use --json")
    table.add_column("assumption")
    factors = sorted({row.factor for row in part if row.what != "plan"})
    table.add_columns([f"{factor:g}" for factor in factors], right=True)
    for what in dict.fromkeys(row.what for row in part if row.what != "plan"):
        rows = [row for row in part if row.what == what]
        cells = {row.factor: "not met" if row.instances is None else f"{row.instances:,}" for row in rows}
        table.add_row(what, *(cells.get(factor, "-") for factor in factors))
    return table


def _lanes(part: LanesPlan, target: TimeTarget) -> TextTable:
    rows = [
        point.to_dict() | {"mark": "misses" if not point.meets else "largest" if point.lanes == part.lanes else "meets"}
        for point in part.curve
    ]
    shown = ("lanes", "ttft_s", "e2e", "block_hit_rate", "utilisation", "sessions_per_hour", "usd_per_session", "mark")
    table = _table(lanes_sentence(part, target), part.assumes)
    return table.add_results(columns_in(LanePoint) | MARK, rows, shown, ttft_s=f"TTFT {target.place}")


def _disaggregate(part: DisaggregatePlan) -> TextTable:
    """The splits that were tried; 0 decode workers are instances."""
    rows = [point.to_dict() | {"mark": _mark(point, part)} for point in part.curve]
    shown = (
        "prefill_workers",
        "decode_workers",
        "step_tokens",
        "ttft_s",
        "tpot_s",
        "block_hit_rate",
        "usd_per_hour",
        "mark",
    )
    return _table(part.sentence, part.assumes).add_results(columns_in(SplitPoint) | MARK, rows, shown)


def _mark(point: SplitPoint, part: DisaggregatePlan) -> str:
    word = "fewest" if point in (part.best, part.aggregated) else "meets" if point.meets else "misses"
    return word if point.decode_workers else f"{word}, instances"


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
    table.add_row("instance", f"{part.gpus_per_instance} x {part.gpu}, {part.usd_per_instance_hour:.2f} USD an hour")
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


def pool_table(part: PoolCurve) -> TextTable:
    """A table with one row for each size of a pool."""
    instances = f"{part.instances:,} instance{'' if part.instances == 1 else 's'}"
    routed = f"{instances} of {part.first_capacity:,} blocks, {part.router}"
    table = _table(f"A pool below {routed}, blocks of {part.block_size:,} tokens", part.assumes)
    return table.add_results(columns_in(PoolPoint), as_json(part.rows))


def pool_sentence(part: PoolCurve) -> str:
    """What the pool that was asked for brings, and above which bandwidth it pays."""
    point = next(row for row in part.rows if row.capacity == part.planned)
    gained = 100 * (point.block_hit_rate - part.rows[0].block_hit_rate)
    instances = f"{part.instances:,} instance{'' if part.instances == 1 else 's'}"
    text = f"{point.gib:,.0f} GiB add {gained:.1f} points of block hit rate to {instances}"
    if point.break_even_bandwidth is None or point.busiest_bytes_per_s is None or part.bandwidth is None:
        return f"{text}.{_pool_times(part, point)}"
    pays = "pays" if part.bandwidth > point.break_even_bandwidth else "does not pay"
    return (
        f"{text}. Fetching pays above {gigabytes(point.break_even_bandwidth)} GB/s, so at "
        f"{gigabytes(part.bandwidth)} GB/s it {pays}; the busiest minute fetches "
        f"{gigabytes(point.busiest_bytes_per_s)} GB/s in all.{_pool_times(part, point)}"
    )


def _pool_times(part: PoolCurve, point: PoolPoint) -> str:
    """The time to first token with the pool, and the instances that it saves; or why there is none."""
    without = part.rows[0].ttft_s
    if point.ttft_s is None or without is None:
        return f" N{part.assumes[-1].removeprefix('n')}"
    fewer = f"; with it {part.fewest:,} meet the target" if part.fewest and part.fewest < part.instances else ""
    return f" TTFT in time: {seconds(without)} s without it, {seconds(point.ttft_s)} s with it{fewer}."


def _instances(part: InstancesPlan, *, short: bool = False) -> TextTable:
    target = part.target
    title = f"Instances for a time to first token of {target.ttft_s:g} s for {target.quantile:.0%} of the requests"
    table = _table(f"{title}{_most_busy(target)}", part.assumes)
    rows = [
        row.to_dict() | {"instances": "not met"} if isinstance(row, UnmetTarget)
        else row.to_dict() | {"router": row.router + (" *" if row == part.best else ""), "instances": number_range(row)}
        for row in part.routers
    ]  # fmt: skip
    shown = ("router", "instances", "ttft_s", "tpot", "block_hit_rate", "utilisation", "usd_per_hour")
    table.add_results(columns_in(RouterPlan), rows, shown, ttft_s=f"TTFT {target.place}")
    best = part.best
    if short:
        table.caption = "* fewest instances" if len(rows) > 1 else ""
        return table
    if part.model_error is not None:
        table.caption += f"; {_error_caption(part.model_error)}"
    if best is not None:
        saves = f"{best.saved_compute_s:,.0f} s of GPU compute, {best.saved_usd_per_hour:,.2f} USD an hour"
        table.caption += f"; * fewest instances; its hits save {saves}; all figures are for the smallest number"
    return table


def _error_caption(part: ModelError) -> str:
    """The interval that the errors of simulated times imply."""
    high = "any time" if part.ttft_high is None else f"{seconds(part.ttft_high)} s"
    few, sure = (f"{count:,}" if count else "none" for count in (part.fewest_instances, part.sure_instances))
    wrong = f"TTFT {part.statistic} was wrong by up to {part.error:.1%}"
    if part.step_factors is not None:
        wrong = f"measured: {_factors(part)} as long"
    noun, verb = ("instance" if few == "1" else "instances"), ("is" if sure == "1" else "are")
    enough = f"{few} {noun} may be enough, {sure} {verb} sure"
    return f"{wrong} ({part.basis}): {seconds(part.ttft_low)} s to {high}; {enough}"


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


def _curve(part: InstancesPlan, routers: Sequence[RouterPlan | UnmetTarget]) -> TextTable:
    table = _table("Time to first token in seconds, and cost, by number of instances")
    table.caption = "hit rate: of blocks; all simulated numbers: kvtrace plan --csv"
    rows = [
        {"router": "" if number else row.router} | point.to_dict()
        for row in routers
        for number, point in enumerate(_shown(row))
    ]
    shown = ("router", "instances", "ttft", "block_hit_rate", "utilisation", "usd_per_hour", "meets")
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


CSV_COLUMNS = (
    "router", "instances", "meets", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "ttft_s", "ttft_low", "ttft_high",
    "tpot_p50_s", "block_hit_rate", "imbalance", "utilisation", "rejected", "usd", "usd_per_million_requests",
    "usd_per_hour", "usd_per_million_tokens",
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
    shown = ("what", "factor", "ttft_s", "interval", "instances", "usd_per_hour")
    return table.add_results(columns, rows, shown, ttft_s=f"TTFT {instances.target.place}")


def _block_sizes(part: BlockSizesPlan) -> TextTable:
    return _table("Larger blocks", part.assumes).add_results(columns_in(BlockSizePlan), as_json(part.rows))


def _prices(part: PricesPlan) -> TextTable:
    rows = [row.to_dict() | {"ttl": row.ttl + (" *" if row.ttl == part.best else "")} for row in part.rows]
    return _table("Costs at a provider's prices", part.assumes).add_results(columns_in(PricePlan), rows)


def _table(title: str, assumes: Sequence[str] = (), *, has_header: bool = True) -> TextTable:
    caption = f"assumes: {'; '.join(assumes)}" if assumes else ""
    return TextTable(title, has_header=has_header, caption=caption, remedy="use --json or a wider terminal")
