"""SGLang's tree for models with sliding windows, which has two pools.

Semantics: SGLang 0.5.23, UnifiedRadixCache with the components FULL and SWA (srt/mem_cache/unified_cache/components),
SWATokenToKVPoolAllocator, and the frees of srt/mem_cache/common.py. That is what its scheduler builds for gpt-oss,
Gemma 3 and Llama 4. Checked: against the unmodified code, with both cores of the tree (Rust and Python): each request's
hits and all early frees, on random traces and on the Mooncake conversation trace (tests/clients/test_sglang_hybrid.py,
tests/vectors/engine_sglang_hybrid.json).

`context.capacity` counts blocks of the first pool. The second one has `second_ratio` blocks of windows for each of
them: --swa-full-tokens-ratio. Not modelled, beside what sglang.py lists: outputs (mode grow); a model with two lengths
of windows, or without full attention.
"""

from __future__ import annotations

from ..._base.errors import UsageError
from ..core.hybrid_radix import HybridRadix
from ..core.window_radix import WindowRadix
from ..demand import BlockDemand
from ..layout import CacheGroup, CacheLayout
from ..policies.base import Context


def hybrid_tree(demand: BlockDemand, context: Context, policy: str, priority, layout: CacheLayout) -> HybridRadix:
    """SGLang's tree for a layout of full attention and one other kind; UsageError where SGLang or this model has none.

    >>> from kvtrace.cache.demand import block_demand
    >>> from kvtrace.trace.building import toy
    >>> demand = block_demand(toy("0 1 2 3", "0 1 4", "0 1 4 5"), recompute_last=True)
    >>> layout = CacheLayout((CacheGroup("full", 18, 1), CacheGroup("window", 18, 1, 3)))
    >>> cache = hybrid_tree(demand, Context(blocks=demand.blocks, capacity=10, demand=demand), "lru", None, layout)
    >>> cache.advance(3)
    >>> cache.hits.tolist()
    [0, 0, 2]
    """
    size, other = demand.trace.block_size, _second(layout)
    if demand.grows:
        raise UsageError("Engine sglang models outputs of full attention only. Try --mode token.")
    if any(group.block_size != size for group in layout.groups):
        raise UsageError(f"The blocks of the layout must have the {size} tokens of the trace's blocks.")
    second = int(context.capacity * layout.second_ratio)
    return WindowRadix(context, demand, second, window_blocks(other, size), policy, priority)


def _second(layout: CacheLayout) -> CacheGroup:
    """The group beside full attention."""
    groups = [group for group in layout.groups if group.kind != "full"]
    if len(groups) == len(layout.groups) or len({(group.kind, group.window) for group in groups}) > 1:
        raise UsageError("SGLang's tree has full attention and one kind of windows. Try a layout of these.")
    if groups[0].kind == "state":
        raise UsageError("Engine sglang does not model states yet. Try --engine vllm.")
    return groups[0]


def window_blocks(group: CacheGroup, block_size: int) -> int:
    """Blocks that a request must have before it to resume: SGLang looks back one token less than a sliding window.

    >>> window_blocks(CacheGroup("window", 18, 16, 128), 16), window_blocks(CacheGroup("chunk", 36, 16, 8192), 16)
    (8, 512)
    """
    tokens = max(group.window - (group.kind == "window"), 1)
    return -(-tokens // block_size)
