"""Instances that affect each other: one loop in time over their turns and events; instances that share tiers."""

from heapq import heappop, heappush

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.places import FirstTier, Places
from cython.cimports.kvtrace.cache.core.pool import Pool
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.serving.core.instance import Instance, Requests, ReservingInstance, SessionLanes
from cython.cimports.kvtrace.serving.core.serving import Router, Serving
from cython.cimports.libc.math import nextafter

NOBODY = cython.declare(cython.int, -1)
NEVER = cython.declare(cython.double, 1e300)


class InterleavedServing(Serving):
    """Serving simulation of instances that affect each other: the turn that begins first is always the next one.

    A turn is a call of an instance's `run`: a step, or several that are taken together. It begins at `next_turn()`, and
    lasts up to the next event, or to the horizon of another instance, which is the time before which that instance
    affects no other. Of one moment, events come first, by their kinds and then by their rows, then arrivals, then
    turns; of turns the first instance's. So a step sees all that happened up to its begin, and what it does to others
    when it ends is an event at its end.

    A subclass defines `happen`; `settle` is called after the last event of each moment. It may define `horizon`: the
    later it is, the more steps are taken together. An instance in its turn may call `at`: it then runs no further than
    to that event. Twin: `Serving` for instances that do not affect each other.
    """

    def __init__(self, instances, router: Router, requests: Requests, capacity):
        Serving.__init__(self, instances, router, requests, capacity)
        self.events, self.running, self.turns, self.lanes = [], NOBODY, 0, None

    def play(self, lanes: SessionLanes):
        """Take the arrivals of a closed loop, whose times have the unit of the others."""
        self.lanes = lanes
        self._plan_arrival()

    def _plan_arrival(self):
        """The next arrival of a closed loop is an event."""
        return 0

    def advance(self, rows):
        """Let the next `rows` requests arrive; of a closed loop all of them."""
        if self.lanes is not None:
            self.run_until(NEVER)
            return
        stop: cython.Py_ssize_t = min(self.row + rows, self.requests.tokens.shape[0])
        while self.row < stop:
            self.run_until(self.requests.arrival[self.row])
            self._arrive(self.row)

    def close(self):
        """Run all instances until no request is left, then self-check each cache."""
        instance: Instance
        self.run_until(NEVER)
        for instance in self.instances:
            instance.engine.close()

    def at(self, seconds, kind, row):
        """Something happens at a time that is not before the present one: `happen` gets its kind and its row."""
        instance: Instance
        heappush(self.events, (seconds, kind, row))
        if self.running != NOBODY:
            instance = self.instances[self.running]
            instance.until = min(instance.until, seconds)
        return 0

    def happen(self, seconds, kind, row):
        """An event happens. All turns that began before it have been taken."""
        return 0

    def settle(self, seconds):
        """All events of a moment have happened."""
        return 0

    def horizon(self, i):
        """The time before which an instance neither affects another one nor causes an event."""
        instance: Instance = self.instances[i]
        return instance.next_turn()

    def run_until(self, until):
        """Let all events happen up to a time, and take all turns that begin before it."""
        event: tuple
        while self._turn(until):
            event = heappop(self.events)
            self.happen(event[0], event[1], event[2])
            if not self.events or self.events[0][0] > event[0]:
                self.settle(event[0])
        return 0

    def _turn(self, until):
        """Take turns up to the next event; False if there is none up to a time, and no turn begins before it."""
        i: cython.int
        first: cython.int
        begin: cython.double
        earliest: cython.double
        bound: cython.double  # before which no other instance affects this one
        event: cython.double
        instance: Instance
        while True:
            event = self.events[0][0] if self.events else NEVER
            earliest, first = NEVER, NOBODY
            for i in range(len(self.instances)):
                instance = self.instances[i]
                begin = instance.next_turn()
                if begin < earliest:
                    earliest, first = begin, i
            if event <= until and event <= earliest and event < NEVER:
                return True
            if earliest >= until:
                return False
            bound = min(event, until)
            for i in range(len(self.instances)):
                if i != first and bound > earliest:
                    bound = min(bound, self.horizon(i))
            instance = self.instances[first]
            self.running = first
            self.turns += 1
            instance.run(max(bound, nextafter(earliest, NEVER)))
            self.running = NOBODY


# Instances that share tiers have a scheduler that reserves blocks; links are shared, too. A request looks its prompt up
# when it is admitted. What it fetches from a tier of its own comes over a link of its own; transfers from a tier that
# instances share take its link one after another. A tier that is written through gets a prompt when it is computed, at
# the first token. Twin: tests/reference/pooled_serving.py.


class PooledFirstTier(FirstTier):
    """The first tier of an instance that shares others: its hits are those of all tiers."""

    def __init__(self, context: Context, demand, policy: Policy, total=True, leaf_first=False):
        FirstTier.__init__(self, context, demand, policy, total, leaf_first)
        self.shared = None
        self.needs_lock = True

    def share(self, places: Places, number, seconds, latency, is_shared, link):
        """Set the places below, the number of the instance, and the links; `link` is the same of all instances."""
        self.shared, self.number = places, number
        self.seconds = np.ascontiguousarray(seconds, dtype=np.float64)
        self.latency = np.ascontiguousarray(latency, dtype=np.float64)
        self.is_shared = np.ascontiguousarray(is_shared, dtype=np.int8)
        self.link = link

    @property
    def tier_hits(self):
        """Hit blocks of each request of all instances in each lower tier, from the first instance; else none."""
        hits = self.shared.tier_hits
        return hits if self.number == 0 else np.zeros_like(hits)

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        if self.number == 0:
            self.shared.close()
        return Pool.self_check(self)

    def serve(self, row):
        run: cython.int
        with cython.gil:
            run = self.shared.begin(self.number, row, self)
            Pool.serve(self, row)
            self.shared.store(self.number, row, False)
            if self.shared.follows:
                cython.cast(list, self.shared.live[self.number]).append(row)
        self.hit[row] = run
        return 0

    def finish(self, row):
        Pool.finish(self, row)
        with cython.gil:
            self.shared.ended(self.number, row)
        return 0

    def lower_tier_hits(self, row):
        k: cython.int
        hits: cython.int = 0
        for k in range(self.shared.tiers):
            hits += self.shared.tier_hit[k, row]
        return hits


class PooledInstance(ReservingInstance):
    """A reserving instance whose transfers share links."""

    def __init__(self, engine, requests, cost, limits, prefetches=True):
        ReservingInstance.__init__(self, engine, requests, cost, limits, prefetches)
        self.serving, self.fresh = None, False
        self.ends = np.zeros(len(engine.tier_hits))

    def take(self, row):
        if self.active() and self._soonest() > self.now:
            self.now = max(self.now, self.requests.arrival[row])
        self.fresh = True
        return ReservingInstance.take(self, row)

    def next_turn(self):
        """When the next turn begins: if all prompts wait for their transfers, when the first of these ends."""
        if not self.active():
            return NEVER
        return self.now if self.fresh else max(self.now, self._soonest())

    def run(self, until):
        if self.active() and not self.fresh:
            self.now = max(self.now, self._soonest())
        return ReservingInstance.run(self, until)

    def _soonest(self):
        """When an instance that only waits for transfers gets the first; before that, 0 if it has other work."""
        soonest: cython.double = NEVER
        if self.batch or not self.prefilling:
            return 0
        for item in self.prefilling:
            soonest = min(soonest, self.requests.ready[cython.cast(cython.Py_ssize_t, item)])
        return soonest

    def _admit(self):
        self.fresh = False
        ReservingInstance._admit(self)

    def _fetch_or_recompute(self, row):
        """As without shared links; what is fetched takes the link of its tier from then on."""
        engine: PooledFirstTier = self.engine
        requests: Requests = self.requests
        k: cython.int
        blocks: cython.int = engine.lower_tier_hits(row)
        all_hits: cython.double = requests.cached[row]
        upper: cython.double = max(0, requests.cached[row] - blocks * self.limits.block_size)
        end: cython.double = requests.arrival[row] if self.prefetches else self.now
        for k in range(engine.shared.tiers):
            if engine.shared.tier_hit[k, row]:
                if engine.is_shared[k]:
                    end = max(end, engine.link[engine.shared.own[k, engine.number]])
                end += engine.latency[k] + engine.shared.tier_hit[k, row] * engine.seconds[k]
                self.ends[k] = end
        left: cython.double = max(0.0, end - self.now)
        if left > self._compute_seconds(upper, all_hits):
            requests.cached[row] = cython.cast(cython.longlong, upper)
            return
        requests.ready[row] = self.now + left
        for k in range(engine.shared.tiers):
            if engine.is_shared[k] and engine.shared.tier_hit[k, row]:
                engine.link[engine.shared.own[k, engine.number]] = self.ends[k]

    def _first(self, row):
        self.serving.at(self.now, 0, row)
        ReservingInstance._first(self, row)


class PooledServing(InterleavedServing):
    """Instances that share tiers; an event is a prompt that is computed, and written through."""

    def __init__(self, instances, router: Router, requests: Requests, capacity):
        InterleavedServing.__init__(self, instances, router, requests, capacity)
        for item in instances:
            instance: PooledInstance = item
            instance.serving = self

    def happen(self, seconds, kind, row):
        instance: PooledInstance = self.instances[self.requests.instance[row]]
        engine: PooledFirstTier = instance.engine
        engine.shared.store(engine.number, row, True)
        return 0

    def horizon(self, i):
        """An instance that only decodes affects no other one before a request comes to it."""
        instance: PooledInstance = self.instances[i]
        if not instance.prefilling and instance.head == len(instance.queue):
            return NEVER
        return instance.next_turn()
