"""S3-FIFO (Yang and others, SOSP'23): a small line for what is new, a main line, and ghosts of what left the small one.

A new block joins the small line; one whose ghost is remembered, the main one. As long as nothing was ever evicted, what
finds the small line full joins the main one. Hits are counted up to 3. Where main holds more than its share, or
nothing in small may go, main's oldest goes if its count is 0, else it is put back at the end with one less. Otherwise
small's oldest moves to main, with a count of 0, if it was hit twice or more, else it goes and leaves a ghost. The
shares are libCacheSim's: small 10 % of the capacity (but one block at least), main the rest, ghosts 90 %.

A hit on a pinned block is counted too. A block that may not go, pinned or (leaf-first) a parent, is passed over and
keeps its place and its count; `release` lets it go from where it stands. There are no ties.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.masked_fifo import MaskedFifo
from cython.cimports.kvtrace.cache.structures.queue import Queue, Slots


class S3FIFO(Policy):
    """Three queues; the lines' marks count hits."""

    def __init__(self, context: Context, small_share=0.1):
        Policy.__init__(self, context)
        self.slots = Slots(context.blocks)
        self.small, self.main = MaskedFifo(self.slots, SMALL), MaskedFifo(self.slots, MAIN)
        self.ghosts = Queue(self.slots, GHOST)
        self.small_room = max(int(context.capacity * small_share), 1)
        self.main_room = context.capacity - self.small_room
        self.ghost_room = int(context.capacity * 0.9)
        self.evicted = False

    def insert(self, block):
        remembered: cython.bint = self.ghosts.holds(block)
        if remembered:
            self.ghosts.drop(block)
        while self.ghosts.size > self.ghost_room:  # only now: the ghost that was asked for is not in the others' way
            self.ghosts.drop(self.ghosts.first())
            self.ghosts.ahead()
        if remembered or (not self.evicted and self.small.size >= self.small_room):
            return self.main.push(block)
        return self.small.push(block)

    def use(self, block):
        return _hit(self.small, block) if self.small.holds(block) else _hit(self.main, block)

    def release(self, block):
        return self.small.allow(block) if self.small.holds(block) else self.main.allow(block)

    def victim(self):
        block: cython.int
        hits: cython.schar
        while True:
            block = self.small.first()
            if block == NONE or self.main.size > self.main_room:
                if self.main.first() != NONE:
                    return self._main_victim()
                if block == NONE:
                    return NONE
            hits = self.small.marked[self.small.place(block)]
            if hits < ENOUGH:
                return block
            self.small.drop(block)
            self.main.join(block)

    def _main_victim(self):
        """Main's first block that was not hit since it was looked at last."""
        block: cython.int = self.main.first()
        hits: cython.schar = self.main.marked[self.main.place(block)]
        while hits > 0:
            self.main.rejoin(block)
            self.main.marked[self.main.place(block)] = hits - 1
            self.main.ahead(self.main.front)
            block = self.main.first()
            hits = self.main.marked[self.main.place(block)]
        return block

    def remove(self, block):
        self.evicted = True
        if self.main.holds(block):
            return self.main.drop(block)
        self.small.drop(block)
        return self.ghosts.push(block)

    def hit_idle(self, block):
        return _count(self.small, block) if self.small.holds(block) else _count(self.main, block)

    def likely_victim(self):
        return self.small.ahead(self.small.front)

    def prefetch(self, far, near):
        fetch(cython.address(self.slots.slot_of_block[far]))
        return 0


def _hit(line, block):
    """Count a hit on a block of a line, which may not go now."""
    _count(line, block)
    return line.forbid(block)


def _count(line, block):
    """Count a hit on a block of a line."""
    place: cython.int = line.place(block)
    if line.marked[place] < MOST:
        line.marked[place] += 1
    return 0
