"""Cures of eviction that need memory: a larger cache, or a tier below it."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np

from .baseline import Baseline
from .cure import Amount, Cure, duration
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
    amounts: dict[int, Amount] = {}
    cures = {}
    for share in SHARES:
        blocks = blocks_for(baseline, share)
        if blocks not in amounts:
            cures[blocks] = _with_blocks(baseline, blocks)
        amounts[blocks] = Amount(share, cures[blocks].tokens, blocks, baseline.gib(blocks))
    best = cures[blocks]
    every = tuple(amounts.values())
    tier = "the lowest tier" if baseline.setup.has_tiers else "the cache"
    more = f"Make {tier} larger{_each(baseline)}: {in_words(baseline, every)}."
    return baseline.cure(best.name, best.tokens, best.basis, more, best.prefill_s, every)


def _with_blocks(baseline: Baseline, blocks: int) -> Cure:
    """The cure of so many blocks: from the recency list where it is exact, else simulated."""
    if not is_lru_one_by_one(baseline.setup):
        return baseline.simulated("more_blocks", baseline.simulate_setup(baseline.setup.with_more_blocks(blocks)), "")
    recovered = baseline.explanation.causes.evicted.tokens_with(blocks, len(baseline.explanation.simulation.trace))
    seconds = baseline.seconds(recovered, baseline.explanation.causes.tokens["hit"])
    return baseline.cure("more_blocks", int(recovered.sum()), "simulated", "", seconds)


def _lower_tier(baseline: Baseline, larger: Cure) -> Cure:
    """The same blocks in a tier below the cache: the same hits, but fetched."""
    most = larger.amounts[-1]
    seconds, fetched = larger.prefill_s, ""
    if seconds is not None and baseline.kv_bytes_per_token is not None:
        fetch_s = larger.tokens * baseline.kv_bytes_per_token / baseline.tier_bytes_per_s
        fetched = (
            f"; fetching at {baseline.tier_bytes_per_s / 1e9:g} GB/s takes {duration(fetch_s)} in place of "
            f"{duration(seconds)} of prefill"
        )
        seconds -= fetch_s
    advice = (
        f"Or add a tier below the cache{_each(baseline)}, such as DRAM, of {_size(most)}: about the same hits as in a "
        f"larger cache{fetched}."
    )
    return baseline.cure("lower_tier", larger.tokens, "estimated", advice, seconds, larger.amounts)


def in_words(baseline: Baseline, amounts: tuple[Amount, ...]) -> str:
    """The amounts of blocks and what they bring, the largest first."""
    evicted = baseline.cost_of("evicted")
    first, *others = reversed(amounts)
    reached = f"{_size(first)} more make {max(first.tokens, 0) / evicted:.0%} of the evicted tokens hits"
    less = [f"{_size(one)} {max(one.tokens, 0) / evicted:.0%}" for one in others]
    return "; ".join([reached, *less]).replace("%", " %")


def _size(amount: Amount) -> str:
    gib = "" if amount.gib is None else f" ({amount.gib:,.1f} GiB)"
    return f"{amount.blocks:,} block{'' if amount.blocks == 1 else 's'}{gib}"


def _each(baseline: Baseline) -> str:
    return f" of each of the {baseline.setup.instances:,} instances" if baseline.setup.is_routed else ""
