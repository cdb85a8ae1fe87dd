"""vLLM's block pool: one queue of free physical blocks, cached or not; allocation takes the block at its head.

The queue and the hashes are block_queue.py's. Twin: tests/reference/free_queue.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.block_queue import NOTHING, BlockQueue
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM, Engine
from cython.cimports.kvtrace.cache.policies.base import Context


class FreeQueue(Engine):
    """A cache of `context.capacity` physical blocks. The options are those of BlockQueue."""

    def __init__(self, context: Context, demand, unhashed_first=True, newest_copy=False):
        Engine.__init__(self, context, demand)
        blocks: cython.int = min(context.capacity, int(demand.max_blocks.sum()))  # more are never taken
        self.queue = BlockQueue(blocks, context.blocks, unhashed_first, newest_copy)
        self.held = np.empty(int(demand.max_blocks.sum()), dtype=np.int32)
        self.begin = np.empty(len(demand.full), dtype=np.int64)
        self.top = 0

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        return self.queue.self_check()

    def peek(self, row):
        hit: cython.int = 0
        start: cython.Py_ssize_t = self.start[row]
        while hit < self.limit[row] and self.queue.copy[self.ids[start + hit]] != NOTHING:
            hit += 1
        return hit

    def admit(self, row):
        i: cython.int
        physical: cython.int
        hit: cython.int = 0
        idle: cython.int = 0
        start: cython.Py_ssize_t = self.start[row]
        blocks: cython.int = self.full[row] + self.tail[row]
        while hit < self.limit[row]:  # match
            physical = self.queue.copy[self.ids[start + hit]]
            if physical == NOTHING:
                break
            idle += self.queue.pins[physical] == 0
            hit += 1
        if blocks - hit + idle > self.queue.free:  # idle hit blocks leave the queue too
            return NO_ROOM
        if self.live == 0:
            self.top = 0
        self.begin[row] = self.top
        for i in range(hit):  # pin
            physical = self.queue.copy[self.ids[start + i]]
            self.queue.pin(physical)
            self.held[self.top + i] = physical
        self.top += hit
        for i in range(hit, self.full[row]):  # allocate
            self.queue.register(self._take(), self.ids[start + i])
        if self.tail[row]:
            self._take()
        return hit

    def grow(self, row):
        k: cython.int
        blocks: cython.int = self.grown[row] + self.grown_tail[row]
        if blocks - self.tail[row] > self.queue.free:
            return NO_ROOM
        for k in range(blocks):
            if k >= self.tail[row]:
                self._take()
            if k < self.grown[row]:  # the first one may be the prompt's tail, which is full now
                self.queue.register(self.held[self.begin[row] + self.full[row] + k], self.fresh[row] + k)
        return 0

    def finish(self, row):
        k: cython.longlong
        blocks: cython.longlong = self.full[row]
        blocks += self.grown[row] + self.grown_tail[row] if self.grows else self.tail[row]
        for k in range(self.begin[row] + blocks - 1, self.begin[row] - 1, -1):  # tail first
            self.queue.unpin(self.held[k])
        self.evictions = self.queue.evictions
        return 0

    def _take(self):
        """Take a block for the current request."""
        physical: cython.int = self.queue.take()
        self.held[self.top] = physical
        self.top += 1
        return physical
