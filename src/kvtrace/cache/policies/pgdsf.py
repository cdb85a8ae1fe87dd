"""PGDSF, prefix-aware greedy dual size frequency: keeps blocks that are expensive to recompute and often used.

Jin and others, "RAGCache", arXiv 2404.12457: priority = clock + frequency x cost / size, least first. The cost is the
cost of computing the block when all blocks before it are cached. The size is the block size, equal for all blocks. The
prefill of the tokens from p to n takes about 2 A (n - p) + 2 L W (n^2 - p^2) FLOPs (A active parameters, L layers of
attention of width W = heads x head_dim), so a block of B tokens that begins at token p costs, per token,

    2 A (1 + (p + B / 2) / E),    E = A / (2 L W): the position where attention costs as much as all other layers.

E is the parameter, in tokens; 30,000 fits an 8B model (8.03e9 / (2 x 32 x 4,096) = 30,632). Costs are in units of
A / E, so all values are integers: cost = 2 E + 2 p + B. The clock is the greatest priority evicted so far. The
frequency counts uses since the block became resident, including the first. RAGCache measures the time of whole
documents, averages it over the requests that computed them, and counts frequency in a window. This formula needs no
measurement and no window.

`insert` and `use` set the priority, also of pinned blocks; `release` only makes a block evictable. Ties: the block
whose last request is older, then the deeper block. A deep block costs more than its parent, so a flat pool may evict a
parent first. A leaf-first pool, as in the paper, never does.
"""

import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.cache.structures.heap import Heaps
from cython.cimports.kvtrace.cache.structures.recency import Recency

from kvtrace._base.errors import UsageError


class PGDSF(Policy):
    """Least clock + frequency x cost first; at position `even_tokens` attention costs as much as all other layers."""

    def __init__(self, context: Context, even_tokens=30_000):
        Policy.__init__(self, context)
        if not even_tokens >= 1:
            raise UsageError(f"the parameter of pgdsf must be at least 1, not {even_tokens}. Try pgdsf:30000.")
        self.recency, self.heap = Recency(context), Heaps(context.blocks)
        size = context.trace.block_size
        self.cost = 2.0 * int(even_tokens) + 2.0 * size * np.asarray(self.recency.depth) + size
        self.frequency = np.zeros(context.blocks, dtype=np.int32)
        self.priority = np.zeros(context.blocks)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.clock = 0.0

    def insert(self, block):
        self.frequency[block] = 0
        return self.use(block)

    def use(self, block):
        self.frequency[block] += 1
        self.priority[block] = self.clock + self.frequency[block] * self.cost[block]
        self.stamp[block] = self.recency.stamp(block)
        if self.heap.holds(block):
            self.heap.drop(block)
        return 0

    def release(self, block):
        return self.heap.put(0, block, self.priority[block], self.stamp[block])

    def victim(self):
        return self.heap.first(0)

    def remove(self, block):
        self.clock = max(self.clock, self.priority[block])
        return self.heap.drop(block)
