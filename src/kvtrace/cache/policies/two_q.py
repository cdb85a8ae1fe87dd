"""2Q, full version (Johnson and Shasha, VLDB'94): a FIFO of arrivals, ghosts of what left it, and an LRU main queue.

A new block joins A1in; a hit in A1in changes nothing, because uses close together say little. While A1in holds more
than Kin blocks its oldest goes first and leaves a ghost in A1out, which remembers the latest Kout. A block that is
wanted again while its ghost is remembered joins Am; Am's least recent goes while A1in holds Kin blocks or fewer, and
leaves no ghost. Kin is a quarter of the capacity and Kout half of it, as the paper advises; Kin is the parameter.

Pinned blocks count in A1in, and a hit on a pinned block of Am counts as a use. A block that must stay, pinned or
(leaf-first) a parent, is passed over and keeps its place; if the queue whose turn it is has no other, the other queue
gives up a block. Release changes nothing in the order. Recent is the last use, and of the blocks of one request the
deepest is the least recent. The ghost of the wanted block is not in the way of others, as in libCacheSim. There are no
ties. In a flat pool the root of a prompt goes before its tail: leaf-first is the better pool.
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
    """2Q; `arrivals_share` of the capacity, between 0 and 1, is for blocks that were wanted once."""

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
