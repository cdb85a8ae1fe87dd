"""2Q, full version (Johnson and Shasha, VLDB'94): a FIFO queue of new blocks, their ghosts, and an LRU main queue.

A new block joins A1in. A hit in A1in does not change the order, because uses close together are often correlated. If
A1in holds more than Kin blocks, its oldest block is evicted and leaves a ghost in A1out, which keeps the latest Kout
ghosts. A missed block with a ghost joins Am. If A1in holds at most Kin blocks, the least recent block of Am is evicted,
without a ghost. Kin is a quarter of the capacity and Kout half of it, as in the paper; the parameter sets Kin.

Pinned blocks count in A1in, and a hit on a pinned block of Am is a use. A block that is not evictable (pinned or,
leaf-first, with resident children) is skipped and keeps its place. If the chosen queue has no evictable block, the
other queue gives the victim. `release` does not change the order. Recency is the last use; among the blocks of one
request, the deepest is the least recent. A missed block's own ghost takes no room in A1out, as in libCacheSim. There
are no ties. A flat pool evicts the root of a prompt before its tail; compare a leaf-first pool.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.heap import Heaps
from cython.cimports.kvtrace.cache.structures.masked_fifo import MaskedFifo
from cython.cimports.kvtrace.cache.structures.queue import Queue, Slots
from cython.cimports.kvtrace.cache.structures.recency import Recency

from kvtrace._base.errors import UsageError


class TwoQ(Policy):
    """2Q; `arrivals_share` of the capacity, between 0 and 1, is for blocks that were used once."""

    def __init__(self, context: Context, arrivals_share=0.25):
        Policy.__init__(self, context)
        if not 0 <= arrivals_share <= 1:
            raise UsageError(f"2q:{arrivals_share:g} is not a share between 0 and 1. Try 2q:0.25.")
        slots = Slots(context.blocks)
        self.recency = Recency(context)
        self.arrivals, self.ghosts, self.main = MaskedFifo(slots, 0), Queue(slots, 1), Heaps(context.blocks)
        self.in_main = np.zeros(context.blocks, dtype=np.int8)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.arrivals_room = int(context.capacity * arrivals_share)
        self.ghost_room = int(context.capacity * 0.5)

    def insert(self, block):
        remembered: cython.bint = self.ghosts.holds(block)
        if remembered:
            self.ghosts.drop(block)
        while self.ghosts.size > self.ghost_room:
            self.ghosts.drop(self.ghosts.first())
        self.in_main[block] = remembered
        if not remembered:
            return self.arrivals.push(block)
        self.stamp[block] = self.recency.stamp(block)
        return 0

    def use(self, block):
        if not self.in_main[block]:
            return self.arrivals.forbid(block)
        self.stamp[block] = self.recency.stamp(block)
        if self.main.holds(block):
            self.main.drop(block)
        return 0

    def release(self, block):
        if self.in_main[block]:
            return self.main.put(0, block, 0.0, self.stamp[block])
        return self.arrivals.allow(block)

    def victim(self):
        arrival: cython.int = self.arrivals.first()
        least_recent: cython.int = self.main.first(0)
        if arrival != NONE and (least_recent == NONE or self.arrivals.size > self.arrivals_room):
            return arrival
        return least_recent

    def remove(self, block):
        if self.in_main[block]:
            return self.main.drop(block)
        self.arrivals.drop(block)
        return self.ghosts.push(block)
