"""A FIFO queue in which a block can be not evictable and keep its place.

As in queue.py, the queue is a log of arrivals. The places of removed blocks are empty. A bitset over the log marks the
evictable blocks, so the first one is found in a few steps, however many pinned blocks are before it. MaskedFifos and
Queues can share one `Slots`.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.hierarchical_bitset import HierarchicalBitset
from cython.cimports.kvtrace.cache.structures.queue import Slots


class MaskedFifo:
    """Blocks in order of arrival. Each is evictable or not, and has a mark for the policy's use."""

    def __init__(self, slots: Slots, tag=0):
        self.slots, self.tag = slots, tag
        self.order = np.empty(1024, dtype=np.int32)  # place -> block, or NONE after a removal
        self.marked = np.zeros(1024, dtype=np.int8)  # place -> the policy's mark, initially 0
        self.allowed = HierarchicalBitset(1024)
        self.tail = self.size = self.front = 0

    def push(self, block):
        """Append a block that is in no queue. It is not evictable."""
        if self.tail == self.order.shape[0]:
            self._compact()
        self.order[self.tail] = block
        self.marked[self.tail] = 0
        self.slots.slot_of_block[block] = self.tail * 4 + self.tag
        self.tail += 1
        self.size += 1
        return 0

    def join(self, block):
        """Append a block that is in no queue. It is evictable."""
        self.push(block)
        return self.allowed.set(self.tail - 1)

    def drop(self, block):
        """Remove a block of this queue."""
        place: cython.int = self.place(block)
        self.allowed.clear(place)
        self.order[place] = NONE
        self.slots.slot_of_block[block] = -1
        self.size -= 1
        return 0

    def rejoin(self, block):
        """Move an evictable block of this queue to the end and reset its mark."""
        if self.tail == self.order.shape[0]:
            self._compact()
        place: cython.int = self.place(block)
        self.allowed.clear(place)
        self.order[place] = NONE
        self.size -= 1
        return self.join(block)

    def allow(self, block):
        """Make a block of this queue evictable."""
        return self.allowed.set(self.place(block))

    def forbid(self, block):
        """Make a block of this queue not evictable. No effect if it was not."""
        return self.allowed.clear(self.place(block))

    def place(self, block):
        """The place of a block of this queue. Valid until the next `push`, `join` or `rejoin`."""
        return self.slots.slot_of_block[block] >> 2

    def holds(self, block):
        """Whether a block is in this queue."""
        slot: cython.int = self.slots.slot_of_block[block]
        return slot >= 0 and (slot & 3) == self.tag

    def first(self):
        """The oldest evictable block, or NONE."""
        place: cython.int = self.allowed.first()
        if place < 0:
            return NONE
        self.front = place
        return self.order[place]

    def ahead(self, place):
        """Prefetch hint: the block AHEAD places after `place`, a likely next `first`, or NONE; prefetches its slot."""
        if place + AHEAD >= self.tail:
            return NONE
        block: cython.int = self.order[place + AHEAD]
        if block >= 0:
            fetch(cython.address(self.slots.slot_of_block[block]))
        return block

    def next(self, block):
        """The block after a block of this queue, evictable or not, or NONE."""
        place: cython.int = self.place(block) + 1
        while place < self.tail and self.order[place] == NONE:
            place += 1
        return NONE if place == self.tail else self.order[place]

    def _compact(self):
        """Close the gaps; double the log if more than a quarter of it is still in use."""
        place: cython.int
        used: cython.int = 0
        evictable: cython.bint
        for place in range(self.tail):
            if self.order[place] != NONE:
                evictable = self.allowed.holds(place)
                if evictable:
                    self.allowed.clear(place)
                    self.allowed.set(used)
                self.order[used] = self.order[place]
                self.marked[used] = self.marked[place]
                self.slots.slot_of_block[self.order[used]] = used * 4 + self.tag
                used += 1
        self.tail, self.front = used, 0
        if used > self.order.shape[0] // 4:
            with cython.gil:
                self._grow()
        return 0

    def _grow(self):
        room = 2 * self.order.shape[0]
        if room > MAX_PLACES:
            raise MemoryError("the queue has more blocks than place numbers")
        order, marked = np.empty(room, dtype=np.int32), np.zeros(room, dtype=np.int8)
        order[: self.tail] = np.asarray(self.order)[: self.tail]
        marked[: self.tail] = np.asarray(self.marked)[: self.tail]
        bits = HierarchicalBitset(room)
        place: cython.int
        for place in range(self.tail):
            if self.allowed.holds(place):
                bits.set(place)
        self.order, self.marked, self.allowed = order, marked, bits
