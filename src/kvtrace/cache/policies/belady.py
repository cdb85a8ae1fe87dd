"""Belady's MIN: evicts the block with the farthest next use. It looks ahead, so it is an upper bound on hits.

Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966. A block's
next use is the next request whose path contains it. Among blocks with the same next use, the deepest is evicted first,
because it can hit only if all blocks before it hit. This is optimal for prefixes too, if requests run one at a time
and the capacity counts idle blocks only (`--capacity-counts idle`): then the last used blocks need not be kept.

A pinned block is in no queue. `release` puts a block into the queue of its next use. Within a queue, deeper blocks are
older, because a request that uses a block also uses its parent and releases it later. The victim is therefore the
oldest block of the last non-empty queue, in O(1). Blocks without a next use are in the very last queue, oldest first.
Leaf-first pools evict in the same order, because no parent is evicted before its child.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.hierarchical_bitset import HierarchicalBitset

from kvtrace.cache.structures.recency import depths


class Belady(Policy):
    """Evicts the block with the farthest next use."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        # a parent's next use is no later than its child's; if both are equal, the parent joined the queue later
        self.keeps_parents = True
        self.depth = depths(context)
        demand, rows = context.demand, len(context.demand.full)
        self.start = np.array(demand.start, dtype=np.int64)
        self.ids = context.blocks - int(demand.grown.sum())
        self.next_use = next_uses(demand.ids, demand.start, demand.full, context.blocks)
        self.due = np.full(context.blocks, NONE, dtype=np.int32)
        self.oldest, self.newest = np.full(rows + 1, NONE, dtype=np.int32), np.full(rows + 1, NONE, dtype=np.int32)
        self.after, self.before = (np.full(context.blocks, NONE, dtype=np.int32) for _ in range(2))
        self.filled = HierarchicalBitset(rows + 1)

    def insert(self, block):
        if block < self.ids:
            self.due[block] = self.next_use[self.start[self.context.request] + self.depth[block]]
        else:
            self.due[block] = cython.cast(cython.int, self.oldest.shape[0] - 1)
        return 0

    def use(self, block):
        if self.before[block] >= 0 or self.oldest[self.due[block]] == block:  # the block is in a queue
            self.remove(block)
        return self.insert(block)

    def release(self, block):
        due: cython.int = self.due[block]
        last: cython.int = self.newest[due]
        self.before[block], self.after[block] = last, NONE
        self.newest[due] = block
        if last >= 0:
            self.after[last] = block
            return 0
        self.oldest[due] = block
        return self.filled.set(due)

    def victim(self):
        due: cython.int = self.filled.last()
        return self.oldest[due] if due >= 0 else NONE

    def remove(self, block):
        due: cython.int = self.due[block]
        before: cython.int = self.before[block]
        after: cython.int = self.after[block]
        self.before[block] = self.after[block] = NONE
        if before >= 0:
            self.after[before] = after
        else:
            self.oldest[due] = after
        if after >= 0:
            self.before[after] = before
        else:
            self.newest[due] = before
        if before < 0 and after < 0:
            self.filled.clear(due)
        return 0


def next_uses(ids: cython.const[cython.int][::1], start: cython.const[cython.longlong][::1],
              full: cython.const[cython.int][::1], blocks: cython.Py_ssize_t):  # fmt: skip
    """int32: position in `ids` -> the next request whose path contains that block, or the number of requests."""
    row: cython.Py_ssize_t
    position: cython.Py_ssize_t
    uses = np.full(len(ids), len(full), dtype=np.int32)
    first_use = np.full(blocks, len(full), dtype=np.int32)  # block -> its first use after the current row
    next_use: cython.int[::1] = uses
    next_row: cython.int[::1] = first_use
    with cython.nogil:
        for row in range(full.shape[0] - 1, -1, -1):
            for position in range(start[row], start[row] + full[row]):
                next_use[position] = next_row[ids[position]]
                next_row[ids[position]] = cython.cast(cython.int, row)
    return uses
