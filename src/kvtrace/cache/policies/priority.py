"""Priority: evicts the block with the lowest request priority. Ties: the least recently used block.

Follows TensorRT-LLM's retention priorities (LRUEvictionPolicy in its C++ batch manager): 0 to 100, default 35. A block
has the priority of the last request that used it. With a duration, a priority other than 35 returns to 35, up or down,
after that time. In TensorRT-LLM the time starts at the release, and the block then counts as the most recent of all
blocks with priority 35. Here the time starts at the arrival of the last request, and the block keeps its recency.

The trace's column `priority` holds the priorities; None and NaN mean missing. `insert` and `use` set a block's
priority, also while it is pinned; `release` only makes it evictable, leaf-first or flat. Ties: the block whose last
request is older, then the deeper block.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.cache.structures.heap import Heaps
from cython.cimports.kvtrace.cache.structures.recency import Recency

from kvtrace._base.errors import InputError, UsageError

DEFAULT = cython.declare(cython.double, 35.0)


class Priority(Policy):
    """Lowest priority first, then least recent; `duration_ms` after its last use, a block's priority is 35."""

    def __init__(self, context: Context, duration_ms=float("inf")):
        Policy.__init__(self, context)
        if not duration_ms >= 0:
            raise UsageError(f"{duration_ms} ms is not a duration. Try priority:10m.")
        self.recency, self.duration_ms = Recency(context), duration_ms
        self.request_priority = request_priorities(context.trace)
        self.priority, self.last_use = np.zeros(context.blocks), np.zeros(context.blocks)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.order, self.expiring = Heaps(context.blocks), Heaps(context.blocks)

    def insert(self, block):
        self.priority[block] = self.request_priority[self.context.request]
        self.last_use[block] = self.context.now
        self.stamp[block] = self.recency.stamp(block)
        return 0

    def use(self, block):
        self.remove(block)
        return self.insert(block)

    def release(self, block):
        if self.priority[block] != DEFAULT:
            self.expiring.put(0, block, self.last_use[block] + self.duration_ms, block)
        return self.order.put(0, block, self.priority[block], self.stamp[block])

    def victim(self):
        block: cython.int = self.expiring.first(0)
        while block >= 0 and self.expiring.key[block] <= self.context.now:
            self.remove(block)
            self.priority[block] = DEFAULT
            self.release(block)
            block = self.expiring.first(0)
        return self.order.first(0)

    def remove(self, block):
        if self.expiring.holds(block):
            self.expiring.drop(block)
        if self.order.holds(block):
            self.order.drop(block)
        return 0


def request_priorities(trace):
    """float64: request -> its priority."""
    if "priority" not in trace.extra:
        raise InputError("the policy priority needs a trace with the column priority. Try lru.")
    priorities = np.full(len(trace), DEFAULT)
    for row, value in enumerate(trace.extra["priority"].tolist()):
        if value is None or value != value:  # NaN
            continue
        if isinstance(value, (str, bytes)) or not 0 <= value <= 100:
            raise InputError(f"row {row}: the priority is not a number from 0 to 100.")
        priorities[row] = value
    return priorities
