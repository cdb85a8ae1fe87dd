"""LFU with dynamic aging: the least count goes first, and what comes later starts higher, so that old fame fades.

Arlitt and others, "Evaluating content management techniques for Web proxy caches", 1999. A block's key is its count of
uses + an age, and the age is the key of the block that was evicted last. A count begins at 1 when a block becomes
resident, goes up by 1 with each use, pinned or not, and is forgotten when it is evicted.

Release gives a block its key, with the age of that moment. So with the pool leaf-first a block that becomes evictable
when its last child is evicted starts from there and outlives what hung on it by a while: leaf-first and flat differ.
Equal keys: the one whose last request is longer ago goes first, and of one request the one released first, the deeper.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.cache.structures.heap import Heaps

ROW = cython.declare(cython.longlong, 1 << 32)  # what a later request adds, more than any number of its releases


class LFUDA(Policy):
    """Least frequently used, with dynamic aging."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.heap = Heaps(context.blocks)
        self.count = np.zeros(context.blocks, dtype=np.int32)
        self.last = np.zeros(context.blocks, dtype=np.int64)
        self.age, self.releases = 0.0, 0

    def insert(self, block):
        self.count[block] = 0
        return self.use(block)

    def use(self, block):
        self.count[block] += 1
        self.last[block] = self.context.request
        if self.heap.holds(block):
            self.heap.drop(block)
        return 0

    def release(self, block):
        self.releases += 1
        return self.heap.put(0, block, self.count[block] + self.age, self.last[block] * ROW + self.releases % ROW)

    def victim(self):
        return self.heap.first(0)

    def remove(self, block):
        self.age = self.heap.key[block]
        return self.heap.drop(block)
