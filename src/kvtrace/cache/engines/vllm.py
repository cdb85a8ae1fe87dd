"""vLLM's prefix cache, and those of Dynamo's mocker and nano-vllm: a queue of free blocks, and a table of hashes.

vLLM. Semantics: vLLM 0.33.0, one group of full attention (vllm/v1/core/kv_cache_manager.py, block_pool.py). Checked:
against the unmodified code: every request's hits and all early frees, on the Mooncake conversation trace and on random
traces, in each mode and schedule (tests/clients/test_vllm_cache.py, tests/vectors/engine_vllm.json); the older free
order against vLLM 0.20.2, on the conversation trace.

`capacity` counts usable blocks: vLLM's num_gpu_blocks is one more, for its null block. Since May 2026 a freed block
without a hash is allocated next (free order "prepend"); before, it joined the end of the queue ("append").

With a `layout` of several groups, or of windows or states, it is vLLM's hybrid cache (core/grouped_cache.py), checked
in the same way (tests/clients/test_vllm_hybrid.py, tests/vectors/engine_vllm_hybrid.json). docs/cache/hybrid.md
explains it. Prompts are then computed in chunks of `layout.step_tokens`, as vLLM's scheduler computes them.

A drafter (MTP, EAGLE): a block's hash covers the token after it too (lookahead block hashes), each request holds
lookahead slots, and a group of states has a block more for each token that is predicted. With the rule `drop`, a hit
loses its last block instead: vLLM before lookahead hashes, or with disable_lookahead_block_hashes. Checked in the same
way, and under vLLM's own scheduler. Not modelled: the tokens that steps verify and accept, which take a few slots more
and time; MTP with several modules that predict several tokens; draft models and n-grams; drop with cache groups.

Not modelled: the watermark. If blocks run out, vLLM lets the newest request wait or start over; this model ends the
oldest active request early. Full attention is modelled without chunks: they would not change what one request at a
time hits.

Dynamo's mocked engine (ai-dynamo-runtime 1.6.1) has vLLM's cache, and all its blocks are usable. Checked against
Dynamo's offline replay: each request's hits on the Mooncake conversation trace, one request at a time
(tests/clients/test_dynamo_replay.py), and in time (tests/clients/test_dynamo_times.py).

nano-vllm, as of 2026, its BlockManager (nanovllm/engine/block_manager.py): the newest copy of a block wins, and each
freed block joins the queue's end. It looks up all blocks of a prompt except the last one. A hash names the block that
was registered last, until that block is allocated again. Checked: once, against that class from a public copy with its
hash function replaced: every request's hits and all early frees on 900 random cases, in all modes and schedules; in
each test run, against the twin tests/reference/free_queue.py. In block mode with the serial schedule it has vLLM's hits
on the Mooncake conversation trace. Not modelled: nano-vllm registers the hashes of a prompt after its prefill, so
prompts of one batch do not hit each other's blocks; here they are registered at admission. If blocks run out, nano-vllm
lets the newest request start over; this model ends the oldest active request early.
"""

from __future__ import annotations

from ..._base.errors import UsageError
from ..core.blocks import FreeQueue
from ..core.grouped_cache import GroupedCache
from ..demand import BlockDemand
from ..layout import CacheLayout
from ..policies.base import Context


def build(
    demand: BlockDemand, context: Context, policy: str = "lru", *,
    layout: CacheLayout | None = None, free_order: str = "prepend",
) -> FreeQueue | GroupedCache:  # fmt: skip
    """Build vLLM's cache of `context.capacity` usable blocks; its one policy is lru, by the order of the queue.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1 2", "3", "0 1 2"), recompute_last=True)
    >>> cache = build(demand, Context(blocks=demand.blocks, capacity=4, demand=demand))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 2]
    """
    if layout is None:
        return FreeQueue(context, demand, unhashed_first=free_order == "prepend")
    verify(layout, demand, free_order)
    return GroupedCache(context, demand, layout)


def verify(layout: CacheLayout, demand: BlockDemand, free_order: str = "prepend") -> None:
    """Raise UsageError for a layout that vLLM refuses, or whose blocks the trace's ids do not resolve."""
    block_size = demand.trace.block_size
    if demand.drafting is not None and not demand.drafting.needs_next:
        raise UsageError(
            "The rule drop for drafters is modelled for full attention only. Use lookahead, which vLLM 0.33.0 has for "
            "all models without a KV connector."
        )
    if free_order != "prepend":
        raise UsageError(
            "--free-order append is an older vLLM's, which is not modelled with cache groups. Leave it out."
        )
    sizes = [group.block_size for group in layout.groups]
    align = layout.scheduler_block_size
    if any(size % block_size for size in sizes):
        raise UsageError(
            f"the cache groups have blocks of {', '.join(f'{size:,}' for size in dict.fromkeys(sizes))} tokens, which "
            f"the trace's blocks of {block_size:,} do not divide. Make the trace with smaller blocks, or set "
            "--engine-block-size to a multiple of them."
        )
    for group in layout.groups:
        if group.kind in ("chunk", "state") and group.block_size != align:
            raise UsageError(
                f"a cache group of kind {group.kind} has blocks of {group.block_size:,} tokens, and another group has "
                "other blocks: vLLM does not serve, or kvtrace does not model, such a layout."
            )
    interval = layout.retention_interval
    if interval is not None and (interval < 0 or interval % align):
        raise UsageError(f"the retention interval must be 0 or a multiple of {align:,} tokens, not {interval:,}.")


def build_dynamo(demand: BlockDemand, context: Context, policy: str = "lru") -> FreeQueue:
    """Build the cache of `context.capacity` blocks; its one policy is lru, by the order of the queue.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1 2", "3", "0 1 2"), recompute_last=True)
    >>> cache = build_dynamo(demand, Context(blocks=demand.blocks, capacity=4, demand=demand))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 2]
    """
    return FreeQueue(context, demand)


def build_nano_vllm(demand: BlockDemand, context: Context, policy: str = "lru") -> FreeQueue:
    """Build nano-vllm's cache of `context.capacity` blocks; its one policy is lru, by the order of the queue.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1", "0 1", "0 1 2"), recompute_last=True)
    >>> cache = build_nano_vllm(demand, Context(blocks=demand.blocks, capacity=4, demand=demand))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 1, 2]
    """
    return FreeQueue(context, demand, unhashed_first=False, newest_copy=True)
