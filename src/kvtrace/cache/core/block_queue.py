"""vLLM's queue of physical blocks: free ones in the order in which they are taken, and the hashes that they keep.

A free cached block keeps its hash until it is taken. A block that is computed twice becomes a second copy under the
same hash. Two options choose which copy a later request finds, and where a freed block without a hash goes.
"""

import cython
import numpy as np


class BlockQueue:
    """`capacity` physical blocks, all free at first; each holds a block of the trace, or one without a hash.

    `blocks` is the number of blocks of the trace. With `unhashed_first`, a freed block without a hash goes to the head
    of the queue, else to its end like the others. With `newest_copy`, only the last registered copy is found; otherwise
    the first copy that is still cached.
    """

    def __init__(self, capacity: cython.int, blocks, unhashed_first=True, newest_copy=False):
        self.capacity = self.free = capacity
        self.unhashed_first, self.newest_copy = unhashed_first, newest_copy
        self.evictions = 0
        self.next = np.arange(1, capacity + 2, dtype=np.int32)
        self.previous = np.arange(-1, capacity, dtype=np.int32)
        self.next[capacity], self.previous[0] = 0, capacity
        self.pins = np.zeros(capacity, dtype=np.int32)
        self.holds = np.full(capacity, NOTHING, dtype=np.int32)
        self.copy = np.full(blocks, NOTHING, dtype=np.int32)
        self.later, self.earlier = np.empty((2, capacity), dtype=np.int32)
        self.step, self.changed = 1, np.empty(0, dtype=np.int32)

    def watch(self):
        """Remember from now on which blocks were cached before the present step."""
        self.changed = np.zeros(len(self.copy), dtype=np.int32)

    def was_cached(self, block):
        """Whether a block of the trace was cached before the present step. Needs `watch`."""
        if self.changed[block] == self.step:
            return True
        return self.changed[block] != -self.step and self.copy[block] != NOTHING

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

    def take(self):
        """Take the block at the queue's head, pinned, and drop its cached content."""
        physical: cython.int = self.next[self.capacity]
        self._leave(physical)
        if self.holds[physical] != NOTHING:
            self._forget(physical)
            self.evictions += 1
        self.pins[physical] = 1
        return physical

    def pin(self, physical):
        """Pin a cached block for one more request."""
        if self.pins[physical] == 0:
            self._leave(physical)
        self.pins[physical] += 1
        return 0

    def unpin(self, physical):
        """Unpin a block; it joins the queue if no request holds it."""
        self.pins[physical] -= 1
        if self.pins[physical] == 0:
            if self.unhashed_first and self.holds[physical] == NOTHING:
                self._join(physical, self.next[self.capacity])
            else:
                self._join(physical, self.capacity)
        return 0

    def register(self, physical, block):
        """Register a physical block under the hash of a block of the trace, as its last copy."""
        first: cython.int = self.copy[block]
        self.holds[physical] = block
        if first == NOTHING:
            self._note(block, False)
        if first == NOTHING or self.newest_copy:
            self.copy[block] = self.later[physical] = self.earlier[physical] = physical
        else:
            self.later[physical], self.earlier[physical] = first, self.earlier[first]
            self.later[self.earlier[first]] = physical
            self.earlier[first] = physical
        return 0

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

    def _forget(self, physical):
        """Remove a physical block's hash. If lookups found this copy, they now find the copy registered next."""
        block: cython.int = self.holds[physical]
        self.holds[physical] = NOTHING
        if self.copy[block] == physical:
            self.copy[block] = NOTHING if self.later[physical] == physical else self.later[physical]
            if self.copy[block] == NOTHING:
                self._note(block, True)
        self.later[self.earlier[physical]] = self.later[physical]
        self.earlier[self.later[physical]] = self.earlier[physical]
        return 0

    def _note(self, block, was_cached):
        """Note the first change of a block in a step."""
        if self.changed.shape[0] and abs(self.changed[block]) != self.step:
            self.changed[block] = self.step if was_cached else -self.step
        return 0

    def _queued(self):
        """Number of blocks in the queue, by walking it and checking the links in both directions."""
        count: cython.int = 0
        physical: cython.int = self.next[self.capacity]
        while physical != self.capacity and self.previous[self.next[physical]] == physical and count <= self.capacity:
            physical = self.next[physical]
            count += 1
        return count
