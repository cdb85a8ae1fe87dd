"""vLLM's block pool: one queue of free physical blocks, cached or not; allocation takes the block at its head.

A free cached block keeps its hash until it is taken. A block that is computed twice becomes a second copy under the
same hash. Two options choose which copy a later request finds, and where a freed block without a hash goes.
Twin: tests/reference/free_queue.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM, Engine
from cython.cimports.kvtrace.cache.policies.base import Context


class FreeQueue(Engine):
    """`context.capacity` physical blocks, all free at first; each holds a block of the trace, or one without a hash.

    With `unhashed_first`, a freed block without a hash goes to the head of the queue, else to its end like the others.
    With `newest_copy`, only the last registered copy is found; otherwise the first copy that is still cached.
    """

    def __init__(self, context: Context, demand, unhashed_first=True, newest_copy=False):
        Engine.__init__(self, context, demand)
        blocks: cython.int = min(context.capacity, int(demand.max_blocks.sum()))  # more are never taken
        self.capacity = self.free = blocks
        self.unhashed_first, self.newest_copy = unhashed_first, newest_copy
        self.next = np.arange(1, blocks + 2, dtype=np.int32)
        self.previous = np.arange(-1, blocks, dtype=np.int32)
        self.next[blocks], self.previous[0] = 0, blocks
        self.pins = np.zeros(blocks, dtype=np.int32)
        self.holds = np.full(blocks, NOTHING, dtype=np.int32)
        self.copy = np.full(context.blocks, NOTHING, dtype=np.int32)
        self.later, self.earlier = np.empty((2, blocks), dtype=np.int32)
        self.held = np.empty(int(demand.max_blocks.sum()), dtype=np.int32)
        self.begin = np.empty(len(demand.full), dtype=np.int64)
        self.top = 0

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        pins, holds, copy = np.asarray(self.pins), np.asarray(self.holds), np.asarray(self.copy)
        if pins.any():
            return f"{int((pins != 0).sum()):,} blocks are still pinned"
        queued = self._queued()
        if not queued == self.free == self.capacity:
            return f"{queued:,} of {self.capacity:,} blocks are free, {self.free:,} are counted as free"
        cached = np.flatnonzero(copy != NOTHING)
        if (holds[copy[cached]] != cached).any():
            return "a hash maps to a block that does not have it"
        if not self.newest_copy and len(cached) != len(np.unique(holds[holds != NOTHING])):
            return "a cached block is missing from the hash table"
        return None

    def peek(self, row):
        hit: cython.int = 0
        start: cython.Py_ssize_t = self.start[row]
        while hit < self.limit[row] and self.copy[self.ids[start + hit]] != NOTHING:
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
            physical = self.copy[self.ids[start + hit]]
            if physical == NOTHING:
                break
            idle += self.pins[physical] == 0
            hit += 1
        if blocks - hit + idle > self.free:  # idle hit blocks leave the queue too
            return NO_ROOM
        if self.live == 0:
            self.top = 0
        self.begin[row] = self.top
        for i in range(hit):  # pin
            physical = self.copy[self.ids[start + i]]
            if self.pins[physical] == 0:
                self._leave(physical)
            self.pins[physical] += 1
            self.held[self.top + i] = physical
        self.top += hit
        for i in range(hit, self.full[row]):  # allocate
            self._register(self._take(), self.ids[start + i])
        if self.tail[row]:
            self._take()
        return hit

    def grow(self, row):
        k: cython.int
        blocks: cython.int = self.grown[row] + self.grown_tail[row]
        if blocks - self.tail[row] > self.free:
            return NO_ROOM
        for k in range(blocks):
            if k >= self.tail[row]:
                self._take()
            if k < self.grown[row]:  # the first one may be the prompt's tail, which is full now
                self._register(self.held[self.begin[row] + self.full[row] + k], self.fresh[row] + k)
        return 0

    def finish(self, row):
        k: cython.longlong
        physical: cython.int
        blocks: cython.longlong = self.full[row]
        blocks += self.grown[row] + self.grown_tail[row] if self.grows else self.tail[row]
        for k in range(self.begin[row] + blocks - 1, self.begin[row] - 1, -1):  # tail first
            physical = self.held[k]
            self.pins[physical] -= 1
            if self.pins[physical] == 0:
                if self.unhashed_first and self.holds[physical] == NOTHING:
                    self._join(physical, self.next[self.capacity])
                else:
                    self._join(physical, self.capacity)
        return 0

    def _take(self):
        """Take the block at the queue's head for the current request and drop its cached content."""
        physical: cython.int = self.next[self.capacity]
        self._leave(physical)
        if self.holds[physical] != NOTHING:
            self._forget(physical)
            self.evictions += 1
        self.pins[physical] = 1
        self.held[self.top] = physical
        self.top += 1
        return physical

    def _leave(self, physical):
        self.next[self.previous[physical]] = self.next[physical]
        self.previous[self.next[physical]] = self.previous[physical]
        self.free -= 1
        return 0

    def _join(self, physical, follower):
        """Insert a block into the queue before `follower`, which may be the end of the queue."""
        self.next[physical] = follower
        self.previous[physical] = self.previous[follower]
        self.next[self.previous[follower]] = physical
        self.previous[follower] = physical
        self.free += 1
        return 0

    def _register(self, physical, block):
        """Register a physical block under the hash of a block of the trace, as its last copy."""
        first: cython.int = self.copy[block]
        self.holds[physical] = block
        if first == NOTHING or self.newest_copy:
            self.copy[block] = self.later[physical] = self.earlier[physical] = physical
        else:
            self.later[physical], self.earlier[physical] = first, self.earlier[first]
            self.later[self.earlier[first]] = physical
            self.earlier[first] = physical
        return 0

    def _forget(self, physical):
        """Remove a physical block's hash. If lookups found this copy, they now find the copy registered next."""
        block: cython.int = self.holds[physical]
        self.holds[physical] = NOTHING
        if self.copy[block] == physical:
            self.copy[block] = NOTHING if self.later[physical] == physical else self.later[physical]
        self.later[self.earlier[physical]] = self.later[physical]
        self.earlier[self.later[physical]] = self.earlier[physical]
        return 0

    def _queued(self):
        """Number of blocks in the queue, by walking it and checking the links in both directions."""
        count: cython.int = 0
        physical: cython.int = self.next[self.capacity]
        while physical != self.capacity and self.previous[self.next[physical]] == physical and count <= self.capacity:
            physical = self.next[physical]
            count += 1
        return count
