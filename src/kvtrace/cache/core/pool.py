"""The cache of Lin's report: a table of blocks by hash, reference counts, and a policy over the idle blocks.

A request matches its leading resident blocks, pins them, and allocates the missing ones root first. At its end it
unpins all of them tail first. Twin: tests/reference/pool.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM, SERIAL, Engine
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch

from kvtrace._base.errors import UsageError


class Pool(Engine):
    """A cache of `context.capacity` blocks: residency, pins and counts. The policy orders the idle blocks.

    With `total` the capacity bounds live and idle blocks together, else only idle blocks. With `leaf_first` only
    blocks without a resident child are evictable; `demand.parent` says whose child a block is.
    """

    def __init__(self, context: Context, demand, policy: Policy, total=True, leaf_first=False):
        Engine.__init__(self, context, demand)
        self.policy, self.needs_lock = policy, policy.needs_lock
        self.capacity, self.total, self.parents_last = context.capacity, total, leaf_first
        self.leaf_first = leaf_first and not policy.keeps_parents
        self.pins = np.full(context.blocks, ABSENT, dtype=np.int32)  # block -> number of live requests that hold it
        self.parent = demand.parent if leaf_first else np.empty(0, dtype=np.int32)
        # block -> number of its resident children
        self.children = np.zeros(context.blocks if self.leaf_first else 0, dtype=np.int32)
        self.resident = self.idle = self.unhashed = 0
        self.fetches = context.blocks > LARGE and not policy.needs_lock
        # whether `_serve_one` can run requests for one block, one at a time: most requests of a storage trace
        self.one_block_path = (
            total and not self.leaf_first and not self.grows and self.capacity > 0
            and not policy.expires and not policy.follows_requests
        )  # fmt: skip

    def residents(self):
        """The resident blocks, in ascending order."""
        return np.flatnonzero(np.asarray(self.pins) != ABSENT)

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        pins = np.asarray(self.pins)
        if (pins > 0).any() or self.unhashed:
            return f"{int((pins > 0).sum()) + self.unhashed:,} blocks are still pinned"
        if (pins == 0).sum() != self.idle or self.idle != self.resident:
            return f"{self.idle:,} blocks are counted as idle, {int((pins == 0).sum()):,} are"
        if self.idle > self.capacity:
            return f"{self.idle:,} blocks are idle in a cache of {self.capacity:,}"
        if self.parents_last:
            parents = np.asarray(self.parent)[self.residents()]
            if (pins[parents[parents >= 0]] == ABSENT).any():
                return "a block outlived its parent"
        return None

    def before(self, row):
        block: cython.int
        if self.policy.expires:
            block = self._expired()
            while block >= 0:
                self._evict(block)
                block = self._expired()
        if self.policy.follows_requests:
            self.policy.request_started(row)
        return 0

    def _advance(self, stop):
        """Like Engine, with a shorter path for requests for one block while no other request is live."""
        row: cython.Py_ssize_t
        if not self.one_block_path or self.kind != SERIAL or self.live:
            return Engine._advance(self, stop)
        while self.row < stop:
            row = self.row
            if self.full[row] != 1 or self.tail[row]:
                Engine._advance(self, row + 1)
            else:
                self._serve_one(row, self.start[row])
                self.row = row + 1
        return 0

    def _serve_one(self, row, i):
        """Run a request for one block, ids[i], while no other request is live: `admit` and `finish` in one.

        Nothing is pinned before and after, so there is always room, and the block's pins need not change.
        """
        block: cython.int = self.ids[i]
        self.context.request = self.context.order = row
        self.context.now = self.arrival[row]
        if self.fetches:
            self._fetch(i, i + 1)
        if self.pins[block] != ABSENT:
            self.hit[row] = self.limit[row]
            return self.policy.hit_idle(block)
        if self.policy.misses:
            self.policy.miss(block)
        self._make_room()
        self.pins[block] = 0
        self.resident += 1
        self.idle += 1
        return self.policy.insert_idle(block)

    def peek(self, row):
        return min(self.resident_run(row), self.limit[row])

    def resident_run(self, row):
        """Number of a request's leading blocks that are resident."""
        i: cython.Py_ssize_t = self.start[row]
        stop: cython.Py_ssize_t = i + self.full[row]
        while i < stop and self.pins[self.ids[i]] != ABSENT:
            i += 1
        return cython.cast(cython.int, i - self.start[row])

    def admit(self, row):
        i: cython.Py_ssize_t
        block: cython.int
        start: cython.Py_ssize_t = self.start[row]
        stop: cython.Py_ssize_t = start + self.full[row]
        if self.fetches:
            self._fetch(start, stop)
        hit: cython.int = self.resident_run(row)  # match
        if self.total and not self._fits(row, start, start + hit, stop):
            return NO_ROOM
        for i in range(start, stop):  # pin, including blocks resident below a gap, which are computed again in place
            block = self.ids[i]
            if self.pins[block] != ABSENT:
                if self.pins[block] == 0:
                    self.idle -= 1
                self.pins[block] += 1
                self.policy.use(block)
        for i in range(start + hit, stop):  # allocate
            block = self.ids[i]
            if self.pins[block] == ABSENT:
                if self.policy.misses:
                    self.policy.miss(block)
                if self.total:
                    self._make_room()
                self._insert(block)
        if self.tail[row]:
            if self.total:
                self._make_room()
            self.unhashed += 1
        return min(hit, self.limit[row])

    def grow(self, row):
        k: cython.int
        # the prompt's tail becomes the first output block once it is full
        filled_tail: cython.int = self.tail[row] if self.grown[row] else 0
        need: cython.longlong = self.grown[row] + self.grown_tail[row] - self.tail[row]
        if self.total and need > self.capacity - self.resident - self.unhashed + self.idle:
            return NO_ROOM
        for k in range(self.grown[row]):
            if self.policy.misses:
                self.policy.miss(self.fresh[row] + k)
            if k == 0 and filled_tail:
                self.unhashed -= 1
            elif self.total:
                self._make_room()
            self._insert(self.fresh[row] + k)
        if self.grown_tail[row] > self.tail[row] - filled_tail:
            if self.total:
                self._make_room()
            self.unhashed += 1
        return 0

    def finish(self, row):
        k: cython.Py_ssize_t
        self.unhashed -= self.grown_tail[row] if self.grows else self.tail[row]
        if self.grows:
            for k in range(self.grown[row] - 1, -1, -1):
                self._unpin(cython.cast(cython.int, self.fresh[row] + k))
        for k in range(self.start[row] + self.full[row] - 1, self.start[row] - 1, -1):
            self._unpin(self.ids[k])
        if self.policy.follows_requests:
            self.policy.request_ended(row)
        return 0

    def _fetch(self, start, stop):
        """Prefetch the state of as many upcoming blocks as this request has."""
        i: cython.Py_ssize_t
        for i in range(start + FAR, min(stop + FAR, self.ids.shape[0])):
            fetch(cython.address(self.pins[self.ids[i]]))
            self.policy.prefetch(self.ids[i], self.ids[i - FAR + NEAR])
        return 0

    def _fits(self, row, start, gap, stop):
        """Whether there is room for a request's missing blocks without evicting its resident ones."""
        i: cython.Py_ssize_t
        free: cython.longlong = self.capacity - self.resident - self.unhashed
        need: cython.longlong = stop - gap + self.tail[row]
        if need <= free:
            return True
        free += self.idle
        for i in range(start, gap):
            free -= self.pins[self.ids[i]] == 0
        for i in range(gap, stop):
            if self.pins[self.ids[i]] != ABSENT:
                need -= 1
                free -= self.pins[self.ids[i]] == 0
        return need <= free

    def _make_room(self):
        """Evict one block if the cache is full. `_fits` has checked that an idle block exists."""
        if self.resident + self.unhashed >= self.capacity:
            return self._evict(self._victim())
        return 0

    def _victim(self):
        """The policy's victim, checked because the policy may be a user's."""
        block: cython.int
        if self.fetches:
            block = self.policy.likely_victim()
            if block >= 0:
                fetch(cython.address(self.pins[block]))
        block = self.policy.victim()
        if (
            block < 0
            or block >= self.pins.shape[0]
            or self.pins[block] != 0
            or (self.leaf_first and self.children[block])
        ):
            with cython.gil:
                raise UsageError(
                    f"the policy's victim is {self._described(block)}. "
                    "Return a block that was released and not used since."
                )
        return block

    def _expired(self):
        """The policy's expired block, or NONE; checked because the policy may be a user's."""
        block: cython.int = self.policy.expired()
        if block >= 0 and (block >= self.pins.shape[0] or self.pins[block] != 0):
            with cython.gil:
                raise UsageError(
                    f"the policy's expired block is {self._described(block)}. "
                    "Return a block that was released and not used since, or None."
                )
        return block

    def _described(self, block):
        if block < 0 or block >= len(self.pins):
            return "no block" if block < 0 else f"block {block:,}, which does not exist"
        if self.pins[block] == ABSENT:
            return f"block {block:,}, which is not resident"
        return f"block {block:,}, which {'is pinned' if self.pins[block] else 'has a resident child'}"

    def _insert(self, block):
        self.pins[block] = 1
        self.resident += 1
        if self.leaf_first and self.parent[block] >= 0:
            self.children[self.parent[block]] += 1
        return self.policy.insert(block)

    def _unpin(self, block):
        self.pins[block] -= 1
        if self.pins[block] == 0:
            self.idle += 1
            if not self.leaf_first or self.children[block] == 0:
                self.policy.release(block)
            if not self.total and self.idle > self.capacity:
                self._evict(self._victim())
        return 0

    def _evict(self, block):
        parent: cython.int
        self.pins[block] = ABSENT
        self.resident -= 1
        self.idle -= 1
        self.evictions += 1
        self.policy.remove(block)
        if self.leaf_first:
            parent = self.parent[block]
            if parent >= 0:
                self.children[parent] -= 1
                if self.children[parent] == 0 and self.pins[parent] == 0:
                    self.policy.release(parent)
        return 0
