"""Tiers that instances share, request by request: places of blocks below the first tiers, and the sources of hits."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import Engine
from cython.cimports.kvtrace.cache.core.pool import ABSENT, Pool
from cython.cimports.kvtrace.cache.policies.base import Context, Policy

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

    def _evict(self):
        unit: cython.int = self.policy.victim()
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
        self.tiers = len(own)
        self.hit = np.zeros(rows, dtype=np.int32)
        self.tier_hit = np.zeros((len(own), rows), dtype=np.int32)
        self.source = np.zeros(max(1, int(np.asarray(demand.full).max(initial=0))), dtype=np.int32)
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

    def close(self):
        """Raise KvtraceError if a count is wrong."""
        for place in self.places:
            broken = place.self_check()
            if broken:
                raise KvtraceError(f"internal error in the simulation: {broken}. Please report it.")

    def serve(self, i, row, engine: Engine):
        """Serve a request by an instance, whose first tier is `engine`."""
        k: cython.int
        run: cython.int
        for k in range(self.tiers):
            place: Place = self.places[self.own[k, i]]
            context: Context = place.policy.context
            context.request = context.order = row
            context.now = engine.context.now
            if place.policy.follows_requests:
                place.policy.request_started(row)
        run = self._look_up(i, row, engine)
        self._load(i, row, run)
        engine.serve(row)
        self._store(i, row)
        self.hit[row] = run
        if self.follows:
            for other in [other for other in self.live[i] if not engine.admitted[cython.cast(cython.int, other)]]:
                self.ended(i, other)  # it was freed early
            self.live[i].append(row)

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
        """Find the source of each block of the run that hits; returns the length of the run."""
        at: cython.int = engine.peek(row)
        limit: cython.int = engine.limit[row]
        source: cython.int
        pool: Pool = engine if isinstance(engine, Pool) else None  # other engines use their leading blocks alone
        self.source[:at] = FIRST
        while at < limit:
            source = FIRST
            if pool is None or pool.pins[self.ids[self.start[row] + at]] == ABSENT:
                source = self._source_of(i, row, at)
                if source == FIRST:
                    break
            self.source[at] = source
            at += 1
        return at

    def _source_of(self, i, row, at):
        """The nearest place that has a block of a request; FIRST if none has."""
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
                return self.own[k, i]
            if self.peers[k]:
                for p in range(self.own[k, 0], self.own[k, self.own.shape[1] - 1] + 1):
                    place = self.places[p]
                    if place.state[unit] != GONE:
                        self.tier_hit[k, row] += 1
                        return p
        return FIRST

    def _unit(self, row, chunk, at, blocks):
        """The unit with the block at a place of a path of so many blocks; -1 if its chunk is not whole."""
        last: cython.int = (at // chunk + 1) * chunk - 1
        if last >= blocks:
            return -1
        return self.ids[self.start[row] + last] if last < self.full[row] else self.fresh[row] + last - self.full[row]

    def _load(self, i, row, run):
        """Use the sources of a request's hits, and take out what moves to its first tier."""
        at: cython.int
        k: cython.int
        unit: cython.int
        block: cython.int
        for at in range(run):
            if self.source[at] != FIRST and self._is_last_of_unit(at, run):
                place: Place = self.places[self.source[at]]
                place.loaded += 1
                if place.copies == BACK and self._reaches(i, self.source[at]):
                    place.hold(self._unit(row, place.chunk, at, self.full[row]))
        for at in range(run - 1, -1, -1):  # tail first: copies of peers are released in this order
            if self.source[at] != FIRST and not self._reaches(i, self.source[at]) and self._is_last_of_unit(at, run):
                place: Place = self.places[self.source[at]]
                unit = self._unit(row, place.chunk, at, self.full[row])
                place.peers_loaded += 1
                place.policy.use(unit)
                place.policy.release(unit)
        for k in range(self.tiers):
            place: Place = self.places[self.own[k, i]]
            if place.copies == MOVES:
                for at in range(self.full[row]):
                    block = self.ids[self.start[row] + at]
                    if place.state[block] != GONE:
                        place.take_out(block)
        return 0

    def _is_last_of_unit(self, at, run):
        """Whether no later block of the run comes from the same unit, so that each unit counts once."""
        place: Place = self.places[self.source[at]]
        later: cython.int
        for later in range(at + 1, min(run, (at // place.chunk + 1) * place.chunk)):
            if self.source[later] == self.source[at]:
                return False
        return True

    def _reaches(self, i, number):
        """Whether a place is that of an instance, not a peer's."""
        k: cython.int = 0
        while k < self.tiers and self.own[k, i] != number:
            k += 1
        return k < self.tiers

    def _store(self, i, row):
        """Write a request's path through, and release what it has used."""
        at: cython.int
        k: cython.int
        unit: cython.int
        blocks: cython.int = self.full[row] + (self.grown[row] if self.grows else 0)
        for k in range(self.tiers):
            place: Place = self.places[self.own[k, i]]
            if place.copies == MOVES:
                continue
            if place.copies == THROUGH:
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
