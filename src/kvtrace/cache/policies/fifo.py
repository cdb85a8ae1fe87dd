"""FIFO: evicts the block that was allocated first. A request allocates its new blocks root first.

A hit does not change the order. A block that is not evictable (pinned or, leaf-first, with resident children) is
skipped and keeps its place. `release` makes it evictable in that place. Two blocks never tie.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.masked_fifo import MaskedFifo
from cython.cimports.kvtrace.cache.structures.queue import Slots


class FIFO(Policy):
    """First in, first out."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.queue = MaskedFifo(Slots(context.blocks))

    def insert(self, block):
        return self.queue.push(block)

    def use(self, block):
        return self.queue.forbid(block)

    def release(self, block):
        return self.queue.allow(block)

    def victim(self):
        return self.queue.first()

    def remove(self, block):
        return self.queue.drop(block)

    def hit_idle(self, block):
        return 0  # the block keeps its place and stays evictable

    def insert_idle(self, block):
        return self.queue.join(block)

    def likely_victim(self):
        return self.queue.ahead(self.queue.front)

    def prefetch(self, far, near):
        fetch(cython.address(self.queue.slots.slot_of_block[far]))
        return 0
