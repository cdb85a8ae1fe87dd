"""Priority: requests say how much their blocks are worth; the least priority goes first, then the least recent.

As TensorRT-LLM's retention priorities (LRUEvictionPolicy in its C++ batch manager): 0 to 100, and 35 for who says
nothing. A block takes the priority of the request that used it last. With a duration, a priority other than 35 falls
back to 35, up or down, once so much time has passed. There the time runs from the release, and what falls back is the
most recent of the 35s; here it runs from the arrival of the last request, and the order by last use stays.

The column `priority` of the trace has them; None and NaN are missing. Release changes nothing but who is evictable.
Equal priorities: the one whose last request is longer ago goes first, and of one request the deeper.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.cache.structures.heap import Heaps
from cython.cimports.kvtrace.cache.structures.recency import Recency

from kvtrace._base.errors import InputError, UsageError

UNSAID = cython.declare(cython.double, 35.0)


class Priority(Policy):
    """Least priority first, then least recent; `duration_ms` after its last use a block's priority is 35."""

    def __init__(self, context: Context, duration_ms=float("inf")):
        Policy.__init__(self, context)
        if not duration_ms >= 0:
            raise UsageError(f"{duration_ms} ms is not a duration. Try priority:10m.")
        self.recency, self.duration_ms = Recency(context), duration_ms
        self.asked = _asked(context.trace)
        self.priority, self.last_use = np.zeros(context.blocks), np.zeros(context.blocks)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.order, self.lasting = Heaps(context.blocks), Heaps(context.blocks)

    def insert(self, block):
        self.priority[block] = self.asked[self.context.request]
        self.last_use[block] = self.context.now
        self.stamp[block] = self.recency.stamp(block)
        return 0

    def use(self, block):
        self.remove(block)
        return self.insert(block)

    def release(self, block):
        if self.priority[block] != UNSAID:
            self.lasting.put(0, block, self.last_use[block] + self.duration_ms, block)
        return self.order.put(0, block, self.priority[block], self.stamp[block])

    def victim(self):
        block: cython.int = self.lasting.first(0)
        while block >= 0 and self.lasting.key[block] <= self.context.now:
            self.remove(block)
            self.priority[block] = UNSAID
            self.release(block)
            block = self.lasting.first(0)
        return self.order.first(0)

    def remove(self, block):
        if self.lasting.holds(block):
            self.lasting.drop(block)
        if self.order.holds(block):
            self.order.drop(block)
        return 0


def _asked(trace):
    """float64: request -> the priority that it asks for."""
    if "priority" not in trace.extra:
        raise InputError("the trace has no column priority, which the policy of that name goes by. Try lru.")
    asked = np.full(len(trace), UNSAID)
    for row, value in enumerate(trace.extra["priority"].tolist()):
        if value is None or value != value:  # NaN
            continue
        if isinstance(value, (str, bytes)) or not 0 <= value <= 100:
            raise InputError(f"row {row}: the priority is not a number from 0 to 100.")
        asked[row] = value
    return asked
