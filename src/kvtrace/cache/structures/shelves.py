"""Blocks on shelves: the least recent block of the shelves with the lowest rank comes first.

A shelf changes its rank in one step, however many blocks it has. With equal ranks the order is by recency alone.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE
from cython.cimports.kvtrace.cache.structures.heap import Heaps


class Shelves:
    """`shelves` shelves, numbered from 0, over blocks 0 ... blocks - 1. Each begins empty, with rank 1."""

    def __init__(self, blocks, shelves):
        self.blocks, self.order = Heaps(blocks, shelves), Heaps(shelves)
        self.rank = np.ones(shelves)

    def holds(self, block):
        """Whether a block is on any shelf."""
        return self.blocks.holds(block)

    def put(self, shelf, block, stamp):
        """Put a block that is on no shelf onto one; stamps are distinct, and lower ones are less recent."""
        self.blocks.put(shelf, block, 0.0, stamp)
        return self._reorder(shelf) if self.blocks.first(shelf) == block else 0

    def drop(self, block):
        """Take a block off its shelf."""
        shelf: cython.int = self.blocks.heap_of[block]
        was_first: cython.bint = self.blocks.first(shelf) == block
        self.blocks.drop(block)
        return self._reorder(shelf) if was_first else 0

    def move(self, block, shelf):
        """Move a block to another shelf; it keeps its stamp."""
        stamp: cython.longlong = self.blocks.tiebreak[block]
        if self.blocks.heap_of[block] == shelf:
            return 0
        self.drop(block)
        return self.put(shelf, block, stamp)

    def set_rank(self, shelf, rank):
        """Set the rank of a shelf."""
        if self.rank[shelf] == rank:
            return 0
        self.rank[shelf] = rank
        return self._reorder(shelf)

    def first(self):
        """The first block, or NONE."""
        shelf: cython.int = self.order.first(0)
        return self.blocks.first(shelf) if shelf >= 0 else NONE

    def _reorder(self, shelf):
        """Put a shelf where its rank and its least recent block belong."""
        block: cython.int = self.blocks.first(shelf)
        if self.order.holds(shelf):
            self.order.drop(shelf)
        if block < 0:
            return 0
        return self.order.put(0, shelf, self.rank[shelf], self.blocks.tiebreak[block])
