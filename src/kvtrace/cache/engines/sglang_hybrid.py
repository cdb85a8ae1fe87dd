"""SGLang's tree for models of two kinds of layers, which has a pool for each.

Semantics: SGLang 0.5.23, UnifiedRadixCache with the components FULL and SWA, or FULL and MAMBA
(srt/mem_cache/unified_cache/components). With windows: SWATokenToKVPoolAllocator and the frees of
srt/mem_cache/common.py, as for gpt-oss, Gemma 4 and Llama 4 (for Gemma 3, SGLang builds the tree of full attention).
With states: HybridReqToTokenPool and the strategy extra_buffer, as for Qwen3-Next and Nemotron-H.
Checked: against the unmodified code, with both cores of the tree (Rust and Python): each request's hits and all early
frees, on random traces and on the Mooncake conversation trace (tests/clients/test_sglang_hybrid.py,
tests/vectors/engine_sglang_hybrid.json).

`context.capacity` counts blocks of the first pool. The second one has `second_ratio` blocks of windows, or states, for
each of them. With states, SGLang runs a request for each five of them at most.

Not modelled, beside what sglang.py lists: outputs (mode grow), with the windows that they free and the states that they
record; two lengths of windows, windows and states together, and models without full attention; the strategies
no_buffer and extra_buffer_lazy; one shared pool (--enable-unified-memory).
"""

from __future__ import annotations

from collections.abc import Iterable

from ..._base.errors import UsageError
from ..core.hybrid_radix import HybridRadix, StateRadix, WindowRadix
from ..demand import BlockDemand
from ..layout import STEP_TOKENS, CacheGroup, CacheLayout, LayerKind
from ..policies.base import Context

WINDOW_RATIO = 0.8  # --swa-full-tokens-ratio
STATE_RATIO = 0.9  # --mamba-full-memory-ratio
STATE_CHUNK = 64  # tokens between two states that a prefill can record; a larger block takes its place
RESERVED = 5  # states for each request that runs


def sglang_layout(
    layers: Iterable[LayerKind],
    block_size: int,
    *,
    swa_full_tokens_ratio: float = WINDOW_RATIO,
    mamba_full_memory_ratio: float = STATE_RATIO,
    mamba_chunk_size: int = STATE_CHUNK,
    chunked_prefill_size: int = STEP_TOKENS,
) -> CacheLayout:
    """The two pools that SGLang makes of a model's layers; the arguments are named as SGLang's.

    Args:
        layers: The model's layers by kind.
        block_size: Tokens of a block; SGLang's --page-size.
        swa_full_tokens_ratio: Tokens of the pool of windows for each token of the first pool.
        mamba_full_memory_ratio: Bytes of the pool of states for each byte of the first pool.
        mamba_chunk_size: Tokens between two states that a prefill can record, from the model's config.json or 64.
        chunked_prefill_size: Tokens of a prompt that one step computes; 0 = all of it.

    Raises:
        UsageError: SGLang or this model of it has no tree for the layers.

    >>> linear = LayerKind("state", 36, state_bytes=2_000_000)
    >>> layout = sglang_layout([LayerKind("full", 12, token_bytes=2048), linear], block_size=16)
    >>> [(group.kind, group.block_size) for group in layout.groups], round(layout.second_ratio, 4)
    ([('full', 16), ('state', 64)], 0.0049)
    """
    layers = list(layers)
    full = [kind for kind in layers if kind.kind in ("full", "latent")]
    others = {(kind.kind, kind.window) for kind in layers if kind not in full}
    if not full or len(others) > 1:
        raise UsageError("SGLang's tree has full attention and at most one other kind of layers.")
    block_bytes = block_size * sum(kind.bytes_per_token for kind in full)
    groups = [CacheGroup("full", sum(kind.layers for kind in full), block_size)]
    ratio = swa_full_tokens_ratio
    for name, window in others:
        count = sum(kind.layers for kind in layers if kind.kind == name)
        groups.append(
            CacheGroup(name, count, max(mamba_chunk_size, block_size) if name == "state" else block_size, window)
        )
    share = 0.0  # bytes of the second pool for each block of the first
    if ("state", 0) in others:
        state_bytes = sum(kind.layers * kind.state_bytes for kind in layers)
        if not state_bytes:
            raise UsageError("the layers with states must have state_bytes.")
        ratio = mamba_full_memory_ratio * block_bytes / state_bytes
        share = mamba_full_memory_ratio * block_bytes
    elif others:
        share = ratio * block_size * sum(kind.bytes_per_token for kind in layers if kind not in full)
    return CacheLayout(tuple(groups), round(block_bytes + share), second_ratio=ratio, step_tokens=chunked_prefill_size)


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
