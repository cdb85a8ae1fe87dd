"""How often each block is used, and what follows from one walk over all prompts: hits without eviction, depths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Uses:
    """Uses of blocks, in prompts only."""

    uses: np.ndarray  # block -> prompts that hold it, int32
    hit_blocks: np.ndarray  # request -> leading blocks that earlier requests held
    repeated_blocks: np.ndarray  # request -> its blocks that are used more than once in the whole trace
    by_depth: np.ndarray  # (distinct blocks, references, blocks used more than once) x band of depths


def uses(trace: Trace) -> Uses:
    """The uses of a trace's blocks; InputError where ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> found = uses(toy("0 1 2", "0 1 3"))
    >>> found.uses, found.hit_blocks, found.repeated_blocks
    (array([2, 2, 1, 1], dtype=int32), array([0, 2]), array([2, 2]))
    """
    from .._native import uses as kernel

    trace.require_chained()
    found, by_depth = np.zeros(trace.distinct, dtype=np.int32), np.zeros((3, kernel.BANDS), dtype=np.int64)
    hit_blocks, repeated = (np.empty(len(trace), dtype=np.int64) for _ in range(2))
    for rows, piece in trace.pieces():
        hit_blocks[rows] = kernel.walk_on(piece.hash_ids, piece.offsets, found, by_depth)
    for rows, piece in trace.pieces():
        repeated[rows] = kernel.repeated(piece.hash_ids, piece.offsets, found)
    return Uses(found, hit_blocks, repeated, by_depth)
