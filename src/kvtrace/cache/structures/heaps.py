"""Heaps of blocks with removal of any block, and the recency of a block's last use as one integer."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context

from kvtrace._base.errors import UsageError


class Heaps:
    """Pairing heaps of blocks with removal of any block, in shared arrays.

    A block is in at most one of the heaps. The order is by a key and then by an integer tie-break; no two blocks should
    have equal pairs. `put` and `first` take O(1), `drop` takes amortized O(log n) (Fredman and others, Algorithmica
    1986).
    """

    def __init__(self, blocks, heaps=1):
        self.key = np.zeros(blocks)
        self.tiebreak = np.zeros(blocks, dtype=np.int64)
        self.child = np.full(blocks, NONE, dtype=np.int32)  # block -> its newest child
        self.after = np.full(blocks, NONE, dtype=np.int32)  # block -> its next older sibling
        self.before = np.full(blocks, NONE, dtype=np.int32)  # block -> its next newer sibling; newest: its parent
        self.root = np.full(heaps, NONE, dtype=np.int32)
        self.heap_of = np.full(blocks, NONE, dtype=np.int32)  # block -> the heap that contains it

    def put(self, heap, block, key, tiebreak):
        """Add a block that is in no heap."""
        self.key[block], self.tiebreak[block] = key, tiebreak
        self.child[block] = self.after[block] = self.before[block] = NONE
        self.heap_of[block] = heap
        self.root[heap] = self._meld(self.root[heap], block)
        return 0

    def drop(self, block):
        """Remove a block from its heap, at any position."""
        heap: cython.int = self.heap_of[block]
        before: cython.int = self.before[block]
        after: cython.int = self.after[block]
        orphans: cython.int = self._gather(self.child[block])
        self.heap_of[block] = NONE
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
        """Whether a block is in any heap."""
        return self.heap_of[block] >= 0

    def first(self, heap):
        """The block with the least key, or NONE."""
        return self.root[heap]

    def _meld(self, root, other):
        """Make the greater of two roots the newest child of the lesser one; returns the lesser root."""
        swap: cython.int
        if root < 0 or other < 0:
            return other if root < 0 else root
        if self.key[other] < self.key[root] or (
            self.key[other] == self.key[root] and self.tiebreak[other] < self.tiebreak[root]
        ):
            swap, root = root, other
            other = swap
        self.after[other] = self.child[root]
        if self.child[root] >= 0:
            self.before[self.child[root]] = other
        self.before[other] = root
        self.child[root] = other
        return root

    def _gather(self, first):
        """Meld a list of siblings into one root: first in pairs from the newest, then the pairs from the last one."""
        root: cython.int
        other: cython.int
        pairs: cython.int = NONE  # the melded pairs, linked by `before`, the last pair first
        while first >= 0:
            root = first
            other = self.after[root]
            first = self.after[other] if other >= 0 else NONE
            self.before[root] = self.after[root] = NONE
            if other >= 0:
                self.before[other] = self.after[other] = NONE
                root = self._meld(root, other)
            self.before[root] = pairs
            pairs = root
        root = NONE
        while pairs >= 0:
            other = pairs
            pairs = self.before[other]
            self.before[other] = NONE
            root = self._meld(root, other)
        return root


ROW = cython.declare(cython.longlong, 1 << 32)  # weight of a request, above any depth
DEEPEST = cython.declare(cython.longlong, (1 << 31) - 1)


class Recency:
    """Recency of a block's last use, as one integer: later requests are greater; in one request, shallower blocks are.

    This is the order of LRU's releases, for policies that record it at `insert` and `use`: with a leaf-first pool a
    block may be released long after its last use. It needs the trace for the depth of each block.
    """

    def __init__(self, context: Context):
        self.context = context
        self.depth = depths(context)

    def stamp(self, block):
        """The stamp of a block that is used now. Stamps are distinct; the least recent block has the least stamp."""
        order: cython.longlong = self.context.order
        return order * ROW + (DEEPEST - self.depth[block])


def depths(context: Context):
    """int32: block -> number of blocks before it. Raises UsageError without a trace."""
    demand = context.demand
    if demand is None:
        raise UsageError("this policy needs a trace, which a live cache does not have. Try lru, lfu, slru or ttl:60s.")
    depth = np.zeros(context.blocks, dtype=np.int32)
    path = np.diff(np.append(demand.start, len(demand.ids)))
    depth[demand.ids] = np.arange(len(demand.ids)) - np.repeat(demand.start, path)
    rows = np.repeat(np.arange(len(demand.full)), demand.grown)  # grown block -> its request
    fresh = np.arange(context.blocks - len(rows), context.blocks)
    depth[fresh] = demand.full[rows] + fresh - demand.fresh[rows]  # outputs continue their prompts
    return depth
