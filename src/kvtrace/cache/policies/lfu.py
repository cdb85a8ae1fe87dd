"""LFU: evicts the least frequently used block. Ties: the block that was released first.

An allocation counts as a use, and so does each request that uses the block, also while it is pinned. A count is kept
while its block is resident and restarts after an eviction. Pinned blocks are in no list. There is one list per count
and a bitset of non-empty lists, so each verb takes O(1). Leaf-first and flat pools evict in the same order.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.hierarchical_bitset import HierarchicalBitset


class LFU(Policy):
    """Least frequently used, ties by least recent release."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        # a request that uses a child uses its parent, so the parent's count is at least as high; if both counts are
        # equal, the child was released first
        self.keeps_parents = True
        self.state = np.zeros((context.blocks, 4), dtype=np.int32)
        self.oldest, self.newest, self.counts = _table(64)

    def insert(self, block):
        self.state[block, COUNT] = 1
        return 0

    def use(self, block):
        if self.state[block, LISTED]:
            self.remove(block)
        if self.state[block, COUNT] < MAX_COUNT:
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
        count: cython.int = self.counts.first()
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
        if before == after:  # both are NONE: the list is empty now
            self.counts.clear(count)
        self.state[block, LISTED] = 0
        return 0

    def likely_victim(self):
        steps: cython.int = STEPS
        block: cython.int = self.victim()
        while steps > 0 and block >= 0:
            block = self.state[block, AFTER]
            steps -= 1
        if block >= 0:
            fetch(cython.address(self.state[block, 0]))
        return block

    def prefetch(self, far, near):
        neighbour: cython.int
        fetch(cython.address(self.state[far, 0]))
        if self.state[near, LISTED]:  # `use` will unlink the block, which writes to its neighbours
            neighbour = self.state[near, BEFORE]
            if neighbour >= 0:
                fetch(cython.address(self.state[neighbour, 0]))
            neighbour = self.state[near, AFTER]
            if neighbour >= 0:
                fetch(cython.address(self.state[neighbour, 0]))
        return 0

    def _grow(self, count):
        oldest, newest, counts = _table(2 * count)
        size = len(self.oldest)
        oldest[:size], newest[:size] = self.oldest, self.newest
        filled: cython.Py_ssize_t
        for filled in np.flatnonzero(newest != NONE):
            cython.cast(HierarchicalBitset, counts).set(cython.cast(cython.int, filled))
        self.oldest, self.newest, self.counts = oldest, newest, counts


def _table(size):
    return np.full(size, NONE, dtype=np.int32), np.full(size, NONE, dtype=np.int32), HierarchicalBitset(size)
