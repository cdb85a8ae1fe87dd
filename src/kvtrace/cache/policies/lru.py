"""LRU: evicts the block that was released first.

A request releases its blocks tail first, so a plain queue gives the order of the heap of heaps in Lin's report (last
use, then prefix length). A pinned block is not in the queue; `release` puts it at the end. Leaf-first and flat pools
evict in the same order. Two blocks never tie.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.queue import Queue, Slots


class LRU(Policy):
    """Least recently used."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.keeps_parents = True  # a request that uses a child uses its parent, and releases the parent later
        self.queue = Queue(Slots(context.blocks))

    def insert(self, block):
        return 0  # a pinned block is not in the queue

    def use(self, block):
        if self.queue.holds(block):
            self.queue.drop(block)
        return 0

    def release(self, block):
        return self.queue.push(block)

    def victim(self):
        return self.queue.first()

    def remove(self, block):
        return self.queue.drop(block)

    def hit_idle(self, block):
        return self.queue.move(block)

    def insert_idle(self, block):
        return self.queue.push(block)

    def likely_victim(self):
        return self.queue.ahead()

    def prefetch(self, far, near):
        fetch(cython.address(self.queue.slots.slot_of_block[far]))
        return 0
