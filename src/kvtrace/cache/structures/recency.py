"""When a block was last used, as one whole number: the later request is greater, and in a request the shallower block.

It is the order that plain LRU's releases have, for policies that must note it at `insert` and `use`: with the pool
leaf-first a block may be released long after its last use. It needs the trace, which says how deep a block is.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context

from kvtrace._base.errors import UsageError

ROW = cython.declare(cython.longlong, 1 << 32)  # what a later request adds, more than any depth takes off
DEEPEST = cython.declare(cython.longlong, (1 << 31) - 1)


class Recency:
    """Stamps for the blocks of the request that is being served."""

    def __init__(self, context: Context):
        self.context = context
        self.depth = depths(context)

    def stamp(self, block):
        """The stamp of a block that is used now; no two are alike, and the least recent is the least."""
        row: cython.longlong = self.context.request
        return row * ROW + (DEEPEST - self.depth[block])


def depths(context: Context):
    """int32: block -> the blocks before it; UsageError where there is no trace to look at."""
    demand = context.demand
    if demand is None:
        raise UsageError("this policy looks at a trace, and a live cache has none. Try lru, lfu, slru or ttl:60s.")
    depth = np.zeros(context.blocks, dtype=np.int32)
    path = np.diff(np.append(demand.start, len(demand.ids)))
    depth[demand.ids] = np.arange(len(demand.ids)) - np.repeat(demand.start, path)
    rows = np.repeat(np.arange(len(demand.full)), demand.grown)  # grown block -> its request
    fresh = np.arange(context.blocks - len(rows), context.blocks)
    depth[fresh] = demand.full[rows] + fresh - demand.fresh[rows]  # outputs continue their prompts
    return depth
