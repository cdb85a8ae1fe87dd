"""S3-FIFO (Yang and others, SOSP'23): a small queue for new blocks, a main queue, and a ghost queue.

A new block joins the small queue, or the main queue if it has a ghost. Until the first eviction, a new block joins the
main queue if the small queue is full. Hits are counted up to 3. If main is larger than its share, or small has no
evictable block, the oldest block of main is evicted if its count is 0; otherwise it moves to the end with a count
lower by 1. Else the oldest block of small moves to main with a count of 0 if it was hit twice or more; otherwise it is
evicted and leaves a ghost. The shares are libCacheSim's: small 10 % of the capacity (at least one block), main the
rest, ghosts 90 %.

A hit on a pinned block is counted. A block that is not evictable (pinned or, leaf-first, with resident children) is
skipped and keeps its place and count. `release` makes it evictable in that place. Two blocks never tie.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.masked_fifo import MaskedFifo
from cython.cimports.kvtrace.cache.structures.queue import Queue, Slots


class S3FIFO(Policy):
    """Three queues; the marks of the small and the main queue count hits."""

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
        while self.ghosts.size > self.ghost_room:  # after the drop above: this block's own ghost takes no room
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
            if hits < PROMOTE_HITS:
                return block
            self.small.drop(block)
            self.main.join(block)

    def _main_victim(self):
        """The oldest evictable block of main with a count of 0; blocks before it move to the end."""
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


def _hit(queue, block):
    """Count a hit on a block and make it not evictable."""
    _count(queue, block)
    return queue.forbid(block)


def _count(queue, block):
    """Count a hit on a block."""
    place: cython.int = queue.place(block)
    if queue.marked[place] < MAX_HITS:
        queue.marked[place] += 1
    return 0
