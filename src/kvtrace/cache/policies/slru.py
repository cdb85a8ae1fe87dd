"""SLRU, segmented LRU: blocks that were hit are protected from blocks that were used once.

Karedla, Love and Wherry, "Caching strategies to improve disk system performance", Computer 27(3), 1994. A new block is
on probation; a hit, also on a pinned block, makes it protected. The victim is the least recent block on probation, or
the least recent protected block if probation is empty. The protected segment has a share of the capacity. When it
exceeds that share, its least recent block returns to probation, at the most recent end.

A pinned block is in neither segment; `release` puts it at the most recent end of its segment. Leaf-first and flat
pools evict in the same order. Two blocks never tie.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.cache.structures.queue import Queue, Slots

from kvtrace._base.errors import UsageError


class SLRU(Policy):
    """Segmented LRU; `share` of the capacity, between 0 and 1, is for blocks that were hit."""

    def __init__(self, context: Context, share=0.8):
        Policy.__init__(self, context)
        # a request that hits a child hits its parent too, so the parent is at least as recent and is demoted later
        self.keeps_parents = True
        if not 0 <= share <= 1:
            raise UsageError(f"a protected share of {share:g} is not between 0 and 1. Try slru:0.8.")
        slots = Slots(context.blocks)
        self.probation, self.protected = Queue(slots, 0), Queue(slots, 1)
        self.room = int(share * context.capacity)
        self.hit = np.zeros(context.blocks, dtype=np.int8)

    def insert(self, block):
        self.hit[block] = 0
        return 0

    def use(self, block):
        self.hit[block] = 1
        return self.remove(block)

    def release(self, block):
        if not self.hit[block]:
            return self.probation.push(block)
        self.protected.push(block)
        if self.protected.size > self.room:
            block = self.protected.first()
            self.protected.drop(block)
            self.hit[block] = 0
            self.probation.push(block)
        return 0

    def victim(self):
        block: cython.int = self.probation.first()
        return block if block >= 0 else self.protected.first()

    def remove(self, block):
        if self.probation.holds(block):
            self.probation.drop(block)
        elif self.protected.holds(block):
            self.protected.drop(block)
        return 0
