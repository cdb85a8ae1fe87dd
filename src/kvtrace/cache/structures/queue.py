"""A queue of blocks that lets go of any of them in O(1): a log of arrivals, in which what has left is stale.

A linked list would touch the neighbours of each block that moves, three places in memory; here it is one, and the log
is read and written in order. Up to four queues can share one record of places: a block is in at most one of them.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE
from cython.cimports.kvtrace.cache.structures.fetch import fetch

TAGS = 4  # queues that one record of places tells apart


class Slots:
    """block -> where it stands: 4 x its place in a queue's log + the queue's tag, or -1."""

    def __init__(self, blocks):
        self.slot_of_block = np.full(blocks, -1, dtype=np.int32)


class Queue:
    """Blocks in order of arrival; `tag` (0 to 3) tells the queues that share `places` apart."""

    def __init__(self, slots: Slots, tag=0):
        self.slots, self.tag = slots, tag
        self.order = np.empty(1024, dtype=np.int32)
        self.head = self.tail = self.size = self.seen = 0

    def push(self, block):
        """Put a block that is in no queue at the end."""
        self.size += 1
        return self.move(block)

    def move(self, block):
        """Take a block of this queue from where it stands to the end."""
        if self.tail == self.order.shape[0]:
            self._compact()
        self.order[self.tail] = block
        self.slots.slot_of_block[block] = cython.cast(cython.int, self.tail * 4 + self.tag)
        self.tail += 1
        return 0

    def drop(self, block):
        """Take a block of this queue out, wherever it stands."""
        self.slots.slot_of_block[block] = -1
        self.size -= 1
        return 0

    def holds(self, block):
        """Whether a block is in this queue."""
        at: cython.int = self.slots.slot_of_block[block]
        return at >= 0 and (at & 3) == self.tag

    def first(self):
        """The block that has been here longest, or NONE."""
        while self.head < self.tail:
            if self.slots.slot_of_block[self.order[self.head]] == self.head * 4 + self.tag:
                return self.order[self.head]
            self.head += 1
        return NONE

    def ahead(self):
        """The next block that will be first before long if it stays, or NONE; places beyond it are fetched."""
        self.seen = max(self.seen, self.head + NEAR)
        while self.seen + FAR + 1 < self.tail:
            self.seen += 1
            fetch(cython.address(self.slots.slot_of_block[self.order[self.seen + FAR]]))
            if self.slots.slot_of_block[self.order[self.seen]] == self.seen * 4 + self.tag:
                return self.order[self.seen]
        return NONE

    def _compact(self):
        """Forget what has left; take twice the room where more than a quarter of the log is still here."""
        i: cython.Py_ssize_t
        kept: cython.Py_ssize_t = 0
        block: cython.int
        for i in range(self.head, self.tail):
            block = self.order[i]
            if self.slots.slot_of_block[block] == i * 4 + self.tag:
                self.order[kept] = block
                self.slots.slot_of_block[block] = cython.cast(cython.int, kept * 4 + self.tag)
                kept += 1
        self.head, self.tail, self.seen = 0, kept, 0
        if kept > self.order.shape[0] // 4:
            with cython.gil:
                grown = np.empty(2 * self.order.shape[0], dtype=np.int32)
                if 2 * self.order.shape[0] > (1 << 29):
                    raise MemoryError("more blocks are queued than places can number")
                grown[:kept] = np.asarray(self.order)[:kept]
                self.order = grown
        return 0
