"""A tier below the caches of Dynamo's mocked workers (ai-dynamo-runtime 1.6.1): its blocks, its links, its news.

A tier belongs to one worker, or all workers share it. Of one worker, transfers of a direction run one after another. On
links that workers share, all transfers of a direction move at once: each gets an equal part of its worker's link, and
of the shared one, whichever is less. The tier evicts the least recently used block; blocks that are used together are
evicted in the order of their hashes. Twin: tests/reference/dynamo_tiers.py.
"""

import cython
import numpy as np

NEVER = cython.declare(cython.double, 1e300)
NOBODY = cython.declare(cython.int, -1)


class Transfer:
    """A store or a load of a request of a worker."""

    def __init__(self, number, kind, client, row, names):
        self.number, self.kind, self.client, self.row, self.names = number, kind, client, row, names
        self.blocks, self.left, self.ready, self.end, self.done = [], 0, 0, NEVER, False


class DynamoTier:
    """A tier of `capacity` blocks for `count` workers; a worker uses it through its `client`.

    `order` has the rank of each block's hash. `alone` and `together` are seconds a block, to store and to load, on the
    link of one worker and on those that all share.
    """

    def __init__(self, capacity, order, rows, alone, together=(0, 0), latency=0, shared=False, count=1):
        blocks: cython.int = len(order)
        self.capacity, self.shared, self.latency = capacity, shared, latency
        self.alone[STORE], self.alone[LOAD] = alone
        self.together[STORE], self.together[LOAD] = together
        self.tail[STORE] = self.tail[LOAD] = 0
        self.order = np.ascontiguousarray(order, dtype=np.int64)
        self.state = np.zeros(blocks, dtype=np.int8)
        self.readers, self.given = np.zeros((2, max(1, blocks)), dtype=np.int32)
        self.next, self.previous = np.full((2, blocks + 1), NOBODY, dtype=np.int32)
        self.next[blocks] = self.previous[blocks] = blocks
        self.size = self.evictions = self.numbers = self.epoch = 0
        self.offers, self.now, self.changes, self.watched = 0, 0, 0, False
        self.jobs, self.news = [], []
        self.clients = [DynamoClient(self, number, rows) for number in range(count)]

    def client(self, number):
        """What a worker uses the tier through."""
        return self.clients[number]

    def self_check(self):
        """A message about an inconsistency after all requests and transfers have ended, or None."""
        state = np.asarray(self.state)
        if self.jobs or (state == WRITING).any() or np.asarray(self.readers).any():
            return "a transfer with the lower tier never ended"
        if not int((state == FOUND).sum()) == self.size <= self.capacity:
            return f"the lower tier counts {self.size:,} blocks"
        return None

    # ---- blocks

    def touch(self, block):
        """A block is used, if it can be found and nobody reads it."""
        if self.state[block] == FOUND and self.readers[block] == 0:
            self._leave(block)
            self._enter(block)
        return 0

    def prepare_store(self, client, row, names, now):
        """Make room for those blocks that are absent, and store them; None if there is no room for all of them."""
        block: cython.int
        excess: cython.longlong
        missing: list = []
        victims: list = []
        end: cython.int = self.next.shape[0] - 1
        self.move_to(now)
        self.offers += 1
        for item in names:
            block = item
            if self.given[block] != self.offers and self.state[block] == ABSENT:
                missing.append(block)
            self.given[block] = self.offers
        excess = len(missing) - (self.capacity - self.size)
        block = self.next[end]
        while len(victims) < excess and block != end:
            if self.given[block] != self.offers:
                victims.append(block)
            block = self.next[block]
        if len(victims) < excess:
            return None
        for item in victims:
            block = item
            self.state[block] = ABSENT
            self._leave(block)
        self.tell(victims, False, self.now)
        self.changes += 1
        self.size += len(missing) - len(victims)
        self.evictions += len(victims)
        for item in missing:
            block = item
            self.state[block] = WRITING
        self.numbers += 1
        transfer: Transfer = Transfer(self.numbers, STORE, client.number, row, missing)
        client.prepared.append(transfer)
        client.pending += 1
        return transfer

    def schedule_load(self, client, row, names, now, not_before):
        """Load blocks that can be found, not before a time."""
        block: cython.int
        self.move_to(now)
        for item in names:
            block = item
            if self.readers[block] == 0:
                self._leave(block)
            self.readers[block] += 1
        self.numbers += 1
        transfer: Transfer = Transfer(self.numbers, LOAD, client.number, row, names)
        client.pending += 1
        self._submit(transfer, max(self.now, not_before))
        return transfer

    def submit_prepared(self, client, now):
        """Begin the stores that a worker ordered in its step."""
        self.move_to(now)
        for transfer in client.prepared:
            self._submit(transfer, now)
        client.prepared = []
        return 0

    # ---- time

    def move_to(self, now):
        """Let transfers move up to a time. What ends takes effect, and its worker learns of it when it looks."""
        job: Transfer
        event: cython.double
        following: cython.double
        ended: list
        paces: list
        if now < self.now:
            now = self.now
        if not self.shared:
            self.now = now
            return 0
        while True:
            following = now
            paces = []
            for item in self.jobs:
                job = item
                event = self._event(job)
                following = min(following, event)
                paces.append((job, event, self._pace(job) if job.ready <= self.now else -1.0))
            ended = []
            for item, event, pace in paces:
                job = item
                if pace < 0:
                    continue
                if event <= following:
                    job.left = 0
                elif pace > 0:
                    job.left = max(0.0, job.left - (following - self.now) / pace)
            self.now = following
            for item in self.jobs:
                job = item
                if job.ready <= self.now and job.left == 0:
                    job.end = self.now
                    ended.append((job.kind, job.number, job))
            for item in ended:
                self.jobs.remove(item[2])
            if len(ended) > 1:
                ended.sort()
            for item in ended:
                self._finish(item[2])
            if self.now >= now and not ended and self.next_event() > now:
                return 0

    def next_event(self):
        """When the next transfer begins to move, or ends."""
        job: Transfer
        first: cython.double = NEVER
        for item in self.jobs:
            job = item
            first = min(first, self._event(job) if self.shared else job.end)
        return first

    def tell(self, blocks, present, at):
        """News for routers."""
        if self.watched:
            for block in blocks:
                self.news.append((at, block, present))
        return 0

    def _finish_fixed(self, now):
        """Finish the transfers of a tier of one worker that have ended by a time, in the order of their ends."""
        job: Transfer
        ended: list = []
        for item in self.jobs:
            job = item
            if job.end <= now:
                ended.append((job.end, job.kind, job.number, job))
        if len(ended) > 1:
            ended.sort()
        for item in ended:
            self.jobs.remove(item[3])
            self._finish(item[3])
        return 0

    def _submit(self, transfer, at):
        ready: cython.double = at + self.latency
        count: cython.Py_ssize_t = len(transfer.names)
        self.changes += 1
        if self.shared:
            transfer.ready, transfer.left = max(ready, self.now), count
        else:
            transfer.end = max(self.tail[transfer.kind], ready) + count * self.alone[transfer.kind]
            self.tail[transfer.kind] = transfer.end
        self.jobs.append(transfer)
        return 0

    def _pace(self, job):
        """Seconds a block of a moving transfer takes now."""
        other: Transfer
        own: cython.int = 0
        moving: cython.int = 0
        for item in self.jobs:
            other = item
            if other.kind == job.kind and other.ready <= self.now:
                moving += 1
                own += other.client == job.client
        return max(self.alone[job.kind] * max(1, own), self.together[job.kind] * max(1, moving))

    def _event(self, job):
        return job.ready if job.ready > self.now else self.now + job.left * self._pace(job)

    def _finish(self, transfer):
        client: DynamoClient = self.clients[transfer.client]
        block: cython.int
        idle: list = []
        self.epoch += 1
        self.changes += 1
        if transfer.kind == STORE:
            for item in transfer.names:
                block = item
                self.state[block] = FOUND
            self._use_together(transfer.names)
            self.tell(transfer.names, True, transfer.end)
        else:
            for item in transfer.names:
                block = item
                self.readers[block] -= 1
                if self.readers[block] == 0:
                    idle.append(block)
            self._use_together(idle)
        client.done.append(transfer)
        return 0

    def _use_together(self, names):
        """Blocks are used at one moment."""
        block: cython.int
        keyed: list = []
        for item in names:
            block = item
            keyed.append((self.order[block], block))
        keyed.sort()
        for item in keyed:
            block = item[1]
            self._leave(block)
            self._enter(block)
        return 0

    def _enter(self, block):
        end: cython.int = self.next.shape[0] - 1
        self.next[block], self.previous[block] = end, self.previous[end]
        self.next[self.previous[end]] = block
        self.previous[end] = block
        return 0

    def _leave(self, block):
        if self.next[block] != NOBODY:
            self.next[self.previous[block]] = self.next[block]
            self.previous[self.next[block]] = self.previous[block]
            self.next[block] = NOBODY
        return 0


class DynamoClient:
    """What a worker uses a tier through, and what the router knows of the tier from that worker."""

    def __init__(self, tier: DynamoTier, number, rows):
        self.tier, self.number, self.prepared, self.done = tier, number, [], []
        self.hits = np.zeros(rows, dtype=np.int32)
        self.seen = self.pending = 0
        self.heard = self.applied = 0
        self.known = np.empty(0, dtype=np.int8)

    @property
    def tier_hits(self):
        """Hit blocks of each request in the tier: an array of shape (1, requests)."""
        return np.asarray(self.hits).reshape(1, -1)

    def watch(self):
        """Keep what the router needs."""
        self.tier.watched = True
        self.known = np.zeros(self.tier.state.shape[0], dtype=np.int8)

    def self_check(self):
        """A message about an inconsistency after all requests and transfers have ended, or None."""
        return self.tier.self_check()

    def tick(self, now):
        """The transfers of the worker that have ended, or None if no worker's has since it looked last."""
        ended: list = []
        later: list = []
        job: Transfer
        tier: DynamoTier = self.tier
        tier.move_to(now)
        if not tier.shared:
            tier._finish_fixed(now)
        if self.seen == tier.epoch:
            return None
        self.seen = tier.epoch
        for item in self.done:
            job = item
            if job.end <= now and not later:
                job.done = True
                self.pending -= 1
                ended.append(job)
            else:
                later.append(job)
        self.done = later
        return ended

    def next_deadline(self):
        """When an idle worker looks at the tier next."""
        tier: DynamoTier = self.tier
        first: cython.double = tier.next_event()
        if self.done:
            first = min(first, cython.cast(Transfer, self.done[0]).end)
        if tier.shared and self.seen != tier.epoch:
            first = min(first, tier.now)
        return first

    def hear(self):
        """The router learns all news."""
        self.heard = len(self.tier.news)
        return 0

    def hear_until(self, at):
        """The router learns the news up to a time."""
        news: list = self.tier.news
        while self.heard < len(news) and news[self.heard][0] <= at:
            self.heard += 1
        return 0

    def knows(self, block):
        """Whether the router knows a block in the tier."""
        item: tuple
        changed: cython.int
        present: cython.bint
        while self.applied < self.heard:
            item = self.tier.news[self.applied]
            changed, present = item[1], item[2]
            self.known[changed] = present
            self.applied += 1
        return self.known[block]
