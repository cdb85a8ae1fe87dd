"""LFU: the block that was used least often goes first, among equals the one that was released longest ago.

An allocation counts as a use, and so does each request that wants the block while it is pinned. Counts survive pins;
after an eviction they start anew. One list a count, and bits that say which counts have one: each verb is O(1).
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.hierarchical_bitset import HierarchicalBitset


class LFU(Policy):
    """Least frequently used, then least recently."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        # A parent is used whenever its child is, so it counts no less; of equal counts the child was released first.
        self.keeps_parents = True
        self.state = np.zeros((context.blocks, 4), dtype=np.int32)
        self.oldest, self.newest, self.counts = _table(64)

    def insert(self, block):
        self.state[block, COUNT] = 1
        return 0

    def use(self, block):
        if self.state[block, LISTED]:
            self.remove(block)
        if self.state[block, COUNT] < MOST:
            self.state[block, COUNT] += 1
        return 0

    def release(self, block):
        count: cython.int = self.state[block, COUNT]
        if count >= self.newest.shape[0]:
            with cython.gil:
                self._grow(count)
        last: cython.int = self.newest[count]
        if last == NONE:
            self.oldest[count] = block
            self.counts.set(count)
        else:
            self.state[last, AFTER] = block
        self.newest[count] = block
        self.state[block, BEFORE] = last
        self.state[block, AFTER] = NONE
        self.state[block, LISTED] = 1
        return 0

    def victim(self):
        count: cython.int = self.counts.least()
        return NONE if count == NONE else self.oldest[count]

    def remove(self, block):
        count: cython.int = self.state[block, COUNT]
        before: cython.int = self.state[block, BEFORE]
        after: cython.int = self.state[block, AFTER]
        if before == NONE:
            self.oldest[count] = after
        else:
            self.state[before, AFTER] = after
        if after == NONE:
            self.newest[count] = before
        else:
            self.state[after, BEFORE] = before
        if before == after:  # neither is there
            self.counts.clear(count)
        self.state[block, LISTED] = 0
        return 0

    def likely_victim(self):
        left: cython.int = STEPS
        block: cython.int = self.victim()
        while left > 0 and block >= 0:
            block = self.state[block, AFTER]
            left -= 1
        if block >= 0:
            fetch(cython.address(self.state[block, 0]))
        return block

    def prefetch(self, far, near):
        beside: cython.int
        fetch(cython.address(self.state[far, 0]))
        if self.state[near, LISTED]:  # it will be taken out of its list: its neighbours change
            beside = self.state[near, BEFORE]
            if beside >= 0:
                fetch(cython.address(self.state[beside, 0]))
            beside = self.state[near, AFTER]
            if beside >= 0:
                fetch(cython.address(self.state[beside, 0]))
        return 0

    def _grow(self, count):
        oldest, newest, counts = _table(2 * count)
        size = len(self.oldest)
        oldest[:size], newest[:size] = self.oldest, self.newest
        listed: cython.Py_ssize_t
        for listed in np.flatnonzero(newest != NONE):
            cython.cast(HierarchicalBitset, counts).set(cython.cast(cython.int, listed))
        self.oldest, self.newest, self.counts = oldest, newest, counts


def _table(size):
    return np.full(size, NONE, dtype=np.int32), np.full(size, NONE, dtype=np.int32), HierarchicalBitset(size)
