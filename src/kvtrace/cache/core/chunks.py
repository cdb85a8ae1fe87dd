"""LMCache's chunk store: groups of blocks under one key each. Live requests pin nothing.

A request looks up its chunks, root first, and touches the hit chunks, tail first. Then it stores the other chunks.
Without the watermark, each chunk takes a place and evicts for it, even if it is resident already. With the watermark,
all missing chunks are stored if they fit together, else none, and once a second a clock evicts a fifth of the resident
chunks if four fifths of the capacity are in use. Twin: tests/reference/chunks.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import Engine
from cython.cimports.kvtrace.cache.policies.base import Context, Policy

from kvtrace._base.errors import UsageError

TICK_MS = cython.declare(cython.double, 1000.0)  # period of the watermark clock
FULL = cython.declare(cython.double, 0.8)  # the watermark, as a share of the capacity
SHARE = cython.declare(cython.double, 0.2)  # share of the resident chunks that one tick evicts


class Chunks(Engine):
    """A store of `context.capacity` blocks in chunks of `factor` blocks; a chunk has the number of its last block.

    A path's chunks are its complete groups of blocks. Raises UsageError if the capacity is less than one chunk.
    """

    def __init__(self, context: Context, demand, policy: Policy, factor=1, watermark=False):
        Engine.__init__(self, context, demand)
        self.policy, self.needs_lock = policy, policy.needs_lock
        self.factor, self.capacity, self.watermark = factor, context.capacity // factor, watermark
        if self.capacity < 1:
            raise UsageError(
                f"a capacity of {context.capacity:,} blocks does not hold a chunk of {factor:,}. "
                f"Try {factor:,} or more."
            )
        self.is_resident = np.zeros(context.blocks, dtype=np.int8)
        self.resident = self.ticks = 0

    def residents(self):
        """The last block of each resident chunk, in ascending order."""
        return np.flatnonzero(np.asarray(self.is_resident))

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        resident = int(np.asarray(self.is_resident).sum())
        if resident != self.resident:
            return f"{self.resident:,} chunks are counted as resident, {resident:,} are"
        if resident > self.capacity:
            return f"{resident:,} chunks are resident in a store of {self.capacity:,}"
        return None

    def before(self, row):
        """Run the clock's ticks up to now. Below the watermark it has nothing to do until the next request."""
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
        while hit < self.full[row] // self.factor and self.is_resident[self._chunk(row, hit)]:
            hit += 1
        return hit * self.factor

    def admit(self, row):
        chunks: cython.int = self.full[row] // self.factor
        hit: cython.int = 0
        while hit < chunks and self.is_resident[self._chunk(row, hit)]:  # match
            hit += 1
        self._touch(row, hit)
        if self.watermark:
            self._store_all(row, hit, chunks)
        else:
            self._store(row, hit, chunks)
        return hit * self.factor

    def finish(self, row):
        """With the watermark, touch the resident chunks of the request's path; otherwise do nothing."""
        return self._touch(row, self.full[row] // self.factor) if self.watermark else 0

    def _chunk(self, row, number):
        """The chunk at position `number`, from 0, of a request's path."""
        place: cython.Py_ssize_t = number + 1
        return self.ids[self.start[row] + place * self.factor - 1]

    def _touch(self, row, chunks):
        """Use the resident ones of a request's first chunks, tail first, so that the root is the most recent."""
        number: cython.int
        chunk: cython.int
        for number in range(chunks - 1, -1, -1):
            chunk = self._chunk(row, number)
            if self.is_resident[chunk]:
                self.policy.use(chunk)
                self.policy.release(chunk)
        return 0

    def _store(self, row, hit, chunks):
        """Take a place for each chunk after the hit, as long as there is one; then put the chunks, root first."""
        number: cython.int
        taken: cython.int = 0
        while hit + taken < chunks:
            if self.resident + taken == self.capacity:
                if self.resident == 0:
                    break  # this request has taken the whole store: its deeper chunks are not stored
                self._evict()
            taken += 1
        for number in range(hit, hit + taken):
            self._put(self._chunk(row, number))
        return 0

    def _store_all(self, row, hit, chunks):
        """Put the missing chunks after the hit, tail first, if all of them fit."""
        number: cython.int
        missing: cython.longlong = 0
        for number in range(hit, chunks):
            missing += not self.is_resident[self._chunk(row, number)]
        if missing <= self.capacity - self.resident:
            for number in range(chunks - 1, hit - 1, -1):
                self._put(self._chunk(row, number))
        return 0

    def _put(self, chunk):
        """Make a chunk resident. If it is resident already, the new copy is dropped."""
        if not self.is_resident[chunk]:
            self.is_resident[chunk] = 1
            self.resident += 1
            self.policy.insert(chunk)
            self.policy.release(chunk)
        return 0

    def _evict(self):
        chunk: cython.int = self.policy.victim()
        if chunk < 0 or chunk >= self.is_resident.shape[0] or not self.is_resident[chunk]:
            with cython.gil:
                raise UsageError(
                    "the policy's victim is a chunk that is not resident. Return a released chunk from victim()."
                )
        self.is_resident[chunk] = 0
        self.resident -= 1
        self.evictions += self.factor
        return self.policy.remove(chunk)

    def _evict_share(self):
        count: cython.longlong = cython.cast(cython.longlong, self.resident * SHARE)
        _k: cython.longlong
        for _k in range(max(count, 1)):
            self._evict()
        return 0
