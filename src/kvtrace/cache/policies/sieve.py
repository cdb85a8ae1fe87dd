"""SIEVE (Zhang and others, NSDI'24): a FIFO queue and a hand that moves from the oldest block to the newest.

A hit marks a block as visited; the block keeps its place. The hand clears the marks on its way and evicts the first
block without a mark. It continues from there next time, and returns to the oldest block after the newest.

A hit marks a pinned block too. A block that is not evictable (pinned or, leaf-first, with resident children) is skipped
and keeps its place and mark. `release` makes it evictable in that place and does not mark it. Two blocks never tie.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.masked_fifo import MaskedFifo
from cython.cimports.kvtrace.cache.structures.queue import Slots


class Sieve(Policy):
    """Lazy promotion and quick demotion with one hand; the queue's marks are the visited bits."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.queue = MaskedFifo(Slots(context.blocks))
        self.hand = NONE
        self.hand_place = self.hinted = 0

    def insert(self, block):
        return self.queue.push(block)

    def use(self, block):
        self.queue.marked[self.queue.place(block)] = 1
        return self.queue.forbid(block)

    def release(self, block):
        return self.queue.allow(block)

    def victim(self):
        place: cython.int = 0
        if self.hand != NONE:
            place = self.queue.place(self.hand)
        place = self.queue.allowed.after(place)
        if place < 0:
            place = self.queue.allowed.first()
        while place >= 0 and self.queue.marked[place]:  # a second round finds no marks
            self.queue.marked[place] = 0
            place = self.queue.allowed.after(place + 1)
            if place < 0:
                place = self.queue.allowed.first()
        if place < 0:
            return NONE
        self.hand_place = place
        self.hand = self.queue.order[place]
        return self.hand

    def remove(self, block):
        if block == self.hand:
            self.hand = self.queue.next(block)
        return self.queue.drop(block)

    def hit_idle(self, block):
        self.queue.marked[self.queue.place(block)] = 1
        return 0

    def insert_idle(self, block):
        return self.queue.join(block)

    def likely_victim(self):
        # the hand came close, or the queue was compacted
        if self.hinted < self.hand_place + NEAR or self.hinted > self.hand_place + FAR:
            self.hinted = self.hand_place + NEAR
        while self.hinted < self.queue.tail and self.hinted < self.hand_place + FAR:
            block: cython.int = self.queue.order[self.hinted]
            self.hinted += 1
            if block >= 0 and not self.queue.marked[self.hinted - 1]:
                fetch(cython.address(self.queue.slots.slot_of_block[block]))
                return block
        return NONE

    def prefetch(self, far, near):
        fetch(cython.address(self.queue.slots.slot_of_block[far]))
        return 0
