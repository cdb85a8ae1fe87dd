"""The pool of blocks under several cache groups: blocks without content are counted, cached ones stand in a list.

vLLM's queue of free blocks holds those without a hash first, then cached ones by their last use. Which block without
a hash is taken changes nothing, so a number is enough for them; only cached blocks have a place in the list.
"""

import cython
import numpy as np


class BlockPool:
    """`capacity` free blocks at first. Cached content has a key below `keys`; a key can have several copies."""

    def __init__(self, capacity, keys):
        self.capacity = self.free = self.blank = capacity
        self.end = capacity
        self.evictions = 0
        self.next, self.previous = np.full((2, capacity + 1), capacity, dtype=np.int32)
        self.pins = np.zeros(capacity, dtype=np.int32)
        self.key, self.later, self.earlier = np.full((3, capacity), NO_COPY, dtype=np.int32)
        self.copy = np.full(keys, NO_COPY, dtype=np.int32)
        self.spare = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self.spares = capacity

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        idle, cached = 0, self.next[self.end]
        while cached != self.end and self.previous[self.next[cached]] == cached and idle <= self.capacity:
            idle += 1
            cached = self.next[cached]
        if np.asarray(self.pins).any():
            return f"{int((np.asarray(self.pins) != 0).sum()):,} blocks are still pinned"
        if not idle + self.blank == self.free == self.capacity or idle + self.spares != self.capacity:
            return f"{idle:,} blocks are cached and {self.blank:,} blank, {self.free:,} of {self.capacity:,} are free"
        return None

    def take(self, count):
        """Take free blocks, the blank ones first; cached ones lose their content, the least recently used first."""
        blank: cython.longlong = min(count, self.blank)
        cached: cython.int
        self.free -= count
        self.blank -= blank
        count -= blank
        while count > 0:
            cached = self.next[self.end]
            self._leave(cached)
            self._forget(cached)
            self.spare[self.spares] = cached
            self.spares += 1
            self.evictions += 1
            count -= 1
        return 0

    def put_back(self, count):
        """Free blocks whose content cannot be found."""
        self.free += count
        self.blank += count
        return 0

    def register(self, key):
        """Make the content of a taken block known under a key; returns the cached block, which stays pinned."""
        first: cython.int = self.copy[key]
        cached: cython.int
        self.spares -= 1
        cached = self.spare[self.spares]
        self.pins[cached] = 1
        self.key[cached] = key
        if first == NO_COPY:
            self.copy[key] = self.later[cached] = self.earlier[cached] = cached
        else:
            self.later[cached], self.earlier[cached] = first, self.earlier[first]
            self.later[self.earlier[first]] = cached
            self.earlier[first] = cached
        return cached

    def pin(self, cached):
        """Pin a cached block for one more request."""
        if self.pins[cached] == 0:
            self._leave(cached)
            self.free -= 1
        self.pins[cached] += 1
        return 0

    def unpin(self, cached):
        """Unpin a cached block; it becomes the last to evict if no request holds it."""
        self.pins[cached] -= 1
        if self.pins[cached] == 0:
            self.free += 1
            self.next[cached] = self.end
            self.previous[cached] = self.previous[self.end]
            self.next[self.previous[self.end]] = cached
            self.previous[self.end] = cached
        return 0

    def _leave(self, cached):
        self.next[self.previous[cached]] = self.next[cached]
        self.previous[self.next[cached]] = self.previous[cached]
        return 0

    def _forget(self, cached):
        """Remove the key of a cached block. If lookups found this copy, they now find the copy registered next."""
        key: cython.int = self.key[cached]
        if self.copy[key] == cached:
            self.copy[key] = NO_COPY if self.later[cached] == cached else self.later[cached]
        self.later[self.earlier[cached]] = self.later[cached]
        self.earlier[self.later[cached]] = self.earlier[cached]
        return 0
