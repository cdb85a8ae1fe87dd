"""Tiers below the caches of vLLM and of Dynamo's mocked workers: their blocks, orders of eviction, and transfers."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import Engine
from cython.cimports.kvtrace.cache.structures.queues import Heaps

NEVER = cython.declare(cython.double, 1e300)
NOBODY = cython.declare(cython.int, -1)


class TierBlocks:
    """The blocks of the tier below vLLM's cache: where each one is, and whether it can be evicted."""

    def __init__(self, blocks):
        self.state = np.zeros(blocks, dtype=np.int32)
        self.given = np.zeros(blocks, dtype=np.int32)
        self.offers = 0

    def is_evictable(self, block):
        """Whether a block is idle, and not among those given."""
        return self.state[block] == IDLE and self.given[block] != self.offers


class TierOrder:
    """The orders in which vLLM's lower tier evicts blocks (0.33.0, vllm/v1/kv_offload/cpu/policies).

    `lru`: a request has one rank from its first use of the tier to its end; its blocks have that rank, tails before
    heads, and at its end the newest ranks. `arc`: a block enters T1; a request that reuses it moves it to T2 at its
    end; blocks that were evicted leave ghosts, which move the target size of T1 when they are stored again. Twins:
    tests/reference/vllm_offloading.py.
    """

    def miss(self, block):
        """A block that is not in the tier is going to be stored, if there is room."""
        return 0

    def insert(self, row, block, place):
        """A request stores a block; it is pinned until it is written."""
        return 0

    def access(self, row, block, place, present):
        """A request uses a block for the first time."""
        return 0

    def finish(self, block, marks):
        """A request that used a block has ended; `marks` says how (lower_tier.pxd)."""
        return 0

    def pin(self, block):
        """A block is going to be read."""
        return 0

    def unpin(self, block):
        """A block can be evicted from now on."""
        return 0

    def remove(self, block):
        """A block that was going to be written is not."""
        return 0

    def victims(self, count, tier):
        """Remove `count` evictable blocks and return them; if there are fewer, return [] and change nothing."""
        return []


class LeastRecent(TierOrder):
    """vLLM's LRUCachePolicy. Idle blocks are in a heap by (rank, -place)."""

    def __init__(self, demand, capacity, blocks):
        self.heap = Heaps(blocks)
        self.rank_of = np.zeros(len(demand.full), dtype=np.int64)
        self.ranks = 0

    def insert(self, row, block, place):
        self.heap.key[block] = self._rank(row)
        self.heap.tiebreak[block] = -place
        return 0

    def access(self, row, block, place, present):
        rank: cython.double = self._rank(row)
        if present and rank > self.heap.key[block]:
            self._move(block, rank, -place)
        return 0

    def finish(self, block, marks):
        self.ranks += 1
        return self._move(block, self.ranks, 0)

    def pin(self, block):
        return self.heap.drop(block)

    def unpin(self, block):
        return self.heap.put(0, block, self.heap.key[block], self.heap.tiebreak[block])

    def victims(self, count, tier: TierBlocks):
        block: cython.int = self.heap.first(0)
        chosen: list = []
        spared: list = []
        while block >= 0 and len(chosen) < count:
            self.heap.drop(block)
            (chosen if tier.is_evictable(block) else spared).append(block)
            block = self.heap.first(0)
        if len(chosen) < count:
            spared += chosen
            chosen = []
        for item in spared:
            self.unpin(item)
        return chosen

    def _rank(self, row):
        if self.rank_of[row] == 0:
            self.ranks += 1
            self.rank_of[row] = self.ranks
        return self.rank_of[row]

    def _move(self, block, rank, tiebreak):
        if self.heap.holds(block):
            self.heap.drop(block)
            return self.heap.put(0, block, rank, tiebreak)
        self.heap.key[block], self.heap.tiebreak[block] = rank, tiebreak
        return 0


class AdaptiveReplacement(TierOrder):
    """vLLM's ARCCachePolicy: T1, T2 and their ghosts B1, B2, each a circular list that begins at a sentinel."""

    def __init__(self, demand, capacity, blocks):
        self.capacity, self.blocks, self.target = capacity, blocks, 0.0
        self.next = np.zeros(blocks + 4, dtype=np.int32)
        self.previous = np.zeros(blocks + 4, dtype=np.int32)
        self.list_of = np.zeros(blocks, dtype=np.int8)
        self.size = np.zeros(4, dtype=np.int64)
        end: cython.int
        for end in range(self.blocks, self.blocks + 4):
            self.next[end] = self.previous[end] = end

    def miss(self, block):
        ghosts: cython.int = self.list_of[block] - 1
        once: cython.double = cython.cast(cython.double, self.size[GHOSTS_ONCE])
        often: cython.double = cython.cast(cython.double, self.size[GHOSTS_OFTEN])
        if ghosts == GHOSTS_ONCE:
            self.target = min(self.target + max(1.0, often / once), cython.cast(cython.double, self.capacity))
            self._append(ghosts, block)
        elif ghosts == GHOSTS_OFTEN:
            self.target = max(self.target - max(1.0, once / often), 0.0)
            self._append(ghosts, block)
        return 0

    def insert(self, row, block, place):
        return self._append(ONCE, block)

    def finish(self, block, marks):
        if marks & REUSED:
            return self._append(OFTEN, block)
        return self._append(self.list_of[block] - 1, block) if marks & STORED else 0

    def remove(self, block):
        self._leave(block)
        return 0

    def victims(self, count, tier: TierBlocks):
        once: cython.int = self._evictable_from(self.next[self.blocks + ONCE], tier)
        often: cython.int = self._evictable_from(self.next[self.blocks + OFTEN], tier)
        left: cython.longlong = self.size[ONCE]
        block: cython.int
        chosen: list = []
        while len(chosen) < count and (once < self.blocks or often < self.blocks):
            if once < self.blocks and (left >= cython.cast(cython.longlong, self.target) or often >= self.blocks):
                chosen.append(once)
                left -= 1
                once = self._evictable_from(self.next[once], tier)
            else:
                chosen.append(often)
                often = self._evictable_from(self.next[often], tier)
        if len(chosen) < count:
            return []
        for item in chosen:
            block = item
            self._append(GHOSTS_ONCE if self.list_of[block] - 1 == ONCE else GHOSTS_OFTEN, block)
        self._trim(GHOSTS_ONCE)
        self._trim(GHOSTS_OFTEN)
        return chosen

    def _evictable_from(self, block, tier):
        """The first block of a list from one on that the tier can evict, or the list's sentinel."""
        while block < self.blocks and not tier.is_evictable(block):
            block = self.next[block]
        return block

    def _trim(self, ghosts):
        while self.size[ghosts] > self.capacity:
            self._leave(self.next[self.blocks + ghosts])

    def _append(self, name, block):
        """Move a block to the end of a list."""
        end: cython.int = self.blocks + name
        if self.list_of[block]:
            self._leave(block)
        self.list_of[block] = cython.cast(cython.schar, name + 1)
        self.size[name] += 1
        self.next[block], self.previous[block] = end, self.previous[end]
        self.next[self.previous[end]] = block
        self.previous[end] = block
        return 0

    def _leave(self, block):
        self.size[self.list_of[block] - 1] -= 1
        self.list_of[block] = 0
        self.next[self.previous[block]] = self.next[block]
        self.previous[self.next[block]] = self.previous[block]


# The tier below vLLM's cache (0.33.0, vllm/v1/kv_offload/cpu): blocks of prompts, written as they are computed.
#
# A tier holds copies: a block stays in the cache above it. Blocks that are being written or read cannot be evicted. The
# order of eviction is one of vLLM's two, `lru` and `arc`. Twin: tests/reference/vllm_offloading.py.


ORDERS = {"lru": LeastRecent, "arc": AdaptiveReplacement}


class LowerTier(TierBlocks):
    """A tier of `capacity` blocks below the cache `above`; `hits` counts the blocks that each request loaded from it.

    `state` is ABSENT, WRITING, or IDLE + the number of transfers that read the block. `marks` has, for each request
    that used the tier and has not ended, what the tier knows of each block of its prompt: SEEN, STORED, REUSED, MISSED.
    `pool` is a tier below this one, from which `pool_hits` of the hits came.
    """

    def __init__(self, above: Engine, capacity, policy="lru"):
        blocks = max(1, above.context.blocks)
        self.above, self.capacity = above, min(capacity, blocks)
        self.order = ORDERS[policy](above.demand, capacity, blocks)
        TierBlocks.__init__(self, blocks)
        self.hits = np.zeros(len(above.demand.full), dtype=np.int32)
        self.size = self.idle = self.evictions = 0
        self.fetch_seconds = self.store_seconds = 0
        self.marks, self.pool, self.pool_hits = {}, None, None

    def self_check(self):
        """A message about an inconsistency after all requests and transfers have ended, or None."""
        state = np.asarray(self.state)
        if ((state != ABSENT) & (state != IDLE)).any():
            return "a transfer with the lower tier never ended"
        if not int((state == IDLE).sum()) == self.size == self.idle <= self.capacity:
            return f"the lower tier counts {self.size:,} blocks, {self.idle:,} of them idle"
        return None

    @property
    def tier_hits(self):
        """(tier, request) -> the blocks that it loaded and that came from there."""
        if self.pool_hits is None:
            return np.asarray(self.hits).reshape(1, -1)
        return np.array([np.asarray(self.hits) - np.asarray(self.pool_hits), self.pool_hits])

    def block_at(self, row, place):
        """The number of a block of a prompt."""
        return self.above.ids[self.above.start[row] + place]

    def prepare_load(self, row, first, end):
        """Blocks of a prompt, which are in the tier, are going to be read."""
        place: cython.int
        block: cython.int
        marks: bytearray = self._marks(row)
        for place in range(first, end):
            block = self.block_at(row, place)
            if self.state[block] == IDLE:
                self.idle -= 1
                self.order.pin(block)
            self.state[block] += 1
            if not marks[place] & STORED:
                marks[place] |= REUSED
        for place in range(first, end):
            self._see(row, place, marks)
        return 0

    def prepare_store(self, row, first, end, absent):
        """Make room for those blocks of a prompt that are absent, and list them; False if there is none."""
        place: cython.int
        block: cython.int
        needed: cython.longlong
        marks: bytearray = self._marks(row)
        self.offers += 1
        for place in range(first, end):
            block = self.block_at(row, place)
            self.given[block] = self.offers
            if self.state[block] == ABSENT:
                absent.append(place)
        for place in reversed(absent):
            if not marks[place] & MISSED:
                marks[place] |= MISSED
                self.order.miss(self.block_at(row, place))
        for place in range(first, end):
            block = self.block_at(row, place)
            if self.state[block] != WRITING:
                self._see(row, place, marks)
            if self.state[block] >= IDLE and not marks[place] & STORED:
                marks[place] |= REUSED
        needed = len(absent) - (self.capacity - self.size)
        if needed > 0 and not self._evict(needed):
            return False
        for place in absent:
            block = self.block_at(row, place)
            self.state[block] = WRITING
            self.order.insert(row, block, place)
            marks[place] |= STORED
        self.size += len(absent)
        return True

    def complete(self, blocks, is_load):
        """A transfer has ended."""
        block: cython.int
        for item in blocks:
            block = item
            self.state[block] += -1 if is_load else 1
            if self.state[block] == IDLE:
                self.idle += 1
                self.order.unpin(block)
        return 0

    def hold(self, blocks):
        """Idle blocks are going to be read by the tier below."""
        block: cython.int
        for item in blocks:
            block = item
            if self.state[block] == IDLE:
                self.idle -= 1
                self.order.pin(block)
            self.state[block] += 1
        return 0

    def remove(self, block):
        """A block that was going to be written is not."""
        self.state[block] = ABSENT
        self.size -= 1
        return self.order.remove(block)

    def finish(self, row):
        """A request has ended: its blocks are the last used ones, tails before heads."""
        place: cython.int
        block: cython.int
        marks: bytearray = self.marks.pop(row, None)
        if marks is None:
            return 0
        for place in range(len(marks) - 1, -1, -1):
            block = self.block_at(row, place)
            if marks[place] & SEEN and self.state[block] != ABSENT:
                self.order.finish(block, marks[place])
        return 0

    def _evict(self, count):
        """Evict `count` idle blocks that are not among those given; False if there are fewer."""
        block: cython.int
        if count > self.idle:
            return False
        victims: list = self.order.victims(count, self)
        if len(victims) < count:
            return False
        for item in victims:
            block = item
            self.state[block] = ABSENT
        self.size -= count
        self.idle -= count
        self.evictions += count
        return True

    def _marks(self, row):
        marks = self.marks.get(row)
        if marks is None:
            marks = self.marks[row] = bytearray(self.above.full[row])
        return marks

    def _see(self, row, place, marks: bytearray):
        """A request uses a block for the first time."""
        block: cython.int = self.block_at(row, place)
        if not marks[place] & SEEN:
            marks[place] |= SEEN
            self.order.access(row, block, place, self.state[block] != ABSENT)
        return 0


# The tier below the caches of Dynamo's mocked workers (ai-dynamo-runtime 1.6.1): its blocks, its links, its news.
#
# A tier belongs to one worker, or all workers share it. Of one worker, transfers of a direction run one after another.
# On links that workers share, all transfers of a direction move at once: each gets an equal part of its worker's link,
# and of the shared one, whichever is less. The tier evicts the least recently used block; blocks that are used together
# are evicted in the order of their hashes. Twin: tests/reference/dynamo_tiers.py.


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
        if not int((state == IDLE).sum()) == self.size <= self.capacity:
            return f"the lower tier counts {self.size:,} blocks"
        return None

    # ---- blocks

    def touch(self, block):
        """A block is used, if it can be found and nobody reads it."""
        if self.state[block] == IDLE and self.readers[block] == 0:
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
                self.state[block] = IDLE
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
