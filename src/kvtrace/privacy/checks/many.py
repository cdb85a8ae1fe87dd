"""How many different holders a block has, counted up to some number, of blocks that come in pieces.

The first holders of each block stand in a table; where that would be larger than TABLE, ranges of blocks are counted
one after the other, each in a pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .blocks import Blocks
from .bound import TABLE

HOLDER = (1 << 31) - 1  # the bits of one holder in a pair with its block


def count_up_to(most: int, feed: Callable, holder: np.ndarray, uses: np.ndarray) -> np.ndarray:
    """The different holders of each block, `most` where there are as many or more (block -> int32, or uint8).

    `feed` gives all blocks in pieces to a taker; `holder` (request -> number) and `uses` (block -> references to it)
    are those of all.

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
                owner = np.repeat(holder[blocks.requests], np.diff(offsets))
                table.add(numbers[inside] - low, owner[inside])

        feed(take)
    return count


class _Table:
    """The first holders of some blocks, and how many there are."""

    def __init__(self, count: np.ndarray, several: np.ndarray, most: int):
        self._count, self._most = count, most
        self._holders = np.full((len(count), most), -1, dtype=np.int32)
        count[several] = 0

    def add(self, block: np.ndarray, holder: np.ndarray) -> None:
        """Blocks and who holds them, with repeats."""
        open_still = self._count[block] < self._most
        pair = np.unique(block[open_still] * (HOLDER + 1) + holder[open_still])
        block, holder = pair >> 31, pair & HOLDER
        starts = np.flatnonzero(np.append(True, block[1:] != block[:-1])[: len(block)])
        place = np.arange(len(block)) - np.repeat(starts, np.diff(np.append(starts, len(block))))
        for turn in range(min(self._most, int(place.max(initial=-1)) + 1)):  # each block at most once a turn
            self._add_each(block[place == turn], holder[place == turn])

    def _add_each(self, block, holder):
        known = (self._holders[block] == holder[:, None]).any(axis=1)
        fresh = ~known & (self._count[block] < self._most)
        block, holder = block[fresh], holder[fresh]
        self._holders[block, self._count[block]] = holder
        self._count[block] += 1
