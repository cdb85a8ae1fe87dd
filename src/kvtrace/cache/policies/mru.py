"""MRU: evicts the block that was released last.

A request releases its blocks tail first, so a flat pool evicts its root first, and its other blocks can no longer hit.
MRU suits cyclic access; LMCache and SGLang offer it. A pinned block is not in the list. Leaf-first, a parent is
released when its last child is evicted, and is the next victim. Two blocks never tie.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy


class MRU(Policy):
    """Most recently used."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.earlier, self.later = np.full((2, context.blocks), NONE, dtype=np.int32)
        self.listed = np.zeros(context.blocks, dtype=np.int8)
        self.last = NONE

    def insert(self, block):
        return 0  # a pinned block is not in the list

    def use(self, block):
        return self.remove(block) if self.listed[block] else 0

    def release(self, block):
        self.listed[block] = 1
        self.earlier[block], self.later[block] = self.last, NONE
        if self.last >= 0:
            self.later[self.last] = block
        self.last = block
        return 0

    def victim(self):
        return self.last

    def remove(self, block):
        before: cython.int = self.earlier[block]
        after: cython.int = self.later[block]
        if before >= 0:
            self.later[before] = after
        if after >= 0:
            self.earlier[after] = before
        else:
            self.last = before
        self.listed[block] = 0
        return 0
