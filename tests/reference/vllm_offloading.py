"""vLLM's scheduler with its OffloadingConnector and a lower tier, step by step, in plain Python: the rules of 0.33.0.

`serve(case)` takes the cases of tests/clients/vllm_offloading.py and returns what that returns, without the version.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tests.reference.vllm_scheduler import Live, Scheduler, seconds_of

POLL_S = 0.001  # an engine with nothing to compute looks again after so long


@dataclass(eq=False)
class Held(Live):
    """A request, and what the connector knows of it."""

    loading: bool = False  # its load has not been noticed yet
    loaded: int = 0  # blocks of the load before its first step
    offered: int = 0  # leading blocks of its prompt that need not be stored again
    jobs: set = field(default_factory=set)
    rank: int | None = None
    seen: list = field(default_factory=list)  # places of blocks of its prompt, as the tier saw them
    stored: set = field(default_factory=set)  # of these, stored by this request
    reused: set = field(default_factory=set)  # of these, found in the tier
    missed: set = field(default_factory=set)  # of these, looked for in the tier's history
    finished: bool = False
    told: bool = False  # the tier knows that it has ended
    new_from: int = 0  # the first of its blocks that the planned step takes
    step: int = -1  # the last step that computed tokens of it


@dataclass(eq=False)
class Job:
    """A transfer between the blocks of a request and the tier."""

    live: Held
    names: list
    blocks: list
    is_load: bool = False
    end: float | None = None  # None: not begun


class LeastRecent:
    """vLLM's LRUCachePolicy: a request has one rank while it is active, tails before heads, and a newer at its end."""

    def __init__(self, capacity):
        self.rank, self.next = {}, 0

    def _of(self, live):
        if live.rank is None:
            self.next += 1
            live.rank = self.next
        return live.rank

    def miss(self, name):
        pass

    def insert(self, live, name, place):
        self.rank[name] = (self._of(live), -place)

    def access(self, live, places):
        mine = self._of(live)
        for place in places:
            name = live.hashes[place]
            if name in self.rank:
                self.rank[name] = max(self.rank[name], (mine, -place))

    def remove(self, name):
        del self.rank[name]

    def finish(self, live):
        for place in sorted(live.seen, reverse=True):
            if live.hashes[place] in self.rank:
                self.next += 1
                self.rank[live.hashes[place]] = (self.next, 0)

    def victims(self, count, idle):
        chosen = sorted(idle, key=self.rank.__getitem__)[:count]
        if len(chosen) < count:
            return None
        for name in chosen:
            del self.rank[name]
        return chosen


class AdaptiveReplacement:
    """vLLM's ARCCachePolicy."""

    def __init__(self, capacity):
        self.capacity, self.target = capacity, 0.0
        self.once, self.often, self.was_once, self.was_often = {}, {}, {}, {}

    def miss(self, name):
        if name in self.was_once:
            delta = max(1, len(self.was_often) / len(self.was_once))
            self.target = min(self.target + delta, self.capacity)
            self.was_once[name] = self.was_once.pop(name)
        elif name in self.was_often:
            delta = max(1, len(self.was_once) / len(self.was_often))
            self.target = max(self.target - delta, 0)
            self.was_often[name] = self.was_often.pop(name)

    def insert(self, live, name, place):
        self.once[name] = None
        self.was_once.pop(name, None)
        self.was_often.pop(name, None)

    def access(self, live, places):
        pass

    def remove(self, name):
        self.once.pop(name, None)
        self.often.pop(name, None)

    def finish(self, live):
        for place in sorted(live.seen, reverse=True):
            name = live.hashes[place]
            if place in live.stored - live.reused:
                for order in (self.once, self.often):
                    if name in order:
                        order[name] = order.pop(name)
            elif place in live.reused and (name in self.once or name in self.often):
                self.once.pop(name, None)
                self.often.pop(name, None)
                self.often[name] = None

    def victims(self, count, idle):
        chosen, size = [], len(self.once)
        once, often = (iter([name for name in order if name in idle]) for order in (self.once, self.often))
        for _ in range(count):
            name = None
            if size >= int(self.target):
                name = next(once, None)
                size -= name is not None
            if name is None:
                name = next(often, None)
            if name is None:
                name = next(once, None)
                size -= 1
            if name is None:
                return None
            chosen.append(name)
        for name in chosen:
            ghosts = self.was_once if name in self.once else self.was_often
            self.once.pop(name, None)
            self.often.pop(name, None)
            ghosts[name] = None
        for ghosts in (self.was_once, self.was_often):
            while len(ghosts) > self.capacity:
                del ghosts[next(iter(ghosts))]
        return chosen


class LowerTier:
    """vLLM's CPUOffloadingManager. A block that is being written has -1 readers."""

    def __init__(self, tier):
        self.capacity, self.readers = tier["capacity"], {}
        self.policy = {"lru": LeastRecent, "arc": AdaptiveReplacement}[tier.get("policy", "lru")](self.capacity)

    def _see(self, live, places):
        new = [place for place in places if place not in live.seen]
        live.seen += new
        if new:
            self.policy.access(live, new)

    def prepare_load(self, live, places):
        for place in places:
            self.readers[live.hashes[place]] += 1
        self._see(live, places)
        live.reused |= set(places) - live.stored

    def prepare_store(self, live, places):
        """The places that are to be written; None if there is no room for them."""
        name_of = live.hashes
        absent = [place for place in places if name_of[place] not in self.readers]
        ready = {place for place in places if self.readers.get(name_of[place], -1) >= 0}
        for place in reversed([place for place in absent if place not in live.missed]):
            self.policy.miss(name_of[place])
        live.missed |= set(absent)
        self._see(live, [place for place in places if place in ready or place in absent])
        live.reused |= ready - live.stored
        needed = len(absent) - (self.capacity - len(self.readers))
        if needed > 0:
            given = {name_of[place] for place in places}
            idle = {name for name, readers in self.readers.items() if readers == 0}
            if needed > len(idle):
                return None
            victims = self.policy.victims(needed, idle - given)
            if victims is None:
                return None
            for name in victims:
                del self.readers[name]
        for place in absent:
            self.readers[name_of[place]] = -1
            self.policy.insert(live, name_of[place], place)
        live.stored |= set(absent)
        return absent

    def complete(self, job):
        for name in job.names:
            self.readers[name] += -1 if job.is_load else 1


class Link:
    """Two queues of transfers, of loads and of stores; each serves one after another."""

    def __init__(self, tier):
        self.seconds = {True: tier["fetch_s"], False: tier["store_s"]}
        self.free = {True: 0.0, False: 0.0}
        self.queue = {True: deque(), False: deque()}

    def begin(self, job, at):
        job.end = self.free[job.is_load] = max(self.free[job.is_load], at) + len(job.names) * self.seconds[job.is_load]
        self.queue[job.is_load].append(job)

    def ended(self, at):
        done = []
        for is_load in (False, True):
            while self.queue[is_load] and self.queue[is_load][0].end <= at:
                done.append(self.queue[is_load].popleft())
        return done


class OffloadingScheduler(Scheduler):
    """The scheduler, and the connector's part in each of its decisions."""

    def __init__(self, case):
        super().__init__(case)
        self.tier, self.link = LowerTier(case["tier"]), Link(case["tier"])
        self.holding = []  # waiting requests that hold blocks, in order
        self.jobs, self.unsubmitted, self.over = [], [], []
        self.being_loaded = set()
        self.planned = self.learned = 0  # steps with tokens

    def has_requests(self):
        return bool(self.running or self.waiting or self.holding or self.over or self.jobs)

    def may_preempt(self, live):
        return not self.is_async or live.step <= self.learned

    def plan_at(self, now):
        """The parts of the step that is planned at a time, and who is preempted."""
        return self.plan()

    def complete_at(self, now, jobs):
        """The ends of transfers are noticed at a time."""
        self.complete(jobs)

    def plan(self):
        """The parts of the next step, the rows preempted, and the connector's orders (flush, loads, stores)."""
        self.loads, self.touched = [], set()
        limit = self.long_prefill(len(self.waiting) + len(self.holding))
        budget, parts, preempted = self.schedule_running(limit)
        if not preempted:
            self.admit(parts, budget, limit)
        self.flush, self.stores = self.orders(parts, preempted)
        if parts:
            self.planned += 1
        self.advance(parts)
        for live, _, _ in parts:
            live.step = self.planned
        return parts, preempted

    def admit(self, parts, budget, limit):
        """Requests that hold blocks first, then the others."""
        skipped, skipped_holding = [], []
        while budget > 0 and (self.holding or self.waiting) and len(self.running) < self.seats:
            queue = self.holding or self.waiting
            live = queue[0]
            if live.loading and not self.promote(live):
                skipped_holding.append(queue.pop(0))
                continue
            external, hits, load = 0, [], False
            if live.computed == 0:
                hits = self.pool.hits(live.hashes[: (live.tokens - 1) // self.size])
                external = self.matched(live, len(hits))
                if external is None:
                    skipped.append(queue.popleft())
                    continue
                load = external > 0
                computed = (len(hits) + external) * self.size
            else:
                computed = live.computed
            chunk = 0 if load else live.tokens - computed
            chunk = min(chunk, limit) if 0 < limit < chunk else chunk
            if not self.chunked and chunk > budget:
                break
            chunk = min(chunk, budget)
            idle = sum(self.pool.pins[block] == 0 for block in hits)
            held = len(live.blocks) + len(hits)
            spare, free = self.watermark if self.running else 0, len(self.pool.free)
            if self.whole and max(self.blocks_of(live.tokens) - held, 0) + idle + spare > free:
                break
            reserved = self.reserved([*self.holding, *skipped_holding]) if load else 0
            if max(self.blocks_of(computed + chunk) - held, 0) + idle + spare > free - reserved:
                break
            if hits or external:
                for block in hits:
                    self.pool.pin(block)
                live.blocks, live.published = list(hits), len(hits)
            live.computed = computed
            if load:
                while len(live.blocks) < self.blocks_of(computed):
                    live.blocks.append(self.pool.take())
                self.load(live, len(hits), len(hits) + external)
                skipped_holding.append(queue.popleft())
                continue
            queue.remove(live)
            live.running = True
            self.running.append(live)
            self.allocate(live, chunk)
            live.new_from = 0  # those that hit count too
            parts.append((live, computed, chunk))
            budget -= chunk
        if self.by_priority:
            for live in skipped:
                self.add(live, first=True)
            self.holding = sorted(self.holding + skipped_holding, key=lambda one: one.order)
        else:
            self.waiting.extendleft(reversed(skipped))
            self.holding = skipped_holding + self.holding

    # ---- the connector: loads

    def matched(self, live, hits):
        """Blocks to load beyond the hits; None = look again in the next step."""
        live.offered = 0
        if live.jobs:
            return None
        names = live.hashes[hits : live.tokens // self.size]
        count, pending = 0, False
        for name in names:
            if name not in self.tier.readers:
                break
            pending |= self.tier.readers[name] < 0
            count += 1
        if pending or any(name in self.being_loaded for name in names[:count]):
            return None
        return count

    def load(self, live, first, end):
        places = list(range(first, end))
        self.tier.prepare_load(live, places)
        job = Job(live, [live.hashes[place] for place in places], live.blocks[first:], True)
        live.jobs.add(job)
        live.offered, live.loading = end, True
        if not live.got and live.step < 0:
            live.loaded = len(places)
        self.touched |= set(live.blocks)
        self.being_loaded |= set(job.names)
        self.jobs.append(job)
        self.loads.append(job)

    def promote(self, live):
        """Whether the load of a request has ended; its blocks can then be found."""
        if any(job.is_load for job in live.jobs):
            return False
        live.loading = False
        self.publish(live, live.computed)
        live.computed = min(live.computed, live.tokens - 1)
        return True

    def reserved(self, holding):
        """Blocks that prompts in progress still need: an asynchronous load must leave them free."""
        prefilling = [live for live in self.running if live.computed < live.tokens + live.placeholders]
        return sum(max(self.blocks_of(live.tokens) - len(live.blocks), 0) for live in [*prefilling, *holding])

    # ---- the connector: stores

    def orders(self, parts, preempted):
        """The jobs to flush before the step, and the stores of the step."""
        self.touched |= {block for live, _, _ in parts for block in live.blocks[live.new_from :]}
        flush = {job for live in preempted for job in live.jobs}
        flush |= {job for job in self.jobs if job.live.finished and not job.is_load and self.touched & set(job.blocks)}
        stores = []
        for live in [*(live for live, _, _ in parts), *self.over]:
            chunks = {live: chunk for live, _, chunk in parts}
            tokens = min(live.computed + chunks[live], live.tokens) if live in chunks else live.tokens
            end = min(tokens, live.prompt) // self.size
            places = list(range(live.offered, end))
            absent = self.tier.prepare_store(live, places) if places else []
            if absent is None:
                continue
            live.offered = max(live.offered, end)
            if absent:
                job = Job(live, [live.hashes[place] for place in absent], [live.table[place] for place in absent])
                live.jobs.add(job)
                self.jobs.append(job)
                stores.append(job)
                if live.finished and self.touched & set(job.blocks):
                    flush.add(job)
        for live in self.over:
            self.tier.policy.finish(live)
        self.over = []
        return flush, stores

    def allocate(self, live, chunk):
        live.new_from = len(live.blocks)
        super().allocate(live, chunk)
        live.table = list(live.blocks)  # outlives the request's hold on them

    # ---- the end of a step

    def learn(self, parts):
        self.learned += bool(parts)
        told = super().learn(parts)
        for live, last in told:
            if last:
                live.finished = True
                self.over.append(live)
        return told

    def complete(self, jobs):
        for job in jobs:
            self.tier.complete(job)
            self.jobs.remove(job)
            job.live.jobs.remove(job)
            if job.is_load:
                self.being_loaded -= set(job.names)


class EngineCore:
    """The loop of an instance: `turn` is one pass of it, which begins at `now`."""

    def __init__(self, case, kind=OffloadingScheduler):
        self.scheduler, self.case, self.rows = kind(case), case, case["requests"]
        self.requests, self.steps, self.queue = [[-1, None, None, None, 0, 0] for _ in self.rows], [], []
        self.now = self.cpu = self.gpu = 0.0
        self.arrived = self.polls = self.empty = 0
        self.idle_since = self.woke = -1.0
        self.depth = 2 if case["settings"].get("async") else 1

    def arrive(self):
        size = self.case["block_size"]
        while self.arrived < len(self.rows) and self.rows[self.arrived]["arrival"] <= self.now:
            row, number = self.rows[self.arrived], self.arrived
            full, blocks = row["tokens"] // size, (row["tokens"] + row["output"]) // size
            hashes = [*row["ids"][:full], *((number, block) for block in range(full, blocks))]
            self.scheduler.add(
                Held(number, row["tokens"], row["output"], hashes, row.get("priority", 0), row["arrival"])
            )
            self.arrived += 1

    def turn(self):
        """False if nothing is left to do."""
        scheduler, requests = self.scheduler, self.requests
        self.arrive()
        planned = scheduler.has_requests()
        parts = []
        if planned:
            parts = self.execute(*scheduler.plan_at(self.now))
            self.empty = 0 if parts else self.empty + 1
        elif not self.queue:
            if self.arrived == len(self.rows):
                return False
            self.now = max(self.now, self.rows[self.arrived]["arrival"])
            return True
        more = planned and len(self.queue) < self.depth and (parts or scheduler.has_requests())
        if not more:
            done, at, ended = self.queue.pop(0)
            self.now = max(self.now, at)
            for live, last in scheduler.learn(done):
                if requests[live.row][2] is None:
                    requests[live.row][2] = self.now
                if last:
                    requests[live.row][3] = self.now
            scheduler.complete_at(self.now, ended)
        if not parts and scheduler.has_requests():
            if self.now != self.woke:
                self.idle_since, self.polls = self.now, 0
            self.polls += 1
            self.now = self.woke = self.idle_since + self.polls * POLL_S
        return True

    def execute(self, parts, preempted):
        """The worker runs a planned step."""
        scheduler, requests, link = self.scheduler, self.requests, self.scheduler.link
        self.cpu = max(self.cpu, self.now)
        flushed_now = [job for job in scheduler.stores if job in scheduler.flush]
        for job in [*scheduler.unsubmitted, *flushed_now]:
            link.begin(job, max(self.cpu, self.gpu))
        scheduler.unsubmitted = [job for job in scheduler.stores if job not in scheduler.flush]
        self.cpu = max([self.cpu, *(job.end for job in scheduler.flush if job.end is not None)])
        begin = max(self.cpu, self.gpu)
        if parts or preempted:
            self.steps.append([
                begin, [[live.row, before, chunk] for live, before, chunk in parts],
                sorted(live.row for live in preempted),
            ])  # fmt: skip
        for live, before, _ in parts:
            if requests[live.row][1] is None:
                requests[live.row][:2] = [before, begin]
        for live in preempted:
            requests[live.row][4] += 1
        if parts:
            self.gpu = begin + seconds_of(self.case["cost"], parts)
        for job in scheduler.loads:
            link.begin(job, max(self.cpu, self.gpu))
            if not job.live.got and job.live.step < 0:
                requests[job.live.row][5] = job.live.loaded
        self.queue.append((parts, self.gpu if parts else self.cpu, link.ended(self.cpu)))
        return parts


def serve(case):
    """The steps of a case, and for each request what tests/clients/vllm_offloading.py prints."""
    engine = EngineCore(case)
    while engine.turn():
        pass
    return {"steps": engine.steps, "requests": engine.requests}
