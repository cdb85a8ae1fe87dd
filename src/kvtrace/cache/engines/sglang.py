"""SGLang's prefix cache: a radix tree of pages that evicts whole unlocked leaves, with one pool or two.

Semantics: SGLang 0.5.23, UnifiedRadixCache with full attention, the tree of a default server since
(srt/mem_cache/registry.py, unified_cache/unified_tree_core.py), and its eviction policies (evict_policy.py). With
`tree` "radix" RadixCache (radix_cache.py), the default of earlier versions; they differ in recency and creation times.
Checked: against the unmodified code of both with SGLang's page allocators: each request's hits and all early frees, on
random traces in any setting and on the Mooncake conversation trace (tests/clients/test_sglang_cache.py,
tests/vectors/engine_sglang.json).

Not modelled: spare pages (at page sizes above 1 SGLang evicts as if each request took one page more); chunked prefill,
which splits nodes at chunk ends; waiting requests, which refresh the blocks they will hit; the policy tlru. If blocks
run out, SGLang lets a request wait; this model ends the oldest active request early.

A model of two kinds of layers has a pool for each: UnifiedRadixCache with the components FULL and SWA, or FULL and
MAMBA (srt/mem_cache/unified_cache/components). With windows: SWATokenToKVPoolAllocator and the frees of
srt/mem_cache/common.py, as for gpt-oss, Gemma 4 and Llama 4 (for Gemma 3, SGLang builds the tree of full attention).
With states: HybridReqToTokenPool and the strategy extra_buffer, as for Qwen3-Next and Nemotron-H. Checked: against the
unmodified code, with both cores of the tree (Rust and Python), in the same way (tests/clients/test_sglang_hybrid.py,
tests/vectors/engine_sglang_hybrid.json).

With tiers: HiCache, UnifiedRadixCache with HybridCacheController (srt/mem_cache/hybrid_cache): a host tier of an
instance, with SGLang's three write policies, and a storage backend below it that instances can share, as an LRU of
blocks. Each transfer ends before the next request is looked at, so that the policies of prefetching do not differ; a
span of 256 tokens or more is fetched. Checked: against the unmodified code with both cores of the tree, its host pool,
controller, threads and file backend, but without the copies (tests/clients/test_sglang_hicache.py,
tests/vectors/engine_sglang_hicache.json): each request's hits by source, all early frees and evicted blocks. Not
modelled: Mooncake's own eviction order and other backends'; --hicache-host-memory-mode buffer_only; tiers with a
drafter, windows or states.

`context.capacity` counts blocks of the first pool. The second one has `second_ratio` blocks of windows, or states, for
each of them. With states, SGLang runs a request for each five of them at most.

A drafter (EAGLE, EAGLE3, NEXTN): the keys of the trees are pairs of tokens, so that n tokens have n - 1, and the last
token of what is cached has none; trees with states keep single tokens. Checked in the same way, and under SGLang's own
scheduler. Not modelled: the pages that the drafted tokens of a step take; other algorithms (DFLASH, STANDALONE, NGRAM),
which leave the keys as they are.

Not modelled with two pools: outputs (mode grow), with the windows that they free and the states that they record; two
lengths of windows, windows and states together, and models without full attention; the strategies no_buffer and
extra_buffer_lazy; one shared pool (--enable-unified-memory).
"""

from __future__ import annotations

import numpy as np

from ..._base.errors import UsageError
from ...trace.trace import Trace
from ..core.hicache import HiRadix, StoragePool
from ..core.hybrid_radix import HybridRadix, StateRadix, WindowRadix
from ..core.radix import Radix
from ..demand import BlockDemand
from ..layout import CacheGroup, CacheLayout
from ..policies.base import Context
from .cache_groups import WINDOW_RATIO


def build(
    demand: BlockDemand,
    context: Context,
    policy: str = "lru",
    *,
    tree: str = "unified",
    hicache_write_policy: str = "write_through",
    layout: CacheLayout | None = None,
) -> Radix:
    """Build SGLang's cache of `context.capacity` blocks, with one of its eviction policies and of its trees.

    A `layout` with windows adds a pool for them (core/hybrid_radix.py).

    The policy `priority` reads the trace's extra column of that name: whole numbers; higher ones are evicted later, and
    a missing one is 0. UsageError for a policy that SGLang does not have, or a trace without priorities.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1 2", "3", "0 1 2"), recompute_last=True)
    >>> cache = build(demand, Context(blocks=demand.blocks, capacity=5, demand=demand))
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 2]
    """
    if hicache_write_policy != "write_through":
        raise UsageError("--hicache-write-policy needs host memory: --tiers hbm=5000,dram=50000.")
    priority = priorities(demand.trace) if policy == "priority" else None
    if layout is None or layout.is_full:
        return Radix(context, demand, policy, priority, tree == "unified")
    if tree != "unified":
        raise UsageError("SGLang's older tree has no windows and states. Leave --tree out.")
    return hybrid_tree(demand, context, policy, priority, layout)


def build_hicache(
    demand: BlockDemand,
    context: Context,
    host: int,
    policy: str = "lru",
    *,
    hicache_write_policy: str = "write_through",
    tree: str = "unified",
    pool: StoragePool | None = None,
    prefetch_tokens: int = 256,
) -> HiRadix:
    """Build SGLang's cache of `context.capacity` blocks with `host` blocks of host memory below it, and a pool.

    Its `tier_hits` are the hit blocks of each request from the host, and from the pool if there is one; fewer than
    `prefetch_tokens` are not fetched from it. UsageError as in `build`, and for the tree that has no host memory.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> prompt = "0 1 2 3 4 5 6 7 8 9 10 11"  # SGLang loads 10 tokens or more
    >>> demand = block_demand(toy(prompt, "12", prompt), recompute_last=True)
    >>> cache = build_hicache(demand, Context(blocks=demand.blocks, capacity=12, demand=demand), 30)
    >>> cache.advance(3)
    >>> cache.hits.tolist(), cache.tier_hits.tolist()
    ([0, 0, 11], [[0, 0, 11]])
    """
    if tree != "unified":
        raise UsageError("SGLang's older tree has no host memory here. Leave --tree out.")
    priority = priorities(demand.trace) if policy == "priority" else None
    return HiRadix(context, demand, host, policy, priority, hicache_write_policy, pool, prefetch_tokens)


def priorities(trace: Trace) -> np.ndarray:
    """Each request's priority, int64, from the trace's extra column; UsageError if it is missing or not whole."""
    if "priority" not in trace.extra:
        raise UsageError("The trace has no column 'priority'. Add one, or try another --policy.")
    column = trace.extra["priority"]
    if column.dtype.kind == "O":  # rows without a value hold None
        column = np.array([0 if value is None else value for value in column])
    if column.dtype.kind == "f":
        column = np.where(np.isnan(column), 0.0, column)
    if column.dtype.kind not in "if" or not np.isfinite(column).all() or (column != np.trunc(column)).any():
        raise UsageError("The trace's column 'priority' must hold whole numbers. Try another --policy.")
    return column.astype(np.int64)


RESERVED = 5  # states for each request that runs


def hybrid_tree(demand: BlockDemand, context: Context, policy: str, priority, layout: CacheLayout) -> HybridRadix:
    """SGLang's tree for a layout of full attention and one other kind; UsageError if there is none or it is too small.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1 2 3", "0 1 4", "0 1 4 5"), recompute_last=True)
    >>> layout = CacheLayout((CacheGroup("full", 18, 1), CacheGroup("window", 18, 1, 2)))
    >>> cache = hybrid_tree(demand, Context(blocks=demand.blocks, capacity=10, demand=demand), "lru", None, layout)
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 3]
    """
    size, (full, other) = demand.trace.block_size, _two_groups(layout)
    if demand.grows:
        raise UsageError("Engine sglang models the outputs of full attention only. Try --mode token.")
    if full.block_size != size or other.block_size % size:
        raise UsageError(
            f"SGLang's blocks must be as long as the trace's ({size} tokens), and those of states a multiple of them."
        )
    step = max(layout.step_tokens // size, 1) if layout.step_tokens else 0
    if other.kind == "state":
        number = int(context.capacity * layout.second_ratio)
        if number < RESERVED:
            raise UsageError(
                f"SGLang needs {RESERVED} states to run a request; these are {number}. Raise the capacity."
            )
        return StateRadix(context, demand, number, other.block_size // size, step, policy, priority)
    number = int(context.capacity * (layout.second_ratio or WINDOW_RATIO))
    longest = int(demand.max_blocks.max()) if len(demand) else 0
    needed = min(longest, step or longest)
    if number < needed:
        raise UsageError(
            f"A step of the longest request needs {needed:,} blocks of windows; the second pool has {number:,}. Raise "
            "the capacity, or give the layout a larger second_ratio or a smaller step_tokens."
        )
    return WindowRadix(context, demand, number, window_blocks(other, size), step, policy, priority)


def _two_groups(layout: CacheLayout) -> tuple[CacheGroup, CacheGroup]:
    """The group of full attention and the other one; groups of the same kind and window are one pool in SGLang."""
    full = [group for group in layout.groups if group.kind == "full"]
    others = [group for group in layout.groups if group.kind != "full"]
    if not full or len({(group.kind, group.window, group.block_size) for group in others}) > 1:
        raise UsageError("SGLang's tree has full attention and one other kind of layers. Try a layout of these.")
    return full[0], others[0]


def window_blocks(group: CacheGroup, block_size: int) -> int:
    """Blocks that a request must have before it to resume: SGLang looks back one token less than a sliding window.

    >>> window_blocks(CacheGroup("window", 18, 16, 128), 16), window_blocks(CacheGroup("chunk", 36, 16, 8192), 16)
    (8, 512)
    """
    tokens = max(group.window - (group.kind == "window"), 1)
    return -(-tokens // block_size)
