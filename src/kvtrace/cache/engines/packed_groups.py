"""The cache groups that vLLM makes of DeepSeek V4's compressed attention, whose blocks pack pages of several sizes.

vLLM 0.33.0 follows _get_packed_kv_cache_groups (v1/core/kv_cache_planning.py). Latents of several tokens, the windows
beside them and the inputs that a compressor still needs have block sizes of their own; a page is a multiple of 576
bytes (FlashMLA's rows). A block of the pool is as large as that of the widest group. Checked: against vLLM's own
models and planner (tests/clients/test_vllm_deployments.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm

from ..._base.errors import UsageError
from ..layout import CacheGroup, CacheLayout, LayerKind
from .cache_groups import ATTENDS_ALL, Pages, merged

BLOCK = 256  # tokens of a block of the layers that keep all tokens, and of what its kernels read at once
STEP = 128  # tokens that a block is a multiple of: those of the longest entry
ROW = 576  # bytes that a page is a multiple of


@dataclass(frozen=True)
class PackedLayer(LayerKind):
    """Layers with blocks of their own size.

    >>> PackedLayer("window", 20, 584, window=128, block_size=64).bytes_per_token
    11680
    """

    block_size: int = BLOCK  # tokens


def packed_layout(
    stages: Sequence[Sequence[LayerKind]], *, block_size: int | None = None, context_shards: int = 1
) -> CacheLayout:
    """Lay out the layers of each pipeline stage as vLLM packs them into blocks.

    Args:
        stages: The layers of each pipeline stage by kind, in the order of the first of each kind.
        block_size: Tokens (--block-size); None = vLLM's default.
        context_shards: GPUs that share the tokens of a block (--decode-context-parallel-size).

    Raises:
        UsageError: vLLM refuses the block size or the context parallelism.

    >>> entries = LayerKind("latent", 20, 584, tokens_per_entry=128)
    >>> recent = PackedLayer("window", 20, 584, window=128, block_size=64)
    >>> [(group.kind, group.layers, group.block_size) for group in packed_layout([[recent, entries]]).groups]
    [('window', 20, 64), ('full', 20, 256)]
    """
    size = BLOCK if block_size is None else block_size
    if size < 1 or size % STEP:
        raise UsageError(f"vLLM's blocks of compressed layers hold a multiple of {STEP} tokens; {size} is not one.")
    if context_shards > 1:
        raise UsageError("vLLM refuses windows under --decode-context-parallel-size.")
    buckets: dict[tuple[bool, int, int], list[Pages]] = {}
    for kind, in_stages in merged(*stages).items():
        block = kind.block_size if isinstance(kind, PackedLayer) else size
        pages = Pages(replace(kind, layers=sum(in_stages)), tuple(in_stages), block, _page(kind, block))
        buckets.setdefault((kind.kind in ATTENDS_ALL, kind.window, block), []).append(pages)
    repeats = _repeats(list(buckets.values()))
    groups = [group for bucket in buckets.values() for group in _split(bucket, repeats)]
    block_bytes = max(_block_bytes(groups, stage) for stage in range(len(stages)))
    return CacheLayout(tuple(_group(group) for group in groups), block_bytes)


def _block_bytes(groups: list[list[Pages]], stage: int) -> int:
    """Bytes of a block on a GPU of a stage; blocks that kernels read in parts stay a multiple of each part."""
    widest = max(sum(part.in_stages[stage] * part.page_bytes for part in group) for group in groups)
    parts = [part for group in groups for part in group if part.in_stages[stage] and part.block_size > BLOCK]
    step = lcm(*(_page(part.layers, gcd(part.block_size, BLOCK)) for part in parts))
    return -(-widest // step) * step


def _page(kind: LayerKind, block_size: int) -> int:
    """Bytes of one layer's page of a block."""
    return -(-block_size // kind.tokens_per_entry * kind.token_bytes // ROW) * ROW


def _repeats(buckets: list[list[Pages]]) -> int:
    """Layers of each page size in a group, with the least padding in all; 0 where no group has several page sizes.

    Buckets whose page sizes have as many layers each can be split; one of several page sizes stays whole.
    """
    counts = [bucket[0].layers.layers for bucket in buckets if _is_balanced(bucket)]
    least = max((b[0].layers.layers for b in buckets if _is_balanced(b) and len(_page_sizes(b)) > 1), default=0)
    if not least:
        return 0
    widths = range(least, max(counts) + 1)
    return min(widths, key=lambda width: (sum(-count % width for count in counts), -width))


def _page_sizes(bucket: list[Pages]) -> set[int]:
    return {part.page_bytes for part in bucket}


def _is_balanced(bucket: list[Pages]) -> bool:
    """Whether each page size of a bucket has as many layers."""
    sizes = [sum(part.layers.layers for part in bucket if part.page_bytes == size) for size in _page_sizes(bucket)]
    return len(set(sizes)) == 1


def _split(bucket: list[Pages], repeats: int) -> list[list[Pages]]:
    """The groups of a bucket."""
    number = -(-bucket[0].layers.layers // repeats) if repeats and _is_balanced(bucket) else 1
    return [[part.every(number, start) for part in bucket] for start in range(number)]


def _group(parts: list[Pages]) -> CacheGroup:
    layers = max(sum(counts) for counts in zip(*(part.in_stages for part in parts), strict=True))
    first = parts[0].layers
    return CacheGroup("full" if first.kind in ATTENDS_ALL else first.kind, layers, parts[0].block_size, first.window)
