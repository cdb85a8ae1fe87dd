"""LMCache's chunk store: runs of blocks under one key each, of which nothing is held while a request is live.

A request looks its chunks up, root first, and touches those of the hit tail first; then it stores the others. Plainly,
each takes a place and evicts for it, also where a deeper chunk is here already; with the watermark they are stored if
all fit, else none, and a clock evicts a fifth of what is here whenever four fifths are full. Twin:
tests/reference/chunks.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import Engine
from cython.cimports.kvtrace.cache.policies.base import Context, Policy

from kvtrace._base.errors import UsageError

TICK_MS = cython.declare(cython.double, 1000.0)  # how often the clock looks at the use
FULL = cython.declare(cython.double, 0.8)  # use at which it evicts
SHARE = cython.declare(cython.double, 0.2)  # of the chunks that are here


class Chunks(Engine):
    """A store of `context.capacity` blocks in chunks of `factor`; a chunk is known by the number of its last block.

    The chunks of a path are its whole groups of blocks. UsageError where the capacity does not hold a single chunk.
    """

    def __init__(self, context: Context, demand, policy: Policy, factor=1, watermark=False):
        Engine.__init__(self, context, demand)
        self.policy, self.needs_lock = policy, policy.needs_lock
        self.factor, self.capacity, self.watermark = factor, context.capacity // factor, watermark
        if self.capacity < 1:
            raise UsageError(
                f"a capacity of {context.capacity:,} blocks does not hold a chunk of {factor:,}. Try that or more."
            )
        self.here = np.zeros(context.blocks, dtype=np.int8)
        self.resident = self.ticks = 0

    def residents(self):
        """The last blocks of the chunks that are resident, in order of their numbers."""
        return np.flatnonzero(np.asarray(self.here))

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        here = int(np.asarray(self.here).sum())
        if here != self.resident:
            return f"{self.resident:,} chunks are counted, {here:,} are resident"
        if here > self.capacity:
            return f"{here:,} chunks are resident in a store of {self.capacity:,}"
        return None

    def before(self, row):
        """Let the clock catch up; once too little is in use it has nothing to do until the next request."""
        due: cython.longlong
        if self.watermark:
            due = cython.cast(cython.longlong, self.context.now / TICK_MS)
            while self.ticks < due and cython.cast(cython.double, self.resident) / self.capacity >= FULL:
                self.ticks += 1
                self._evict_share()
            self.ticks = due
        return 0

    def peek(self, row):
        hit: cython.int = 0
        while hit < self.full[row] // self.factor and self.here[self._chunk(row, hit)]:
            hit += 1
        return hit * self.factor

    def admit(self, row):
        chunks: cython.int = self.full[row] // self.factor
        hit: cython.int = 0
        while hit < chunks and self.here[self._chunk(row, hit)]:  # match
            hit += 1
        self._touch(row, hit)
        if self.watermark:
            self._store_all(row, hit, chunks)
        else:
            self._store(row, hit, chunks)
        return hit * self.factor

    def finish(self, row):
        """With the watermark the end of a request touches what is left of its path; plainly it does nothing."""
        return self._touch(row, self.full[row] // self.factor) if self.watermark else 0

    def _chunk(self, row, number):
        """The chunk of that number, from 0, of a request's path."""
        place: cython.Py_ssize_t = number + 1
        return self.ids[self.start[row] + place * self.factor - 1]

    def _touch(self, row, chunks):
        """Use those of a request's first chunks that are resident, tail first, so that the root is the most recent."""
        number: cython.int
        chunk: cython.int
        for number in range(chunks - 1, -1, -1):
            chunk = self._chunk(row, number)
            if self.here[chunk]:
                self.policy.use(chunk)
                self.policy.release(chunk)
        return 0

    def _store(self, row, hit, chunks):
        """First take a place for each chunk after the hit, while one can be had; then put the chunks, root first."""
        number: cython.int
        taken: cython.int = 0
        while hit + taken < chunks:
            if self.resident + taken == self.capacity:
                if self.resident == 0:
                    break  # all that can be had is this request's own: the deeper chunks are not stored
                self._evict()
            taken += 1
        for number in range(hit, hit + taken):
            self._put(self._chunk(row, number))
        return 0

    def _store_all(self, row, hit, chunks):
        """Put the chunks after the hit that are not here, tail first, if all of them fit."""
        number: cython.int
        lacking: cython.longlong = 0
        for number in range(hit, chunks):
            lacking += not self.here[self._chunk(row, number)]
        if lacking <= self.capacity - self.resident:
            for number in range(chunks - 1, hit - 1, -1):
                self._put(self._chunk(row, number))
        return 0

    def _put(self, chunk):
        """Make a chunk resident; one that is here already stays as it is, and the new copy is dropped."""
        if not self.here[chunk]:
            self.here[chunk] = 1
            self.resident += 1
            self.policy.insert(chunk)
            self.policy.release(chunk)
        return 0

    def _evict(self):
        chunk: cython.int = self.policy.victim()
        if chunk < 0 or chunk >= self.here.shape[0] or not self.here[chunk]:
            with cython.gil:
                raise UsageError("the policy named a chunk as its victim that is not here. Try one that was released.")
        self.here[chunk] = 0
        self.resident -= 1
        self.evictions += self.factor
        return self.policy.remove(chunk)

    def _evict_share(self):
        going: cython.longlong = cython.cast(cython.longlong, self.resident * SHARE)
        _k: cython.longlong
        for _k in range(max(going, 1)):
            self._evict()
        return 0
