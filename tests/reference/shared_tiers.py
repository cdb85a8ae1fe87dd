"""Tiers that instances share, in plain Python: places of blocks below the first tiers of instances behind a router.

A place holds units: blocks, or chunks of several blocks, which have the name of their last block. A request looks for
each block in the first tier of its instance, then in the places that it can reach, and stops at the first block that
none has. Twin: src/kvtrace/cache/core/places.py.
"""

from .policies.lru import LRU
from .pool import NoRoom, Pool, paths_of


class First(Pool):
    """A first tier that passes what it evicts to the places below."""

    below = None

    def evict(self, block):
        super().evict(block)
        if self.below is not None:
            self.below.receive(block)


class Nothing:
    """A first tier of 0 blocks: it holds nothing."""

    evictions = 0
    pins = ()

    def admit(self, path, tail):
        return 0

    def grow(self, blocks, had_tail, has_tail):
        pass

    def finish(self, path, tail):
        pass


class Place:
    """`capacity` units. `copies` is "write-through", "write-back", or "move": a hit takes the block out again."""

    def __init__(self, capacity, copies, chunk=1, policy=LRU):
        self.capacity, self.copies, self.chunk, self.policy = capacity, copies, chunk, policy()
        self.held, self.idle = set(), set()  # units that the present request uses, and the others
        self.below = None
        self.loaded = self.stored = self.evicted = self.moved = 0

    def has(self, unit):
        return unit in self.held or unit in self.idle

    def unit(self, path, place):
        """The unit with the block at a place of a path; None if its chunk is not whole."""
        last = (place // self.chunk + 1) * self.chunk
        return path[last - 1] if last <= len(path) else None

    def receive(self, block):
        """The tier above evicts a block."""
        if self.copies == "write-through":
            return
        if self.has(block):
            self.hold(block)
            self.free(block)
            return
        self.stored += 1
        self.policy.insert(block)
        self.held.add(block)
        self.free(block)
        if len(self.held) + len(self.idle) > self.capacity:
            self.evict()

    def evict(self):
        victim = self.policy.victim()
        self.idle.remove(victim)
        self.policy.remove(victim)
        self.evicted += 1
        if self.below is not None:
            self.below.receive(victim)

    def put(self, unit):
        """Store a unit, held, if there is room for it."""
        if len(self.held) + len(self.idle) >= self.capacity:
            if not self.idle:
                return
            self.evict()
        self.stored += 1
        self.policy.insert(unit)
        self.held.add(unit)

    def take_out(self, block):
        self.idle.remove(block)
        self.policy.remove(block)
        self.moved += 1

    def hold(self, unit):
        self.policy.use(unit)
        self.idle.discard(unit)
        self.held.add(unit)

    def free(self, unit):
        self.held.remove(unit)
        self.idle.add(unit)
        self.policy.release(unit)


class Tiers:
    """Tiers below the first one: `chains` has the places of each instance, the nearest first; `peers` says of each tier
    whether instances read the places of others too, and `tiers` has all its places."""

    def __init__(self, firsts, chains, tiers, peers):
        self.firsts, self.chains, self.tiers, self.peers = firsts, chains, tiers, peers
        self.elsewhere = []  # of each request so far: leading blocks that some tier had
        for first, chain in zip(firsts, chains, strict=True):
            for above, below in zip([first, *chain], chain, strict=False):
                above.below = below

    def sources(self, instance, path, limit):
        """The place of each block of the run that hits; None is the first tier."""
        run = []
        while len(run) < limit:
            if path[len(run)] in self.firsts[instance].pins:
                run.append(None)
                continue
            for tier, own in enumerate(self.chains[instance]):
                others = [place for place in self.tiers[tier] if place is not own] if self.peers[tier] else []
                holders = [place for place in [own, *others] if place.has(place.unit(path, len(run)))]
                if holders:
                    run.append(holders[0])
                    break
            else:
                break
        return run

    def anywhere(self, path, run):
        """How far any tier of any instance has a path; `run` is the length of its hits."""
        places = [place for tier in self.tiers for place in tier]
        while run < len(path) and (
            any(path[run] in first.pins for first in self.firsts)
            or any(place.has(place.unit(path, run)) for place in places)
        ):
            run += 1
        return run

    def serve(self, instance, path, limit, admit, grown=(), through=True):
        """Serve a request; `admit` lets it into its first tier. Returns the sources of its hits.

        Without `through` it is not written through now.
        """
        run, chain = self.sources(instance, path, limit), self.chains[instance]
        self.elsewhere.append(self.anywhere(path, len(run)))
        for place in {id(place): place for place in run if place is not None}.values():
            units = list(dict.fromkeys(place.unit(path, at) for at, source in enumerate(run) if source is place))
            place.loaded += place.chunk * len(units)
            if place not in chain:  # a peer's
                for unit in reversed(units):
                    place.hold(unit)
                    place.free(unit)
            elif place.copies == "write-back":
                for unit in units:
                    place.hold(unit)
        for place in chain:
            if place.copies == "move":
                for block in path:
                    if place.has(block):
                        place.take_out(block)
        admit()
        whole = [*path, *grown]
        for place in chain:
            if place.copies == "write-through" and through:
                units = [whole[at] for at in range(place.chunk - 1, len(whole), place.chunk)]
                for unit in units:
                    if place.has(unit):
                        place.hold(unit)
                for unit in units:
                    if not place.has(unit):
                        place.put(unit)
            for block in reversed(whole):
                if block in place.held:
                    place.free(block)
        return run


def simulate(demand, tiers, router, ends=None):
    """The sources of the hits of each request; with `ends` a request is live until then.

    `router` is request -> instance, in the order of the trace.
    """
    live, sources = [], []
    path, grown = paths_of(demand)

    def end(row):
        live.remove(row)
        tail = int(demand.grown_tail[row] if demand.grows else demand.tail[row])
        tiers.firsts[router[row]].finish(path(row) + grown(row), tail)

    def until_it_fits(row, attempt):
        while True:
            try:
                return attempt()
            except NoRoom:
                end(min(other for other in live if other != row and router[other] == router[row]))

    for row in range(len(demand)):
        first = tiers.firsts[router[row]]
        if ends is not None:
            for other in sorted(live, key=lambda other: (ends[other], other)):
                if ends[other] <= demand.arrival[row]:
                    end(other)

        def admit(row=row, first=first):
            until_it_fits(row, lambda: first.admit(path(row), int(demand.tail[row])))
            live.append(row)
            if demand.grows:
                tails = int(demand.tail[row]), int(demand.grown_tail[row])
                until_it_fits(row, lambda: first.grow(grown(row), *tails))

        sources.append(tiers.serve(router[row], path(row), int(demand.limit[row]), admit, grown(row)))
        if ends is None:
            end(row)
    return sources
