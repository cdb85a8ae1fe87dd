"""A line of blocks in which some are passed over: each keeps its place while it may not go.

As in queue.py a log of arrivals, in which what has left is empty; bits over the log say who may go, so that the first
of them is found in a few steps however many pinned blocks stand before it. Lines and queues can share places.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.hierarchical_bitset import HierarchicalBitset
from cython.cimports.kvtrace.cache.structures.queue import Slots


class MaskedFifo:
    """Blocks in order of arrival, each allowed to go or not, and with a mark that is its owner's to use."""

    def __init__(self, slots: Slots, tag=0):
        self.slots, self.tag = slots, tag
        self.order = np.empty(1024, dtype=np.int32)  # place -> block, or NONE where one has left
        self.marked = np.zeros(1024, dtype=np.int8)  # place -> the owner's mark, 0 at first
        self.allowed = HierarchicalBitset(1024)
        self.tail = self.size = self.front = 0

    def push(self, block):
        """Put a block that is in no line at the end; it may not go yet."""
        if self.tail == self.order.shape[0]:
            self._compact()
        self.order[self.tail] = block
        self.marked[self.tail] = 0
        self.slots.slot_of_block[block] = self.tail * 4 + self.tag
        self.tail += 1
        self.size += 1
        return 0

    def join(self, block):
        """Put a block that is in no line at the end; it may go."""
        self.push(block)
        return self.allowed.set(self.tail - 1)

    def drop(self, block):
        """Take a block of this line out."""
        place: cython.int = self.place(block)
        self.allowed.clear(place)
        self.order[place] = NONE
        self.slots.slot_of_block[block] = -1
        self.size -= 1
        return 0

    def rejoin(self, block):
        """Take a block of this line, which may go, from where it stands to the end, its mark gone."""
        if self.tail == self.order.shape[0]:
            self._compact()
        place: cython.int = self.place(block)
        self.allowed.clear(place)
        self.order[place] = NONE
        self.size -= 1
        return self.join(block)

    def allow(self, block):
        """A block of this line may go from now on."""
        return self.allowed.set(self.place(block))

    def forbid(self, block):
        """A block of this line may not go; perhaps it might not before."""
        return self.allowed.clear(self.place(block))

    def place(self, block):
        """Where a block of this line stands; it changes when the line is pushed to."""
        return self.slots.slot_of_block[block] >> 2

    def holds(self, block):
        """Whether a block is in this line."""
        at: cython.int = self.slots.slot_of_block[block]
        return at >= 0 and (at & 3) == self.tag

    def first(self):
        """The block that has been here longest among those that may go, or NONE."""
        place: cython.int = self.allowed.least()
        if place < 0:
            return NONE
        self.front = place
        return self.order[place]

    def ahead(self, place):
        """The block some places behind a place, which may well be first soon, or NONE; where it stands is fetched."""
        if place + AHEAD >= self.tail:
            return NONE
        block: cython.int = self.order[place + AHEAD]
        if block >= 0:
            fetch(cython.address(self.slots.slot_of_block[block]))
        return block

    def next(self, block):
        """The block that stands behind a block of this line, whether it may go or not, or NONE."""
        place: cython.int = self.place(block) + 1
        while place < self.tail and self.order[place] == NONE:
            place += 1
        return NONE if place == self.tail else self.order[place]

    def _compact(self):
        """Close the gaps; take twice the room where more than a quarter of the log is still here."""
        place: cython.int
        kept: cython.int = 0
        may_go: cython.bint
        for place in range(self.tail):
            if self.order[place] != NONE:
                may_go = self.allowed.holds(place)
                if may_go:
                    self.allowed.clear(place)
                    self.allowed.set(kept)
                self.order[kept] = self.order[place]
                self.marked[kept] = self.marked[place]
                self.slots.slot_of_block[self.order[kept]] = kept * 4 + self.tag
                kept += 1
        self.tail, self.front = kept, 0
        if kept > self.order.shape[0] // 4:
            with cython.gil:
                self._grow()
        return 0

    def _grow(self):
        room = 2 * self.order.shape[0]
        if room > MOST:
            raise MemoryError("more blocks are in line than places can number")
        order, marked = np.empty(room, dtype=np.int32), np.zeros(room, dtype=np.int8)
        order[: self.tail] = np.asarray(self.order)[: self.tail]
        marked[: self.tail] = np.asarray(self.marked)[: self.tail]
        bits = HierarchicalBitset(room)
        place: cython.int
        for place in range(self.tail):
            if self.allowed.holds(place):
                bits.set(place)
        self.order, self.marked, self.allowed = order, marked, bits
