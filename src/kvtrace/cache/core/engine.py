"""The engine loop, and what a scheduler asks of a cache step by step: the base classes of all caches."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context

from kvtrace._base.errors import KvtraceError, UsageError

KINDS = {"serial": SERIAL, "concurrency": CONCURRENCY, "open-loop": OPEN_LOOP}


class Engine:
    """The engine loop: runs a trace's requests through a prefix cache by a schedule and records each request's hit.

    An engine is a subclass with three verbs: `admit` (match, pin, allocate), `grow` (allocate the output's blocks) and
    `finish` (unpin). If there is no room for a request, the oldest live request is freed early and the verb is retried.
    """

    def __init__(self, context: Context, demand):
        rows = len(demand.full)
        self.context, self.demand = context, demand
        self.ids, self.start, self.full = demand.ids, demand.start, demand.full
        self.tail, self.limit, self.arrival = demand.tail, demand.limit, demand.arrival
        self.grown, self.grown_tail, self.fresh = demand.grown, demand.grown_tail, demand.fresh
        self.grows = demand.grows
        self.needs_lock = False
        self.evictions = self.early_frees = self.row = self.live = self.oldest = self.ended = 0
        self.admitted = np.zeros(rows, dtype=np.int8)  # row -> 1 while it is live
        self.hit = np.full(rows, 0, dtype=np.int32)  # row -> hit blocks; np.full maps the memory now, not in the run
        self.schedule("serial")

    @property
    def hits(self):
        """Hit blocks of each request so far."""
        return np.asarray(self.hit)

    def schedule(self, kind, concurrency=1, end=None):
        """Set the schedule: "serial", "concurrency" (active requests) or "open-loop" (the end of each request, ms)."""
        self.kind, self.concurrency = KINDS[kind], concurrency
        self.end = np.zeros(0) if end is None else np.ascontiguousarray(end, dtype=np.float64)
        self.by_end = np.argsort(np.asarray(self.end), kind="stable")  # rows by end, then row

    def advance(self, rows):
        """Run the next `rows` requests."""
        stop: cython.Py_ssize_t = min(self.row + rows, len(self.full))
        if self.needs_lock:
            self._advance(stop)
        else:
            with cython.nogil:
                self._advance(stop)

    def close(self):
        """Finish all live requests, then self-check. Raises KvtraceError if an invariant is broken."""
        if self.needs_lock:
            self._finish_all()
        else:
            with cython.nogil:
                self._finish_all()
        broken = self.self_check()
        if broken:
            raise KvtraceError(f"internal error in the simulation: {broken}. Please report it.")

    def self_check(self):
        """A message about inconsistent residency or pins after all requests have ended, or None."""
        return None

    def admit(self, row):
        """Match, pin and allocate a request's blocks; returns the number of hit blocks, or NO_ROOM."""
        return 0

    def grow(self, row):
        """Allocate the output blocks of an admitted request; returns 0 or NO_ROOM."""
        return 0

    def finish(self, row):
        """Unpin a request's blocks, tail first."""
        return 0

    def before(self, row):
        """Work to do before a request is matched, such as expiry."""
        return 0

    def lower_tier_hits(self, row):
        """Number of a request's hit blocks that came from lower tiers."""
        return 0

    def fetch_seconds(self, row):
        """Seconds to fetch a request's hit blocks from lower tiers."""
        return 0

    def _advance(self, stop):
        row: cython.Py_ssize_t
        while self.row < stop:
            row = self.row
            self.context.request = self.context.order = row
            self.context.now = self.arrival[row]
            self._retire(row)
            self.serve(row)
            if self.kind == SERIAL:
                self._end(row)
        return 0

    def serve(self, row):
        """Admit a request. Live requests are freed early if it needs their blocks."""
        hit: cython.int
        self.before(row)
        hit = self.admit(row)
        while hit == NO_ROOM:
            self._free_oldest(row)
            hit = self.admit(row)
        self.hit[row] = hit
        self.admitted[row] = 1
        self.live += 1
        if self.grows:
            while self.grow(row) == NO_ROOM:
                self._free_oldest(row)
        self.row = row + 1
        return 0

    def peek(self, row):
        """Number of blocks that a request would hit now. Has no side effects."""
        return 0

    def peek_ended(self, row, now):
        """Number of blocks that a request would hit in what was cached by the steps that have ended at a time."""
        return self.peek(row)

    def _retire(self, row):
        """Finish the requests that end before a request arrives."""
        ending: cython.Py_ssize_t
        if self.kind == CONCURRENCY:
            while self.live >= self.concurrency:
                while not self.admitted[self.oldest]:
                    self.oldest += 1
                self._end(self.oldest)
        elif self.kind == OPEN_LOOP:
            while self.ended < self.by_end.shape[0]:
                ending = self.by_end[self.ended]
                if self.end[ending] > self.arrival[row] or ending >= row:  # ending >= row: it has not arrived yet
                    break
                self.ended += 1
                if self.admitted[ending]:
                    self._end(ending)
        return 0

    def _end(self, row):
        self.admitted[row] = 0
        self.live -= 1
        return self.finish(row)

    def _free_oldest(self, row):
        """Finish the oldest live request early, to make room for request `row`."""
        while self.oldest < row and not self.admitted[self.oldest]:
            self.oldest += 1
        if self.oldest >= row:
            with cython.gil:
                raise UsageError(
                    f"a capacity of {self.context.capacity:,} blocks is too small for request {row:,} alone."
                )
        self.early_frees += 1
        return self._end(self.oldest)

    def _finish_all(self):
        ending: cython.Py_ssize_t
        if self.kind == OPEN_LOOP:
            while self.ended < self.by_end.shape[0]:
                ending = self.by_end[self.ended]
                self.ended += 1
                if self.admitted[ending]:
                    self._end(ending)
        while self.oldest < self.row:
            if self.admitted[self.oldest]:
                self._end(self.oldest)
            self.oldest += 1
        return 0


class StepCache:
    """The prefix cache under vLLM's scheduler: what a scheduler asks of it, step by step.

    A scheduler decides who gets tokens; the cache finds hits, counts the blocks that a chunk of a request needs, takes
    and frees them. `PagedCache` is the cache of full attention, `GroupedSteps` that of hybrid models.
    """

    def free(self):
        """The blocks that no request holds."""
        return 0

    def begin_step(self):
        """A step begins; the one before it has ended."""
        return 0

    def find(self, row, tokens):
        """The tokens that hit of the first `tokens` of prompt and output; the last one is always computed."""
        return 0

    def chunk_end(self, row, start, end):
        """Where a chunk that may go on to `end` must end; `start` if it must wait for a larger one."""
        return end

    def admission(self, row, hit, end, whole, spare):
        """Whether a request that hit can begin with its chunk up to `end`: FITS, NO_BLOCKS or NOT_NOW.

        `whole` is the number of tokens for which there must be room beside what others hold, 0 = the chunk's; `spare`
        blocks must stay free.
        """
        return FITS

    def open(self, row, hit):
        """Give a request that holds nothing the blocks that hit."""
        return 0

    def slide(self, row, tokens):
        """Publish what `tokens` tokens fill, and free what is not needed after them."""
        return 0

    def missing(self, row, start, end):
        """The blocks that a request must still take for a chunk."""
        return 0

    def fits(self, row, start, end):
        """Whether there are as many blocks as a chunk needs."""
        return self.missing(row, start, end) <= self.free()

    def extend(self, row, start, end):
        """Take the blocks of a chunk. The caller has checked that there are enough."""
        return 0

    def publish(self, row, tokens):
        """Give the full blocks of the first `tokens` tokens their hashes, so that lookups find them."""
        return 0

    def release(self, row):
        """Give up all blocks of a request, tail first."""
        return 0

    def quiet(self, row, computed, lag, ahead):
        """The steps, of one token each, before one that takes, frees or publishes blocks, after `computed` tokens.

        The tokens of the last `lag` steps are not known yet: blocks are freed and published that much later, and
        published `ahead` tokens after that.
        """
        return 0
