"""Tiers that instances share, request by request: places of blocks below the first tiers, and the sources of hits."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import Engine
from cython.cimports.kvtrace.cache.core.pool import ABSENT, FAR, LARGE, NEAR, Pool
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.cache.policies.classic import LRU
from cython.cimports.kvtrace.cache.structures.fetch import fetch

from kvtrace._base.errors import KvtraceError, UsageError

# A place belongs to one instance, to those of a host, or to all. It holds units: blocks, or chunks of several blocks. A
# request looks for each block in the first tier of its instance, then in the places of each tier that it can reach; it
# stops at the first block that none has. What it uses stays where it is until its own blocks are stored. A place that
# is written through sees the whole path of each request, so its order is that of all requests that reach it.
#
# Twin: tests/reference/shared_tiers.py.


COPIES = {"move": MOVES, "write-back": BACK, "write-through": THROUGH}


class Place:
    """One place of a tier: its capacity is that of the policy's context, in units of `chunk` blocks."""

    def __init__(self, policy: Policy, copies, chunk=1):
        self.policy, self.copies, self.chunk = policy, COPIES[copies], chunk
        self.capacity = policy.context.capacity
        self.size = self.held = self.loaded = self.stored = self.evicted = self.moved = self.peers_loaded = 0
        self.state = np.zeros(policy.context.blocks, dtype=np.int8)
        self.below = None
        self.last_unit, self.last_row = -1, -1
        self.fetches = policy.context.blocks > LARGE and not policy.needs_lock
        self.is_lru = type(policy) is LRU and chunk == 1

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        state = np.asarray(self.state)
        if (state == HELD).any() or self.held:
            return f"{int((state == HELD).sum()):,} units of a tier are still held"
        if np.count_nonzero(state) != self.size or self.size > self.capacity:
            return f"a tier of {self.capacity:,} units has {np.count_nonzero(state):,} and counts {self.size:,}"
        if self.stored != self.evicted + self.moved + self.size:
            return f"{self.stored:,} units were stored, and {self.evicted + self.moved + self.size:,} are known"
        return None

    def receive(self, block):
        """The tier above evicts a block. A copy that is here already counts as used; nothing moves."""
        if self.copies == THROUGH:
            return 0
        if self.state[block] != GONE:
            if self.state[block] == IDLE:
                self.policy.use(block)
                self.policy.release(block)
            return 0
        self.stored += 1
        self.size += 1
        self.state[block] = IDLE
        if self.policy.misses:
            self.policy.miss(block)
        self.policy.insert(block)
        self.policy.release(block)
        return self._evict() if self.size > self.capacity else 0

    def put(self, unit):
        """Store a unit, held, unless all others are held too."""
        if self.policy.misses:
            self.policy.miss(unit)
        if self.size >= self.capacity:
            if self.size == self.held:
                return 0
            self._evict()
        self.stored += 1
        self.size += 1
        self.held += 1
        self.state[unit] = HELD
        return self.policy.insert(unit)

    def take_out(self, block):
        """A block moves to the first tier."""
        self.state[block] = GONE
        self.size -= 1
        self.moved += 1
        return self.policy.remove(block)

    def hold(self, unit):
        """The present request uses a unit."""
        self.state[unit] = HELD
        self.held += 1
        return self.policy.use(unit)

    def let_go(self, unit):
        """The present request has used a unit."""
        self.state[unit] = IDLE
        self.held -= 1
        return self.policy.release(unit)

    def load(self, unit, row):
        """Count a unit that a request reads, once; returns whether it is new. A request reads its units in order."""
        if self.last_unit == unit and self.last_row == row:
            return False
        self.last_unit, self.last_row = unit, row
        self.loaded += 1
        return True

    def unload(self, unit, row):
        """Whether a unit that a request has read comes for the first time, as `load`, tail first."""
        new: cython.bint = self.last_row == row or self.last_unit != unit
        self.last_unit, self.last_row = unit, -1
        return new

    def pass_through(self, ids, start, stop):
        """Use the blocks ids[start : stop] of a path that are here, and store the others: with LRU, in one pass.

        LRU's order depends on the last use alone, so its blocks need no `use` before their release; one that turns out
        to be the victim is moved to the end.
        """
        at: cython.Py_ssize_t
        block: cython.int
        missing: cython.longlong = 0
        room: cython.longlong
        for at in range(start, stop):
            if self.state[ids[at]] == GONE:
                missing += 1
            else:
                self.state[ids[at]] = HELD
        room = self.capacity - (stop - start - missing)  # for the missing ones, root first
        while self.size + min(missing, room) > self.capacity:
            block = self.policy.victim()
            if self.state[block] == HELD:
                self.policy.hit_idle(block)
            else:
                self._evict()
        for at in range(stop - 1, start - 1, -1):
            block = ids[at]
            if self.state[block] != GONE:
                self.state[block] = IDLE
                self.policy.hit_idle(block)
            elif missing <= room:
                self.state[block] = IDLE
                self.policy.insert_idle(block)
                self.size += 1
                self.stored += 1
                missing -= 1
                room -= 1
            else:
                missing -= 1
        return 0

    def _evict(self):
        unit: cython.int
        if self.fetches:
            unit = self.policy.likely_victim()
            if unit >= 0:
                fetch(cython.address(self.state[unit]))
        return self._drop(self.policy.victim())

    def expire(self):
        """Evict the units that have expired."""
        unit: cython.int = self.policy.expired()
        while unit >= 0:
            self._drop(unit)
            unit = self.policy.expired()
        return 0

    def _drop(self, unit):
        if unit < 0 or unit >= self.state.shape[0] or self.state[unit] != IDLE:
            with cython.gil:
                raise UsageError(
                    "the policy's victim is not an idle block of its tier. Return a block that was released and not "
                    "used since."
                )
        self.state[unit] = GONE
        self.size -= 1
        self.evicted += 1
        self.policy.remove(unit)
        if self.below is not None:
            self.below.receive(unit)
        return 0


class FirstTier(Pool):
    """The first tier of an instance, a pool: what it evicts goes to the place below."""

    def __init__(self, context: Context, demand, policy: Policy, total=True, leaf_first=False):
        Pool.__init__(self, context, demand, policy, total, leaf_first)
        self.below = None

    def _evict(self, block):
        Pool._evict(self, block)
        if self.below is not None:
            self.below.receive(block)
        return 0


class Places:
    """The places of all tiers below the first ones of several instances.

    `own` (tiers, instances; int32) has the number in `places` of each instance's place, and `peers` (int8) says of each
    tier whether an instance reads the places of others too.
    """

    def __init__(self, demand, places, own, peers):
        rows = len(demand.full)
        self.ids, self.start, self.full = demand.ids, demand.start, demand.full
        self.grown, self.fresh, self.grows = demand.grown, demand.fresh, demand.grows
        self.places, self.own = list(places), np.ascontiguousarray(own, dtype=np.int32)
        self.peers = np.ascontiguousarray(peers, dtype=np.int8)
        self.tiers, self.has_peers = len(own), bool(np.any(peers))
        # whether a hit is all that there is to know: one tier of blocks that is written through
        self.plain = (
            self.tiers == 1
            and not self.has_peers
            and all(
                cython.cast(Place, place).copies == THROUGH and cython.cast(Place, place).chunk == 1 for place in places
            )
        )
        self.hit = np.zeros(rows, dtype=np.int32)
        self.tier_hit = np.zeros((len(own), rows), dtype=np.int32)
        self.source = np.zeros(max(1, int(np.asarray(demand.full).max(initial=0))), dtype=np.int32)
        self.engines = None
        self.follows = any(cython.cast(Place, place).policy.follows_requests for place in self.places)
        self.live = [[] for _ in range(len(own[0]) if len(own) else 0)]  # if it follows: instance -> its live requests

    @property
    def hits(self):
        """Leading blocks of each request that hit in any tier."""
        return np.asarray(self.hit)

    @property
    def tier_hits(self):
        """Those that came from each tier below the first: an array of shape (tiers, requests)."""
        return np.asarray(self.tier_hit)

    def watch(self, engines):
        """Remember of each request how far tiers had its path that it could not reach; `engines` are all first ones."""
        self.engines = list(engines)
        self.elsewhere_hit = np.zeros(len(self.full), dtype=np.int32)

    @property
    def elsewhere(self):
        """Leading blocks of each request that some tier had, of its instance or of others. Needs `watch`."""
        return np.asarray(self.elsewhere_hit)

    def close(self):
        """Raise KvtraceError if a count is wrong."""
        for place in self.places:
            broken = place.self_check()
            if broken:
                raise KvtraceError(f"internal error in the simulation: {broken}. Please report it.")

    def serve(self, i, row, engine: Engine):
        """Serve a request by an instance, whose first tier is `engine`."""
        run: cython.int = self.begin(i, row, engine)
        engine.serve(row)
        self.store(i, row, True)
        self.hit[row] = run
        if self.follows:
            for other in [other for other in self.live[i] if not engine.admitted[cython.cast(cython.int, other)]]:
                self.ended(i, other)  # it was freed early
            self.live[i].append(row)

    def begin(self, i, row, engine: Engine):
        """Look a request up before its first tier serves it, and use what it reads; returns its hit blocks."""
        k: cython.int
        run: cython.int
        for k in range(self.tiers):
            place: Place = self.places[self.own[k, i]]
            context: Context = place.policy.context
            context.request, context.order = row, engine.context.order
            context.now = engine.context.now
            if place.policy.expires:
                place.expire()
            if place.policy.follows_requests:
                place.policy.request_started(row)
        run = self._look_up(i, row, engine)
        if self.engines is not None:
            self.elsewhere_hit[row] = self._anywhere(row, run)
        if self.has_peers:
            self._use_peers(i, row, run)
        if not self.plain:
            self._take_out(i, row)
        return run

    def ended(self, i, row):
        """A request has ended."""
        k: cython.int
        if self.follows:
            self.live[i].remove(row)
            for k in range(self.tiers):
                place: Place = self.places[self.own[k, i]]
                if place.policy.follows_requests:
                    place.policy.request_ended(row)

    def _look_up(self, i, row, engine: Engine):
        """Find the source of each block of the run that hits, and use it; returns the length of the run."""
        at: cython.int = 0
        limit: cython.int = engine.limit[row]
        k: cython.int
        hits: cython.int = 0
        block: cython.int
        start: cython.Py_ssize_t = self.start[row]
        pool: Pool = engine if isinstance(engine, Pool) else None  # other engines use their leading blocks alone
        nearest: Place = self.places[self.own[0, i]] if self.plain else None
        if nearest is not None and nearest.fetches:
            self._fetch(nearest, start, start + self.full[row])
            if pool is not None:
                self._fetch_pins(pool, start, start + self.full[row])
        if pool is None:
            at = engine.peek(row)
            for k in range(at):
                self.source[k] = FIRST
        while at < limit:
            block = self.ids[start + at]
            if pool is not None and pool.pins[block] != ABSENT:
                self.source[at] = FIRST
            elif nearest is not None:
                if nearest.state[block] == GONE:
                    break
                hits += 1
            else:
                self.source[at] = self._source_of(i, row, at)
                if self.source[at] == FIRST:
                    break
            at += 1
        if nearest is not None:
            self.tier_hit[0, row] = hits
            nearest.loaded += hits
        return at

    def _fetch(self, place: Place, start, stop):
        """Prefetch the state of as many upcoming blocks as this request has, as a pool does."""
        at: cython.Py_ssize_t
        for at in range(start + FAR, min(stop + FAR, self.ids.shape[0])):
            fetch(cython.address(place.state[self.ids[at]]))
            place.policy.prefetch(self.ids[at], self.ids[at - FAR + NEAR])
        return 0

    def _fetch_pins(self, pool: Pool, start, stop):
        """Prefetch the pins of as many upcoming blocks."""
        at: cython.Py_ssize_t
        for at in range(start + FAR, min(stop + FAR, self.ids.shape[0])):
            fetch(cython.address(pool.pins[self.ids[at]]))
        return 0

    def _source_of(self, i, row, at):
        """The nearest place that has a block of a request, whose unit is used now; FIRST if none has."""
        k: cython.int
        p: cython.int
        unit: cython.int
        for k in range(self.tiers):
            place: Place = self.places[self.own[k, i]]
            unit = self._unit(row, place.chunk, at, self.full[row])
            if unit < 0:
                continue
            if place.state[unit] != GONE:
                self.tier_hit[k, row] += 1
                if place.load(unit, row) and place.copies == BACK:
                    place.hold(unit)
                return self.own[k, i]
            if self.peers[k]:
                for p in range(self.own[k, 0], self.own[k, self.own.shape[1] - 1] + 1):
                    place = self.places[p]
                    if place.state[unit] != GONE:
                        self.tier_hit[k, row] += 1
                        place.peers_loaded += place.load(unit, row)
                        return p
        return FIRST

    def _anywhere(self, row, at):
        """How far any tier of any instance has the path of a request, whose first blocks hit."""
        unit: cython.int
        has: cython.bint = True
        engine: Engine
        pool: Pool
        for engine in self.engines:
            at = max(at, engine.peek(row))
        while has and at < self.full[row]:
            has = False
            for engine in self.engines:
                if isinstance(engine, Pool):
                    pool = engine
                    has = has or pool.pins[self.ids[self.start[row] + at]] != ABSENT
            for item in self.places:
                place: Place = item
                unit = self._unit(row, place.chunk, at, self.full[row])
                has = has or (unit >= 0 and place.state[unit] != GONE)
            at += has
        return at

    def _unit(self, row, chunk, at, blocks):
        """The last block of the chunk at a place of a path of `blocks` blocks, -1 if that is not full."""
        last: cython.int = at if chunk == 1 else (at // chunk + 1) * chunk - 1
        if last >= blocks:
            return -1
        return self.ids[self.start[row] + last] if last < self.full[row] else self.fresh[row] + last - self.full[row]

    def _use_peers(self, i, row, run):
        """Use the copies of peers, tail first, each unit once."""
        at: cython.int
        k: cython.int
        unit: cython.int
        for at in range(run - 1, -1, -1):
            if self.source[at] == FIRST:
                continue
            k = 0
            while k < self.tiers and self.own[k, i] != self.source[at]:
                k += 1
            if k == self.tiers:
                place: Place = self.places[self.source[at]]
                unit = self._unit(row, place.chunk, at, self.full[row])
                if place.unload(unit, row):
                    place.policy.use(unit)
                    place.policy.release(unit)

    def _take_out(self, i, row):
        """Take out the blocks of a request that move to its first tier."""
        at: cython.Py_ssize_t
        k: cython.int
        for k in range(self.tiers):
            place: Place = self.places[self.own[k, i]]
            if place.copies == MOVES:
                for at in range(self.start[row], self.start[row] + self.full[row]):
                    if place.state[self.ids[at]] != GONE:
                        place.take_out(self.ids[at])

    def store(self, i, row, through):
        """Release what a request has used, and with `through` write its path through."""
        at: cython.int
        k: cython.int
        unit: cython.int
        blocks: cython.int = self.full[row] + (self.grown[row] if self.grows else 0)
        for k in range(self.tiers):
            place: Place = self.places[self.own[k, i]]
            if place.copies == MOVES:
                continue
            if place.copies == THROUGH and not through:
                continue
            if place.copies == THROUGH:
                if place.is_lru and blocks == self.full[row]:
                    place.pass_through(self.ids, self.start[row], self.start[row] + blocks)
                    continue
                for at in range(0, blocks, place.chunk):
                    unit = self._unit(row, place.chunk, at, blocks)
                    if unit >= 0 and place.state[unit] == IDLE:
                        place.hold(unit)
                for at in range(0, blocks, place.chunk):
                    unit = self._unit(row, place.chunk, at, blocks)
                    if unit >= 0 and place.state[unit] == GONE:
                        place.put(unit)
            if place.held:
                for at in range(blocks - 1, -1, -1):
                    unit = self._unit(row, place.chunk, at, blocks)
                    if unit >= 0 and place.state[unit] == HELD:
                        place.let_go(unit)
        return 0
