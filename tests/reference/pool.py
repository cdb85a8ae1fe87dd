"""The reference engine in plain Python: a set of resident blocks, pins, and a policy with the five verbs.

The definition of a simulation for all modes, schedules, countings and pools. Twin: src/kvtrace/cache/core/pool.py.
"""

from .policies.lru import LRU as Lru

__all__ = ["Lru", "NoRoom", "Pool", "simulate"]


class NoRoom(Exception):
    """There is no room for a request's missing blocks without evicting blocks in use."""


class Pool:
    """A cache of `capacity` blocks. With `total`, live and idle blocks count; else only idle blocks."""

    def __init__(self, capacity, policy, total=True, parent=None):
        self.capacity, self.policy, self.total = capacity, policy, total
        self.parent = parent  # block -> parent, for leaf-first; None = flat
        self.pins = {}  # resident block -> number of live requests that hold it
        self.unhashed = 0  # number of blocks without a hash, each held by one live request
        self.evictions = 0

    def idle(self):
        return [block for block, pins in self.pins.items() if pins == 0]

    def evictable(self, block):
        has_child = self.parent is not None and any(self.parent[other] == block for other in self.pins)
        return self.pins[block] == 0 and not has_child

    def admit(self, path, tail):
        hit = 0
        while hit < len(path) and path[hit] in self.pins:
            hit += 1
        missing = [block for block in path if block not in self.pins]
        others = [block for block in self.idle() if block not in path]
        if self.total and len(missing) + tail > self.capacity - len(self.pins) - self.unhashed + len(others):
            raise NoRoom
        for block in path:
            if block in self.pins:
                self.pins[block] += 1
                self.policy.use(block)
        for block in missing:
            self.make_room()
            self.pins[block] = 1
            self.policy.insert(block)
        for _ in range(tail):
            self.make_room()
            self.unhashed += 1
        return hit

    def grow(self, blocks, had_tail, has_tail):
        """Allocate the output's blocks; the first one replaces the prompt's tail, which is full now."""
        need = len(blocks) + has_tail - had_tail
        if self.total and need > self.capacity - len(self.pins) - self.unhashed + len(self.idle()):
            raise NoRoom
        for number, block in enumerate(blocks):
            if number == 0 and had_tail:
                self.unhashed -= 1
                had_tail = 0
            self.make_room()
            self.pins[block] = 1
            self.policy.insert(block)
        for _ in range(has_tail - had_tail):
            self.make_room()
            self.unhashed += 1

    def finish(self, path, tail):
        self.unhashed -= tail
        for block in reversed(path):
            self.pins[block] -= 1
            if self.evictable(block):
                self.policy.release(block)
            if not self.total and len(self.idle()) > self.capacity:
                self.evict(self.policy.victim())

    def make_room(self):
        if self.total and len(self.pins) + self.unhashed >= self.capacity:
            self.evict(self.policy.victim())

    def evict(self, block):
        assert self.evictable(block)
        del self.pins[block]
        self.evictions += 1
        self.policy.remove(block)
        if self.parent is not None and self.parent[block] in self.pins and self.evictable(self.parent[block]):
            self.policy.release(self.parent[block])


def paths_of(demand):
    """Two functions of a request: the blocks of its prompt, and those that its output adds."""

    def path(row):
        return [int(block) for block in demand.ids[demand.start[row] : demand.start[row] + demand.full[row]]]

    def grown(row):
        return list(range(demand.fresh[row], demand.fresh[row] + demand.grown[row])) if demand.grows else []

    return path, grown


def simulate(demand, cache, kind="serial", concurrency=1, ends=None, context=None):
    """(hit blocks of each request, early frees): the block demand of a trace through a cache, by a schedule."""
    live, hits, early = [], [], 0
    path, grown = paths_of(demand)

    def end(row):
        live.remove(row)
        cache.finish(path(row) + grown(row), int(demand.grown_tail[row] if demand.grows else demand.tail[row]))

    def until_it_fits(row, attempt):
        nonlocal early
        while True:
            try:
                return attempt()
            except NoRoom:
                end(min(other for other in live if other != row))
                early += 1

    for row in range(len(demand)):
        if context is not None:
            context.request, context.order, context.now = row, row, float(demand.arrival[row])
        if kind == "concurrency":
            while len(live) >= concurrency:
                end(min(live))
        if kind == "open-loop":
            for other in sorted(live, key=lambda other: (ends[other], other)):
                if ends[other] <= demand.arrival[row]:
                    end(other)
        hit = until_it_fits(row, lambda row=row: cache.admit(path(row), int(demand.tail[row])))
        hits.append(min(hit, int(demand.limit[row])))
        live.append(row)
        if demand.grows:
            tails = int(demand.tail[row]), int(demand.grown_tail[row])
            until_it_fits(row, lambda row=row, tails=tails: cache.grow(grown(row), *tails))
        if kind == "serial":
            end(row)
    for other in sorted(live, key=lambda other: (ends[other], other) if kind == "open-loop" else other):
        end(other)
    return hits, early
