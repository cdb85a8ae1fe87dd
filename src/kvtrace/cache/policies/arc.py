"""ARC: adaptive replacement cache (Megiddo and Modha, FAST'03).

T1 holds blocks requested once, T2 blocks requested again. B1 and B2 hold the ghosts of blocks evicted from T1 and T2.
`target` is the size that T1 should have, a real number between 0 and the capacity. A miss with a ghost in B1 raises
the target by max(|B2| / |B1|, 1). A miss with a ghost in B2 lowers it by max(|B1| / |B2|, 1). Either block enters T2.
The victim is the least recent block of T1 if |T1| > target, or if |T1| = target and the missed block was in B2.
Otherwise it is the least recent block of T2. |T1| + |B1| is at most the capacity; all four hold at most twice as much.

Pinned blocks count in |T1| and |T2| but are not evictable. A hit on a pinned block moves it to T2, as any hit does.
Recency is the time of the last `insert` or `use`; `release` does not change it. Leaf-first, a block with resident
children is treated as pinned. Among the blocks of one request, the deepest is the least recent.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.masked_fifo import MaskedFifo
from cython.cimports.kvtrace.cache.structures.queue import Queue, Slots


class ARC(Policy):
    """Adaptive replacement cache."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.misses = True
        slots = Slots(context.blocks)
        self.once, self.again = MaskedFifo(slots, 0), MaskedFifo(slots, 1)
        self.once_ghosts, self.again_ghosts = Queue(slots, 2), Queue(slots, 3)
        self.noted = np.empty(64, dtype=np.int32)
        self.is_again = np.zeros(context.blocks, dtype=np.int8)
        self.noted_count, self.request = 0, -1
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
        """Add an inserted block to T2 if it had a ghost, else to T1; then trim the ghosts."""
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
        if self.noted_count:
            self._settle()
        if self.is_again[block]:
            return self.again.rejoin(block)
        self.once.drop(block)
        self.is_again[block] = 1
        self.in_once -= 1
        self.in_again += 1
        return self.again.join(block)

    def insert_idle(self, block):
        if self.noted_count:
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
        """Drop the oldest ghosts beyond the limits."""
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
        """Note a block of the current request; it is in neither queue until `_settle`."""
        if self.context.request != self.request:
            self._settle()
            self.request = self.context.request
        if self.noted_count == self.noted.shape[0]:
            with cython.gil:
                self.noted = np.resize(self.noted, 2 * self.noted_count)
        self.noted[self.noted_count] = block
        self.noted_count += 1
        return 0

    def _settle(self):
        """Queue the noted blocks in reverse order: the deepest block is evicted first, the root last."""
        block: cython.int
        while self.noted_count > 0:
            self.noted_count -= 1
            block = self.noted[self.noted_count]
            if self.is_again[block]:
                self.again.push(block)
            else:
                self.once.push(block)
        return 0
