"""Exclusive tiers below a pool: each tier's victims move to the next tier; a block that is used moves to the first.

With LRU in each tier, the tiers together are one LRU cache of their total capacity. Twin: tests/reference/tiers.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM
from cython.cimports.kvtrace.cache.core.pool import Pool
from cython.cimports.kvtrace.cache.policies.base import Context, Policy


class Tier:
    """One tier below the first: a policy that orders its blocks."""

    def __init__(self, policy: Policy, rows):
        self.policy, self.capacity, self.size = policy, policy.context.capacity, 0
        self.hits = np.zeros(rows, dtype=np.int32)


class Tiers(Pool):
    """A pool, and lower tiers for the blocks that it evicts."""

    def __init__(self, context: Context, demand, policy: Policy, lower):
        Pool.__init__(self, context, demand, policy)
        self.tiers = [Tier(order, len(demand)) for order in lower]
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
        return np.array([np.asarray(cython.cast(Tier, tier).hits) for tier in self.tiers])

    @property
    def dropped(self):
        """Number of blocks that the last tier evicted."""
        return self.last_tier_evictions

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        below = np.asarray(self.below)
        for number, tier in enumerate(self.tiers, 1):
            held = int((below == number).sum())
            if held != cython.cast(Tier, tier).size or held > cython.cast(Tier, tier).capacity:
                return f"tier {number} holds {held:,} blocks and counts {cython.cast(Tier, tier).size:,}"
        if (np.asarray(self.pins)[below > 0] != ABSENT).any():
            return "a block is in two tiers"
        return Pool.self_check(self)

    def before(self, row):
        with cython.gil:
            for item in self.tiers:
                tier: Tier = item
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
                tier: Tier = item
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
                hits += cython.cast(Tier, tier).hits[row]
        return hits

    def fetch_seconds(self, row):
        k: cython.int
        seconds: cython.double = 0
        with cython.gil:
            for k in range(self.count):
                seconds += cython.cast(Tier, self.tiers[k]).hits[row] * self.block_seconds[k]
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
            tier: Tier = self.tiers[self.below[block] - 1]
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
                tier: Tier = self.tiers[k]
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
