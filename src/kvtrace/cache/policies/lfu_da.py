"""LFU with dynamic aging: LFU in which old counts lose weight over time.

Arlitt and others, "Evaluating content management techniques for Web proxy caches", 1999. A block's key is its number of
uses plus the current age. The age is the key of the last evicted block. The block with the least key is evicted. A
count starts at 1 when its block becomes resident, rises by 1 with each use, pinned or not, and ends with an eviction.

`release` sets the key, with the age at that time. With a leaf-first pool a parent is released when its last child is
evicted, so its key includes the age of that eviction: leaf-first and flat pools evict in different orders. Ties: the
block whose last request is older, then the block that was released first, which is the deeper one of a request.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.cache.structures.heap import Heaps

ROW = cython.declare(cython.longlong, 1 << 32)  # weight of a request in the tie-break, above any number of releases


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
        self.last[block] = self.context.order
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
