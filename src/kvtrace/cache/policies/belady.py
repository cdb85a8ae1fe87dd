"""Belady: the block whose next use is farthest away goes first; no policy hits more. It looks ahead, so it is a bound.

Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966. A block's
next use is the next request whose path holds it. Of the blocks that one request will use next the deepest goes first:
it hits only if those before it do. That is an optimum for prefixes as well, where requests come one at a time and the
capacity counts idle blocks alone (`--capacity-counts idle`): then what was just used need not be kept.

Release puts a block into the queue of its next use. In a queue the deeper block always came first, since a parent is
used whenever its child is, and released after it; so the oldest of the last queue that is not empty is the victim, and
each verb takes O(1). Blocks that are never used again are in the very last queue, oldest first.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.hierarchical_bitset import HierarchicalBitset

from kvtrace.cache.structures.recency import depths


class Belady(Policy):
    """Farthest next use first."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        # a parent's next use is no later than its child's; where it is the same it joined the queue after it
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
        if self.before[block] >= 0 or self.oldest[self.due[block]] == block:  # it is in its queue
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
        due: cython.int = self.filled.greatest()
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
    """int32: where a block stands in a path -> the next request whose path holds it, or the number of requests."""
    row: cython.Py_ssize_t
    at: cython.Py_ssize_t
    found = np.full(len(ids), len(full), dtype=np.int32)
    wanted = np.full(blocks, len(full), dtype=np.int32)  # block -> the request after which we are, going backwards
    next_use: cython.int[::1] = found
    next_row: cython.int[::1] = wanted
    with cython.nogil:
        for row in range(full.shape[0] - 1, -1, -1):
            for at in range(start[row], start[row] + full[row]):
                next_use[at] = next_row[ids[at]]
                next_row[ids[at]] = cython.cast(cython.int, row)
    return found
