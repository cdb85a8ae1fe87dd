"""Instances that share tiers, in time, with a scheduler that reserves blocks: links that are shared, too.

A request looks its prompt up when it is admitted. What it fetches from a tier of its own comes over a link of its own;
transfers from a tier that instances share take its link one after another. A tier that is written through gets a
prompt when it is computed, at the first token. Twin: tests/reference/pooled_serving.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.places import FirstTier, Places
from cython.cimports.kvtrace.cache.core.pool import Pool
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.serving.core.instance import Requests, ReservingInstance
from cython.cimports.kvtrace.serving.core.interleaved import InterleavedServing
from cython.cimports.kvtrace.serving.core.serving import Router

NEVER = cython.declare(cython.double, 1e300)


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
