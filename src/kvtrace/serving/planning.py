"""The capacity planner: how much memory buys how many hits, on which tier, over how many instances, and what it saves.

Each part is a function here, a key of the result, and states what it assumes. Hits of one pass are exact; times are
those of the event-driven simulation (cache/serving.py) with the roofline of serving/roofline.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .._base.errors import UsageError
from .._base.memory import parse_memory
from ..analysis.block_sizes import by_block_size
from ..analysis.curves import hit_curve
from ..analysis.exact_curve import HitCurve
from ..cache.simulation import Setting, simulate
from ..cache.tiered import simulate_tiers
from ..trace.hits import count_hits, unlimited_hits
from ..trace.trace import Trace
from .hardware import Prices, Roofline
from .simulation import BatchLimits, ServingRun, StepCost, Tier, simulate_serving

SCHEMA = 1  # version of the keys
GIB = 1 << 30
SHARES = (0.90, 0.95, 0.99)  # of the possible hits
POINTS = 12
ROUTERS = ("round-robin", "sticky", "least-loaded", "kv-aware", "lmetric")
MOST = 512  # instances that are tried
TTLS = {"5m": 300, "1h": 3600}
CHANGES = {"compute share": "compute_share", "bandwidth share": "bandwidth_share"}


@dataclass(frozen=True)
class Below:
    """A tier below an instance's GPUs: DRAM, an SSD, or memory elsewhere.

    >>> parse_tier("dram=512GiB@25GB")
    Below(name='dram', size=549755813888, bandwidth=25000000000)
    """

    name: str
    size: int  # bytes
    bandwidth: float  # bytes a second to the GPUs


@dataclass(frozen=True)
class Wanted:
    """What is planned for: a target, the tiers below the GPUs, and the prices."""

    ttft_s: float = 2.0  # at most, for `quantile` of the requests
    quantile: float = 0.9
    tiers: Sequence[Below] = ()  # of an instance, the fastest first
    write_through: bool = False  # a tier holds all that is above it; else what is evicted from there
    prices: Prices = field(default_factory=Prices)
    limits: BatchLimits = field(default_factory=BatchLimits)
    routers: Sequence[str] = ROUTERS


def plan(
    trace: Trace, roofline: Roofline, wanted: Wanted | None = None, on_part: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """What operators ask of a trace, a model and its GPUs, by part; docs/serving/plan.md says what each key is.

    UsageError where the weights do not fit, or the longest request does not.
    """
    wanted, tell = wanted or Wanted(), on_part or (lambda part: None)
    curve = hit_curve(trace)
    blocks = roofline.kv_capacity_tokens // trace.block_size
    if blocks < int(trace.prompt_blocks.max(initial=1)):
        raise UsageError(
            f"{roofline.gpus} x {roofline.gpu.name} hold {blocks:,} blocks of KV, and the longest request needs "
            f"{int(trace.prompt_blocks.max()):,}. Try more --gpus."
        )
    found: dict[str, Any] = {"schema": SCHEMA, "setting": _setting(trace, roofline, blocks)}
    parts = {
        "memory": lambda: memory(trace, curve, roofline),
        "tiers": lambda: tiers(trace, roofline, wanted, blocks),
        "instances": lambda: instances(trace, roofline, wanted, blocks),
        "block_sizes": lambda: block_sizes(trace),
        "prices": lambda: prices(trace, wanted),
    }
    for name, part in parts.items():
        tell(name)
        found[name] = part()
    best = found["instances"]["best"]
    if best is not None:
        tell("loop")
        found["loop"] = loop(trace, roofline, wanted, blocks, best)
        tell("sensitivity")
        found["sensitivity"] = sensitivity(trace, roofline, wanted, best["router"])
    return found


def _setting(trace, roofline, blocks) -> dict[str, Any]:
    gpu, model = roofline.gpu, roofline.model
    return {
        "requests": len(trace), "block_size": trace.block_size, "model": model.name, "gpu": gpu.name,
        "gpus_an_instance": roofline.gpus, "kv_bytes_per_token": model.kv_bytes_per_token,
        "weight_bytes": model.weight_bytes, "capacity_blocks": blocks,
        "capacity_gib": blocks * trace.block_size * model.kv_bytes_per_token / GIB,
        "usd_an_instance_hour": roofline.gpus * gpu.price_per_hour,
        "assumes": [
            f"{roofline.compute_share:.0%} of peak arithmetic and {roofline.bandwidth_share:.0%} of peak bandwidth",
            f"{roofline.reserve_share:.0%} of the GPUs' memory for activations and the engine",
            "GPUs of an instance work as one, without a cost of communication",
        ],
    }  # fmt: skip


# -- hits against memory -----------------------------------------------------------------------------------------


def memory(trace: Trace, curve: HitCurve, roofline: Roofline) -> dict[str, Any]:
    """The hit rate against GiB, its knee, the gaps to belady and to unlimited, and the least for most of the hits."""
    block_bytes = trace.block_size * roofline.model.kv_bytes_per_token
    capacities = curve.capacities(POINTS)
    possible = count_hits(trace, unlimited_hits(trace))
    rates = [hits.block_hit_rate for hits in curve.hits(capacities)]
    knee = _knee(capacities, rates)
    points = [
        {"capacity": size, "gib": size * block_bytes / GIB, "block_hit_rate": rate,
         "gap_to_unlimited": possible.block_hit_rate - rate}
        for size, rate in zip(capacities, rates, strict=True)
    ]  # fmt: skip
    for at in {knee, len(points) // 2}:
        best = simulate(trace, capacities[at], "belady").hits.block_hit_rate
        points[at]["gap_to_belady"] = best - rates[at]
    least = {f"{share:.0%}": _least(curve, share * possible.hit_blocks, capacities) for share in SHARES}
    return {
        "unlimited_block_hit_rate": possible.block_hit_rate, "points": points, "knee": points[knee],
        "least": {share: {"capacity": size, "gib": size * block_bytes / GIB} for share, size in least.items()},
        "assumes": ["one cache, LRU, one request at a time: hits of one pass, exact"],
    }  # fmt: skip


def _knee(capacities, rates) -> int:
    """The point that lies farthest above the line from the first to the last, memory on a log scale."""
    if len(capacities) < 3 or rates[-1] == rates[0]:
        return 0
    x = np.log(capacities)
    x, y = (x - x[0]) / (x[-1] - x[0]), (np.array(rates) - rates[0]) / (rates[-1] - rates[0])
    return int((y - x).argmax())


def _least(curve: HitCurve, hit_blocks: float, capacities) -> int:
    """The smallest capacity with so many hits: hits never fall as it grows."""
    low, high = 1, capacities[-1]
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if curve.at(middle).hit_blocks >= hit_blocks else (middle + 1, high)
    return low


# -- tiers, instances, the closed loop ---------------------------------------------------------------------------


def rates_of(roofline: Roofline) -> StepCost:
    """What a step takes, as the simulation wants it."""
    return StepCost(
        roofline.seconds_a_token, roofline.seconds_a_pair, roofline.seconds_a_step, roofline.seconds_a_cached_token,
        roofline.step_overhead_s,
    )  # fmt: skip


def parse_tier(text: str) -> Below:
    """A tier as in `dram=512GiB@25GB`: its name, size, and bytes a second; UsageError where it is none."""
    found = re.fullmatch(r"(\w{1,20})=([^@]+)@([^@]+)", text)
    if not found or found[1] == "hbm":
        raise UsageError(f"{text!r} is no tier. Try dram=512GiB@25GB: a name other than hbm, a size, bytes a second.")
    return Below(found[1], parse_memory(found[2]), parse_memory(found[3]))


def lower(roofline: Roofline, wanted: Wanted, block_size: int, blocks: int) -> list[Tier]:
    """The tiers below, as the simulation wants them.

    Written through, a tier holds what is above it as well: with LRU it adds what it has beyond that.
    """
    block_bytes = block_size * roofline.model.kv_bytes_per_token
    found, above = [], blocks
    for tier in wanted.tiers:
        own = int(tier.size // block_bytes) - (above if wanted.write_through else 0)
        if own < 1:
            raise UsageError(f"tier {tier.name} holds no block beyond those above it. Try a larger one.")
        found.append(Tier(tier.name, own, block_bytes / tier.bandwidth))
        above += own
    return found


def tiers(trace: Trace, roofline: Roofline, wanted: Wanted, blocks: int) -> dict[str, Any] | None:
    """What tiers below would add to one instance: hits that come from each, and where fetching them pays."""
    if not wanted.tiers:
        return None
    below = lower(roofline, wanted, trace.block_size, blocks)
    done = simulate_tiers(trace, {"hbm": blocks} | {tier.name: tier.capacity for tier in below})
    assert done.found is not None
    hits, references = done.found.sum(axis=1).tolist(), max(1, len(trace.hash_ids))
    rows = [{"name": "hbm", "capacity": blocks, "hit_blocks": hits[0], "share": hits[0] / references}]
    for tier, stated, found in zip(below, wanted.tiers, hits[1:], strict=True):
        rows.append({
            "name": tier.name, "capacity": tier.capacity, "hit_blocks": found, "share": found / references,
            "fetch_s_a_block": tier.block_s, "bandwidth": stated.bandwidth,
            "fetch_pays": bool(roofline.fetch_pays(trace.block_size, stated.bandwidth)),
        })  # fmt: skip
    how = "exclusive: what is evicted goes down"
    if wanted.write_through:
        how = "written through: a tier holds what is above it, too"
    return {
        "rows": rows, "break_even_bandwidth": float(roofline.break_even_bandwidth(trace.block_size)),
        "assumes": [f"{how}, and comes up when it is wanted", "each transfer has its link to itself"],
    }  # fmt: skip


def served(trace: Trace, roofline: Roofline, wanted: Wanted, blocks: int, count: int, router: str) -> ServingRun:
    """The trace on so many instances."""
    return simulate_serving(
        trace, rates_of(roofline), setting=Setting(blocks, mode="token"), instances=count, router=router,
        limits=wanted.limits, tiers=lower(roofline, wanted, trace.block_size, blocks),
    )  # fmt: skip


def instances(trace: Trace, roofline: Roofline, wanted: Wanted, blocks: int) -> dict[str, Any]:
    """The fewest instances that meet the target behind each router, and the best of these."""
    found = []
    for router in wanted.routers:
        count = _needed(trace, roofline, wanted, router)
        if count is None:
            found.append({"router": router, "instances": None})
            continue
        done = served(trace, roofline, wanted, blocks, count, router)
        found.append({"router": router} | _told(done, roofline, wanted))
    meeting = [row for row in found if row["instances"] is not None]
    return {
        "target": {"ttft_s": wanted.ttft_s, "quantile": wanted.quantile}, "routers": found,
        "best": min(meeting, key=lambda row: (row["instances"], row["ttft_s"]), default=None),
        "assumes": ["the trace's own arrivals", "blocks of outputs are reserved nowhere: mode token",
                    f"{wanted.limits.step_tokens:,} tokens a step, {wanted.limits.requests:,} requests at once",
                    "the fewest are found by halving, and waver by one or two near the target"],
    }  # fmt: skip


def _fewest(ttft: Callable[[int], float], wanted: Wanted) -> int | None:
    """The smallest number of instances that meets the target, doubling and then halving; None where MOST do not."""
    high = 1
    while ttft(high) > wanted.ttft_s:
        if high >= MOST:
            return None
        high *= 2
    low = high // 2 + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if ttft(middle) <= wanted.ttft_s else (middle + 1, high)
    return high


def _ttft(done: ServingRun, wanted: Wanted) -> float:
    if done.rejected or not len(done.ttft_s):
        return float("inf")
    return float(np.quantile(done.ttft_s, wanted.quantile))


def _told(done: ServingRun, roofline: Roofline, wanted: Wanted) -> dict[str, Any]:
    hours = done.makespan_s / 3600
    usd = done.instances * roofline.gpus * roofline.gpu.price_per_hour * hours
    tokens = done.trace.input_length
    saved_s = float(
        (roofline.compute_s(tokens) - roofline.compute_s(tokens - done.cached_tokens, done.cached_tokens)).sum()
    )
    told = done.to_dict()
    return {
        "instances": done.instances, "ttft_s": _ttft(done, wanted), "ttft": told["ttft_s"], "tpot": told["tpot_s"],
        "requests_per_s": told["requests_per_s"], "block_hit_rate": told["block_hit_rate"],
        "imbalance": told["imbalance"], "utilisation": float(np.mean(told["utilisation"])),
        "usd": usd, "usd_a_million_requests": usd * 1e6 / len(done.trace),
        "saved_compute_s": saved_s, "saved_usd": float(roofline.usd(saved_s)),
    }  # fmt: skip


def loop(trace: Trace, roofline: Roofline, wanted: Wanted, blocks: int, best: dict[str, Any]) -> dict[str, Any]:
    """How far the quick look is from the truth: hits of one pass, one request at a time, and those of the events."""
    from .instances import simulate_instances

    count, router = best["instances"], best["router"]
    one_pass = simulate_instances(trace, count, router, setting=Setting(blocks, mode="token")).hits.block_hit_rate
    events = served(trace, roofline, replace(wanted, tiers=()), blocks, count, router).hits.block_hit_rate
    return {
        "instances": count, "router": router, "one_pass_block_hit_rate": one_pass, "events_block_hit_rate": events,
        "difference": events - one_pass,
        "assumes": ["the same caches and router, without lower tiers; only who is live when differs"],
    }  # fmt: skip


def sensitivity(trace: Trace, roofline: Roofline, wanted: Wanted, router: str) -> list[dict[str, Any]]:
    """The fewest instances behind the best router, where an assumption is a fifth lower or higher."""
    found = []
    for what, name in CHANGES.items():
        for factor in (0.8, 1.2):
            changed = replace(roofline, **{name: min(1.0, getattr(roofline, name) * factor)})
            found.append({"what": what, "factor": factor, "instances": _needed(trace, changed, wanted, router)})
    for factor in (0.8, 1.2):
        columns = replace_times(trace, 1 / factor)
        found.append({"what": "arrivals", "factor": factor, "instances": _needed(columns, roofline, wanted, router)})
    return found


def _needed(trace, roofline, wanted, router) -> int | None:
    blocks = roofline.kv_capacity_tokens // trace.block_size
    return _fewest(lambda count: _ttft(served(trace, roofline, wanted, blocks, count, router), wanted), wanted)


def replace_times(trace: Trace, factor: float) -> Trace:
    """The trace with arrivals so many times as far apart."""
    from ..trace.columns import replace_columns

    columns = replace_columns(trace, timestamp=trace.timestamp * factor)
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta)


# -- other choices -----------------------------------------------------------------------------------------------


def block_sizes(trace: Trace) -> dict[str, Any]:
    """What larger blocks would leave of the possible hits, folded exactly."""
    rows = [{"block_size": one.block_size, "blocks": one.blocks, "block_hit_rate": one.hits.block_hit_rate,
             "token_hit_rate": one.hits.token_hit_rate} for one in by_block_size(trace, [1, 2, 4, 8])]  # fmt: skip
    return {"rows": rows, "assumes": ["unlimited memory", "smaller blocks than the trace's can't be told from it"]}


def prices(trace: Trace, wanted: Wanted) -> dict[str, Any]:
    """What a provider's prompt cache would cost and save, by the time that prefixes live after their last use."""
    plain = float(wanted.prices.cost(0, trace.input_length, trace.output_length, ttl="none").sum())
    rows: list[dict[str, Any]] = [{"ttl": "none", "token_hit_rate": 0.0, "usd": plain, "saved": 0.0}]
    for ttl, seconds in TTLS.items():
        capacity = max(1, trace.working_set)
        done = simulate(trace, capacity, f"ttl:{seconds}s")
        hit = np.minimum(done.hit_blocks * trace.block_size, trace.input_length)
        usd = float(wanted.prices.cost(hit, trace.input_length, trace.output_length, ttl=ttl).sum())
        rows.append({"ttl": ttl, "token_hit_rate": done.hits.token_hit_rate, "usd": usd, "saved": plain - usd})
    price = wanted.prices
    return {
        "rows": rows, "best": min((row["usd"], row["ttl"]) for row in rows)[1],
        "assumes": [f"{price.input_per_token * 1e6:g} USD a million input tokens, "
                    f"{price.output_per_token * 1e6:g} a million output tokens",
                    f"a cached read costs {price.cached_read:g} of an input token, a write {price.write_5m:g} (5m) or "
                    f"{price.write_1h:g} (1h)",
                    "no limit of capacity; every prompt token that is no hit is written"],
    }  # fmt: skip
