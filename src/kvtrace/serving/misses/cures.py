"""What would help: each cure of a simulation's misses, with what it is worth, the best first.

A cure is a function from a Baseline and a row of CURES. Some need memory (a larger cache, a lower tier), some change an
option (router, time to live, isolation domains, policy), and two are bounds that no simulation of the trace can try:
smaller blocks, and waiting for a prefix that is being computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from ..._base.errors import UsageError
from ..._base.results import Result, columns_of
from ..._base.units import duration
from ...cache.engines import DEFAULTS
from ...cache.policies import name_of
from ...cache.setup import CacheSetup
from ...cache.tiers import Tier, as_tiers
from ...trace.domains import MERGE, count_domains
from ..hardware.gpus import Prices
from ..hardware.roofline import Roofline
from ..routers import FULL_ATTENTION, RouterName
from ..run import Run
from .baseline import Amount, Baseline, Cure, percent
from .causes import lifetime_ms
from .explanation import Explanation


def smaller_blocks(baseline: Baseline) -> Iterator[Cure]:
    """What the engine rounds down of the blocks that the trace knows."""
    if not baseline.cost_of("rounding"):
        return
    size = baseline.explanation.simulation.trace.block_size
    advice = (
        "Use smaller blocks or chunks: engines round these tokens down, and compute the last token of each prompt. "
        f"What repeats inside a new block of {size:,} tokens is not in the trace, and comes on top."
    )
    yield baseline.bound("smaller_blocks", "rounding", advice)


def one_after_another(baseline: Baseline) -> Iterator[Cure]:
    """What requests compute while another one computes the same."""
    if not baseline.cost_of("in_flight"):
        return
    advice = (
        "Start requests with a common prefix one after another: another request of the instance was computing these "
        "tokens when they were looked up."
    )
    yield baseline.bound("one_after_another", "in_flight", advice)


SHARES = (0.5, 0.8, 0.9)  # of what eviction or expiry costs


def more_blocks(baseline: Baseline) -> Iterator[Cure]:
    """A larger cache, by as many blocks as reach shares of the evicted tokens; and a tier of the same size below it."""
    if not baseline.cost_of("evicted"):
        return
    larger = _larger_cache(baseline)
    yield larger
    if not baseline.run.has_tiers:
        yield _lower_tier(baseline, larger)


def blocks_for(baseline: Baseline, share: float) -> int:
    """The further blocks, in the unit of the capacity, with which LRU would hit a share of the evicted tokens."""
    blocks, tokens = baseline.explanation.causes.evicted.recovered
    further = int(blocks[np.searchsorted(tokens, ceil(share * baseline.cost_of("evicted")))])
    layout = baseline.layout
    if layout is not None:
        further = ceil(further * baseline.explanation.simulation.trace.block_size / layout.tokens_per_block)
    return max(further, 1)


def is_lru_one_by_one(run: Run) -> bool:
    """Whether the places in the recency list say exactly what a larger cache hits.

    >>> is_lru_one_by_one(Run(CacheSetup([9]))), is_lru_one_by_one(Run(CacheSetup([9], engines=("vllm",))))
    (True, False)
    """
    cache = run.cache
    if any(tier != Tier(tier.name, tier.capacity) for tier in as_tiers(cache.tiers)):
        return False
    plain = CacheSetup(
        cache.capacities, tiers=None if cache.inclusive else cache.tiers, gap=cache.gap, domains=cache.domains,
        warm_up=cache.warm_up, schedule="serial" if cache.schedule == "serial" else None,
    )  # fmt: skip
    return run == replace(Run(plain), time=run.time) and run.time.cost is None  # a model alone sets sizes, not times


def _enlarged(run: Run, blocks: int) -> Run:
    return run.with_more_blocks(blocks)


def _larger_cache(baseline: Baseline) -> Cure:
    best, amounts = None, list[Amount]()
    for share in SHARES:
        blocks = blocks_for(baseline, share)
        cure = _with_blocks(baseline, blocks)
        if best is None or cure.tokens > best.tokens:  # policies other than LRU can need fewer blocks than LRU
            best = cure
            amounts.append(Amount(share, cure.tokens, blocks, baseline.gib(blocks)))
    assert best is not None
    every = tuple(amounts)
    return baseline.cure(best.name, best.tokens, best.basis, _advice(baseline, every), best.prefill_s, every)


def _advice(baseline: Baseline, amounts: tuple[Amount, ...]) -> str:
    """The amounts of blocks and the share of the evicted tokens that each makes hits, the largest first."""
    evicted, (first, *others) = baseline.cost_of("evicted"), reversed(amounts)
    tiers = as_tiers(baseline.run.cache.tiers)
    if tiers and baseline.run.instances.is_routed:
        start = f"Add {_size(first)} to tier {tiers[-1].name}"
    elif baseline.run.instances.is_routed:
        start = f"Give each of the {baseline.run.instances.instances:,} instances {_size(first)} more"
    else:
        start = f"Add {_size(first)} to {'the lowest tier' if baseline.run.has_tiers else 'the cache'}"
    less = ", ".join(f"{percent(amount.tokens, evicted)} with {_size(amount)}" for amount in others)
    return f"{start}: {percent(first.tokens, evicted)} of the evicted tokens become hits{less and '; '}{less}."


def _with_blocks(baseline: Baseline, blocks: int) -> Cure:
    """The cure of so many blocks: from the recency list where it is exact, else simulated."""
    if not is_lru_one_by_one(baseline.run):
        return baseline.simulated("more_blocks", baseline.simulate_run(_enlarged(baseline.run, blocks)), "")
    recovered = baseline.explanation.causes.evicted.tokens_with(blocks, len(baseline.explanation.simulation.trace))
    seconds = baseline.seconds(recovered, baseline.explanation.causes.tokens["hit"])
    return baseline.cure("more_blocks", int(recovered.sum()), "simulated", "", seconds)


def _lower_tier(baseline: Baseline, larger: Cure) -> Cure:
    """The same blocks in a tier below the cache: the same hits, but fetched."""
    run, largest = baseline.run, larger.amounts[-1]
    below = f"each of the {run.instances.instances:,} caches" if run.instances.is_routed else "the cache"
    seconds, fetched = larger.prefill_s, "They are fetched and not computed."
    if seconds is not None and baseline.kv_bytes_per_token is not None:
        fetch_s = larger.tokens * baseline.kv_bytes_per_token / baseline.tier_bytes_per_s
        rate = f"{baseline.tier_bytes_per_s / 1e9:g} GB/s"
        fetched = f"Fetching them at {rate} takes {duration(fetch_s)}, computing them {duration(seconds)}."
        seconds -= fetch_s
    hits = "the same hits" if is_lru_one_by_one(run) else "about the same hits"
    advice = f"Add a tier of {_size(largest)}, such as DRAM, below {below}: {hits} as in a larger cache. {fetched}"
    basis = "simulated" if is_lru_one_by_one(run) else "estimated"
    return baseline.cure("lower_tier", larger.tokens, basis, advice, seconds, larger.amounts)


def _size(amount: Amount) -> str:
    gib = "" if amount.gib is None else f" ({amount.gib:,.{0 if amount.gib >= 100 else 1}f} GiB)"
    return f"{amount.blocks:,} block{'' if amount.blocks == 1 else 's'}{gib}"


def sticky_routing(baseline: Baseline) -> Iterator[Cure]:
    """The requests of a session on one instance."""
    return _with_router(baseline, "sticky_routing", "sticky", "Route the requests of a session to one instance")


def aware_routing(baseline: Baseline) -> Iterator[Cure]:
    """Requests on an instance that has their prefix."""
    return _with_router(baseline, "aware_routing", "kv-aware", "Route requests to an instance that has their prefix")


def _with_router(baseline: Baseline, name: str, router: RouterName, advice: str) -> Iterator[Cure]:
    instances, layout = baseline.run.instances, baseline.layout
    present = next(iter(instances.routers or ()), None)
    if not instances.is_routed or router == present or (layout is not None and router in FULL_ATTENTION):
        return
    simulation = baseline.simulate(routers=[router])
    options = f"(--router {router} in place of {present or 'round-robin'})"
    yield baseline.simulated(name, simulation, f"{advice} {options}: {baseline.rise(simulation)}.")


def shared_tiers(baseline: Baseline) -> Iterator[Cure]:
    """Instances that read each other's tiers, or that share one."""
    first, *lower = as_tiers(baseline.run.cache.tiers) or (None,)
    sglang = "sglang" in baseline.run.cache.engines  # instances share its storage backend, and read no others' hosts
    apart = [tier for tier in lower[sglang:] if tier.scope != "cluster" and not tier.peers]
    if not baseline.cost_of("other_tier") or not apart:
        return
    if sglang:
        word, what = "cluster", "share the storage backend"
        changed = [replace(tier, scope="cluster") for tier in lower if tier in apart]
        simulation = baseline.simulate(tiers=(first, lower[0], *changed), instances_per_host=None)
    else:
        word, what = "peers", "read each other's tiers"
        changed = [replace(tier, peers=True) if tier in apart else tier for tier in lower]
        simulation = baseline.simulate(tiers=(first, *changed))
    names = " and ".join(f"{tier.name}=...@{word}" for tier in apart)
    advice = f"Let instances {what} ({names}): {baseline.rise(simulation)}."
    yield baseline.simulated("shared_tiers", simulation, advice)


def longer_ttl(baseline: Baseline) -> Iterator[Cure]:
    """No time to live, and those that reach shares of the expired tokens."""
    now_ms, expired = lifetime_ms(name_of(next(iter(baseline.run.cache.policies)))), baseline.cost_of("expired")
    if not expired:
        return
    gap_ms, tokens = baseline.explanation.causes.expired_gap_ms, baseline.explanation.causes.expired_tokens
    order = np.argsort(gap_ms, kind="stable")
    reached = np.cumsum(tokens[order])
    amounts: list[Amount] = []
    for share in SHARES:
        ttl_ms = ceil(gap_ms[order][np.searchsorted(reached, share * expired)])
        gain = baseline.gain_of(baseline.simulate(policies=[f"ttl:{ttl_ms}ms"]))
        if not amounts or gain > amounts[-1].tokens:
            amounts.append(Amount(share, gain, ttl_ms=float(ttl_ms)))
    simulation, every = baseline.simulate(policies=["lru"]), tuple(amounts)
    first, *others = reversed(every)
    less = ", ".join(f"{percent(amount.tokens, expired)} with {_time(amount)}" for amount in others)
    advice = (
        f"Keep unused blocks until they are evicted, not only for {duration(now_ms / 1000)}: "
        f"{baseline.rise(simulation)}. A time to live of {_time(first)} makes {percent(first.tokens, expired)} of the "
        f"expired tokens hits{less and '; '}{less}."
    )
    yield baseline.simulated("longer_ttl", simulation, advice, every)


def _time(amount: Amount) -> str:
    return duration((amount.ttl_ms or 0) / 1000)


def merged_domains(baseline: Baseline) -> Iterator[Cure]:
    """Equal blocks of all domains shared."""
    trace = baseline.explanation.trace
    if trace.domain is None or baseline.run.cache.domains == MERGE or count_domains(trace) < 2:
        return
    simulation = baseline.simulate(domains=MERGE)
    advice = (
        f"Share equal blocks among the {count_domains(trace):,} isolation domains (--domains merge): "
        f"{baseline.rise(simulation)}. Merging tenants lets one of them learn what another one sent; models cannot be "
        "merged."
    )
    yield baseline.simulated("merged_domains", simulation, advice)


def other_policies(baseline: Baseline) -> Iterator[Cure]:
    """LRU in place of another policy, and the best possible order of evictions."""
    run, evicted = baseline.run, baseline.cost_of("evicted")
    setting = baseline.explanation.simulation.setting
    if not evicted or setting.bound:
        return
    if setting.policy != "lru" and np.isinf(lifetime_ms(setting.policy)):
        simulation = baseline.simulate(policies=["lru"])
        advice = f"Evict by last use (--policy lru in place of {setting.policy}): {baseline.rise(simulation)}."
        yield baseline.simulated("lru", simulation, advice)
    if run.instances.is_routed or run.time.cost is not None or run.has_tiers or baseline.layout is not None:
        return
    best = baseline.simulate(
        policies=["belady"], engines=["reference"], schedule=None, instances=None, routers=None, **DEFAULTS
    )
    gain = min(max(baseline.gain_of(best), 0), evicted)
    advice = (
        "Try other eviction policies at this capacity with kvtrace simulate: this is the gain of belady, the best "
        "possible one, which knows the future."
    )
    share = gain / evicted
    cached = baseline.explanation.causes.tokens["hit"]
    seconds = baseline.seconds(baseline.explanation.causes.tokens["evicted"], cached)
    yield baseline.cure("best_policy", gain, "bound", advice, None if seconds is None else share * seconds)


CURES = (
    more_blocks, shared_tiers, sticky_routing, aware_routing, longer_ttl, smaller_blocks, merged_domains,
    other_policies, one_after_another,
)  # fmt: skip
TOGETHER = "Do not add these figures up: two changes can make the same tokens hits."


@dataclass(frozen=True, eq=False, repr=False)
class Cures(Result):
    """The cures that would make more prompt tokens hits, the best first, and those that were tried in vain."""

    cures: tuple[Cure, ...]
    in_vain: tuple[Cure, ...] = ()  # simulated, without a gain
    refused: tuple[str, ...] = ()  # changes that cannot be simulated, with the reason

    def __iter__(self) -> Iterator[Cure]:
        return iter(self.cures)

    def __len__(self) -> int:
        return len(self.cures)

    def __getitem__(self, name: str) -> Cure:
        """The cure of a name; KeyError if it was not tried.

        >>> from kvtrace.trace.building import toy
        >>> from kvtrace.serving.misses.explanation import explain
        >>> cures_of(explain(toy("0 1", "2 3", "0 1"), 2))["more_blocks"].tokens
        2
        """
        return {cure.name: cure for cure in (*self.cures, *self.in_vain)}[name]

    def _headline(self) -> str:
        best = ", ".join(f"{cure.name}={cure.tokens:,}" for cure in self.cures[:3])
        return f"{len(self.cures)} cures, in prompt tokens: {best}" if self.cures else "no cure"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of(cure.to_dict() for cure in self.cures)

    def to_dict(self) -> list[dict[str, Any]]:
        """The cures; keys as https://github.com/kvtrace/kvtrace/blob/main/docs/serving/explain.md lists them."""
        return [cure.to_dict() for cure in (*self.cures, *self.in_vain)]


def cures_of(
    explanation: Explanation,
    *,
    roofline: Roofline | None = None,
    kv_bytes_per_token: int | None = None,
    prices: Prices | None = None,
    tier_bytes_per_s: float = 25e9,
    on_start: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Cures:
    """What would make more prompt tokens of an explained simulation hits, sorted by value; bounds come last.

    Args:
        explanation: The explanation, from `explain`.
        roofline: The model on the GPUs of an instance: adds seconds of prefill, and USD of the GPUs.
        kv_bytes_per_token: Bytes of KV cache per token, for sizes in GiB; the default is that of the roofline.
        prices: Of a provider that bills tokens: adds what a cure saves on its bill. Writes cost what they do for 5
            minutes, or for an hour if the time to live is or becomes longer than 5 minutes.
        tier_bytes_per_s: Bytes per second of a tier below the cache.
        on_start: Receives the requests of each simulation before it starts.
        on_progress: Receives the number of requests served since its last call.

    Returns:
        The cures, those with the most tokens first, and then the bounds.
        https://github.com/kvtrace/kvtrace/blob/main/docs/serving/explain.md says how each is
        computed.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.serving.misses.explanation import explain
    >>> for cure in cures_of(explain(toy("0 1", "2 3", "0 1"), 2)):
    ...     print(cure.sentence)
    Add 2 blocks to the cache: 100 % of the evicted tokens become hits; 50 % with 1 block. Gain: 2 prompt tokens \
(33.3 %).
    Add a tier of 2 blocks, such as DRAM, below the cache: the same hits as in a larger cache. They are fetched and \
not computed. Gain: 2 prompt tokens (33.3 %).
    Try other eviction policies at this capacity with kvtrace simulate: this is the gain of belady, the best possible \
one, which knows the future. Gain: at most 2 prompt tokens (33.3 %).
    """
    if kv_bytes_per_token is None and roofline is not None:
        kv_bytes_per_token = roofline.model.kv_bytes_per_token
    baseline = Baseline(explanation, roofline, kv_bytes_per_token, prices, tier_bytes_per_s, on_start, on_progress)
    tried: list[Cure] = []
    refused: list[str] = []
    for cures in CURES:
        try:
            tried.extend(cures(baseline))
        except UsageError as error:  # with another router, for example, requests can overlap that do not fit
            refused.append(f"{cures.__name__.replace('_', ' ')}: {error}")
    tried.sort(key=lambda cure: (cure.basis == "bound", -cure.tokens))  # a bound may be out of reach
    helpful = tuple(cure for cure in tried if cure.tokens > 0)
    return Cures(helpful, tuple(cure for cure in tried if cure.tokens <= 0), tuple(refused))
