"""Recency of a block's last use, as one integer: later requests are greater; in one request, shallower blocks are.

This is the order of LRU's releases, for policies that record it at `insert` and `use`: with a leaf-first pool a block
may be released long after its last use. It needs the trace for the depth of each block.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context

from kvtrace._base.errors import UsageError

ROW = cython.declare(cython.longlong, 1 << 32)  # weight of a request, above any depth
DEEPEST = cython.declare(cython.longlong, (1 << 31) - 1)


class Recency:
    """Stamps for the blocks of the current request."""

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
