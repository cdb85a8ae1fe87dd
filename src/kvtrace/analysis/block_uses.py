"""One walk over all prompts: the uses of each block, the hits without eviction, and the uses by depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
