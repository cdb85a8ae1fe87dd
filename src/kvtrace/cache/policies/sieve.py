"""SIEVE (Zhang and others, NSDI'24): a line of arrivals, and a hand that walks it from the oldest to the newest.

A hit marks a block where it stands. The hand clears the marks that it meets and takes the first block without one;
it goes on from there next time, and begins again with the oldest after the newest.

A hit on a pinned block marks it too. A block that may not go, pinned or (leaf-first) a parent, is passed over and
keeps its place and its mark; `release` lets it go from where it stands and does not mark it. There are no ties.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.masked_fifo import MaskedFifo
from cython.cimports.kvtrace.cache.structures.queue import Slots


class Sieve(Policy):
    """Lazy promotion and quick demotion by one hand; the line's marks say who was hit."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.line = MaskedFifo(Slots(context.blocks))
        self.hand = NONE
        self.at = self.seen = 0

    def insert(self, block):
        return self.line.push(block)

    def use(self, block):
        self.line.marked[self.line.place(block)] = 1
        return self.line.forbid(block)

    def release(self, block):
        return self.line.allow(block)

    def victim(self):
        place: cython.int = 0
        if self.hand != NONE:
            place = self.line.place(self.hand)
        place = self.line.allowed.after(place)
        if place < 0:
            place = self.line.allowed.least()
        while place >= 0 and self.line.marked[place]:  # the second round meets no marks
            self.line.marked[place] = 0
            place = self.line.allowed.after(place + 1)
            if place < 0:
                place = self.line.allowed.least()
        if place < 0:
            return NONE
        self.at = place
        self.hand = self.line.order[place]
        return self.hand

    def remove(self, block):
        if block == self.hand:
            self.hand = self.line.next(block)
        return self.line.drop(block)

    def hit_idle(self, block):
        self.line.marked[self.line.place(block)] = 1
        return 0

    def insert_idle(self, block):
        return self.line.join(block)

    def likely_victim(self):
        if self.seen < self.at + NEAR or self.seen > self.at + FAR:  # the hand came near, or the line was closed up
            self.seen = self.at + NEAR
        while self.seen < self.line.tail and self.seen < self.at + FAR:
            block: cython.int = self.line.order[self.seen]
            self.seen += 1
            if block >= 0 and not self.line.marked[self.seen - 1]:
                fetch(cython.address(self.line.slots.slot_of_block[block]))
                return block
        return NONE

    def prefetch(self, far, near):
        fetch(cython.address(self.line.slots.slot_of_block[far]))
        return 0
