"""Dynamo's offline replay with a tier below its workers' caches, in plain Python: of each one, or one that all share.

`serve(case)` takes the cases of `tests.serving.scheduler_cases.dynamo_tier_case` with a cost (`DynamoCost().terms`),
and returns for each request its worker, cached tokens, begin, first token, end, preemptions, and tokens from the tier.

* A step that completes blocks of a prompt orders the store of those that the tier lacks, all or none. Stores are
  submitted when the step ends. A block can be found when its store has ended.
* A waiting request whose next blocks are in the tier gets blocks for them, and waits for its load. One whose next
  blocks are being stored, or loaded by another request of the worker, waits too, and so does one whose own store is
  under way. All are looked at again when any transfer ends that the worker learns of: at the end of a step, or at once
  if it is idle.
* A step does not begin to compute before the stores have ended that read blocks which it takes, or which a preempted
  request ordered.
* The tier evicts the least recently used block that is not read. Each end of a transfer, and each look-up, is a use;
  the blocks of one transfer are used together, and evicted in the order of their hashes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tests.reference.dynamo_times import Worker as Plain
from tests.reference.dynamo_times import mix
from tests.reference.vllm_scheduler import Blocks, Live, Scheduler, seconds_of

NEVER = float("inf")
MASK = (1 << 64) - 1
STORE, LOAD = 0, 1


@dataclass(eq=False)
class Transfer:
    """A store or a load of a request of a worker."""

    number: int
    kind: int
    client: int
    live: object
    names: list
    left: float = 0.0  # seconds alone on a link of 1 block per second: blocks
    ready: float = 0.0
    end: float = NEVER  # if it is known


class Tier:
    """A tier and its transfers. `clients` workers share it, or it belongs to one."""

    def __init__(self, host, order, clients):
        self.host, self.order, self.capacity = host, order, host["capacity"]
        self.shared = host["scope"] == "cluster"
        self.state = {}  # name -> True if it can be found, False while it is stored
        self.readers = {}  # name -> loads that read it
        self.recent = {}  # names that are idle, the least recently used first
        self.tail = [0.0, 0.0]
        self.jobs = []  # submitted, in order
        self.prepared = [[] for _ in range(clients)]
        self.done = [deque() for _ in range(clients)]
        self.news = [[] for _ in range(clients)]  # (name, whether it can be found now), not yet told to the router
        self.seen, self.epoch, self.now, self.numbers = [0] * clients, 0, 0.0, 0

    # ---- blocks

    def touch(self, name):
        if self.state.get(name) and not self.readers.get(name):
            self.recent.pop(name, None)
            self.recent[name] = None

    def touch_together(self, names):
        for name in sorted(names, key=self.order.__getitem__):
            self.recent.pop(name, None)
            self.recent[name] = None

    def prepare_store(self, client, live, names, now):
        """The store of those names that are absent; None if there is no room for all, or none is absent."""
        self.move_to(now)
        missing = [name for name in dict.fromkeys(names) if name not in self.state]
        excess = len(missing) - (self.capacity - len(self.state))
        given = set(names)
        victims = [name for name in self.recent if name not in given][: max(0, excess)]
        if len(victims) < excess:
            return None
        for name in victims:
            del self.state[name], self.recent[name]
        self.publish(victims, False)
        self.numbers += 1
        for name in missing:
            self.state[name] = False
        transfer = Transfer(self.numbers, STORE, client, live, missing)
        self.prepared[client].append(transfer)
        return transfer

    def schedule_load(self, client, live, names, now, not_before):
        self.move_to(now)
        for name in names:
            self.readers[name] = self.readers.get(name, 0) + 1
            self.recent.pop(name, None)
        self.numbers += 1
        transfer = Transfer(self.numbers, LOAD, client, live, list(names))
        self.submit(transfer, max(self.now, not_before))
        return transfer

    def submit_prepared(self, client, now):
        self.move_to(now)
        for transfer in self.prepared[client]:
            self.submit(transfer, now)
        self.prepared[client] = []

    # ---- time

    def seconds(self, kind):
        """Seconds a block takes on a worker's own link, and on the link that all share."""
        return [
            self.host["store_s" if kind == STORE else "fetch_s"],
            self.host.get("shared_store_s" if kind == STORE else "shared_fetch_s", 0.0),
        ]

    def submit(self, transfer, at):
        ready = at + self.host.get("latency_s", 0.0)
        if self.shared:
            transfer.ready, transfer.left = max(ready, self.now), float(len(transfer.names))
        else:
            begin = max(self.tail[transfer.kind], ready)
            self.tail[transfer.kind] = transfer.end = begin + len(transfer.names) * self.seconds(transfer.kind)[0]
        self.jobs.append(transfer)

    def pace(self, job):
        """Seconds a block of a moving job takes now: each link is divided by the jobs that move on it."""
        moving = [other for other in self.jobs if other.kind == job.kind and other.ready <= self.now]
        own = sum(other.client == job.client for other in moving)
        alone, together = self.seconds(job.kind)
        return max(alone * max(1, own), together * max(1, len(moving)))

    def event(self, job):
        return job.ready if job.ready > self.now else self.now + job.left * self.pace(job)

    def move_to(self, now):
        """Let transfers move up to a time; what ends is applied, and told to its worker when that looks."""
        now = max(now, self.now)
        if not self.shared:
            self.now = now
            return
        while True:
            events = [self.event(job) for job in self.jobs]
            following = min([*events, now])
            paces = [self.pace(job) if job.ready <= self.now else None for job in self.jobs]
            ended = []
            for job, event, pace in zip(self.jobs, events, paces, strict=True):
                if pace is None:
                    continue
                if event <= following:
                    job.left = 0.0
                elif pace > 0:
                    job.left = max(0.0, job.left - (following - self.now) / pace)
            self.now = following
            for job in list(self.jobs):
                if job.ready <= self.now and job.left == 0.0:
                    job.end = self.now
                    self.jobs.remove(job)
                    ended.append(job)
            for job in sorted(ended, key=lambda one: (one.kind, one.number)):
                self.finish(job)
            if self.now >= now and not ended and all(self.event(job) > now for job in self.jobs):
                return

    def finish(self, transfer):
        self.epoch += 1
        if transfer.kind == STORE:
            for name in transfer.names:
                self.state[name] = True
            self.touch_together(transfer.names)
            self.publish(transfer.names, True)
        else:
            free = []
            for name in transfer.names:
                self.readers[name] -= 1
                if not self.readers[name]:
                    free.append(name)
            self.touch_together(free)
        self.done[transfer.client].append(transfer)

    def publish(self, names, present):
        for news in self.news:
            news += [(name, present) for name in names]

    def tick(self, client, now):
        """The transfers of a worker that have ended, and whether any has, also of another worker, since it looked."""
        self.move_to(now)
        if not self.shared:
            for job in sorted(
                (job for job in self.jobs if job.end <= now), key=lambda one: (one.end, one.kind, one.number)
            ):
                self.jobs.remove(job)
                self.finish(job)
        progressed, self.seen[client] = self.seen[client] != self.epoch, self.epoch
        ended = []
        while self.done[client] and self.done[client][0].end <= now:
            ended.append(self.done[client].popleft())
        return ended, progressed

    def next_deadline(self, client):
        if not self.shared:
            return min((job.end for job in self.jobs), default=NEVER)
        times = [self.event(job) for job in self.jobs]
        times += [self.done[client][0].end] if self.done[client] else []
        times += [self.now] if self.seen[client] != self.epoch else []
        return min(times, default=NEVER)


@dataclass(eq=False)
class Loaded:
    """What a request loads, or has loaded, before its admission."""

    before: int  # blocks that hit in the cache
    blocks: int  # with those that are loaded
    footprint: int  # all blocks of the request
    arrived: bool = False


@dataclass(eq=False)
class TierLive(Live):
    """A request with what it did with the tier."""

    offered: int = 0  # leading blocks of its prompt that the tier was offered
    store: Transfer = None  # its last one
    load: Loaded = None
    from_tier: int = None  # tokens, at its first admission


class Copies(Blocks):
    """The pool, with Dynamo's choice among the blocks that a request takes together."""

    def take_together(self, count):
        """Blocks in the order in which a request uses them: those that lose their content, the last one first."""
        named = sum(self.hash[block] is None for block, _ in zip(self.free, range(count), strict=False))
        taken = [self.take() for _ in range(count)]
        return [*reversed(taken[named:]), *taken[:named]]

    def release(self, blocks):
        """Unpin, tail first; of the blocks without a hash, the one nearest to the head is taken next."""
        for block in reversed(blocks):
            self.pins[block] -= 1
            if self.pins[block] == 0:
                self.free = {block: None} | self.free if self.hash[block] is None else self.free | {block: None}


class TierScheduler(Scheduler):
    """The scheduler of a worker with a tier."""

    def __init__(self, case, tier, client):
        super().__init__(case)
        self.pool = Copies(case["capacity"])
        self.tier, self.client = tier, client
        self.held, self.asleep = [], set()  # requests that the tier deferred, and those that wait for a transfer
        self.places = []  # the order of `held`, with the places of requests that left it from its middle
        self.loading = {}  # name -> the load of this worker that reads it
        self.reader = {}  # physical block -> the store that reads it
        self.not_before = 0.0

    @property
    def ready(self):
        return bool(self.running or self.waiting or len(self.held) > len(self.asleep))

    @property
    def busy(self):
        return bool(self.running or self.waiting or self.held)

    # ---- the tier

    def look_up(self, live, hits, now):
        """Names after the hits that the tier has; None if it cannot be told yet."""
        if live.load:
            return [] if live.load.arrived else None
        if live.store is not None:
            if self.under_way(live.store):
                return None
            live.store = None
        names, waits = [], False
        for name in live.keys[hits:]:
            if name not in self.tier.state:
                break
            waits |= not self.tier.state[name] or name in self.loading
            names.append(name)
        for name in reversed(live.keys):
            self.tier.touch(name)
        return None if waits else names

    def under_way(self, transfer):
        return transfer in self.tier.jobs or transfer in self.tier.prepared[self.client]

    def start_load(self, live, hits, names, now):
        """Blocks for what a request loads; False if there are too few."""
        blocks = self.pool.hits(live.hashes[:hits])
        idle = sum(self.pool.pins[block] == 0 for block in blocks)
        if len(names) > len(self.pool.free) - idle:
            return False
        for block in blocks:
            self.pool.pin(block)
        fresh = self.pool.take_together(len(names))
        readers = [self.reader[block] for block in fresh if block in self.reader]
        not_before = max([now, *(transfer.end for transfer in readers)])
        transfer = self.tier.schedule_load(self.client, live, names, now, not_before)
        for name in names:
            self.loading[name] = transfer
        live.load = Loaded(hits, hits + len(names), self.blocks_of(live.tokens))
        live.blocks, live.published = blocks + fresh, hits
        return True

    def take_ended(self, now):
        ended, progressed = self.tier.tick(self.client, now)
        for transfer in ended:
            if transfer.kind == STORE:
                read = [block for block, one in self.reader.items() if one is transfer]
                for block in read:
                    del self.reader[block]
                if self.tier.shared:
                    self.pool.release(read)
        for transfer in ended:
            if transfer.kind == LOAD:
                live = transfer.live
                for name in transfer.names:
                    del self.loading[name]
                self.publish(live, live.load.blocks * self.size)
                live.load.arrived = True
        if progressed:
            self.asleep = set()

    def step_ends(self, now):
        self.take_ended(now)
        self.tier.submit_prepared(self.client, now)
        self.take_ended(now)

    def order_store(self, live, now):
        """Order the store of blocks of a prompt that are complete now."""
        end = min(min(live.computed, live.prompt) // self.size, len(live.keys))
        first = live.offered
        if end <= first:
            return
        missing = [place for place in range(first, end) if live.keys[place] not in self.tier.state]
        if missing:
            blocks = [live.blocks[place] for place in missing]
            if any(block in self.reader for block in blocks):
                return
            transfer = self.tier.prepare_store(self.client, live, live.keys[first:end], now)
            if transfer is None:
                return
            for block in blocks:
                self.reader[block] = transfer
                if self.tier.shared:
                    self.pool.pin(block)
            live.store = transfer
            live.offered = end
            for name in reversed(live.keys):
                self.tier.touch(name)
        live.offered = end

    # ---- who gets tokens

    def next_waiting(self):
        if len(self.held) > len(self.asleep):
            while self.places[0] not in self.held:
                del self.places[0]
            return next(live for live in self.places if live in self.held and live not in self.asleep)
        return self.waiting[0] if self.waiting else None

    def leave(self, live):
        if live in self.held:
            self.held.remove(live)
            self.asleep.discard(live)
            if self.places[0] is live:
                del self.places[0]
        else:
            self.waiting.remove(live)

    def defer(self, live):
        if live not in self.held:
            self.waiting.remove(live)
            self.held.append(live)
            self.places.append(live)  # its old place counts, if it is still there
        self.asleep.add(live)

    def lacks(self, live, hits, tokens):
        """Whether blocks for so many tokens do not fit."""
        found = [] if live.load else self.pool.hits(live.hashes[:hits])
        idle = sum(self.pool.pins[block] == 0 for block in found)
        return self.blocks_of(tokens) - max(hits, len(live.blocks)) + idle > len(self.pool.free)

    def reserved(self, planned):
        """Blocks that prompts in progress and loads still need."""
        blocks = 0
        for live in self.running:
            if live.computed + planned.get(live, 0) < live.prompt:
                blocks += max(0, self.blocks_of(live.tokens) - len(live.blocks))
        for live in [*self.held, *self.waiting]:
            if live.load:
                blocks += max(0, live.load.footprint - live.load.blocks)
        return blocks

    def plan_at(self, now):
        """[(request, computed before, tokens)] of the next step, and who is preempted."""
        budget, parts, preempted = self.schedule_running(0)
        planned = {live: chunk for live, _, chunk in parts}
        while not preempted and budget > 0 and len(self.running) < self.seats:
            live = self.next_waiting()
            if live is None:
                break
            hits = len(self.pool.hits(live.hashes[: live.tokens // self.size]))
            active = sum(self.pool.pins[block] > 0 for block in self.pool.hits(live.hashes[:hits]))
            if live.load and live.load.arrived:
                hits = active = live.load.blocks
            names = self.look_up(live, hits, now)
            if names is None:
                self.defer(live)
                continue
            computed = min(hits, (live.tokens - 1) // self.size) * self.size
            has = max(min(active, computed // self.size), live.load.blocks if live.load else 0)
            room = len(self.pool.free) - (self.reserved(planned) if names else 0)
            if self.blocks_of(live.tokens) - has > max(0, room):
                break
            if names:
                if not self.start_load(live, hits, names, now):
                    break
                self.defer(live)
                continue
            chunk = min(live.tokens - computed, budget)
            while self.running and self.lacks(live, computed // self.size, computed + chunk):
                victim = self.running.pop()  # what the admission counts may be pinned in blocks that do not hit
                undone = [part for part in parts if part[0] is victim]
                parts = [part for part in parts if part[0] is not victim]
                budget += sum(part[2] for part in undone)
                self.preempt(victim)
                preempted.append(victim)
            if self.lacks(live, computed // self.size, computed + chunk):
                break
            self.leave(live)
            if not live.load:
                self.start(live, self.pool.hits(live.hashes[: computed // self.size]), computed)
            elif live.from_tier is None:
                live.from_tier = computed - min(live.load.before * self.size, computed)
            if live.load:
                live.offered = computed // self.size
                live.load = None
            if live.from_tier is None:
                live.from_tier = 0
            live.computed, live.running = computed, True
            self.running.append(live)
            self.allocate(live, chunk)
            parts.append((live, computed, chunk))
            planned[live] = chunk
            budget -= chunk
        self.advance(parts)
        for live in self.running:
            if live in planned:
                self.order_store(live, now)
        return parts, [live.row for live in preempted]

    def allocate(self, live, chunk):
        first = len(live.blocks)
        live.blocks += self.pool.take_together(max(0, self.blocks_of(live.computed + chunk) - first))
        super().allocate(live, chunk)
        for block in live.blocks[first:]:
            if block in self.reader:
                self.not_before = max(self.not_before, self.reader[block].end)

    def preempt(self, live):
        if live.store is not None and self.under_way(live.store) and live.store.end < NEVER:
            self.not_before = max(self.not_before, live.store.end)
        super().preempt(live)


class Worker(Plain):
    """An engine with its clock and its tier, and what the router knows of it."""

    def __init__(self, case, tier, client):
        super().__init__(case)
        self.scheduler = TierScheduler(case, tier, client)
        self.end = None  # of the step that it takes, if it takes one
        self.parts = []
        self.in_tier = set()  # as the router knows

    def new_tokens(self, row, at):
        """The prompt tokens that would not hit: a block of the tier counts three quarters of one of the cache."""
        size, known = self.case["block_size"], self.cached if self.end is not None else self.scheduler.pool.copies
        names = row["ids"][: row["tokens"] // size]
        hits = next((place for place, name in enumerate(names) if name not in known), len(names))
        below = next((place for place, name in enumerate(names[hits:]) if name not in self.in_tier), len(names) - hits)
        return row["tokens"] - int((hits + 0.75 * below) * size + 0.5)

    def tell(self):
        """The router learns what the tier has stored and evicted."""
        news = self.scheduler.tier.news[self.scheduler.client]
        for name, present in news:
            (self.in_tier.add if present else self.in_tier.discard)(name)
        news.clear()

    def begin(self, now, requests):
        """Plan a step; True if that did something."""
        scheduler = self.scheduler
        self.cached = set(scheduler.pool.copies)
        loads = len(scheduler.loading)
        parts, preempted = scheduler.plan_at(now)
        for live, before, _ in parts:
            if requests[live.row][2] is None:
                requests[live.row][1:3] = [before, now]
                requests[live.row][6] = live.from_tier
        for row in preempted:
            requests[row][5] += 1
        self.parts = parts
        end = max(now, scheduler.not_before) + seconds_of(self.case["cost"], parts)
        self.end = self.now = end
        self.learned = scheduler.learn(parts)
        if end > now:
            return True
        self.finish(now, requests)
        return bool(parts or preempted) or len(scheduler.loading) > loads

    def finish(self, now, requests):
        """A step has ended."""
        for live, last in self.learned:
            if requests[live.row][3] is None:
                requests[live.row][3] = now
            if last:
                requests[live.row][4] = now
        self.end = None
        self.scheduler.step_ends(now)
        self.tell()


def serve(case, seed=0, winner=None):
    """Each request's worker, cached tokens, begin, first token, end, preemptions and tokens from the tier.

    `winner` has the worker that wins each request's tie.
    """
    rows, size, count, host = case["requests"], case["block_size"], case["workers"], case["host"]
    shared = host["scope"] == "cluster"
    pool = Tier(host, case["order"], count) if shared else None
    workers = [Worker(case, pool or Tier(host, case["order"], 1), i if shared else 0) for i in range(count)]
    requests = [[-1, -1, None, None, None, 0, 0] for _ in rows]
    arrived, now = 0, 0.0
    while True:
        times = [rows[arrived]["arrival"]] if arrived < len(rows) else []
        for worker in workers:
            deadline = worker.scheduler.tier.next_deadline(worker.scheduler.client)
            times.append(deadline if worker.end is None else worker.end)
        if min(times) == NEVER:
            return requests
        now = max(now, min(times))
        changed = True
        while changed:
            changed = False
            for _ in range(2):
                settled = True
                while settled:
                    settled = False
                    for worker in workers:
                        tier, client = worker.scheduler.tier, worker.scheduler.client
                        if worker.end is None and tier.next_deadline(client) <= now:
                            worker.scheduler.take_ended(now)
                            worker.tell()
                            settled = changed = True
                for worker in sorted((w for w in workers if w.end is not None), key=lambda one: one.end):
                    if worker.end <= now:
                        worker.finish(now, requests)
                        changed = True
            while arrived < len(rows) and rows[arrived]["arrival"] <= now:
                row = rows[arrived]
                chosen = arrived % count
                if case["router"] == "dynamo":
                    costs = [worker.cost(row, now, requests) for worker in workers]
                    draws = [mix((seed + mix(arrived * count + i + 1)) & MASK) for i in range(count)]
                    wins = [winner is None or i != winner[arrived] for i in range(count)]
                    chosen = min(range(count), key=lambda i: (costs[i], wins[i], draws[i]))
                worker = workers[chosen]
                full, blocks = row["tokens"] // size, (row["tokens"] + row["output"]) // size
                hashes = [*row["ids"][:full], *((arrived, block) for block in range(full, blocks))]
                worker.active[arrived] = (row["ids"][:full], worker.new_tokens(row, now))
                live = TierLive(arrived, row["tokens"], row["output"], hashes, 0, row["arrival"])
                live.keys = row["ids"][:full]
                worker.scheduler.add(live)
                if worker.end is None:
                    worker.tell()
                requests[arrived][0] = chosen
                arrived += 1
                changed = True
            for worker in workers:
                if worker.end is None and worker.scheduler.ready:
                    changed |= worker.begin(now, requests)
