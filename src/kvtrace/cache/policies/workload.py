"""Workload-aware: evicts the block that is least likely to be reused soon, learned per category of requests.

Wang and others, "KVCache Cache in the Wild", USENIX ATC 2025 (arXiv 2506.02634), order blocks by (probability of reuse
within the next `life`, given the time since the last use; offset in the prompt, deeper first), with an exponential
distribution of reuse times for each category of requests. Here a category is a pair of the column `type` and the turn,
if the trace has them. The turn comes from the column `turn`, else it is counted along `parent`; turns from the tenth on
are equal. Without either, there is one category.

The policy learns during the run, from past requests only. Each use of a block by a request of category c adds 1 to
uses[c]. The next use of that block, resident or not, adds 1 to reused[c] and the gap in ms to gaps[c].

    p = (reused + 1) / (uses + 2)        rate = (reused + 1) / (gaps + 60,000)
    chance = p (e^(-rate t) - e^(-rate (t + life))) / (1 - p + p e^(-rate t)),    t: now - last use

A block belongs to the category of the last request that used it. Within a category the chance falls with t, so the
least recent block (of one request the deepest) is the candidate, as in the paper. The candidates of all categories are
compared. Ties: the deeper block, then the category that appeared first. With one category this is LRU.

Differences from the paper: the chance is conditional (the paper uses the numerator, for blocks that are reused at all).
The policy learns at each use and never forgets; the paper fits samples of the last hour. `life` is one parameter, not
measured. A use too recent to have been reused counts against p.

`insert` and `use` update the statistics, also for pinned blocks; `release` only makes a block evictable, leaf-first or
flat.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.heap import Heaps
from cython.cimports.kvtrace.cache.structures.recency import Recency
from cython.cimports.libc.math import exp

from kvtrace._base.errors import UsageError

LAST_TURN = 10
FIRST_GAP_MS = cython.declare(cython.double, 60_000.0)  # prior: each category starts with one reuse after this gap


class Workload(Policy):
    """Evicts the block with the least chance of reuse within the next `life_ms`."""

    def __init__(self, context: Context, life_ms=600_000.0):
        Policy.__init__(self, context)
        if not life_ms > 0:
            raise UsageError(f"the lifetime must be above 0 ms, not {life_ms}. Try workload:10m.")
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
        category: cython.int
        block: cython.int
        best: cython.int = NONE
        chance: cython.double
        lowest: cython.double = 0.0
        for category in range(self.categories):
            block = self.heaps.first(category)
            if block < 0:
                continue
            chance = self._chance(category, self.context.now - self.arrival[self.last[block]])
            if (
                best < 0
                or chance < lowest
                or (chance == lowest and self.recency.depth[block] > self.recency.depth[best])
            ):
                best, lowest = block, chance
        return best

    def remove(self, block):
        return self.heaps.drop(block)

    def _chance(self, category, since_ms):
        """Probability that a block of a category is reused within `life_ms`, if it was not used for `since_ms`."""
        p: cython.double = (self.reused[category] + 1) / (self.uses[category] + 2)
        rate: cython.double = (self.reused[category] + 1) / (self.gaps[category] + FIRST_GAP_MS)
        still: cython.double = p * exp(-rate * since_ms)
        return still * (1 - exp(-rate * self.life_ms)) / (1 - p + still)


def categories(trace):
    """int32: request -> its category; pairs of type and turn are numbered by first appearance."""
    kinds = trace.extra.get("type")
    kinds = [None] * len(trace) if kinds is None else [str(kind) for kind in kinds.tolist()]
    number: dict = {}
    return np.array(
        [number.setdefault(pair, len(number)) for pair in zip(kinds, turns(trace), strict=True)], dtype=np.int32
    )


def turns(trace):
    """Request -> its turn, at most LAST_TURN; 1 if it is not known."""
    if "turn" in trace.extra:
        return [_turn(value) for value in trace.extra["turn"].tolist()]
    turns = [1] * len(trace)
    if trace.parent is not None:
        for row, parent in enumerate(trace.parent.tolist()):
            if parent >= 0:
                turns[row] = min(turns[parent] + 1, LAST_TURN)
    return turns


def _turn(value):
    """The turn that a value of the column states; 1 if it is not a number."""
    if not isinstance(value, (int, float)) or value != value:
        return 1
    return int(min(max(value, 0), LAST_TURN))
