"""The engine loop: runs a trace's requests through a prefix cache by a schedule and records each request's hit.

An engine is a subclass with three verbs: `admit` (match, pin, allocate), `grow` (allocate the output's blocks) and
`finish` (unpin). If there is no room for a request, the oldest live request is freed early and the verb is retried.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context

from kvtrace._base.errors import KvtraceError, UsageError

KINDS = {"serial": SERIAL, "concurrency": CONCURRENCY, "open-loop": OPEN_LOOP}


class Engine:
    """A prefix cache that a trace's requests run through, by a schedule; `demand` is their BlockDemand."""

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
