"""How many different contributors a block has, counted up to some number, of blocks that come in pieces.

The first contributors of each block stand in a table; where that would be larger than TABLE, ranges of blocks are
counted one after the other, each in a pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .blocks import Blocks
from .bound import TABLE

HOLDER = (1 << 31) - 1  # the bits of one contributor in a pair with its block


def count_up_to(most: int, feed: Callable, contributor: np.ndarray, uses: np.ndarray) -> np.ndarray:
    """The different contributors of each block, `most` where there are as many or more (block -> int32, or uint8).

    `feed` gives all blocks in pieces to a taker; `contributor` (request -> number) and `uses` (block -> references to
    it) are those of all.

    >>> blocks = Blocks(np.array([0, 1, 2]), np.array([0, 1, 0, 1, 0]), np.array([0, 2, 4, 5]))
    >>> count_up_to(3, lambda take: take(blocks), np.array([0, 1, 2]), np.array([3, 2])).tolist()
    [3, 2]
    """
    count = np.minimum(uses, 1).astype(np.uint8 if most < 256 else np.int32)
    several = uses > 1
    room = max(1, TABLE // (4 * most))
    for low in range(0, len(uses), room):
        table = _Table(count[low : low + room], several[low : low + room], most)

        def take(blocks: Blocks, low=low, table=table):
            for numbers, offsets in blocks.parts():
                inside = several[numbers]
                inside &= (numbers >= low) & (numbers < low + room)
                owner = np.repeat(contributor[blocks.requests], np.diff(offsets))
                table.add(numbers[inside] - low, owner[inside])

        feed(take)
    return count


class _Table:
    """The first contributors of some blocks, and how many there are."""

    def __init__(self, count: np.ndarray, several: np.ndarray, most: int):
        self._count, self._most = count, most
        self._holders = np.full((len(count), most), -1, dtype=np.int32)
        count[several] = 0

    def add(self, block: np.ndarray, contributor: np.ndarray) -> None:
        """Blocks and who holds them, with repeats."""
        open_still = self._count[block] < self._most
        pair = np.unique(block[open_still] * (HOLDER + 1) + contributor[open_still])
        block, contributor = pair >> 31, pair & HOLDER
        starts = np.flatnonzero(np.append(True, block[1:] != block[:-1])[: len(block)])
        place = np.arange(len(block)) - np.repeat(starts, np.diff(np.append(starts, len(block))))
        for turn in range(min(self._most, int(place.max(initial=-1)) + 1)):  # each block at most once a turn
            self._add_each(block[place == turn], contributor[place == turn])

    def _add_each(self, block, contributor):
        known = (self._holders[block] == contributor[:, None]).any(axis=1)
        fresh = ~known & (self._count[block] < self._most)
        block, contributor = block[fresh], contributor[fresh]
        self._holders[block, self._count[block]] = contributor
        self._count[block] += 1
