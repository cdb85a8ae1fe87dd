"""vLLM's prefix cache for a scheduler: a request gets blocks when its tokens need them, and publishes full ones.

The verbs are those of step_cache.py. Blocks, hashes and the order of eviction are those of block_queue.py. Twin: Blocks
in tests/reference/vllm_scheduler.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.block_queue import NOTHING, BlockQueue
from cython.cimports.kvtrace.cache.core.step_cache import FITS, NO_BLOCKS, StepCache
from cython.cimports.kvtrace.cache.policies.base import Context


class PagedCache(StepCache):
    """A cache of `context.capacity` physical blocks, which requests take as their tokens are computed.

    `demand` is the BlockDemand in mode grow.
    """

    def __init__(self, context: Context, demand, unhashed_first=True):
        StepCache.__init__(self, context, demand)
        rows = len(demand.full)
        most = np.maximum(demand.max_blocks, 1)  # an empty prompt counts as one token
        blocks: cython.int = min(context.capacity, int(most.sum()))  # more are never taken
        self.queue = BlockQueue(blocks, context.blocks, unhashed_first)
        self.size = blocks
        self.block_size = demand.trace.block_size
        self.tokens = np.ascontiguousarray(demand.trace.input_length, dtype=np.int64)
        self.held = np.empty(1 << 12, dtype=np.int32)
        self.begin = np.zeros(rows, dtype=np.int64)
        self.count, self.published, self.room = np.zeros((3, rows), dtype=np.int32)
        self.vacant = [[] for _ in range(int(most.max(initial=1)).bit_length() + 1)]
        self.top = 0
        self.idle_hits = 0
        self.step_ends = 0

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        self.evictions = self.queue.evictions
        return self.queue.self_check() or (self.lower.self_check() if self.lower else None)

    @property
    def tier_hits(self):
        """Hit blocks of each request in the tier below: an array of shape (1, requests)."""
        return np.asarray(self.lower.hits).reshape(1, -1)

    def peek(self, row):
        return self.look_up(row, self.tokens[row])

    def peek_ended(self, row, now):
        hit: cython.int = 0
        if now >= self.step_ends or not self.queue.changed.shape[0]:
            return self.look_up(row, self.tokens[row] + 1)  # with the block of the last token
        while hit < self.full[row] and self.queue.was_cached(self.block_at(row, hit)):
            hit += 1
        return hit

    def table(self, row: cython.Py_ssize_t):
        """The physical blocks that a request holds, in the order of its tokens."""
        return np.asarray(self.held)[self.begin[row] :][: self.count[row]].copy()

    def watch(self):
        """Keep what `peek_ended` needs."""
        self.queue.watch()

    def free(self):
        return self.queue.free

    def begin_step(self):
        self.queue.step += 1
        return 0

    def blocks_of(self, tokens):
        """The blocks that so many tokens need."""
        return (tokens + self.block_size - 1) // self.block_size

    def block_at(self, row, place):
        """The number of a full block of a request's prompt and output."""
        if place < self.full[row]:
            return self.ids[self.start[row] + place]
        return self.fresh[row] + place - self.full[row]

    def look_up(self, row, tokens):
        """The leading blocks that hit, with `tokens` tokens of prompt and output known; the last one is computed."""
        limit: cython.longlong = min((tokens - 1) // self.block_size, self.full[row] + self.grown[row])
        physical: cython.int
        hit: cython.int = 0
        self.idle_hits = 0
        while hit < limit:
            physical = self.queue.copy[self.block_at(row, hit)]
            if physical == NOTHING:
                break
            self.idle_hits += self.queue.pins[physical] == 0
            hit += 1
        return hit

    def find(self, row, known):
        return self.look_up(row, known) * self.block_size

    def admission(self, row, hit, end, whole, spare):
        need: cython.longlong = self.blocks_of(whole if whole else end) - hit // self.block_size + self.idle_hits
        return NO_BLOCKS if need + spare > self.queue.free else FITS

    def open(self, row, hit):
        return self.start_with(row, cython.cast(cython.int, hit // self.block_size))

    def missing(self, row, start, end):
        return self.blocks_of(end) - self.count[row]

    def start_with(self, row, hits):
        """Pin the hits of a request that holds nothing."""
        k: cython.int
        physical: cython.int
        part: cython.longlong = self._part(row)
        for k in range(hits):
            physical = self.queue.copy[self.block_at(row, k)]
            self.queue.pin(physical)
            self.held[part + k] = physical
        self.count[row] = self.published[row] = hits
        return 0

    def fits(self, row, start, end):
        return self.missing(row, start, end) <= self.queue.free

    def extend(self, row, start, end):
        blocks: cython.longlong = self.blocks_of(end)
        while self.count[row] < blocks:
            self.held[self.begin[row] + self.count[row]] = self.queue.take()
            self.count[row] += 1
        return 0

    def publish(self, row, tokens):
        full: cython.longlong = min(tokens // self.block_size, self.full[row] + self.grown[row])
        while self.published[row] < full:
            self.queue.register(
                self.held[self.begin[row] + self.published[row]], self.block_at(row, self.published[row])
            )
            self.published[row] += 1
        return 0

    def release(self, row):
        k: cython.longlong
        part: cython.longlong = self.begin[row]
        for k in range(part + self.count[row] - 1, part - 1, -1):
            self.queue.unpin(self.held[k])
        self.count[row] = self.published[row] = 0
        self.vacant[self.room[row]].append(part)
        return 0

    def quiet(self, row, done, lag):
        return (self.block_size - done % self.block_size) % self.block_size

    def _part(self, row):
        """A part of `held` with room for all blocks that a request can come to hold."""
        blocks: cython.longlong = self.full[row] + self.grown[row] + self.grown_tail[row]
        power: cython.int = 0
        while (cython.cast(cython.longlong, 1) << power) < blocks:  # at least one, also for an empty prompt
            power += 1
        self.room[row] = power
        vacant: list = self.vacant[power]
        if vacant:
            self.begin[row] = vacant.pop()
            return self.begin[row]
        self.begin[row] = self.top
        self.top += cython.cast(cython.longlong, 1) << power
        if self.top > self.held.shape[0]:
            grown = np.empty(2 * self.top, dtype=np.int32)
            grown[: self.held.shape[0]] = self.held
            self.held = grown
        return self.begin[row]
