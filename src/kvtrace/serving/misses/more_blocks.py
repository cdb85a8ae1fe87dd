"""Cures of eviction that need memory: a larger cache, or a tier below it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from .baseline import Baseline
from .cure import Amount, Cure, duration, percent
from .setup import Setup

SHARES = (0.5, 0.8, 0.9)  # of what eviction or expiry costs


def more_blocks(baseline: Baseline) -> Iterator[Cure]:
    """A larger cache, by as many blocks as reach shares of the evicted tokens; and a tier of the same size below it."""
    if not baseline.cost_of("evicted"):
        return
    larger = _larger_cache(baseline)
    yield larger
    if not baseline.setup.has_tiers:
        yield _lower_tier(baseline, larger)


def blocks_for(baseline: Baseline, share: float) -> int:
    """The further blocks, in the unit of the capacity, with which LRU would hit a share of the evicted tokens."""
    blocks, tokens = baseline.explanation.causes.evicted.recovered
    further = int(blocks[np.searchsorted(tokens, ceil(share * baseline.cost_of("evicted")))])
    layout = baseline.setup.layout
    if layout is not None:
        further = ceil(further * baseline.explanation.simulation.trace.block_size / layout.tokens_per_block)
    return max(further, 1)


def is_lru_one_by_one(setup: Setup) -> bool:
    """Whether the places in the recency list say exactly what a larger cache hits.

    >>> is_lru_one_by_one(Setup(9)), is_lru_one_by_one(Setup(9, engine="vllm"))
    (True, False)
    """
    return setup == Setup(
        setup.capacity, tiers=setup.tiers if not setup.inclusive else None, domains=setup.domains,
        warm_up=setup.warm_up, schedule="serial" if setup.schedule == "serial" else None,
    )  # fmt: skip


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
    if baseline.setup.is_routed:
        start = f"Give each of the {baseline.setup.instances:,} instances {_size(first)} more"
    else:
        start = f"Add {_size(first)} to {'the lowest tier' if baseline.setup.has_tiers else 'the cache'}"
    less = ", ".join(f"{percent(one.tokens, evicted)} with {_size(one)}" for one in others)
    return f"{start}: {percent(first.tokens, evicted)} of the evicted tokens become hits{less and '; '}{less}."


def _with_blocks(baseline: Baseline, blocks: int) -> Cure:
    """The cure of so many blocks: from the recency list where it is exact, else simulated."""
    if not is_lru_one_by_one(baseline.setup):
        return baseline.simulated("more_blocks", baseline.simulate_setup(baseline.setup.with_more_blocks(blocks)), "")
    recovered = baseline.explanation.causes.evicted.tokens_with(blocks, len(baseline.explanation.simulation.trace))
    seconds = baseline.seconds(recovered, baseline.explanation.causes.tokens["hit"])
    return baseline.cure("more_blocks", int(recovered.sum()), "simulated", "", seconds)


def _lower_tier(baseline: Baseline, larger: Cure) -> Cure:
    """The same blocks in a tier below the cache: the same hits, but fetched."""
    setup, most = baseline.setup, larger.amounts[-1]
    below = f"each of the {setup.instances:,} caches" if setup.is_routed else "the cache"
    seconds, fetched = larger.prefill_s, "They are fetched and not computed."
    if seconds is not None and baseline.kv_bytes_per_token is not None:
        fetch_s = larger.tokens * baseline.kv_bytes_per_token / baseline.tier_bytes_per_s
        rate = f"{baseline.tier_bytes_per_s / 1e9:g} GB/s"
        fetched = f"Fetching them at {rate} takes {duration(fetch_s)}, computing them {duration(seconds)}."
        seconds -= fetch_s
    hits = "the same hits" if is_lru_one_by_one(setup) else "about the same hits"
    advice = f"Add a tier of {_size(most)}, such as DRAM, below {below}: {hits} as in a larger cache. {fetched}"
    basis = "simulated" if is_lru_one_by_one(setup) else "estimated"
    return baseline.cure("lower_tier", larger.tokens, basis, advice, seconds, larger.amounts)


def _size(amount: Amount) -> str:
    gib = "" if amount.gib is None else f" ({amount.gib:,.{0 if amount.gib >= 100 else 1}f} GiB)"
    return f"{amount.blocks:,} block{'' if amount.blocks == 1 else 's'}{gib}"
