"""The cache of Lin's report, with tiers below it and policies in Python; LMCache's chunk store; the optimum of runs."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM, SERIAL, Engine
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.queues import HierarchicalBitset

from kvtrace._base.errors import KvtraceError, UsageError
from kvtrace._base.workers import place_of

# The cache of Lin's report: a table of blocks by hash, reference counts, and a policy over the idle blocks.
#
# A request matches its leading resident blocks, pins them, and allocates the missing ones root first. At its end it
# unpins all of them tail first. Twin: tests/reference/pool.py.


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


class PoolTier:
    """Exclusive tiers below a pool: each tier's victims move to the next tier; a block that is used moves to the first.

    With LRU in each tier, the tiers together are one LRU cache of their total capacity. Twin: tests/reference/tiers.py.
    """

    def __init__(self, policy: Policy, rows):
        self.policy, self.capacity, self.size = policy, policy.context.capacity, 0
        self.hits = np.zeros(rows, dtype=np.int32)


class Tiers(Pool):
    """A pool, and lower tiers for the blocks that it evicts."""

    def __init__(self, context: Context, demand, policy: Policy, lower):
        Pool.__init__(self, context, demand, policy)
        self.tiers = [PoolTier(order, len(demand)) for order in lower]
        self.one_block_path = False  # each request looks in the lower tiers too
        self.needs_lock = True  # the tiers are Python objects in a list
        self.count = len(lower)
        self.below = np.zeros(context.blocks, dtype=np.int8)
        self.last_tier_evictions = 0
        self.block_seconds = np.zeros(len(lower))

    def set_fetch_seconds(self, block_seconds):
        """Set the seconds to fetch a block from each tier below the first."""
        self.block_seconds = np.ascontiguousarray(block_seconds, dtype=np.float64)

    @property
    def tier_hits(self):
        """Hit blocks of each request in each tier below the first: an array of shape (tiers, requests)."""
        return np.array([np.asarray(cython.cast(PoolTier, tier).hits) for tier in self.tiers])

    @property
    def dropped(self):
        """Number of blocks that the last tier evicted."""
        return self.last_tier_evictions

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        below = np.asarray(self.below)
        for number, tier in enumerate(self.tiers, 1):
            held = int((below == number).sum())
            if held != cython.cast(PoolTier, tier).size or held > cython.cast(PoolTier, tier).capacity:
                return f"tier {number} holds {held:,} blocks and counts {cython.cast(PoolTier, tier).size:,}"
        if (np.asarray(self.pins)[below > 0] != ABSENT).any():
            return "a block is in two tiers"
        return Pool.self_check(self)

    def before(self, row):
        with cython.gil:
            for item in self.tiers:
                tier: PoolTier = item
                tier.policy.context.request = row
                tier.policy.context.order = self.context.order
                tier.policy.context.now = self.context.now
                if self.context.in_loop and not tier.policy.context.in_loop:
                    tier.policy.context.set_due(self.context.due)
                if tier.policy.follows_requests:
                    tier.policy.request_started(row)
        return Pool.before(self, row)

    def finish(self, row):
        Pool.finish(self, row)
        with cython.gil:
            for item in self.tiers:
                tier: PoolTier = item
                tier.policy.context.now = self.context.now
                if tier.policy.follows_requests:
                    tier.policy.request_ended(row)
        return 0

    def resident_run(self, row):
        """Number of a request's leading blocks that are in any tier."""
        i: cython.Py_ssize_t = self.start[row]
        stop: cython.Py_ssize_t = i + self.full[row]
        while i < stop and (self.pins[self.ids[i]] != ABSENT or self.below[self.ids[i]]):
            i += 1
        return cython.cast(cython.int, i - self.start[row])

    def lower_tier_hits(self, row):
        hits: cython.int = 0
        with cython.gil:
            for tier in self.tiers:
                hits += cython.cast(PoolTier, tier).hits[row]
        return hits

    def fetch_seconds(self, row):
        k: cython.int
        seconds: cython.double = 0
        with cython.gil:
            for k in range(self.count):
                seconds += cython.cast(PoolTier, self.tiers[k]).hits[row] * self.block_seconds[k]
        return seconds

    def admit(self, row):
        i: cython.Py_ssize_t
        block: cython.int
        start: cython.Py_ssize_t = self.start[row]
        stop: cython.Py_ssize_t = start + self.full[row]
        hit: cython.int = self.peek(row)
        if not self._fits(row, start, start, stop):
            return NO_ROOM
        for i in range(start, stop):  # leave the lower tiers first: this makes room for the first tier's victims
            block = self.ids[i]
            if self.below[block]:
                self._take(block, row, i - start < hit)
        Pool.admit(self, row)
        return hit

    def _take(self, block, row, is_hit):
        """Remove a block from its lower tier, before the first tier inserts it."""
        with cython.gil:
            tier: PoolTier = self.tiers[self.below[block] - 1]
            self.below[block] = 0
            tier.size -= 1
            tier.hits[row] += is_hit
            tier.policy.remove(block)
        return 0

    def _evict(self, block):
        """Evict a block from the first tier to the next; each full tier evicts its victim to the one below."""
        k: cython.int
        Pool._evict(self, block)
        with cython.gil:
            for k in range(self.count):
                tier: PoolTier = self.tiers[k]
                self.below[block] = k + 1
                tier.size += 1
                if tier.policy.misses:
                    tier.policy.miss(block)
                tier.policy.insert(block)
                tier.policy.release(block)
                if tier.size <= tier.capacity:
                    return 0
                block = tier.policy.victim()
                self.below[block] = 0
                tier.size -= 1
                tier.policy.remove(block)
            self.last_tier_evictions += 1
        return 0


# Runs a user's policy written in Python: each verb calls the object's method. Exceptions propagate, except sys.exit();
# `failure` names the policy that raised one.
#
# The run holds the interpreter lock throughout, so a verb costs as much as a Python call.


def users_function(function, policy, verb):
    """The function of a user's policy: sys.exit() becomes a UsageError, and `failure` knows what else it raises."""

    def call(*arguments):
        try:
            return function(*arguments)
        except SystemExit:
            pass
        except Exception as error:
            if not isinstance(error, (KvtraceError, MemoryError)):
                inside = error.__traceback__.tb_next is not None  # else the call failed, before the user's first line
                place = place_of(error) if inside else f"{type(error).__name__} in the call of {verb}()"
                error.kvtrace_failure = policy, place
            raise
        raise UsageError("the policy called sys.exit(). To stop a run, raise an exception such as ValueError.")

    return call


def failure(error):
    """(policy, place) of an exception that a user's policy raised, such as ("mine:Cls", "ValueError at mine.py:7").

    None for any other exception.
    """
    return getattr(error, "kvtrace_failure", None)


class PythonPolicy(Policy):
    """Calls the object's methods of the same names; the optional ones only if the object has them.

    `name` is the policy in errors; the default is "module:Class".
    """

    def __init__(self, context: Context, user_policy, name=None):
        Policy.__init__(self, context)
        self.needs_lock = True
        self.user_policy = user_policy
        kind = type(user_policy)
        name = name or f"{kind.__module__}:{kind.__qualname__}"
        self._insert = users_function(user_policy.insert, name, "insert")
        self._use = users_function(user_policy.use, name, "use")
        self._release = users_function(user_policy.release, name, "release")
        self._victim = users_function(user_policy.victim, name, "victim")
        self._remove = users_function(user_policy.remove, name, "remove")
        self.expires, self.misses = hasattr(user_policy, "expired"), hasattr(user_policy, "miss")
        self.follows_requests = hasattr(user_policy, "request_started") or hasattr(user_policy, "request_ended")
        started, ended = (getattr(user_policy, f"request_{verb}", _nothing) for verb in ("started", "ended"))
        self._request_started = users_function(started, name, "request_started")
        self._request_ended = users_function(ended, name, "request_ended")
        self._expired = users_function(user_policy.expired, name, "expired") if self.expires else None
        self._miss = users_function(user_policy.miss, name, "miss") if self.misses else None

    def insert(self, block):
        with cython.gil:
            self._insert(block)
        return 0

    def use(self, block):
        with cython.gil:
            self._use(block)
        return 0

    def release(self, block):
        with cython.gil:
            self._release(block)
        return 0

    def victim(self):
        with cython.gil:
            return _number(self._victim())

    def remove(self, block):
        with cython.gil:
            self._remove(block)
        return 0

    def expired(self):
        with cython.gil:
            return _number(self._expired())

    def miss(self, block):
        with cython.gil:
            self._miss(block)
        return 0

    def request_started(self, row):
        with cython.gil:
            self._request_started(row)
        return 0

    def request_ended(self, row):
        with cython.gil:
            self._request_ended(row)
        return 0


def _nothing(row):
    """The verb that a user's policy leaves out."""


def _number(result):
    """The block number that a method returned; NONE for None and for negative numbers."""
    if result is None:
        return NONE
    if not hasattr(result, "__index__"):
        raise UsageError(f"the policy returned a {type(result).__name__} as its victim. Return a block number or None.")
    number = result.__index__()
    return NONE if number < 0 or number > 0x7FFFFFFF else number


# LMCache's chunk store: groups of blocks under one key each. Live requests pin nothing.
#
# A request looks up its chunks, root first, and touches the hit chunks, tail first. Then it stores the other chunks.
# Without the watermark, each chunk takes a place and evicts for it, even if it is resident already. With the watermark,
# all missing chunks are stored if they fit together, else none, and once a second a clock evicts a fifth of the
# resident chunks if four fifths of the capacity are in use. Twin: tests/reference/chunks.py.


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


# Belady's MIN over runs of blocks: the hits of the policy `belady`, one request at a time, without a state per block.
#
# Blocks with the same next use are one queue, and the deepest leaves first (policies/classic.py). So a queue is a
# number, and a request hits as many blocks as its queue still holds. Blocks that are never used again leave before all
# others, and need no queue. The capacity counts idle blocks.
#
# Twin: the policy `belady` itself, in cache/policies/classic.py.


def retained(next_row, blocks, first, capacity):
    """The blocks that each request hits in a cache of a capacity (int32).

    Runs of blocks are sorted by the request that used them last: `first` is request -> its first run, and has one more
    value, the number of runs. `next_row` and `blocks` (int32) are each run's next use and its number of blocks.

    >>> retained(np.array([2], np.int32), np.array([2], np.int32), np.array([0, 1, 1, 1]), 1)  # "0 1", "2", "0 1"
    array([0, 0, 1], dtype=int32)
    """
    rows = len(first) - 1
    if not len(next_row) == len(blocks) == first[rows]:
        raise ValueError("next_row and blocks need one value for each run")
    if len(next_row) and not (0 <= next_row.min() and next_row.max() < rows):
        raise ValueError("next_row: a value is negative, or not below the number of requests")
    held = np.zeros(rows, dtype=np.int32)
    _retain(next_row, blocks, np.ascontiguousarray(first, np.int64), capacity, held, HierarchicalBitset(rows))
    return held


def _retain(next_row, blocks, first, capacity, held, due):
    """Fill `held`: request -> blocks in the queue of those that it uses next. `due` has the queues that hold any."""
    row: cython.int
    run: cython.Py_ssize_t
    queue: cython.int
    idle: cython.longlong = 0  # blocks in all queues
    with cython.nogil:
        for row in range(held.shape[0]):
            if held[row] > 0:  # they hit: the request pins them
                idle -= held[row]
                due.clear(row)
            for run in range(first[row], first[row + 1]):
                queue = next_row[run]
                if held[queue] == 0:
                    due.set(queue)
                held[queue] += blocks[run]
                idle += blocks[run]
            while idle > capacity:
                queue = due.last()
                if held[queue] > idle - capacity:
                    held[queue] -= cython.cast(cython.int, idle - capacity)
                    idle = capacity
                else:
                    idle -= held[queue]
                    held[queue] = 0
                    due.clear(queue)
