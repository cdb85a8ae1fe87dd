"""Workload-aware: least chance of a reuse soon first, learned per category from all uses so far."""

from itertools import pairwise
from math import exp

from .depth import depths


class Workload:
    def __init__(self, context, life_ms=600_000.0):
        self.context, self.life_ms, self.depth = context, life_ms, depths(context.demand)
        self.category = categories(context.trace)
        self.history = {}  # block -> the requests that used it
        self.evictable = set()

    def insert(self, block):
        self.history.setdefault(block, []).append(self.context.request)

    def use(self, block):
        self.evictable.discard(block)
        self.insert(block)

    def release(self, block):
        self.evictable.add(block)

    def chance(self, category, since_ms):
        arrival = self.context.demand.arrival
        uses, gaps = 0, []
        for requests in self.history.values():
            uses += sum(self.category[request] == category for request in requests)
            for one, other in pairwise(requests):
                if self.category[one] == category:
                    gaps.append(arrival[other] - arrival[one])
        p = (len(gaps) + 1) / (uses + 2)
        rate = (len(gaps) + 1) / (sum(gaps) + 60_000.0)
        still = p * exp(-rate * since_ms)
        return still * (1 - exp(-rate * self.life_ms)) / (1 - p + still)

    def victim(self):
        firsts = {}  # category -> its least recent evictable block, the deepest of one request
        for block in sorted(self.evictable, key=lambda block: (self.history[block][-1], -self.depth[block])):
            firsts.setdefault(self.category[self.history[block][-1]], block)

        def key(category):
            since_ms = self.context.now - self.context.demand.arrival[self.history[firsts[category]][-1]]
            return self.chance(category, since_ms), -self.depth[firsts[category]], category

        return firsts[min(firsts, key=key)] if firsts else None

    def remove(self, block):
        self.evictable.discard(block)


def categories(trace):
    """Request -> the number of its pair of type and turn, by first appearance; turns from the tenth on are equal."""
    seen, turns, numbers = [], [], []
    for row in range(len(trace)):
        if "turn" in trace.extra:
            turn = trace.extra["turn"][row]
        else:
            root = trace.parent is None or trace.parent[row] < 0
            turn = 1 if root else turns[trace.parent[row]] + 1
        turns.append(turn)
        pair = (str(trace.extra["type"][row]) if "type" in trace.extra else None, min(turn, 10))
        if pair not in seen:
            seen.append(pair)
        numbers.append(seen.index(pair))
    return numbers
