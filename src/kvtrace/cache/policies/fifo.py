"""FIFO: the block that was allocated longest ago goes first; of a request's new blocks the root came first.

A hit changes nothing. A block that may not go, pinned or (leaf-first) a parent, is passed over and keeps its place;
`release` lets it go from where it stands. No two blocks come at the same time, so there are no ties.
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
        self.line = MaskedFifo(Slots(context.blocks))

    def insert(self, block):
        return self.line.push(block)

    def use(self, block):
        return self.line.forbid(block)

    def release(self, block):
        return self.line.allow(block)

    def victim(self):
        return self.line.first()

    def remove(self, block):
        return self.line.drop(block)

    def hit_idle(self, block):
        return 0  # it stays where it is, and may go as before

    def insert_idle(self, block):
        return self.line.join(block)

    def likely_victim(self):
        return self.line.ahead(self.line.front)

    def prefetch(self, far, near):
        fetch(cython.address(self.line.slots.slot_of_block[far]))
        return 0
