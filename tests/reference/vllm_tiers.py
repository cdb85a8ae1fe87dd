"""vLLM's instances with a lower tier each and a tier that they share, in plain Python: the rules of 0.33.0.

`serve(case)` takes the cases of tests/clients/vllm_tiers.py and returns what that returns, without the version.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

from tests.reference.vllm_offloading import EngineCore, Job, OffloadingScheduler

MOST_EMPTY = 3000  # turns without a step, after which a case is stuck
ENDS, BEGINS = 0, 1  # at the same time, transfers end before others begin


@dataclass(eq=False)
class Transfer:
    """Blocks that an instance writes to the pool, or reads from it."""

    scheduler: TieringScheduler
    live: object
    names: list  # in order of the prompt
    is_load: bool
    moved: list = field(default_factory=list)


class Pool:
    """The shared blocks in order of use, and a link for each direction, which serves one transfer after another."""

    def __init__(self, case):
        self.capacity, self.latency = case["capacity"], case["latency_s"]
        self.seconds = {True: case["fetch_s"], False: case["store_s"]}
        self.free, self.events, self.asked = {True: 0.0, False: 0.0}, [], 0
        self.names, self.writing = {}, set()

    def ask(self, at, transfer):
        self._push(at, BEGINS, transfer)

    def _push(self, at, kind, transfer):
        self.asked += 1
        heappush(self.events, (at, kind, transfer.scheduler.number, self.asked, transfer))

    def reach(self, now):
        """What was asked for up to a time, and what has ended by then, in order of time."""
        while self.events and self.events[0][0] <= now:
            at, kind, *_, transfer = heappop(self.events)
            if kind == BEGINS:
                self.begin(at, transfer)
            else:
                self.end(transfer)

    def begin(self, at, transfer):
        is_load = transfer.is_load
        for name in transfer.names:
            if is_load and name not in self.names:
                break  # the rest is not read
            if is_load or not (name in self.names or name in self.writing):
                transfer.moved.append(name)
        end = at
        if transfer.moved:
            seconds = self.latency + len(transfer.moved) * self.seconds[is_load]
            end = self.free[is_load] = max(at, self.free[is_load]) + seconds
        if is_load:
            self.use(transfer.moved)
        else:
            self.writing |= set(transfer.moved)
        transfer.scheduler.moved[not is_load] += len(transfer.moved)
        self._push(end, ENDS, transfer)

    def end(self, transfer):
        if not transfer.is_load:
            self.writing -= set(transfer.moved)
            self.use(transfer.moved)
            while len(self.names) > self.capacity:
                del self.names[next(iter(self.names))]
        transfer.scheduler.ended.append(transfer)

    def use(self, names):
        for name in reversed(names):
            self.names.pop(name, None)
            self.names[name] = None


class TieringScheduler(OffloadingScheduler):
    """The scheduler, and a TieringOffloadingManager: blocks of the pool pass through the lower tier."""

    def attach(self, pool, number):
        self.pool_tier, self.number = pool, number
        self.answers, self.askers = {}, {}  # name -> None (asked in this step) or whether the pool has it; its requests
        self.under_way, self.ended, self.promotions, self.moved = [], [], {}, [0, 0]
        self.promoted, self.storing = {}, {}  # request -> names that came from the pool; its stores in the lower tier
        self.from_pool = {}

    def has_requests(self):
        return super().has_requests() or bool(self.under_way)

    def plan_at(self, now):
        self.notice(now)
        self.promotions = {}
        parts, preempted = self.plan()
        for live, names in self.promotions.items():
            self.ask(now, live, names, True)
        self.pool_tier.reach(now)
        for name, answer in self.answers.items():
            if answer is None:
                self.answers[name] = name in self.pool_tier.names
        return parts, preempted

    def ask(self, now, live, names, is_load):
        transfer = Transfer(self, live, names, is_load)
        self.under_way.append(transfer)
        self.pool_tier.ask(now, transfer)

    def notice(self, now):
        """The manager notices transfers that have ended."""
        self.pool_tier.reach(now)
        for transfer in self.ended:
            self.under_way.remove(transfer)
            if not transfer.is_load:
                self.tier.complete(Job(transfer.live, transfer.names, [], True))
                continue
            for name in transfer.names:
                if name in transfer.moved:
                    self.tier.readers[name] = 0
                    continue
                del self.tier.readers[name]
                self.tier.policy.remove(name)
                self.promoted[transfer.live].discard(name)
                if self.answers.get(name) is not None:
                    self.answers[name] = False
        self.ended.clear()

    def matched(self, live, hits):
        """As without a pool; a block that only the pool has is promoted to the lower tier first."""
        live.offered = 0
        if live.jobs:
            return None
        count, waits = 0, False
        for place in range(hits, live.tokens // self.size):
            name = live.hashes[place]
            if name in self.tier.readers:
                waits |= self.tier.readers[name] < 0
            else:
                answer = self.look_up(live, name)
                if answer is None:
                    waits = True
                    continue
                if not answer or self.tier.prepare_store(live, [place]) is None:
                    break
                self.promotions.setdefault(live, []).append(name)
                self.promoted.setdefault(live, set()).add(name)
                waits = True
            count += 1
        if waits or any(live.hashes[place] in self.being_loaded for place in range(hits, hits + count)):
            return None
        return count

    def look_up(self, live, name):
        """Whether the pool has a block; None = ask, and look again in the next step."""
        self.askers.setdefault(name, set()).add(live)
        return self.answers.setdefault(name, None)

    def load(self, live, first, end):
        super().load(live, first, end)
        if not live.got and live.step < 0:
            promoted = self.promoted.get(live, ())
            self.from_pool[live.row] = sum(name in promoted for name in live.hashes[first:end])

    def orders(self, parts, preempted):
        over = self.over
        flush, stores = super().orders(parts, preempted)
        for job in stores:
            self.storing[job.live] = self.storing.get(job.live, 0) + 1
        for live in over:
            live.told = True
            self.forget(live)
        return flush, stores

    def complete_at(self, now, jobs):
        self.complete(jobs)
        for job in jobs:
            if not job.is_load:
                for name in job.names:
                    self.tier.readers[name] += 1
                self.ask(now, job.live, job.names, False)
                self.storing[job.live] -= 1
                if job.live.told:
                    self.forget(job.live)

    def forget(self, live):
        """A request that has ended and has no store under way: the pool's answers to it are forgotten."""
        if self.storing.get(live):
            return
        for name in [name for name, askers in self.askers.items() if live in askers]:
            self.askers[name].discard(live)
            if not self.askers[name]:
                del self.askers[name], self.answers[name]
        self.promoted.pop(live, None)


def serve(case):
    """The steps of each instance, and for each of its requests what tests/clients/vllm_tiers.py prints."""
    pool = Pool(case["pool"])
    engines = []
    for number in range(1 + max(row["instance"] for row in case["requests"])):
        rows = [row for row in case["requests"] if row["instance"] == number]
        engines.append(EngineCore(case | {"requests": rows}, TieringScheduler))
        engines[-1].scheduler.attach(pool, number)
    going = set(range(len(engines)))
    while going:
        first = min(going, key=lambda number: (engines[number].now, number))
        if engines[first].empty > MOST_EMPTY:
            return {"instances": None}
        if not engines[first].turn():
            going.remove(first)
    return {"instances": [
        {
            "steps": engine.steps, "moved": engine.scheduler.moved,
            "requests": [
                [*columns, engine.scheduler.from_pool.get(row, 0)] for row, columns in enumerate(engine.requests)
            ],
        }
        for engine in engines
    ]}  # fmt: skip
