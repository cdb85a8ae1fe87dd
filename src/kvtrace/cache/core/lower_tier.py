"""The tier below vLLM's cache (0.33.0, vllm/v1/kv_offload/cpu): blocks of prompts, written as they are computed.

A tier holds copies: a block stays in the cache above it. Blocks that are being written or read cannot be evicted. The
order of eviction is one of vLLM's two, `lru` and `arc`. Twin: tests/reference/vllm_offloading.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import Engine
from cython.cimports.kvtrace.cache.core.tier_blocks import (
    ABSENT,
    IDLE,
    MISSED,
    REUSED,
    SEEN,
    STORED,
    WRITING,
    TierBlocks,
)
from cython.cimports.kvtrace.cache.core.tier_orders import AdaptiveReplacement, LeastRecent

ORDERS = {"lru": LeastRecent, "arc": AdaptiveReplacement}


class LowerTier(TierBlocks):
    """A tier of `capacity` blocks below the cache `above`; `hits` counts the blocks that each request loaded from it.

    `state` is ABSENT, WRITING, or IDLE + the number of transfers that read the block. `marks` has, for each request
    that used the tier and has not ended, what the tier knows of each block of its prompt: SEEN, STORED, REUSED, MISSED.
    """

    def __init__(self, above: Engine, capacity, policy="lru"):
        blocks = max(1, above.context.blocks)
        self.above, self.capacity = above, min(capacity, blocks)
        self.order = ORDERS[policy](above.demand, capacity, blocks)
        TierBlocks.__init__(self, blocks)
        self.hits = np.zeros(len(above.demand.full), dtype=np.int32)
        self.size = self.idle = self.evictions = 0
        self.fetch_seconds = self.store_seconds = 0
        self.marks = {}

    def self_check(self):
        """A message about an inconsistency after all requests and transfers have ended, or None."""
        state = np.asarray(self.state)
        if ((state != ABSENT) & (state != IDLE)).any():
            return "a transfer with the lower tier never ended"
        if not int((state == IDLE).sum()) == self.size == self.idle <= self.capacity:
            return f"the lower tier counts {self.size:,} blocks, {self.idle:,} of them idle"
        return None

    def block_at(self, row, place):
        """The number of a block of a prompt."""
        return self.above.ids[self.above.start[row] + place]

    def prepare_load(self, row, first, end):
        """Blocks of a prompt, which are in the tier, are going to be read."""
        place: cython.int
        block: cython.int
        marks: bytearray = self._marks(row)
        for place in range(first, end):
            block = self.block_at(row, place)
            if self.state[block] == IDLE:
                self.idle -= 1
                self.order.pin(block)
            self.state[block] += 1
            if not marks[place] & STORED:
                marks[place] |= REUSED
        for place in range(first, end):
            self._see(row, place, marks)
        return 0

    def prepare_store(self, row, first, end, absent):
        """Make room for those blocks of a prompt that are absent, and list them; False if there is none."""
        place: cython.int
        block: cython.int
        needed: cython.longlong
        marks: bytearray = self._marks(row)
        self.offers += 1
        for place in range(first, end):
            block = self.block_at(row, place)
            self.given[block] = self.offers
            if self.state[block] == ABSENT:
                absent.append(place)
        for place in reversed(absent):
            if not marks[place] & MISSED:
                marks[place] |= MISSED
                self.order.miss(self.block_at(row, place))
        for place in range(first, end):
            block = self.block_at(row, place)
            if self.state[block] != WRITING:
                self._see(row, place, marks)
            if self.state[block] >= IDLE and not marks[place] & STORED:
                marks[place] |= REUSED
        needed = len(absent) - (self.capacity - self.size)
        if needed > 0 and not self._evict(needed):
            return False
        for place in absent:
            block = self.block_at(row, place)
            self.state[block] = WRITING
            self.order.insert(row, block, place)
            marks[place] |= STORED
        self.size += len(absent)
        return True

    def complete(self, blocks, is_load):
        """A transfer has ended."""
        block: cython.int
        for item in blocks:
            block = item
            self.state[block] += -1 if is_load else 1
            if self.state[block] == IDLE:
                self.idle += 1
                self.order.unpin(block)
        return 0

    def finish(self, row):
        """A request has ended: its blocks are the last used ones, tails before heads."""
        place: cython.int
        block: cython.int
        marks: bytearray = self.marks.pop(row, None)
        if marks is None:
            return 0
        for place in range(len(marks) - 1, -1, -1):
            block = self.block_at(row, place)
            if marks[place] & SEEN and self.state[block] != ABSENT:
                self.order.finish(block, marks[place])
        return 0

    def _evict(self, count):
        """Evict `count` idle blocks that are not among those given; False if there are fewer."""
        block: cython.int
        if count > self.idle:
            return False
        victims: list = self.order.victims(count, self)
        if len(victims) < count:
            return False
        for item in victims:
            block = item
            self.state[block] = ABSENT
        self.size -= count
        self.idle -= count
        self.evictions += count
        return True

    def _marks(self, row):
        marks = self.marks.get(row)
        if marks is None:
            marks = self.marks[row] = bytearray(self.above.full[row])
        return marks

    def _see(self, row, place, marks: bytearray):
        """A request uses a block for the first time."""
        block: cython.int = self.block_at(row, place)
        if not marks[place] & SEEN:
            marks[place] |= SEEN
            self.order.access(row, block, place, self.state[block] != ABSENT)
        return 0
