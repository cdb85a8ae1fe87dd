"""Heaps of blocks that know their least at once and let go of any of them: pairing heaps, in arrays that all share.

A block is in at most one of the heaps. They go by a key, equal keys by a whole number, and no two blocks should have
both alike. Putting in and looking take O(1), dropping O(log n) in the long run (Fredman and others, Algorithmica 1986).
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE


class Heaps:
    """So many heaps, numbered from 0, of blocks from 0 to blocks - 1; a block's key is known after it has left, too."""

    def __init__(self, blocks, heaps=1):
        self.key = np.zeros(blocks)
        self.then = np.zeros(blocks, dtype=np.int64)
        self.child = np.full(blocks, NONE, dtype=np.int32)  # block -> the newest of its children
        self.after = np.full(blocks, NONE, dtype=np.int32)  # block -> the sibling that is next older
        self.before = np.full(blocks, NONE, dtype=np.int32)  # block -> the next younger, for the youngest its parent
        self.root = np.full(heaps, NONE, dtype=np.int32)
        self.inside = np.full(blocks, NONE, dtype=np.int32)  # block -> the heap that it is in

    def put(self, heap, block, key, then):
        """Put in a block that is in no heap."""
        self.key[block], self.then[block] = key, then
        self.child[block] = self.after[block] = self.before[block] = NONE
        self.inside[block] = heap
        self.root[heap] = self._meld(self.root[heap], block)
        return 0

    def drop(self, block):
        """Take a block out of the heap that it is in, wherever it stands."""
        heap: cython.int = self.inside[block]
        before: cython.int = self.before[block]
        after: cython.int = self.after[block]
        orphans: cython.int = self._gather(self.child[block])
        self.inside[block] = NONE
        if before < 0:
            self.root[heap] = orphans
            return 0
        if self.child[before] == block:
            self.child[before] = after
        else:
            self.after[before] = after
        if after >= 0:
            self.before[after] = before
        self.root[heap] = self._meld(self.root[heap], orphans)
        return 0

    def holds(self, block):
        """Whether a block is in any of the heaps."""
        return self.inside[block] >= 0

    def first(self, heap):
        """The block with the least key, or NONE."""
        return self.root[heap]

    def _meld(self, one, other):
        """The greater of two roots becomes the newest child of the lesser, which is the answer."""
        swap: cython.int
        if one < 0 or other < 0:
            return other if one < 0 else one
        if self.key[other] < self.key[one] or (self.key[other] == self.key[one] and self.then[other] < self.then[one]):
            swap, one = one, other
            other = swap
        self.after[other] = self.child[one]
        if self.child[one] >= 0:
            self.before[self.child[one]] = other
        self.before[other] = one
        self.child[one] = other
        return one

    def _gather(self, first):
        """One root of a row of siblings: melded by twos from the youngest on, then the pairs from the last one back."""
        one: cython.int
        other: cython.int
        pairs: cython.int = NONE  # chained by `before`, the last one first
        while first >= 0:
            one = first
            other = self.after[one]
            first = self.after[other] if other >= 0 else NONE
            self.before[one] = self.after[one] = NONE
            if other >= 0:
                self.before[other] = self.after[other] = NONE
                one = self._meld(one, other)
            self.before[one] = pairs
            pairs = one
        one = NONE
        while pairs >= 0:
            other = pairs
            pairs = self.before[other]
            self.before[other] = NONE
            one = self._meld(one, other)
        return one
