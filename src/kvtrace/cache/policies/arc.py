"""ARC (Megiddo and Modha, FAST'03): blocks wanted once, blocks wanted again, and ghosts of both that say how to share.

T1 holds what was wanted once, T2 what was wanted again, B1 and B2 the ghosts of what left them; `target` is the size
that T1 should have, a real number. A miss that finds its ghost in B1 raises the target by max(|B2| / |B1|, 1), one in
B2 lowers it by max(|B1| / |B2|, 1), between 0 and the capacity; the block comes back into T2. T1's least recent goes
while T1 is greater than the target (or as great, and the wanted block came from B2), else T2's. T1 and B1 together
hold no more than the capacity, all four no more than twice of it.

Pinned blocks count in T1 and T2 but may not go; a hit on one takes it to T2 as any other hit does. Recent is what was
wanted last, by `insert` or `use`; `release` changes nothing in the order. Of the blocks that one request wanted the
deepest is the least recent.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.masked_fifo import MaskedFifo
from cython.cimports.kvtrace.cache.structures.queue import Queue, Slots


class ARC(Policy):
    """Adaptive replacement."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.misses = True
        slots = Slots(context.blocks)
        self.once, self.again = MaskedFifo(slots, 0), MaskedFifo(slots, 1)
        self.once_ghosts, self.again_ghosts = Queue(slots, 2), Queue(slots, 3)
        self.noted = np.empty(64, dtype=np.int32)
        self.is_again = np.zeros(context.blocks, dtype=np.int8)
        self.noting, self.request = 0, -1
        self.in_once = self.in_again = 0
        self.target = 0.0
        self.returning = self.from_again = False

    def miss(self, block):
        b1: cython.double = cython.cast(cython.double, self.once_ghosts.size)
        b2: cython.double = cython.cast(cython.double, self.again_ghosts.size)
        capacity: cython.double = cython.cast(cython.double, self.context.capacity)
        self.from_again = False
        self.returning = True
        if self.once_ghosts.holds(block):
            self.target = min(self.target + max(b2 / b1, 1.0), capacity)
            self.once_ghosts.drop(block)
        elif self.again_ghosts.holds(block):
            self.target = max(self.target - max(b1 / b2, 1.0), 0.0)
            self.again_ghosts.drop(block)
            self.from_again = True
        else:
            self.returning = False
        return 0

    def insert(self, block):
        self._count(block)
        return self._note(block)

    def _count(self, block):
        """A block that was brought in is in T1, or in T2 where it left a ghost; ghosts that are too many go."""
        self.is_again[block] = self.returning
        if self.returning:
            self.in_again += 1
        else:
            self.in_once += 1
        self.returning = self.from_again = False
        return self._trim()

    def use(self, block):
        if self.context.request != self.request:
            self._settle()
        if self.is_again[block]:
            self.again.drop(block)
        else:
            self.once.drop(block)
            self.is_again[block] = 1
            self.in_once -= 1
            self.in_again += 1
        return self._note(block)

    def release(self, block):
        self._settle()
        return self.again.allow(block) if self.is_again[block] else self.once.allow(block)

    def victim(self):
        once: cython.int = self.once.first()
        again: cython.int = self.again.first()
        if again == NONE:
            return once
        if once != NONE and (self.in_once > self.target or (self.in_once == self.target and self.from_again)):
            return once
        return again

    def remove(self, block):
        if self.is_again[block]:
            self.in_again -= 1
            self.again.drop(block)
            return self.again_ghosts.push(block)
        self.in_once -= 1
        self.once.drop(block)
        return self.once_ghosts.push(block)

    def hit_idle(self, block):
        if self.noting:
            self._settle()
        if self.is_again[block]:
            return self.again.rejoin(block)
        self.once.drop(block)
        self.is_again[block] = 1
        self.in_once -= 1
        self.in_again += 1
        return self.again.join(block)

    def insert_idle(self, block):
        if self.noting:
            self._settle()
        self._count(block)
        return self.again.join(block) if self.is_again[block] else self.once.join(block)

    def likely_victim(self):
        if self.in_once > self.target:
            return self.once.ahead(self.once.front)
        return self.again.ahead(self.again.front)

    def prefetch(self, far, near):
        fetch(cython.address(self.is_again[far]))
        fetch(cython.address(self.once.slots.slot_of_block[far]))
        return 0

    def _trim(self):
        """Forget the oldest ghosts that are too many."""
        capacity: cython.longlong = self.context.capacity
        while self.once_ghosts.size and self.in_once + self.once_ghosts.size > capacity:
            self.once_ghosts.drop(self.once_ghosts.first())
            self.once_ghosts.ahead()
        while self.again_ghosts.size and (
            self.in_once + self.in_again + self.once_ghosts.size + self.again_ghosts.size > 2 * capacity
        ):
            self.again_ghosts.drop(self.again_ghosts.first())
            self.again_ghosts.ahead()
        return 0

    def _note(self, block):
        """Remember that the present request wants a block that is in no line."""
        if self.context.request != self.request:
            self._settle()
            self.request = self.context.request
        if self.noting == self.noted.shape[0]:
            with cython.gil:
                self.noted = np.resize(self.noted, 2 * self.noting)
        self.noted[self.noting] = block
        self.noting += 1
        return 0

    def _settle(self):
        """Put the noted blocks in line, the last wanted first: a request wants its root first, which is to go last."""
        block: cython.int
        while self.noting > 0:
            self.noting -= 1
            block = self.noted[self.noting]
            if self.is_again[block]:
                self.again.push(block)
            else:
                self.once.push(block)
        return 0
