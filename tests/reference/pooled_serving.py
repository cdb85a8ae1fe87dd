"""Instances that share tiers, in time and step by step: the reserving scheduler above the places of shared_tiers.py."""

from . import serving, shared_tiers
from .fleet import key_of
from .policies.lru import LRU

STORE, ARRIVE, STEP = range(3)  # what happens first of one moment


class Instance(serving.Instance):
    """An instance; `fetch` gives the time at which a request's transfers end if they begin at a time."""

    def __init__(self, number, trace, rates, limits, capacity, pooled):
        super().__init__(trace, rates, limits, capacity)
        self.number, self.pooled, self.ready, self.fresh = number, pooled, {}, False

    def waits_until(self):
        """When the first transfer ends, if there is no other work; else 0."""
        if self.decoding or not self.prefilling or self.fresh:
            return 0.0
        return min(self.ready[row] for row in self.prefilling)

    def next_step(self):
        return max(self.now, self.waits_until()) if self.active() else float("inf")

    def take(self, row, now):
        if self.active() and self.waits_until() > self.now:
            self.now = max(self.now, now)
        super().take(row, now)
        self.fresh = True

    def step(self):
        self.now, self.fresh = max(self.now, self.waits_until()), False
        self.counts_before = self.counts()
        return super().step()

    def look_up(self, row):
        hit, lower = self.pooled.look_up(self.number, row)
        self.hits[row], self.ready[row] = hit, self.now
        self.done[row] = max(0, min(hit * self.trace.block_size, self.tokens(row) - 1))
        if lower:
            self.fetch_or_recompute(row, lower)

    def waits(self, row):
        return self.ready[row] > self.now

    def fetch_or_recompute(self, row, lower):
        all_hits = self.done[row]
        upper = max(0, all_hits - sum(lower.values()) * self.trace.block_size)
        left, book = self.pooled.transfer(self.number, lower, self.pooled.arrival[row])
        left = max(0.0, left - self.now)
        if left > self.rates.token_s * (all_hits - upper) + self.rates.pair_s * (all_hits**2 - upper**2):
            self.done[row] = upper
            return
        self.ready[row] = self.now + left
        self.pooled.links.update(book)

    def end(self, row):
        del self.decoding[row]
        self.times[row].append(self.now)
        self.pooled.model.firsts[self.number].finish(self.trace.prompt(row).tolist(), 0)


class Pooled:
    """The places of all instances and their links. `tiers` are (name, capacity, group size, kind, seconds, latency)."""

    def __init__(self, trace, arrival, count, first, tiers):
        firsts = [shared_tiers.First(first, LRU()) for _ in range(count)]
        chains, places = [[] for _ in range(count)], []
        for _, capacity, group, kind, *_ in tiers:
            made = [shared_tiers.Place(capacity, kind) for _ in range(-(-count // group))]
            places.append(made)
            for number in range(count):
                chains[number].append(made[number // group])
        self.model = shared_tiers.Tiers(firsts, chains, places, [False] * len(tiers))
        self.trace, self.arrival, self.tiers, self.links = trace, arrival, tiers, {}

    def look_up(self, number, row):
        """The hits of a request, and those of each lower tier; it is admitted to its first tier."""
        path, chain = self.trace.prompt(row).tolist(), self.model.chains[number]
        first = self.model.firsts[number]
        run = self.model.serve(number, path, len(path), lambda: first.admit(path, 0), through=False)
        lower = {tier: sum(source is place for source in run) for tier, place in enumerate(chain)}
        return len(run), {tier: hits for tier, hits in lower.items() if hits}

    def transfer(self, number, lower, begin):
        end, book = begin, {}
        for tier, hits in lower.items():
            _, _, group, _, seconds, latency = self.tiers[tier]
            place = id(self.model.chains[number][tier])
            if group > 1:
                end = max(end, self.links.get(place, 0.0))
            end += latency + hits * seconds
            if group > 1:
                book[place] = end
        return end, book

    def store(self, number, row):
        """A prompt is computed: it passes through the tiers that are written through."""
        path = self.trace.prompt(row).tolist()
        for place in self.model.chains[number]:
            if place.copies == "write-through":
                for unit in path:
                    if place.has(unit):
                        place.hold(unit)
                for unit in path:
                    if not place.has(unit):
                        place.put(unit)
                for unit in reversed(path):
                    if unit in place.held:
                        place.free(unit)


def serve(trace, rates, limits, count, router, capacity, tiers):
    """Each request's instance, hit blocks, and times (admitted, first token, ended); None if it is rejected."""
    arrival = (trace.timestamp / 1000).tolist()
    pooled = Pooled(trace, arrival, count, capacity, tiers)
    fleet = [Instance(number, trace, rates, limits, capacity, pooled) for number in range(count)]
    chosen_instances, events = [], []
    while True:
        steps = [(one.next_step(), STEP, one.number) for one in fleet]
        arrivals = [(arrival[len(chosen_instances)], ARRIVE, 0)] if len(chosen_instances) < len(arrival) else []
        at, kind, number = min([*events, *arrivals, *steps])
        if at == float("inf"):
            return fleet, chosen_instances
        if kind == STORE:
            events.remove((at, kind, number))
            pooled.store(chosen_instances[number], number)
        elif kind == STEP:
            events += [(fleet[number].now, STORE, row) for row in fleet[number].step()]
        else:
            row = len(chosen_instances)
            if int(trace.prompt_blocks[row]) > capacity:
                chosen_instances.append(None)
                continue
            chosen = row % count if router == "round-robin" else key_of(trace, row) % count
            fleet[chosen].take(row, at)
            chosen_instances.append(chosen)
