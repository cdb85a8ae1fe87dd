"""LHD over dicts and lists: hits and evictions by class and age, and the densities computed from them."""

from .depth import depths

AGES = 256  # number of ages; the last one includes all greater ages
DEPTHS, USES = 4, 4
MULTIPLIER, INCREMENT = 6364136223846793005, 1442695040888963407  # of Knuth's MMIX


class LHD:
    def __init__(self, context, candidates=64):
        self.depth, self.candidates = depths(context.demand), candidates
        classes = range(DEPTHS * USES)
        self.hits = [[0.0] * AGES for _ in classes]
        self.evictions = [[0.0] * AGES for _ in classes]
        self.density = [[(one % USES + 1) / (age + 1) for age in range(AGES)] for one in classes]
        self.last, self.uses = {}, {}  # resident block -> the clock at its last use; its number of uses
        self.explorers = set()  # 1 in 1,024 inserted blocks, not evicted before a hit or the last age
        self.idle = []
        self.clock, self.random = 0, 1
        self.interval = max(8 * context.capacity, 1024)
        self.shift = 0
        while AGES << self.shift < 4 * context.capacity:
            self.shift += 1

    def kind(self, block):
        depth = min(self.depth[block].bit_length() // 2, DEPTHS - 1)
        return depth * USES + min(self.uses[block], USES) - 1

    def age(self, block):
        return min((self.clock - self.last[block]) >> self.shift, AGES - 1)

    def tick(self):
        self.clock += 1
        if self.clock % self.interval == 0:
            self.reconfigure()

    def insert(self, block):
        self.tick()
        self.uses[block], self.last[block] = 1, self.clock
        if self.draw() >> 54 == 0:
            self.explorers.add(block)

    def use(self, block):
        self.tick()
        self.hits[self.kind(block)][self.age(block)] += 1
        self.uses[block] += 1
        self.explorers.discard(block)
        self.last[block] = self.clock
        if block in self.idle:
            self.drop(block)

    def release(self, block):
        self.idle.append(block)

    def victim(self):
        among = self.idle
        if len(among) > self.candidates:
            among = [self.idle[(self.draw() >> 33) % len(self.idle)] for _ in range(self.candidates)]
        return min(among, key=self.rank, default=None)

    def rank(self, block):
        spared = block in self.explorers and self.age(block) < AGES - 1
        density = float("inf") if spared else self.density[self.kind(block)][self.age(block)]
        return (density, self.last[block])

    def remove(self, block):
        self.evictions[self.kind(block)][self.age(block)] += 1
        self.explorers.discard(block)
        self.drop(block)

    def drop(self, block):
        """Remove a block from the idle blocks; the last one takes its place."""
        place, last = self.idle.index(block), self.idle.pop()
        if last != block:
            self.idle[place] = last

    def draw(self):
        self.random = (self.random * MULTIPLIER + INCREMENT) % 2**64
        return self.random

    def reconfigure(self):
        tables = self.hits + self.evictions
        if 100 * total(row[AGES - 1] for row in tables) > total(total(row) for row in tables):
            self.shift += 1
            for row in tables:
                row[:] = [row[2 * at] + row[2 * at + 1] for at in range(AGES // 2)] + [0.0] * (AGES // 2)
        for row in tables:
            row[:] = [0.9 * count for count in row]
        all_hits = [total(column) for column in zip(*self.hits, strict=True)]
        all_evictions = [total(column) for column in zip(*self.evictions, strict=True)]
        whole = densities(all_hits, all_evictions)
        for one, (hits, evictions) in enumerate(zip(self.hits, self.evictions, strict=True)):
            known = any(hits) or any(evictions)
            self.density[one] = densities(hits, evictions) if known else whole


def total(values):
    """A sum from left to right; since Python 3.12 `sum` compensates rounding errors."""
    result = 0.0
    for value in values:
        result += value
    return result


def densities(hits, evictions):
    """Age -> expected hits per unit of remaining lifetime of a block of this age."""
    density = [0.0] * AGES
    hits_to_come = ends_to_come = stay = 0.0
    for age in reversed(range(AGES)):
        hits_to_come += hits[age]
        ends_to_come += hits[age] + evictions[age]
        stay += ends_to_come
        density[age] = hits_to_come / stay if stay > 0 else 0.0
    return density
