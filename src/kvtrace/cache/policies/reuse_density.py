"""Reuse density: evicts the block with the least chance of reuse per second that it is kept, by a table learned before.

Each use puts a block into a class by what the engine knows then (structures/path_state.py), and the table has a level
for each class and age: the logarithm of the greatest chance of reuse per expected second of keeping, over all times to
keep it (the Gittins index of the class's reuse times; Gittins, J. R. Stat. Soc. B 41(2), 1979). reuse_table.py
describes the table, reuse_training.py makes one.

Levels never rise with age. The candidate of a class is therefore its least recent block, of one request the deepest,
and only the candidates are compared. Ties: the least recent. The blocks of one request that have one class are evicted
tail first. Two classes can evict a parent before its child in a flat pool, so use a leaf-first pool; there a parent
joins its class where its last use belongs.

A use of a pinned block counts; `release` only makes a block evictable.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.heap import Heaps
from cython.cimports.kvtrace.cache.structures.path_state import PathState
from cython.cimports.kvtrace.cache.structures.recency import Recency

from kvtrace.cache.structures.reuse_table import default_table

EMPTY = cython.declare(cython.int, 1 << 30)  # the level of a class without evictable blocks
NEVER = cython.declare(cython.double, 1e300)


class ReuseDensity(Policy):
    """Evicts the block with the least chance of reuse per second, by a ReuseTable."""

    def __init__(self, context: Context, table=None):
        Policy.__init__(self, context)
        table = table or default_table()
        self.follows_requests = True
        self.recency = Recency(context)
        self.state = PathState(context, table.bounds, self.recency)
        self.class_of_cell = np.array(table.class_of_cell, dtype=np.int32)
        self.level = np.array(table.levels, dtype=np.int32)
        self.age_bounds = np.array(table.ages_ms, dtype=np.float64)
        self.classes = len(table.levels)
        self.heaps = Heaps(context.blocks, self.classes)
        self.class_of = np.zeros(context.blocks, dtype=np.int32)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.level_now = np.full(self.classes, EMPTY, dtype=np.int32)
        self.until_ms = np.full(self.classes, NEVER)

    def request_started(self, row):
        return self.state.begin(row, self.context.now)

    def insert(self, block):
        self.class_of[block] = self.class_of_cell[self.state.use(block)]
        self.stamp[block] = self.recency.stamp(block)
        return 0

    def use(self, block):
        if self.heaps.holds(block):
            self.remove(block)
        return self.insert(block)

    def release(self, block):
        self.heaps.put(self.class_of[block], block, 0.0, self.stamp[block])
        if self.heaps.first(self.class_of[block]) == block:
            self._look_up(self.class_of[block])
        return 0

    def victim(self):
        one: cython.int
        best: cython.int = NONE
        for one in range(self.classes):
            if self.context.now >= self.until_ms[one]:
                self._look_up(one)
            if self.level_now[one] == EMPTY or (best >= 0 and self.level_now[one] > self.level_now[best]):
                continue
            if best < 0 or self.level_now[one] < self.level_now[best] or self._less_recent(one, best):
                best = one
        return self.heaps.first(best) if best >= 0 else NONE

    def remove(self, block):
        was_first: cython.bint = self.heaps.first(self.class_of[block]) == block
        self.heaps.drop(block)
        if was_first:
            self._look_up(self.class_of[block])
        return 0

    def _less_recent(self, one, other):
        """Whether the candidate of a class is less recent than that of another."""
        return self.stamp[self.heaps.first(one)] < self.stamp[self.heaps.first(other)]

    def _look_up(self, one):
        """Look up the level of a class's candidate, and the time until which it holds."""
        block: cython.int = self.heaps.first(one)
        if block < 0:
            self.level_now[one], self.until_ms[one] = EMPTY, NEVER
            return 0
        used_ms: cython.double = self.state.used_ms(block)
        age: cython.double = self.context.now - used_ms
        low: cython.int = 0  # bisection: the bucket is the number of bounds that are at most the age
        high: cython.int = cython.cast(cython.int, self.age_bounds.shape[0])
        while low < high:
            middle: cython.int = (low + high) // 2
            if self.age_bounds[middle] <= age:
                low = middle + 1
            else:
                high = middle
        self.level_now[one] = self.level[one, low]
        has_bound: cython.bint = low < self.age_bounds.shape[0]
        self.until_ms[one] = used_ms + self.age_bounds[low] if has_bound else NEVER
        return 0
