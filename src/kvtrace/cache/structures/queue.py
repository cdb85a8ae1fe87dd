"""A queue of blocks with O(1) removal of any block: a log of arrivals with stale entries.

A linked list would write to the neighbours of each block that moves: three places in memory. Here it is one, and the
log is read and written in order. Up to four queues can share one `Slots`: a block is in at most one of them.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE
from cython.cimports.kvtrace.cache.structures.fetch import fetch

TAGS = 4  # queues that can share one `Slots`


class Slots:
    """block -> 4 x its place in a queue's log + the queue's tag, or -1."""

    def __init__(self, blocks):
        self.slot_of_block = np.full(blocks, -1, dtype=np.int32)


class Queue:
    """Blocks in order of arrival; `tag` (0 to 3) identifies the queue among those that share `slots`."""

    def __init__(self, slots: Slots, tag=0):
        self.slots, self.tag = slots, tag
        self.order = np.empty(1024, dtype=np.int32)
        self.head = self.tail = self.size = self.hinted = 0

    def push(self, block):
        """Append a block that is in no queue."""
        self.size += 1
        return self.move(block)

    def move(self, block):
        """Move a block of this queue to the end."""
        if self.tail == self.order.shape[0]:
            self._compact()
        self.order[self.tail] = block
        self.slots.slot_of_block[block] = cython.cast(cython.int, self.tail * 4 + self.tag)
        self.tail += 1
        return 0

    def drop(self, block):
        """Remove a block of this queue."""
        self.slots.slot_of_block[block] = -1
        self.size -= 1
        return 0

    def holds(self, block):
        """Whether a block is in this queue."""
        slot: cython.int = self.slots.slot_of_block[block]
        return slot >= 0 and (slot & 3) == self.tag

    def first(self):
        """The oldest block, or NONE."""
        while self.head < self.tail:
            if self.slots.slot_of_block[self.order[self.head]] == self.head * 4 + self.tag:
                return self.order[self.head]
            self.head += 1
        return NONE

    def ahead(self):
        """Prefetch hint: a block that is likely to be first soon, or NONE; prefetches slots further on."""
        self.hinted = max(self.hinted, self.head + NEAR)
        while self.hinted + FAR + 1 < self.tail:
            self.hinted += 1
            fetch(cython.address(self.slots.slot_of_block[self.order[self.hinted + FAR]]))
            if self.slots.slot_of_block[self.order[self.hinted]] == self.hinted * 4 + self.tag:
                return self.order[self.hinted]
        return NONE

    def _compact(self):
        """Drop stale entries; double the log if more than a quarter of it is still in use."""
        i: cython.Py_ssize_t
        used: cython.Py_ssize_t = 0
        block: cython.int
        for i in range(self.head, self.tail):
            block = self.order[i]
            if self.slots.slot_of_block[block] == i * 4 + self.tag:
                self.order[used] = block
                self.slots.slot_of_block[block] = cython.cast(cython.int, used * 4 + self.tag)
                used += 1
        self.head, self.tail, self.hinted = 0, used, 0
        if used > self.order.shape[0] // 4:
            with cython.gil:
                grown = np.empty(2 * self.order.shape[0], dtype=np.int32)
                if 2 * self.order.shape[0] > (1 << 29):
                    raise MemoryError("the queue has more blocks than place numbers")
                grown[:used] = np.asarray(self.order)[:used]
                self.order = grown
        return 0
