"""LHD, least hit density (Beckmann, Chen and Cidon, NSDI'18): evicts the block with the fewest expected hits per time.

The hit density of a block is its probability of a hit divided by its expected remaining lifetime. Both are estimated
from blocks of the same class and age: for age a, hits at age a or more, divided by the total time that blocks stayed
resident after age a. The clock counts uses of blocks; the age is the time since the last use. A class is the depth in
the prefix tree (0-1, 2-7, 8-31, 32 or more blocks before it) and the uses since the block became resident (1, 2, 3, 4
or more). The paper classifies by application and by the ages of the last two hits instead.

Hits and evictions are counted by class and age. Every `interval` of the clock (8 uses per block of the capacity, at
least 1,024), the counts are multiplied by 0.9 and the densities are recomputed. A class without counts gets the
densities of all classes together. Before the first interval, the density is uses / (age + 1). There are 256 ages of
2^shift clock ticks each, which cover four capacities at first. If more than 1 % of the counts are at the last age, the
shift grows by one.

One inserted block in 1,024, drawn at random, is an explorer, as in the paper: it is not evicted before a hit or the
last age. Otherwise no block would reach ages beyond the usual eviction, and hits at those ages would stay unknown.

As in the paper, the victim is the block with the least density in a sample of 64 evictable blocks (the parameter),
drawn with a fixed seed; with fewer blocks, in all of them. Ties: the least recent use. A hit on a pinned block counts;
`release` only makes a block evictable. A flat pool may evict a parent before its child; a leaf-first pool does not, but
keeps old roots. Compare both.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.recency import Recency

from kvtrace._base.errors import UsageError

DECAY = 0.9
SPARED = 1e300  # a density above all others
MULTIPLIER = 6364136223846793005
INCREMENT = 1442695040888963407


class LHD(Policy):
    """Evicts the block with the least hit density among `candidates` random blocks."""

    def __init__(self, context: Context, candidates=64):
        Policy.__init__(self, context)
        if not candidates >= 1:
            raise UsageError(f"the parameter of lhd must be at least 1, not {candidates}. Try lhd:64.")
        depth = np.asarray(Recency(context).depth)
        self.depth_class = np.searchsorted([2, 8, 32], depth, side="right").astype(np.int8)
        self.hits = np.zeros((CLASSES + 1, AGES))
        self.evictions = np.zeros((CLASSES + 1, AGES))
        self.density = (np.arange(CLASSES + 1) % USES + 1)[:, None] / (np.arange(AGES) + 1)
        self.uses = np.zeros(context.blocks, dtype=np.int32)
        self.explores = np.zeros(context.blocks, dtype=np.int8)
        self.last = np.zeros(context.blocks, dtype=np.int64)
        self.idle = np.empty(context.blocks, dtype=np.int32)
        self.place = np.full(context.blocks, NONE, dtype=np.int32)
        self.candidates, self.count, self.clock, self.random = candidates, 0, 0, 1
        self.interval = max(8 * context.capacity, 1024)
        self.shift = max(int(4 * context.capacity - 1).bit_length() - (AGES - 1).bit_length(), 0)

    def insert(self, block):
        self._tick()
        self.uses[block], self.last[block] = 1, self.clock
        self._draw()
        self.explores[block] = (self.random >> 54) == 0  # 1 of 1,024
        return 0

    def use(self, block):
        self._tick()
        self.hits[self._class(block), self._age(block)] += 1
        self.uses[block] += 1
        self.explores[block] = 0
        self.last[block] = self.clock
        if self.place[block] >= 0:
            self._drop(block)
        return 0

    def release(self, block):
        self.idle[self.count] = block
        self.place[block] = self.count
        self.count += 1
        return 0

    def victim(self):
        drawn: cython.int = min(self.count, self.candidates)
        all_of_them: cython.bint = drawn == self.count
        best: cython.int = NONE
        least: cython.double = 0.0
        number: cython.int
        for number in range(drawn):
            block: cython.int = self.idle[number if all_of_them else self._place_drawn()]
            age: cython.int = self._age(block)
            density: cython.double = self.density[self._class(block), age]
            if self.explores[block] and age < AGES - 1:
                density = SPARED
            if best == NONE or density < least or (density == least and self.last[block] < self.last[best]):
                best, least = block, density
        return best

    def remove(self, block):
        self.evictions[self._class(block), self._age(block)] += 1
        return self._drop(block)

    def _class(self, block):
        return self.depth_class[block] * USES + min(self.uses[block], USES) - 1

    def _age(self, block):
        age: cython.longlong = (self.clock - self.last[block]) >> self.shift
        return cython.cast(cython.int, min(age, AGES - 1))

    def _tick(self):
        self.clock += 1
        return self._reconfigure() if self.clock % self.interval == 0 else 0

    def _drop(self, block):
        """Remove a block from the idle blocks; the last one takes its place."""
        self.count -= 1
        last: cython.int = self.idle[self.count]
        self.idle[self.place[block]] = last
        self.place[last] = self.place[block]
        self.place[block] = NONE
        return 0

    def _draw(self):
        """The next random number, by the linear congruential generator of Knuth's MMIX."""
        self.random = self.random * MULTIPLIER + INCREMENT
        return 0

    def _place_drawn(self):
        """A random place among the idle blocks."""
        self._draw()
        return cython.cast(cython.int, (self.random >> 33) % cython.cast(cython.ulonglong, self.count))

    def _reconfigure(self):
        """Make ages coarser if needed, decay the counts, and recompute the densities."""
        one: cython.int
        age: cython.int
        if self._overflows():
            self._coarsen()
        for age in range(AGES):
            self.hits[CLASSES, age] = self.evictions[CLASSES, age] = 0.0
            for one in range(CLASSES):
                self.hits[one, age] *= DECAY
                self.evictions[one, age] *= DECAY
        for age in range(AGES):
            for one in range(CLASSES):
                self.hits[CLASSES, age] += self.hits[one, age]
                self.evictions[CLASSES, age] += self.evictions[one, age]
        self._model(CLASSES)
        for one in range(CLASSES):
            self._model(one)
        return 0

    def _overflows(self):
        """Whether more than 1 % of the counts are at the last age."""
        one: cython.int
        age: cython.int
        last: cython.double = 0.0
        total: cython.double = 0.0
        for one in range(CLASSES):
            part: cython.double = 0.0
            for age in range(AGES):
                part += self.hits[one, age]
            total += part
            last += self.hits[one, AGES - 1]
        for one in range(CLASSES):
            part = 0.0
            for age in range(AGES):
                part += self.evictions[one, age]
            total += part
            last += self.evictions[one, AGES - 1]
        return 100 * last > total

    def _coarsen(self):
        """Double the length of an age: merge the counts of two ages into one."""
        one: cython.int
        age: cython.int
        self.shift += 1
        for one in range(CLASSES):
            for age in range(AGES // 2):
                self.hits[one, age] = self.hits[one, 2 * age] + self.hits[one, 2 * age + 1]
                self.evictions[one, age] = self.evictions[one, 2 * age] + self.evictions[one, 2 * age + 1]
            for age in range(AGES // 2, AGES):
                self.hits[one, age] = self.evictions[one, age] = 0.0
        return 0

    def _model(self, one):
        """Compute the densities of a class, from the oldest age to the youngest."""
        age: cython.int
        hits: cython.double = 0.0  # at this age or later
        ends: cython.double = 0.0  # hits and evictions
        stay: cython.double = 0.0  # total time that those blocks stayed resident after this age
        for age in range(AGES - 1, -1, -1):
            hits += self.hits[one, age]
            ends += self.hits[one, age] + self.evictions[one, age]
            stay += ends
            self.density[one, age] = hits / stay if stay > 0 else 0.0
        if ends == 0:
            for age in range(AGES):
                self.density[one, age] = self.density[CLASSES, age]
        return 0
