"""Dynamo's mocked workers (ai-dynamo-runtime 1.6.1): with a tier below the cache, and with multi-token prediction."""

from heapq import heappop, heappush

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.blocks import NOTHING, PagedCache
from cython.cimports.kvtrace.cache.core.lower_tier import ABSENT, LOAD, STORE, WRITING, DynamoTier, Transfer
from cython.cimports.kvtrace.serving.core.instance import (
    Instance,
    Requests,
    StepWork,
    add_part,
    begin_work,
    step_seconds,
)
from cython.cimports.kvtrace.serving.core.interleaved import InterleavedServing
from cython.cimports.kvtrace.serving.core.vllm import VllmInstance

from kvtrace._base.errors import UsageError

# They take the steps of vLLM's scheduler, and admit requests in their own way: what an admission counts as held may be
# pinned in blocks that do not hit, so requests are preempted for it.

NEVER = cython.declare(cython.double, 1e300)
NOBODY = cython.declare(cython.Py_ssize_t, -1)
LOADING = cython.declare(cython.int, 1)
ARRIVED = cython.declare(cython.int, 2)
MASK = (1 << 64) - 1


class DynamoInstance(VllmInstance):
    """A worker that admits requests as Dynamo's mocked engine does."""

    def __init__(self, engine: PagedCache, requests: Requests, cost, limits, log=False):
        VllmInstance.__init__(self, engine, requests, cost, limits, log)
        self.paged, self.active_hits = engine, 0

    def _leading(self, row, goal):
        """Leading blocks of a request that the cache has; `active_hits` counts those that others hold."""
        cache: PagedCache = self.paged
        physical: cython.int
        hits: cython.int = 0
        # an empty prompt counts as one token, whose block has no number
        limit: cython.longlong = min(goal // cache.block_size, cache.full[row] + cache.grown[row])
        self.active_hits = 0
        while hits < limit:
            physical = cache.queue.copy[cache.block_at(row, hits)]
            if physical == NOTHING:
                break
            self.active_hits += cache.queue.pins[physical] > 0
            hits += 1
        return hits

    def _idle(self, row, hits):
        """Those of the leading blocks that nobody holds."""
        cache: PagedCache = self.paged
        k: cython.int
        idle: cython.int = 0
        for k in range(hits):
            idle += cache.queue.pins[cache.queue.copy[cache.block_at(row, k)]] == 0
        return idle

    def _make_space(self, row, hits, end, budget):
        """Preempt requests until the blocks of a prompt fit; False if they never do."""
        cache: PagedCache = self.paged
        while cache.blocks_of(end) - max(hits, cache.count[row]) + self._idle(row, hits) > cache.queue.free:
            if self.count == 0:
                return False
            self._preempt(self.running[self.count - 1], budget)
        return True

    def _leave_queue(self, row):
        """A request leaves the queue, in which those that were preempted for it are before it."""
        before: list = []
        while self.waiting[0][2] != row:
            before.append(heappop(self.waiting))
        heappop(self.waiting)
        for item in before:
            heappush(self.waiting, item)
        return 0


# A step that completes blocks of a prompt orders their store, which begins when the step ends. A waiting request whose
# next blocks are in the tier gets blocks for them and waits for its load; one whose next blocks are on the way is
# deferred. A worker learns of ended transfers when a step ends, or at once if it is idle. Twin:
# tests/reference/dynamo_tiers.py.


def stopped(requests):
    """Why a simulation stops."""
    return (
        f"{requests:,} requests wait, and those that were loaded from the tier hold too many blocks for any of them to "
        "go on. Dynamo's replay stops here too. Give the first tier more blocks."
    )


class DynamoTierInstance(DynamoInstance):
    """A worker with a tier. `now` is when its step ends, or when it did something last.

    With a tier that workers share, run them with `SharedTierServing`.
    """

    def __init__(self, engine: PagedCache, requests: Requests, cost, limits, log=False):
        DynamoInstance.__init__(self, engine, requests, cost, limits, log)
        rows: cython.Py_ssize_t = requests.tokens.shape[0]
        self.client = engine.lower
        self.tier = self.client.tier
        self.held, self.holding, self.sleeping, self.stores = [], 0, 0, {}
        self.asleep, self.deferred, self.stage = np.zeros((3, rows), dtype=np.int8)
        self.loading = np.zeros(max(1, engine.context.blocks), dtype=np.int8)
        self.readers = [None] * engine.queue.capacity
        self.before, self.loaded, self.footprint, self.offered = np.zeros((4, rows), dtype=np.int32)
        self.planned = np.zeros(rows, dtype=np.int64)
        self.plans, self.not_before, self.turn_at, self.stuck_at = 0, 0, 0, 0
        self.in_step = self.stuck = self.behind = False

    def active(self):
        return len(self.waiting) + self.holding + self.count

    def take(self, row):
        if not self.in_step:
            self.now = self.turn_at = max(self.now, self.requests.arrival[row])
            self.client.hear()
        self.stuck = False
        return VllmInstance.take(self, row)

    def _is_busy(self):
        return self.in_step or self._ready()

    def _ready(self):
        """Whether the worker can plan a step."""
        if self.stuck and not (self.tier.shared and self.tier.changes != self.stuck_at):
            return False
        return self.count > 0 or len(self.waiting) > 0 or self.holding > self.sleeping

    def next_turn(self):
        if self.in_step:
            return self.now
        if self._ready():
            return max(max(self.now, self.turn_at), self.tier.now if self.stuck else 0)
        return self.client.next_deadline()

    def run(self, until):
        changes: cython.longlong
        self.until = until
        while self.next_turn() < self.until:
            self._begin_turn()
            changes = self.tier.changes
            self._turn(self.next_turn())
            if self.tier.shared and self.tier.changes != changes:  # other workers may look at the tier now
                self.until = min(self.until, self.now)
            self._report_counts()
        return 0

    def _turn(self, at):
        """The end of a step or of a transfer, and the begin of the next step."""
        if self.in_step:
            self._boundary(at)
        else:
            self.now = max(self.now, at)
            self._take_ended(self.now)
            self.client.hear()
        if not self._ready():
            return 0
        if self._must_plan():
            self._stop_decoding()
            return self._plan()
        return self._decode(self.until)

    def _boundary(self, at):
        """A step ends: the worker learns of ended transfers, and submits the stores of the step."""
        self.in_step = False
        self._take_ended(at)
        if self.client.prepared:
            self.tier.submit_prepared(self.client, at)
            self._take_ended(at)
        self.client.hear()
        return 0

    def _must_plan(self):
        if self.holding or self.client.pending or self.behind or (self.tier.shared and self._may_admit()):
            return True
        return VllmInstance._must_plan(self)

    # ---- planning a step

    def _plan(self):
        budget: cython.longlong = self.limits.step_tokens
        first: list = []
        last: list = []
        i: cython.int
        seconds: cython.double
        pending: cython.longlong = self.client.pending
        self.paged.begin_step()
        self.parts, self.preempted = 0, []
        self.plans += 1
        self._schedule_running(cython.address(budget))
        if not self.preempted:
            self._schedule_waiting(cython.address(budget))
        seconds = self._seconds_of_parts()
        if self.logs and (self.parts or self.preempted):
            self._log_planned()
        if self.parts == 0:
            self.stuck = not self.preempted and self.client.pending == pending
            if self.not_before > self.now:
                self.now = self.paged.step_ends = self.not_before
                self.in_step = True
            elif self.stuck and self.blocked and pending == 0 and not self.tier.shared:
                raise UsageError(stopped(self.active()))
            self.stuck_at = self.tier.changes
            return 0
        self._advance_parts(first, last)
        self.behind = False
        for i in range(self.count):
            if self.planned[self.running[i]] == self.plans:
                self._order_store(self.running[i])
        return self._execute(seconds, first, last)

    def _execute(self, seconds, first, last):
        begin: cython.double = self.now
        self._note_state(begin)
        self.steps += 1
        self.busy += seconds
        if self.decoding:  # it has taken several steps, each of which ended with news
            self.client.hear_until(begin)
        self.now = self.paged.step_ends = max(begin, self.not_before) + seconds
        self.in_step = True
        return self._learn(self.now, first, last)

    def _schedule_waiting(self, budget):
        """Admit waiting requests, load for them, or defer them, while tokens are left and blocks fit."""
        requests: Requests = self.requests
        cache: PagedCache = self.paged
        row: cython.Py_ssize_t
        hits: cython.int
        active: cython.int
        goal: cython.longlong
        computed: cython.longlong
        chunk: cython.longlong
        has: cython.longlong
        room: cython.longlong
        self.blocked = False
        while budget[0] > 0 and self.count < self.limits.requests and not self.preempted:
            row = self._next_waiting()
            if row == NOBODY:
                break
            goal = requests.goal[row]
            hits = self._leading(row, goal)
            active = self.active_hits
            if self.stage[row] == ARRIVED:
                hits = active = self.loaded[row]
            names: list = self._look_up(row, hits)
            if names is None:
                self._defer(row)
                continue
            computed = min(hits, (goal - 1) // cache.block_size) * cache.block_size
            has = min(active, computed // cache.block_size)
            if self.stage[row]:
                has = max(has, self.loaded[row])
            room = cache.queue.free
            if names:
                room -= self._reserved()
            if cache.blocks_of(goal) - has > max(0, room):
                self.blocked = True
                break
            if names:
                if not self._start_load(row, hits, names):
                    self.blocked = True
                    break
                self._defer(row)
                continue
            chunk = min(goal - computed, budget[0])
            hits = cython.cast(cython.int, computed // cache.block_size)
            if not self._make_space(row, hits, computed + chunk, budget):
                self.blocked = True
                break
            self._leave_queue(row)
            if self.stage[row] == 0:
                cache.start_with(row, hits)
            else:
                if not requests.preempted[row]:
                    self.client.hits[row] = max(0, hits - self.before[row])
                self.offered[row] = hits
                self.stage[row] = 0
            self._admit(row, computed, chunk, budget)
        return 0

    def _idle(self, row, hits):
        return 0 if self.stage[row] else DynamoInstance._idle(self, row, hits)

    def _schedule(self, row, chunk):
        self._take_blocks(row, self.paged.blocks_of(self.requests.computed[row] + chunk))
        self.planned[row] = self.plans
        return VllmInstance._schedule(self, row, chunk)

    def _preempt(self, row, budget):
        transfer: Transfer = self.stores.get(row)
        if transfer is not None and not self.tier.shared and not transfer.done and transfer.end < NEVER:
            self.not_before = max(self.not_before, transfer.end)
        return VllmInstance._preempt(self, row, budget)

    def _next_waiting(self):
        """The request to look at: the first that is held and awake, or the head of the queue."""
        row: cython.Py_ssize_t
        if self.holding > self.sleeping:
            row = self.held[0]
            while not self.deferred[row]:
                del self.held[0]
                row = self.held[0]
            for item in self.held:
                row = item
                if self.deferred[row] and not self.asleep[row]:
                    return row
        return self.waiting[0][2] if self.waiting else NOBODY

    def _leave_queue(self, row):
        if self.deferred[row]:
            if self.held[0] == row:
                del self.held[0]
            self.deferred[row] = False
            self.holding -= 1
            self.sleeping -= self.asleep[row]
            self.asleep[row] = False
            return 0
        return DynamoInstance._leave_queue(self, row)

    def _defer(self, row):
        """A request waits for the end of a transfer.

        One that left the queue from its middle finds its old place there, if the replay has not yet come across it.
        """
        if not self.deferred[row]:
            heappop(self.waiting)
            self.held.append(row)
            self.deferred[row] = True
            self.holding += 1
        self.sleeping += 1 - self.asleep[row]
        self.asleep[row] = True
        return 0

    def _take_blocks(self, row, blocks):
        """Take the blocks that a request lacks; of those that lose their content, it uses the last one first."""
        cache: PagedCache = self.paged
        count: cython.longlong = blocks - cache.count[row]
        blank: cython.longlong = 0
        k: cython.longlong
        place: cython.longlong = cache.begin[row] + cache.count[row]
        physical: cython.int
        transfer: Transfer
        taken: list = []
        if count <= 0:
            return 0
        while len(taken) < count:
            blank += cache.queue.holds[cache.queue.next[cache.queue.capacity]] == NOTHING
            taken.append(cache.queue.take())
        for k in range(count):
            physical = taken[count - 1 - k] if k < count - blank else taken[k - (count - blank)]
            cache.held[place + k] = physical
            transfer = self.readers[physical]
            if transfer is not None:
                self.not_before = max(self.not_before, transfer.end)
        cache.count[row] = cython.cast(cython.int, blocks)
        return 0

    def _reserved(self):
        """Blocks that prompts in progress and loads still need: a load must leave them free."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.Py_ssize_t
        computed: cython.longlong
        blocks: cython.longlong = 0
        for i in range(self.count):
            row = self.running[i]
            computed = requests.computed[row]
            if self.planned[row] == self.plans:
                computed += self._chunk_of(row)
            if computed < requests.tokens[row]:
                blocks += max(0, self.paged.blocks_of(requests.goal[row]) - self.paged.count[row])
        for item in set(self.held):
            row = item
            if self.stage[row]:
                blocks += max(0, self.footprint[row] - self.loaded[row])
        return blocks

    def _chunk_of(self, row):
        """The tokens of a request in the planned step."""
        i: cython.int
        for i in range(self.parts):
            if self.part_row[i] == row:
                return self.part_chunk[i]
        return 0

    # ---- the tier

    def _look_up(self, row, hits):
        """The blocks of a prompt after the hits that the tier has; None if one of them is on the way."""
        tier: DynamoTier = self.tier
        transfer: Transfer = self.stores.get(row)
        place: cython.int = hits
        block: cython.int
        waits: cython.bint = False
        names: list = []
        if self.stage[row]:
            return names if self.stage[row] == ARRIVED else None
        if transfer is not None:
            if transfer.end >= NEVER if self.tier.shared else not transfer.done:
                return None
            del self.stores[row]
        while place < self.paged.full[row]:
            block = self.paged.block_at(row, place)
            if tier.state[block] == ABSENT:
                break
            waits |= tier.state[block] == WRITING or self.loading[block]
            names.append(block)
            place += 1
        self._touch_all(row)
        return None if waits else names

    def _touch_all(self, row):
        place: cython.int
        for place in range(self.paged.full[row] - 1, -1, -1):
            self.tier.touch(self.paged.block_at(row, place))
        return 0

    def _start_load(self, row, hits, names):
        """Give a request blocks for what it loads, and order the load; False if there are too few."""
        cache: PagedCache = self.paged
        block: cython.int
        before: cython.double = self.not_before
        if len(names) > cache.queue.free - self._idle(row, hits):
            return False
        cache.start_with(row, hits)
        self.not_before = self.now
        self._take_blocks(row, hits + len(names))
        self.tier.schedule_load(self.client, row, names, self.now, self.not_before)
        self.not_before = before
        for item in names:
            block = item
            self.loading[block] = True
        self.before[row], self.loaded[row] = hits, hits + len(names)
        self.footprint[row] = cython.cast(cython.int, cache.blocks_of(self.requests.goal[row]))
        self.stage[row] = LOADING
        return True

    def _take_ended(self, at):
        """The worker looks which transfers have ended."""
        transfer: Transfer
        physical: cython.int
        block: cython.int
        row: cython.Py_ssize_t
        ended: list = self.client.tick(at)
        if ended is None:
            return 0
        for item in ended:
            transfer = item
            if transfer.kind == STORE:
                for one in reversed(transfer.blocks):
                    physical = one
                    self.readers[physical] = None
                    if self.tier.shared:
                        self.paged.queue.unpin(physical)
        for item in ended:
            transfer = item
            if transfer.kind == LOAD:
                row = transfer.row
                for one in transfer.names:
                    block = one
                    self.loading[block] = False
                self.paged.publish(row, self.loaded[row] * self.paged.block_size)
                self.stage[row] = ARRIVED
        for item in self.held:
            row = item
            self.asleep[row] = False
        self.sleeping = 0
        self.stuck = self.blocked = False
        self.turn_at = at
        self.blocks = self.paged.queue.capacity - self.paged.queue.free
        return 0

    def _order_store(self, row):
        """Order the store of blocks of a prompt that are complete now."""
        cache: PagedCache = self.paged
        place: cython.int
        first: cython.int = self.offered[row]
        end: cython.int = cython.cast(
            cython.int,
            min(min(self.requests.computed[row], self.requests.tokens[row]) // cache.block_size, cache.full[row]),
        )
        physical: cython.int
        begin: cython.longlong = cache.begin[row]
        names: list = []
        blocks: list = []
        transfer: Transfer
        if end <= first:
            return 0
        for place in range(first, end):
            names.append(cache.block_at(row, place))
            if self.tier.state[cache.block_at(row, place)] == ABSENT:
                physical = cache.held[begin + place]
                if self.readers[physical] is not None:
                    self.behind = True
                    return 0
                blocks.append(physical)
        if blocks:
            transfer = self.tier.prepare_store(self.client, row, names, self.now)
            if transfer is None:
                self.behind = True
                return 0
            transfer.blocks = blocks
            for item in blocks:
                physical = item
                self.readers[physical] = transfer
                if self.tier.shared:
                    cache.queue.pin(physical)
            self.stores[row] = transfer
            self._touch_all(row)
        self.offered[row] = end
        return 0


class SharedTierServing(InterleavedServing):
    """Workers that share a tier."""

    def close(self):
        """Run all workers until no request is left, then self-check each cache."""
        instance: Instance
        self.run_until(NEVER)
        for instance in self.instances:
            if instance.active():
                raise UsageError(stopped(instance.active()))
        InterleavedServing.close(self)


# A step takes blocks for all drafted tokens, and gives back those that it does not use. Accepted tokens are drawn as in
# the replay. Twin: tests/reference/dynamo_mtp.py.


class Draws:
    """The tokens that requests get in a step, from Rust's StdRng (rand 0.9): ChaCha12, its seed spread by PCG32."""

    def __init__(self, rates, seed):
        self.rates, self.used = np.ascontiguousarray(rates, dtype=np.float64), 16
        place: cython.int
        constants = np.frombuffer(b"expand 32-byte k", dtype="<u4").tolist()
        for place in range(4):
            self.start[place] = constants[place]
        for place in range(4, 12):
            seed = (seed * 6364136223846793005 + 11634580027462260723) & MASK
            word, turn = ((seed >> 18 ^ seed) >> 27) & 0xFFFFFFFF, seed >> 59
            self.start[place] = (word >> turn | word << (32 - turn)) & 0xFFFFFFFF
        for place in range(12, 16):
            self.start[place] = 0

    def next(self):
        """The next number of 64 bits."""
        low: cython.ulonglong
        high: cython.ulonglong
        if self.used == 16:
            self._fill()
        low, high = self.words[self.used], self.words[self.used + 1]
        self.used += 2
        return high << 32 | low

    def tokens(self):
        """The tokens of a request, if it does not end before: one, and the drafted ones up to the first refused."""
        k: cython.Py_ssize_t
        for k in range(self.rates.shape[0]):
            if self.rates[k] < 1 and self.next() >= cython.cast(
                cython.ulonglong, self.rates[k] * 18446744073709551616.0
            ):
                return k + 1
        return self.rates.shape[0] + 1

    def _fill(self):
        """Compute 16 words."""
        i: cython.int
        for i in range(16):
            self.words[i] = self.start[i]
        for _ in range(6):
            for i in range(4):
                self._quarter(i, 4 + i, 8 + i, 12 + i)
            for i in range(4):
                self._quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
        for i in range(16):
            self.words[i] += self.start[i]
        self.start[12] += 1
        self.start[13] += self.start[12] == 0
        self.used = 0

    def _quarter(self, a, b, c, d):
        self.words[a] += self.words[b]
        self.words[d] ^= self.words[a]
        self.words[d] = self.words[d] << 16 | self.words[d] >> 16
        self.words[c] += self.words[d]
        self.words[b] ^= self.words[c]
        self.words[b] = self.words[b] << 12 | self.words[b] >> 20
        self.words[a] += self.words[b]
        self.words[d] ^= self.words[a]
        self.words[d] = self.words[d] << 8 | self.words[d] >> 24
        self.words[c] += self.words[d]
        self.words[b] ^= self.words[c]
        self.words[b] = self.words[b] << 7 | self.words[b] >> 25


class DynamoMtpInstance(DynamoInstance):
    """One worker; `rates` are the acceptance rates of drafted tokens, each if those before it were accepted."""

    def __init__(self, engine: PagedCache, requests: Requests, cost, limits, rates, seed, log=False):
        DynamoInstance.__init__(self, engine, requests, cost, limits, log)
        self.draws, self.most = Draws(rates, seed), len(rates) + 1

    def steps_left(self, row):
        return (VllmInstance.steps_left(self, row) + self.most - 1) // self.most

    def _must_plan(self):
        return True

    def _plan(self):
        requests: Requests = self.requests
        budget: cython.longlong = self.limits.step_tokens
        work: StepWork
        i: cython.int
        row: cython.Py_ssize_t
        prompt: cython.longlong
        before: cython.longlong
        first: list = []
        last: list = []
        self.paged.begin_step()
        self.parts, self.preempted = 0, []
        self._schedule_running(cython.address(budget))
        if not self.preempted:
            self._schedule_waiting(cython.address(budget))
        if self.logs and (self.parts or self.preempted):
            self._log_planned()
        begin_work(cython.address(work))
        for i in range(self.parts):
            row = self.part_row[i]
            prompt, before = requests.tokens[row], requests.computed[row]
            add_part(cython.address(work), before, self.part_chunk[i], prompt, prompt)
            requests.computed[row] += self.part_chunk[i]
            self.prefill -= max(0, min(requests.computed[row], prompt) - before)
        self.parts = 0
        taken: list = self._predict()
        for i in range(self.count):
            row = self.running[i]
            if requests.computed[row] == requests.goal[row]:
                work.context += requests.goal[row]
        for i in range(self.count):
            row = self.running[i]
            if requests.computed[row] == requests.goal[row]:
                self._accept(row, taken, first, last)
        for item in taken:
            i = item
            self.paged.queue.unpin(i)
        return self._execute(step_seconds(cython.address(self.cost), cython.address(work)), first, last)

    def _predict(self):
        """Take the blocks of all drafted tokens of the requests whose tokens are computed; preempt others if needed."""
        budget: cython.longlong = 0
        needed: cython.longlong = self._space()
        taken: list = []
        while needed > self.paged.queue.free:
            self._preempt(self.running[self.count - 1], cython.address(budget))
            needed = self._space()
        while len(taken) < needed:
            taken.append(self.paged.queue.take())
        return taken

    def _space(self):
        """The blocks of all drafted tokens."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.Py_ssize_t
        goal: cython.longlong
        end: cython.longlong
        blocks: cython.longlong = 0
        for i in range(self.count):
            row = self.running[i]
            goal = requests.goal[row]
            if requests.computed[row] == goal:
                end = min(goal + self.most, requests.tokens[row] + requests.output[row])
                blocks += self.paged.blocks_of(end) - self.paged.blocks_of(goal)
        return blocks

    def _accept(self, row, taken, first, last):
        """A request gets its tokens of the step."""
        requests: Requests = self.requests
        cache: PagedCache = self.paged
        total: cython.longlong = requests.tokens[row] + requests.output[row]
        goal: cython.longlong = min(requests.goal[row] + self.draws.tokens(), total)
        blocks: cython.longlong = cache.blocks_of(min(goal, total - 1))  # nobody computes with the last token
        while cache.count[row] < blocks:
            cache.held[cache.begin[row] + cache.count[row]] = taken.pop()
            cache.count[row] += 1
        if requests.first[row] != requests.first[row]:  # NaN: no token yet
            first.append(row)
        requests.goal[row], requests.computed[row] = goal, goal - 1
        if goal == total:
            last.append(row)
            self.draining += 1
        return 0

    def _schedule_waiting(self, budget):
        """Admit waiting requests in order, while tokens are left and their blocks fit."""
        cache: PagedCache = self.paged
        row: cython.Py_ssize_t
        hits: cython.int
        goal: cython.longlong
        chunk: cython.longlong
        while self.waiting and budget[0] > 0 and self.count < self.limits.requests and not self.preempted:
            row = self.waiting[0][2]
            goal = self.requests.goal[row]
            hits = min(self._leading(row, goal), cython.cast(cython.int, (goal - 1) // cache.block_size))
            hits = max(0, hits - 1)
            if cache.blocks_of(goal) - min(self.active_hits, hits) > cache.queue.free:
                break
            chunk = min(goal - hits * cache.block_size, budget[0])
            self._make_space(row, hits, hits * cache.block_size + chunk, budget)
            self._leave_queue(row)
            cache.start_with(row, hits)
            self._admit(row, hits * cache.block_size, chunk, budget)
        return 0
