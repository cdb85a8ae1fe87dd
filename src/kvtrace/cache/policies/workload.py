"""Workload-aware: the block that is least likely to be used again soon goes first, as learned for its kind of request.

Wang and others, "KVCache Cache in the Wild", USENIX ATC 2025 (arXiv 2506.02634), order blocks by (chance of reuse
within the next `life`, given the time since the last use; offset in the prompt, deeper first), with an exponential
distribution of reuse times for each category of requests. A category here is the column `type` and the turn, where the
trace has them: the turn from the column `turn`, else counted along `parent`; turns from the tenth on are one; else all
are one category.

Learned as the trace goes by, from what came before alone: each use of a block by a request of category c is one of
uses[c]; when the block is wanted again, resident or not, that use was reused[c], after a gap that adds to gaps[c] (ms).

    p = (reused + 1) / (uses + 2)        rate = (reused + 1) / (gaps + 60,000)
    chance = p (e^(-rate t) - e^(-rate (t + life))) / (1 - p + p e^(-rate t)),    t: now - last use

A block belongs to the category of the request that used it last. In a category the chance only falls with t, so the
least recent (of one request the deepest) stands for all, as in the paper, and the categories' firsts are compared:
equal chances, the deeper goes first, then the category that appeared first. With one category it is LRU.

Other than in the paper: the chance is conditional (the paper's is the numerator, for blocks that are reused at all); it
learns at each use and never forgets, where the paper fits samples of the last hour; `life` is one parameter, not
measured. A use too recent to have been reused counts against p. Release changes nothing but who is evictable.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.heap import Heaps
from cython.cimports.kvtrace.cache.structures.recency import Recency
from cython.cimports.libc.math import exp

from kvtrace._base.errors import UsageError

LAST_TURN = 10
FIRST_GAP_MS = cython.declare(cython.double, 60_000.0)  # what a category's one made-up reuse took


class Workload(Policy):
    """Least chance of reuse within the next `life_ms` first."""

    def __init__(self, context: Context, life_ms=600_000.0):
        Policy.__init__(self, context)
        if not life_ms > 0:
            raise UsageError(f"a life of {life_ms} ms is none. Try workload:10m.")
        self.recency, self.life_ms = Recency(context), life_ms
        self.category = categories(context.trace)
        self.categories = max(self.category, default=0) + 1
        self.heaps = Heaps(context.blocks, self.categories)
        self.arrival = np.array(context.demand.arrival, dtype=np.float64)
        self.last = np.full(context.blocks, NONE, dtype=np.int32)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.uses, self.reused = np.zeros(self.categories), np.zeros(self.categories)
        self.gaps = np.zeros(self.categories)

    def insert(self, block):
        before: cython.int = self.last[block]
        row: cython.int = cython.cast(cython.int, self.context.request)
        if before >= 0:
            self.reused[self.category[before]] += 1
            self.gaps[self.category[before]] += self.arrival[row] - self.arrival[before]
        self.uses[self.category[row]] += 1
        self.last[block] = row
        self.stamp[block] = self.recency.stamp(block)
        return 0

    def use(self, block):
        if self.heaps.holds(block):
            self.heaps.drop(block)
        return self.insert(block)

    def release(self, block):
        return self.heaps.put(self.category[self.last[block]], block, 0.0, self.stamp[block])

    def victim(self):
        which: cython.int
        block: cython.int
        least: cython.int = NONE
        chance: cython.double
        lowest: cython.double = 0.0
        for which in range(self.categories):
            block = self.heaps.first(which)
            if block < 0:
                continue
            chance = self._chance(which, self.context.now - self.arrival[self.last[block]])
            if (
                least < 0
                or chance < lowest
                or (chance == lowest and self.recency.depth[block] > self.recency.depth[least])
            ):
                least, lowest = block, chance
        return least

    def remove(self, block):
        return self.heaps.drop(block)

    def _chance(self, which, since_ms):
        """How likely a block of a category is used within `life_ms`, when it was not for so long."""
        p: cython.double = (self.reused[which] + 1) / (self.uses[which] + 2)
        rate: cython.double = (self.reused[which] + 1) / (self.gaps[which] + FIRST_GAP_MS)
        still: cython.double = p * exp(-rate * since_ms)
        return still * (1 - exp(-rate * self.life_ms)) / (1 - p + still)


def categories(trace):
    """int32: request -> its category, numbered by first appearance of a type and turn."""
    kinds = trace.extra.get("type")
    kinds = [None] * len(trace) if kinds is None else [str(kind) for kind in kinds.tolist()]
    number: dict = {}
    return np.array(
        [number.setdefault(pair, len(number)) for pair in zip(kinds, _turns(trace), strict=True)], dtype=np.int32
    )


def _turns(trace):
    """Request -> its turn, at most LAST_TURN; 1 where that is not known."""
    if "turn" in trace.extra:
        said = trace.extra["turn"].tolist()
        return [1 if turn is None or turn != turn else min(int(turn), LAST_TURN) for turn in said]
    turns = [1] * len(trace)
    if trace.parent is not None:
        for row, parent in enumerate(trace.parent.tolist()):
            if parent >= 0:
                turns[row] = min(turns[parent] + 1, LAST_TURN)
    return turns
