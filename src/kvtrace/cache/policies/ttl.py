"""TTL: a block goes when it was not used for longer than a limit, and each use starts the time anew.

Public APIs promise cached prompts a life like this (5 minutes, 1 hour). A use is the arrival of the request that wants
the block. Before a request is matched, all evictable blocks are gone whose last use is more than the limit ago: a gap
equal to the limit still hits. A pinned block stays, and goes when it is released if its time is over. Where the
capacity binds as well, the least recent use goes first.

Release does not count as a use. Equal times: the one released longer ago goes first, so with one request at a time and
no limit it is LRU.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.heap import Heaps

from kvtrace._base.errors import UsageError


class TTL(Policy):
    """Sliding time to live: so many milliseconds since the last use."""

    def __init__(self, context: Context, limit_ms):
        Policy.__init__(self, context)
        if not limit_ms >= 0:
            raise UsageError(f"a time to live of {limit_ms} ms is not a duration. Try ttl:60s.")
        self.expires = True
        self.keeps_parents = True  # a parent is used and released no earlier than its child
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
