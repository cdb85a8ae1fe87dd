"""SLRU, segmented LRU: what was hit is protected from what was seen once.

Karedla, Love and Wherry, "Caching strategies to improve disk system performance", Computer 27(3), 1994. A new block is
on probation; a hit, also of a pinned block, makes it protected. Probation gives up its least recent block first, and
the protected segment only when probation is empty. The protected segment holds a share of the capacity: past it, its
least recent block goes back to probation, at the most recent end. Pinned blocks are in neither segment until released.

Release puts a block at the most recent end of its segment. No two blocks tie.
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
        # a hit child's parent was hit by the same request, and is demoted after it; a parent is never less recent
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
