"""Block popularity: uses of each block, sharing by depth, and the share of all reuse that the most used blocks have."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .._base.results import Described, DescribedResult, column
from ..trace.trace import Trace


@dataclass(frozen=True, eq=False)
class BlockUses:
    """The uses of blocks. Blocks of outputs are not counted."""

    uses: np.ndarray  # block -> number of prompts that contain it, int32
    hit_blocks: np.ndarray  # request -> leading blocks that an earlier request contains
    repeated_blocks: np.ndarray  # request -> number of its blocks that the whole trace uses more than once
    by_depth: np.ndarray  # (distinct blocks, references, blocks used more than once) x depth band


def count_uses(trace: Trace) -> BlockUses:
    """Count the uses of each block.

    Raises:
        InputError: The ids do not form a forest.


    >>> from kvtrace.trace.building import toy
    >>> counts = count_uses(toy("0 1 2", "0 1 3"))
    >>> counts.uses, counts.hit_blocks, counts.repeated_blocks
    (array([2, 2, 1, 1], dtype=int32), array([0, 2]), array([2, 2]))
    """
    from .._native import forest as kernel

    trace.require_chained()
    uses, by_depth = np.zeros(trace.distinct, dtype=np.int32), np.zeros((3, kernel.BANDS), dtype=np.int64)
    hit_blocks, repeated = (np.empty(len(trace), dtype=np.int64) for _ in range(2))
    for rows, piece in trace.pieces():
        hit_blocks[rows] = kernel.walk_on(piece.hash_ids, piece.offsets, uses, by_depth)
    for rows, piece in trace.pieces():
        repeated[rows] = kernel.repeated(piece.hash_ids, piece.offsets, uses)
    return BlockUses(uses, hit_blocks, repeated, by_depth)


TOP_SHARES = (0.01, 0.1)
CHUNK = 1 << 20  # blocks counted at a time, which bounds memory


@dataclass(frozen=True, repr=False)
class Popularity(DescribedResult):
    """The distribution of reuse over blocks. A block with n uses has n - 1 reuses."""

    reuses: int
    reused_blocks: int  # blocks used more than once
    most_used: int  # uses of the most used block
    top_share: dict[float, float] = field(  # share of the blocks, most used first -> their share of all reuse
        metadata=column(value=lambda shares: {f"{share:g}": value for share, value in shares.items()})
    )

    def _headline(self) -> str:
        return f"{self.reuses:,} reuses, {self.reused_blocks:,} blocks reused, most_used={self.most_used:,}"


def block_popularity(trace: Trace, uses: BlockUses | None = None) -> Popularity:
    """The distribution of the reuse of a trace over its blocks.

    >>> from kvtrace.trace.building import toy
    >>> block_popularity(toy("0 1", "0 2", "0 3")).top_share[0.1]
    1.0
    """
    blocks = histogram((uses or count_uses(trace)).uses)  # number of uses -> blocks
    blocks[0] = 0  # blocks of outputs only
    use_counts = np.flatnonzero(blocks)[::-1]  # most used first
    blocks = blocks[use_counts]
    reuses = int((blocks * (use_counts - 1)).sum())
    return Popularity(
        reuses=reuses,
        reused_blocks=int(blocks[use_counts > 1].sum()),
        most_used=int(use_counts.max(initial=0)),
        top_share={share: _reuse_share(use_counts - 1, blocks, share, reuses) for share in TOP_SHARES},
    )


def histogram(values: np.ndarray) -> np.ndarray:
    """Count each integer from 0 up: np.bincount in little memory.

    >>> histogram(np.array([0, 2, 2], dtype=np.int32))
    array([1, 0, 2])
    """
    counts = np.zeros(int(values.max(initial=0)) + 1, dtype=np.int64)
    for start in range(0, len(values), CHUNK):
        chunk_counts = np.bincount(values[start : start + CHUNK])
        counts[: len(chunk_counts)] += chunk_counts
    return counts


def _reuse_share(reuses_each, blocks, share, reuses):
    """The share of all reuse that the most used blocks have. `blocks[i]` blocks have `reuses_each[i]`, which falls."""
    top_blocks = max(1, round(share * int(blocks.sum())))
    before = np.cumsum(blocks) - blocks
    return float((reuses_each * np.clip(top_blocks - before, 0, blocks)).sum() / reuses) if reuses else 0.0


@dataclass(frozen=True)
class DepthBand(Described):
    """The blocks at depths from `low` to `high`, in blocks from the root."""

    low: int
    high: int
    blocks: int = field(metadata=column("distinct", ","))  # at these depths
    references: int  # uses of them
    shared_blocks: int = field(metadata=column("shared", ","))  # used by more than one request


def sharing_by_depth(trace: Trace, uses: BlockUses | None = None) -> list[DepthBand]:
    """Sharing of blocks by depth, in bands of doubling width: 1, 2, 3-4, 5-8, ...

    >>> from kvtrace.trace.building import toy
    >>> [(band.low, band.high, band.blocks, band.shared_blocks) for band in sharing_by_depth(toy("0 1", "0 2 3"))]
    [(1, 1, 1, 1), (2, 2, 2, 0), (3, 4, 1, 0)]
    """
    by_depth = (uses or count_uses(trace)).by_depth.T.tolist()
    return [
        DepthBand(2 ** (band - 1) + 1 if band else 1, 2**band, blocks, references, shared)
        for band, (blocks, references, shared) in enumerate(by_depth)
        if blocks
    ]
