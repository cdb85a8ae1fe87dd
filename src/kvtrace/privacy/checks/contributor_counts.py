"""Count the different contributors of each block, up to a limit, from blocks that arrive in pieces.

A table holds the first contributors of each block. If it would be larger than TABLE, ranges of blocks are counted one
after the other, each in its own pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .blocks import RequestBlocks
from .bound import TABLE

CONTRIBUTOR_BITS = (1 << 31) - 1  # in a (block, contributor) pair


def count_up_to(limit: int, feed: Callable[..., Any], contributor: np.ndarray, uses: np.ndarray) -> np.ndarray:
    """The different contributors of each block, at most `limit` (block -> uint8, or int32 for a large limit).

    Args:
        limit: the largest count of interest.
        feed: passes all blocks, piece by piece, to a function.
        contributor: request -> contributor.
        uses: block -> number of its references.

    >>> blocks = RequestBlocks(np.array([0, 1, 2]), np.array([0, 1, 0, 1, 0]), np.array([0, 2, 4, 5]))
    >>> count_up_to(3, lambda take: take(blocks), np.array([0, 1, 2]), np.array([3, 2])).tolist()
    [3, 2]
    """
    count = np.minimum(uses, 1).astype(np.uint8 if limit < 256 else np.int32)
    several = uses > 1
    room = max(1, TABLE // (4 * limit))
    for low in range(0, len(uses), room):
        table = _Table(count[low : low + room], several[low : low + room], limit)

        def take(blocks: RequestBlocks, low=low, table=table):
            for numbers, offsets in blocks.segments():
                inside = several[numbers]
                inside &= (numbers >= low) & (numbers < low + room)
                owner = np.repeat(contributor[blocks.requests], np.diff(offsets))
                table.add(numbers[inside] - low, owner[inside])

        feed(take)
    return count


class _Table:
    """The first contributors of some blocks, and their number."""

    def __init__(self, count: np.ndarray, several: np.ndarray, limit: int):
        self._count, self._limit = count, limit
        self._contributors = np.full((len(count), limit), -1, dtype=np.int32)
        count[several] = 0

    def add(self, block: np.ndarray, contributor: np.ndarray) -> None:
        """Add pairs of a block and its contributor; pairs may repeat."""
        is_open = self._count[block] < self._limit
        pair = np.unique(block[is_open] * (CONTRIBUTOR_BITS + 1) + contributor[is_open])
        block, contributor = pair >> 31, pair & CONTRIBUTOR_BITS
        starts = np.flatnonzero(np.append(True, block[1:] != block[:-1])[: len(block)])
        place = np.arange(len(block)) - np.repeat(starts, np.diff(np.append(starts, len(block))))
        for turn in range(min(self._limit, int(place.max(initial=-1)) + 1)):  # each block at most once in a turn
            self._add_each(block[place == turn], contributor[place == turn])

    def _add_each(self, block, contributor):
        known = (self._contributors[block] == contributor[:, None]).any(axis=1)
        fresh = ~known & (self._count[block] < self._limit)
        block, contributor = block[fresh], contributor[fresh]
        self._contributors[block, self._count[block]] = contributor
        self._count[block] += 1
