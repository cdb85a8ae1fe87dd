"""TTL: evicts blocks that were not used for a given time. Each use restarts the time.

Public APIs offer such lifetimes for cached prompts (5 minutes, 1 hour). The time of a use is the arrival of its
request. Before a request is matched, all evictable blocks whose last use is older than the limit are evicted: a gap
equal to the limit still hits. A pinned block stays resident; it can expire after its release. If the cache is full,
the block with the oldest last use is evicted.

`release` is not a use. Ties: the block that was released first, so with one request at a time and no limit TTL is LRU.
Leaf-first and flat pools evict in the same order.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.heap import Heaps

from kvtrace._base.errors import UsageError


class TTL(Policy):
    """Sliding time to live: a block expires `limit_ms` milliseconds after its last use."""

    def __init__(self, context: Context, limit_ms):
        Policy.__init__(self, context)
        if not limit_ms >= 0:
            raise UsageError(f"a time to live of {limit_ms} ms is not a duration. Try ttl:60s.")
        self.expires = True
        self.keeps_parents = True  # a request that uses a child uses its parent, and releases the parent later
        self.limit_ms = limit_ms
        self.heap = Heaps(context.blocks)
        self.last_use = np.zeros(context.blocks)
        self.releases = 0

    def insert(self, block):
        self.last_use[block] = self.context.now
        return 0

    def use(self, block):
        self.last_use[block] = self.context.now
        if self.heap.holds(block):
            self.heap.drop(block)
        return 0

    def release(self, block):
        self.releases += 1
        return self.heap.put(0, block, self.last_use[block], self.releases)

    def victim(self):
        return self.heap.first(0)

    def remove(self, block):
        return self.heap.drop(block)

    def expired(self):
        block: cython.int = self.heap.first(0)
        if block >= 0 and self.context.now - self.last_use[block] > self.limit_ms:
            return block
        return NONE
