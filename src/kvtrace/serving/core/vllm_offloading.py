"""vLLM's scheduler with its OffloadingConnector (0.33.0): prompts are copied to a lower tier, and loaded from it.

A step that fills blocks of a prompt orders their store, which begins with the next step. A waiting request whose next
blocks are in the tier gets blocks for them and waits for its load, while others run. Stores and loads are two queues of
transfers of the instance: each serves one after another. An engine with nothing to compute looks for ended transfers
every millisecond. Twin: tests/reference/vllm_offloading.py.

With a pool (vllm/v1/kv_offload/tiering), which other instances may share: what the lower tier has stored is written to
the pool too. A waiting request asks the pool for blocks that the lower tier does not have, gets the answer in the next
step, and has them read into the lower tier before it loads them. Twin: tests/reference/vllm_tiers.py.
"""

from collections import deque
from heapq import heappop, heappush

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.blocks import PagedCache
from cython.cimports.kvtrace.cache.core.lower_tier import ABSENT, ASKED, IDLE, PROMOTED, WRITING, LowerTier
from cython.cimports.kvtrace.cache.structures.queues import Queue, Slots
from cython.cimports.kvtrace.serving.core.instance import Requests
from cython.cimports.kvtrace.serving.core.vllm import ARRIVED, LATER, LOADING, HoldingInstance

from kvtrace._base.errors import KvtraceError

NEVER = cython.declare(cython.double, 1e300)
POLL_S = cython.declare(cython.double, 0.001)  # EngineCore sleeps so long after a step without tokens
UNKNOWN = cython.declare(cython.int, 0)  # what an instance knows of a block in the pool: nothing,
OPEN = cython.declare(cython.int, 1)  # asked in this step,
MISSING = cython.declare(cython.int, 2)  # or what the pool answered
PRESENT = cython.declare(cython.int, 3)
ENDS = cython.declare(cython.int, 0)  # of events at the same time, transfers end before others begin
BEGINS = cython.declare(cython.int, 1)
MOST_PROMOTIONS = cython.declare(cython.int, 10_000)  # steps without tokens in which blocks are read from the pool


class Transfer:
    """A load or a store of a request: `names` are blocks of the trace, `blocks` physical ones."""

    def __init__(self, row, is_load):
        self.row, self.is_load = row, is_load
        self.names, self.blocks = [], []
        self.end, self.fenced, self.flushed = NEVER, False, False


class TransferQueue:
    """Transfers of one direction, one after another; a block takes `seconds`."""

    def __init__(self, seconds):
        self.seconds, self.free, self.queue = seconds, 0, deque()

    def begin(self, transfer: Transfer, at):
        """Append a transfer, which may begin at a time."""
        self.free = transfer.end = max(self.free, at) + len(transfer.names) * self.seconds
        self.queue.append(transfer)
        return 0

    def first_end(self):
        """When the first transfer ends."""
        return cython.cast(Transfer, self.queue[0]).end if self.queue else NEVER

    def take_ended(self, at, ended: list):
        """Move the transfers that have ended at a time to a list."""
        while self.queue and cython.cast(Transfer, self.queue[0]).end <= at:
            ended.append(self.queue.popleft())
        return 0


class PoolTransfer:
    """Blocks of a request that an instance writes to the pool or reads from it; `moved` are those that it moves."""

    def __init__(self, instance, row, names, is_load):
        self.instance, self.row, self.names, self.is_load = instance, row, names, is_load
        self.moved, self.end = [], NEVER


class SharedPool:
    """A tier of blocks in order of use, and two links to it, in and out, which serve one transfer after another.

    Instances ask for transfers. What they asked for up to a time happens in order of time when one of them says that
    all have come so far. Blocks that the pool has, or that are on their way, are not written again; a read ends at the
    first block that is gone. `read` and `written` count blocks.
    """

    def __init__(self, blocks, capacity, fetch_seconds, store_seconds, latency):
        self.capacity, self.latency = capacity, latency
        self.fetch_seconds, self.store_seconds = fetch_seconds, store_seconds
        self.queue, self.writing = Queue(Slots(max(1, blocks))), np.zeros(max(1, blocks), dtype=np.int8)
        self.events, self.asked, self.members = [], 0, 0
        self.in_free = self.out_free = 0
        self.read = self.written = self.evictions = 0

    @property
    def blocks(self):
        """The blocks that it has."""
        return self.queue.size

    def join(self):
        """The number of one more instance that shares the pool."""
        self.members += 1
        return self.members - 1

    def holds(self, block):
        """Whether a block can be read."""
        return self.queue.holds(block)

    def ask(self, at, transfer: PoolTransfer):
        """An instance asks for a transfer at a time."""
        return self._push(at, BEGINS, transfer)

    def _push(self, at, kind, transfer: PoolTransfer):
        self.asked += 1
        heappush(self.events, (at, kind, transfer.instance.number, self.asked, transfer))
        return 0

    def reach(self, now):
        """Let happen what was asked for up to a time."""
        at: cython.double
        event: tuple
        while self.events and self.events[0][0] <= now:
            event = heappop(self.events)
            at = event[0]
            if event[1] == BEGINS:
                self._begin(at, event[4])
            else:
                self._end(event[4])
        return 0

    def _begin(self, at, transfer: PoolTransfer):
        block: cython.int
        seconds: cython.double
        for item in transfer.names:
            block = item
            if transfer.is_load and not self.queue.holds(block):
                break
            if transfer.is_load or not (self.queue.holds(block) or self.writing[block]):
                transfer.moved.append(block)
        transfer.end = at
        if transfer.moved:
            seconds = self.latency
            if transfer.is_load:
                seconds += len(transfer.moved) * self.fetch_seconds
                transfer.end = self.out_free = max(at, self.out_free) + seconds
                self.read += len(transfer.moved)
                self._use(transfer.moved)
            else:
                seconds += len(transfer.moved) * self.store_seconds
                transfer.end = self.in_free = max(at, self.in_free) + seconds
                self.written += len(transfer.moved)
                for item in transfer.moved:
                    block = item
                    self.writing[block] = 1
        return self._push(transfer.end, ENDS, transfer)

    def _end(self, transfer: PoolTransfer):
        block: cython.int
        instance: OffloadingInstance = transfer.instance
        if not transfer.is_load:
            for item in transfer.moved:
                block = item
                self.writing[block] = 0
            self._use(transfer.moved)
            while self.queue.size > self.capacity:
                self.queue.drop(self.queue.first())
                self.evictions += 1
        instance.ended.append(transfer)
        return 0

    def _use(self, blocks: list):
        """Blocks are the last used ones, tails before heads."""
        block: cython.int
        for item in reversed(blocks):
            block = item
            if self.queue.holds(block):
                self.queue.move(block)
            else:
                self.queue.push(block)
        return 0


class OffloadingInstance(HoldingInstance):
    """One instance of vLLM with a lower tier.

    `holding` is a heap like `waiting`, of requests that wait and hold blocks: those that load, and those whose load has
    ended. `over` are the rows that ended since the last plan. `idle_at` is when a step without tokens was run whose
    report the engine has not read yet. With a pool, `moving` are its transfers under way, and `ended` those whose end
    was not noticed yet.
    """

    def __init__(self, engine: PagedCache, requests: Requests, cost, limits, log=False):
        HoldingInstance.__init__(self, engine, requests, cost, limits, log)
        rows: cython.Py_ssize_t = requests.tokens.shape[0]
        self.tier = engine.lower
        self.loads, self.stores = TransferQueue(self.tier.fetch_seconds), TransferQueue(self.tier.store_seconds)
        self.over, self.unsubmitted, self.started_loads, self.admitted = [], [], [], []
        self.flushed = []
        self.transfers, self.last_blocks = {}, {}
        self.offered, self.new_from, self.refused = np.zeros((3, rows), dtype=np.int32)
        self.touched, self.fences = np.zeros((2, max(1, engine.queue.capacity)), dtype=np.int32)
        self.pending = self.refusals = self.plans = 0
        self.touches_fence = self.is_idle = self.quiet = False
        self.cpu = self.idle_at = 0
        self.reports, self.idle_reports = [], []
        self.idle_since = self.woke = -1
        self.polls = 0
        self.pool, self.number, self.moving, self.ended = self.tier.pool, 0, [], []
        self.promotions, self.asked, self.questions, self.outputs = {}, {}, [], {}
        blocks: cython.Py_ssize_t = self.tier.state.shape[0] if self.pool is not None else 0
        rows = rows if self.pool is not None else 0
        self.answers = np.zeros(blocks, dtype=np.int8)
        self.askers, self.loading = np.zeros((2, blocks), dtype=np.int32)
        self.told = np.zeros(rows, dtype=np.int8)
        self.storing = np.zeros(rows, dtype=np.int32)
        self.promoting = 0
        if self.pool is not None:
            self.number = self.pool.join()
            self.tier.pool_hits = np.zeros(rows, dtype=np.int32)

    def _is_busy(self):
        return self._has_requests() or self.flying or self.is_idle

    def _has_requests(self):
        """Whether the engine plans steps: also to report ends to the connector, and while transfers are under way."""
        return self.active() > 0 or len(self.over) > 0 or self.pending > 0 or len(self.moving) > 0

    def _must_plan(self):
        if self.pool is not None and (self.moving or self.waiting):
            return True
        if self.pending or self.over or self.holding or self.refusals or self.is_idle:
            return True
        if self.blocked and not self.limits.whole_prompt:  # a hit that was evicted can be loaded: that needs less room
            self.blocked = False
        return HoldingInstance._must_plan(self)

    # ---- planning a step: one turn of EngineCore's loop

    def _plan(self):
        budget: cython.longlong = self.limits.step_tokens
        first: list = []
        last: list = []
        ended: list = []
        seconds: cython.double
        self.quiet, self.parts = True, 0
        if self._has_requests():
            if self.pool is not None:
                self._notice()
            self.paged.begin_step()
            self.plans += 1
            self.preempted, self.started_loads, self.admitted = [], [], []
            self._schedule_running(cython.address(budget))
            if not self.preempted:
                self._schedule_waiting(cython.address(budget))
            seconds = self._seconds_of_parts()
            ordered: list = self._order_stores()
            if self.pool is not None:
                self._ask_pool()
            self._begin_stores(ordered)
            self._log_launch()
            if self.parts:
                self._advance_parts(first, last)
                return self._execute(seconds, first, last)
            self._begin_loads()
            self._take_ended(ended)
            if self.limits.asynchronous and not (self.flying or self.is_idle) and self._has_requests():
                self.is_idle, self.idle_at, self.idle_reports = True, self.cpu, ended
                return self._sleep()
            self._read(self.limits.asynchronous, self.cpu, ended)
        else:
            self._read(True, 0, ended)
            self.is_idle = False
        return self._sleep() if self._has_requests() else 0

    def _read(self, queued, at, ended):
        """Read the oldest report: that of a step without tokens, or of the one before it, which it then replaces."""
        reports: list = self.reports
        if not queued or not (self.flying or self.is_idle):
            self.now = max(self.now, at)
            return self._complete(ended)
        if self.flying:
            self.flying, self.quiet = False, False
            self._learn(self.free_at, self.first_tokens, self.last_tokens)
        else:
            self.now = max(self.now, self.idle_at)
            reports = self.idle_reports
        self._complete(reports)
        self.is_idle, self.idle_at, self.idle_reports = True, at, ended
        return 0

    def _execute(self, seconds, first, last):
        """Run a step; learn its output, or that of the one before."""
        begin: cython.double
        known_at: cython.double = self.free_at
        known_first: list = self.first_tokens
        known_last: list = self.last_tokens
        reports: list = self.reports
        was_flying: cython.bint = self.flying
        ended: list = []
        self.cpu = max(self.cpu, self.now)
        begin = max(self.cpu, self.free_at)
        self.steps += 1
        self.busy += seconds
        self._note_state(begin)
        self.paged.step_ends = self.free_at = begin + seconds
        self._begin_loads()
        self._take_ended(ended)
        if not self.limits.asynchronous:
            self._learn(self.free_at, first, last)
            return self._complete(ended)
        self.first_tokens, self.last_tokens, self.reports, self.flying = first, last, ended, True
        if was_flying:
            self._learn(known_at, known_first, known_last)
            return self._complete(reports)
        if self.is_idle:
            self.is_idle = False
            self.now = max(self.now, self.idle_at)
            return self._complete(self.idle_reports)
        return 0

    def _sleep(self):
        """Look again a millisecond later; if nothing but time can change that, when a transfer ends or `until`."""
        target: cython.double
        if self.now != self.woke:
            self.idle_since, self.polls = self.now, 0
        self.polls += 1
        if self.quiet and not (self.unsubmitted or self.over or self.flying or (self.is_idle and self.idle_reports)):
            target = min(self.until, min(self.loads.first_end(), self.stores.first_end()))
            for item in self.moving:
                target = min(target, cython.cast(PoolTransfer, item).end)
            if target >= NEVER and self.moving:  # transfers that have not begun
                target = self.now
            if target >= NEVER:
                raise KvtraceError("internal error in the simulation: requests wait for nothing. Please report it.")
            self.polls = max(self.polls, cython.cast(cython.longlong, (target - self.idle_since) / POLL_S) - 1)
            while self.idle_since + self.polls * POLL_S < target:
                self.polls += 1
        self.now = self.woke = self.idle_since + self.polls * POLL_S
        return 0

    def _log_launch(self):
        """Note when the planned step begins, in the log and for the requests that it admits."""
        begin: cython.double = max(self.cpu, self.free_at)
        row: cython.Py_ssize_t
        for item in self.admitted:
            row = item
            self.requests.started[row] = begin
        if self.logs and (self.parts or self.preempted):
            self._log_planned()
            self.log[len(self.log) - 1][0] = begin

    # ---- who gets tokens

    def _schedule(self, row, chunk):
        self.new_from[row] = self.paged.count[row]
        return HoldingInstance._schedule(self, row, chunk)

    def _begin(self, row, computed):
        self.admitted.append(row)
        self.requests.cached[row] = computed
        self.paged.hit[row] = self.paged.count[row]
        return 0

    def _admit(self, row, computed, chunk, budget):
        HoldingInstance._admit(self, row, computed, chunk, budget)
        self.new_from[row] = 0
        return 0

    # ---- the connector: loads

    def _reach(self, row, hits, goal):
        loadable: cython.longlong = self._loadable(row, hits, goal)
        return LATER if loadable == LATER else (hits + loadable) * self.paged.block_size

    def _loadable(self, row, hits, goal):
        """Blocks of a prompt after the hits that the tier has; LATER if one is being written or read."""
        tier: LowerTier = self.tier
        place: cython.int = hits
        state: cython.int
        block: cython.int
        waits: cython.bint = False
        end: cython.longlong = min(goal // self.paged.block_size, self.paged.full[row])
        self.offered[row] = 0
        if row in self.transfers:
            return LATER
        if goal == 1:
            return 0
        while place < end:
            block = tier.block_at(row, place)
            state = tier.state[block]
            if state == ABSENT:
                if self.pool is None:
                    break
                state = self._promote(row, place, block)
                if state == MISSING:
                    break
                waits = True
            elif self.pool is None:
                waits |= state != IDLE
            else:
                waits |= state == WRITING or self.loading[block] > 0
            place += 1
        if self.pool is not None and place >= self.paged.full[row]:
            waits |= self._asks_for_outputs(row, place, goal // self.paged.block_size)
        return LATER if waits else place - hits

    def _load(self, row, hits, computed):
        """Give a request blocks for what it loads, and order the load."""
        place: cython.int
        end: cython.int = cython.cast(cython.int, computed // self.paged.block_size)
        transfer: Transfer = Transfer(row, True)
        self.quiet = False
        self.paged.extend(row, 0, computed)
        self.tier.prepare_load(row, hits, end)
        for place in range(hits, end):
            transfer.names.append(self.tier.block_at(row, place))
            transfer.blocks.append(self.paged.held[self.paged.begin[row] + place])
        if self.pool is not None:
            self._count_promoted(row, hits, end)
        self._enter(transfer)
        self.started_loads.append(transfer)
        self.offered[row], self.stage[row] = end, LOADING
        if not self.requests.preempted[row]:
            self.tier.hits[row] = end - hits
        return 0

    def _arrive(self, row):
        """A load is noticed: its blocks can be found, and its request can run."""
        requests: Requests = self.requests
        self.quiet, self.stage[row] = False, 0
        self.paged.publish(row, requests.computed[row])
        requests.computed[row] = min(requests.computed[row], requests.goal[row] - 1)
        return 0

    # ---- the connector: stores

    def _order_stores(self):
        """Order the stores of the planned step, and list the stores that must end before it begins."""
        i: cython.int
        row: cython.Py_ssize_t
        ordered: list = []
        requests: Requests = self.requests
        self._touch_blocks()
        for item in self.preempted:
            row = item
            self._refuse(row, False)
            for transfer in self.transfers.get(row, ()):
                self._flush(transfer)
        if self.touches_fence:
            for waiting in (self.stores.queue, self.unsubmitted):
                for transfer in waiting:
                    if cython.cast(Transfer, transfer).fenced and self._touches(transfer):
                        self._flush(transfer)
        for i in range(self.parts):
            row = self.part_row[i]
            self._store(row, min(requests.computed[row] + self.part_chunk[i], requests.tokens[row]), ordered)
        for item in self.over:
            row = item
            transfer = self._store(row, requests.tokens[row], ordered)
            if transfer is not None:
                self._fence(transfer)
                if self._touches(transfer):
                    self._flush(transfer)
        for item in self.over:
            row = item
            self._refuse(row, False)
            self.last_blocks.pop(row, None)
            self.tier.finish(row)
            if self.pool is not None:
                self.told[row] = 1
                self._forget(row)
        if self.preempted or self.over or ordered:
            self.quiet = False
        self.over = []
        return ordered

    def _flush(self, transfer: Transfer):
        if not transfer.flushed:
            transfer.flushed = True
            self.flushed.append(transfer)

    def _fence(self, transfer: Transfer):
        """The blocks of a store belong to nobody from now on: a step that takes one waits for the store."""
        physical: cython.int
        transfer.fenced = True
        for item in transfer.blocks:
            physical = item
            self.fences[physical] += 1

    def _touch_blocks(self):
        """Mark the blocks that the planned step takes, or that requests hold which it admits."""
        i: cython.int
        self.touches_fence = False
        for i in range(self.parts):
            self._touch(self.part_row[i], self.new_from[self.part_row[i]])
        for transfer in self.started_loads:
            self._touch(cython.cast(Transfer, transfer).row, 0)

    def _touch(self, row, first):
        k: cython.longlong
        begin: cython.longlong = self.paged.begin[row]
        for k in range(begin + first, begin + self.paged.count[row]):
            self.touched[self.paged.held[k]] = self.plans
            self.touches_fence |= self.fences[self.paged.held[k]] > 0

    def _touches(self, transfer: Transfer):
        """Whether the planned step touches a block of a transfer."""
        physical: cython.int
        for item in transfer.blocks:
            physical = item
            if self.touched[physical] == self.plans:
                return True
        return False

    def _store(self, row, tokens, ordered: list):
        """Order a store of full blocks of a prompt's first `tokens` tokens that were not offered before, or None."""
        place: cython.int
        first: cython.int = self.offered[row]
        end: cython.int = cython.cast(cython.int, min(tokens // self.paged.block_size, self.paged.full[row]))
        absent: list = []
        if first >= end:
            return None
        if not self.tier.prepare_store(row, first, end, absent):
            self._refuse(row, True)
            return None
        self._refuse(row, False)
        self.offered[row] = end
        if not absent:
            return None
        transfer: Transfer = Transfer(row, False)
        blocks: list = self.last_blocks.get(row)
        begin: cython.longlong = self.paged.begin[row]
        for item in absent:
            place = item
            transfer.names.append(self.tier.block_at(row, place))
            transfer.blocks.append(self.paged.held[begin + place] if blocks is None else blocks[place])
        self._enter(transfer)
        ordered.append(transfer)
        if self.pool is not None:
            self.storing[row] += 1
        return transfer

    def _refuse(self, row, refused):
        """Note whether the tier had no room for blocks of a request that runs: they are offered again each step."""
        self.refusals += refused - self.refused[row]
        self.refused[row] = refused
        return 0

    # ---- transfers

    def _end(self, row, at):
        k: cython.longlong
        begin: cython.longlong = self.paged.begin[row]
        blocks: list = []
        for transfer in self.transfers.get(row, ()):
            self._fence(transfer)
        if self.offered[row] < self.paged.full[row]:
            for k in range(begin, begin + self.paged.count[row]):
                blocks.append(self.paged.held[k])
            self.last_blocks[row] = blocks
        self.over.append(row)
        return HoldingInstance._end(self, row, at)

    def _enter(self, transfer: Transfer):
        self.pending += 1
        if transfer.row in self.transfers:
            self.transfers[transfer.row].append(transfer)
        else:
            self.transfers[transfer.row] = [transfer]

    def _begin_stores(self, ordered: list):
        """Begin the stores that the last step ordered and those of this one to flush; wait for what is flushed."""
        transfer: Transfer
        later: list = []
        self.cpu = max(self.cpu, self.now)
        for item in self.unsubmitted:
            self.stores.begin(item, max(self.cpu, self.free_at))
        for item in ordered:
            transfer = item
            if transfer.flushed:
                self.stores.begin(transfer, max(self.cpu, self.free_at))
            else:
                later.append(transfer)
        self.unsubmitted = later
        for item in self.flushed:
            transfer = item
            self.cpu = max(self.cpu, transfer.end)
        self.flushed = []
        return 0

    def _begin_loads(self):
        """Begin the loads of this step: they wait for its computing."""
        for transfer in self.started_loads:
            self.loads.begin(transfer, max(self.cpu, self.free_at))
        self.started_loads = []

    def _take_ended(self, ended: list):
        self.stores.take_ended(self.cpu, ended)
        self.loads.take_ended(self.cpu, ended)

    def _complete(self, ended: list):
        """The scheduler reads that transfers have ended."""
        physical: cython.int
        transfer: Transfer
        for item in ended:
            transfer = item
            self.quiet = self.blocked = False
            self.pending -= 1
            self.tier.complete(transfer.names, transfer.is_load)
            if self.pool is not None:
                self._pass_on(transfer)
            if transfer.is_load:
                self.stage[transfer.row] = ARRIVED
            if transfer.fenced:
                for block in transfer.blocks:
                    physical = block
                    self.fences[physical] -= 1
            self.transfers[transfer.row].remove(transfer)
            if not self.transfers[transfer.row]:
                del self.transfers[transfer.row]
        self.blocks = self.paged.queue.capacity - self.paged.queue.free
        return 0

    # ---- the pool

    def _notice(self):
        """The manager of the tiers notices transfers that have ended."""
        k: cython.Py_ssize_t
        block: cython.int
        transfer: PoolTransfer
        self.pool.reach(self.now)
        for item in self.ended:
            transfer = item
            self.moving.remove(transfer)
            self.quiet = self.blocked = False
            if not transfer.is_load:
                self.tier.complete(transfer.names, True)
                continue
            self.tier.complete(transfer.moved, False)
            for k in range(len(transfer.moved), len(transfer.names)):
                block = transfer.names[k]
                self.tier.remove(block)
                self._unmark(transfer.row, block)
                if self.answers[block] >= MISSING:
                    self.answers[block] = cython.cast(cython.schar, MISSING)
        self.ended = []
        return 0

    def _unmark(self, row, block):
        """A block of a request did not come from the pool."""
        place: cython.int = 0
        marks = self.tier.marks.get(row)
        if marks is None:
            return 0
        while self.tier.block_at(row, place) != block:
            place += 1
        marks[place] &= ~PROMOTED
        return 0

    def _promote(self, row, place, block):
        """Have a block that the lower tier lacks read from the pool; MISSING if it is not there, or finds no room."""
        absent: list = []
        marks: bytearray = self.tier._marks(row)
        if not marks[place] & ASKED:
            marks[place] |= ASKED
            self.askers[block] += 1
            if row in self.asked:
                self.asked[row].append(block)
            else:
                self.asked[row] = [block]
        if self.answers[block] == UNKNOWN:
            self.answers[block] = cython.cast(cython.schar, OPEN)
            self.questions.append(block)
            self.quiet = False
        if self.answers[block] != PRESENT:
            return self.answers[block]
        if not self.tier.prepare_store(row, place, place + 1, absent):
            return MISSING
        marks[place] |= PROMOTED
        self.quiet = False
        if row in self.promotions:
            self.promotions[row].append(block)
        else:
            self.promotions[row] = [block]
        return PRESENT

    def _asks_for_outputs(self, row, first, end):
        """Whether a preempted request asks for blocks of its output, which nobody stores."""
        place: cython.longlong
        waits: cython.bint = False
        known: dict = self.outputs.get(row)
        if first >= end:
            return False
        if known is None:
            known = self.outputs[row] = {}
            self.asked.setdefault(row, [])
        for place in range(first, end):
            if place not in known:
                known[place] = self.plans
                self.quiet = False
            if known[place] != self.plans:
                break
            waits = True
        return waits

    def _ask_pool(self):
        """At the end of planning: ask for the reads of the step, and for answers, which the next step knows."""
        block: cython.int
        for row in self.promotions:
            transfer: PoolTransfer = PoolTransfer(self, row, self.promotions[row], True)
            self.moving.append(transfer)
            self.pool.ask(self.now, transfer)
        self.promoting = self.promoting + 1 if self.promotions and not self.parts else 0
        if self.promoting > MOST_PROMOTIONS:
            raise KvtraceError(
                "vLLM would read blocks from the pool for ever: each one evicts another one that a request waits for. "
                "Give the tier above the pool more blocks."
            )
        self.promotions = {}
        self.pool.reach(self.now)
        for item in self.questions:
            block = item
            if self.answers[block] == OPEN:
                self.answers[block] = cython.cast(cython.schar, PRESENT if self.pool.holds(block) else MISSING)
        self.questions = []
        return 0

    def _count_promoted(self, row, first, end):
        """Count the blocks of a load that the request got from the pool."""
        place: cython.int
        promoted: cython.int = 0
        marks: bytearray = self.tier._marks(row)
        for place in range(first, end):
            promoted += (marks[place] & PROMOTED) != 0
            self.loading[self.tier.block_at(row, place)] += 1
        if not self.requests.preempted[row]:
            self.tier.pool_hits[row] = promoted
        return 0

    def _pass_on(self, transfer: Transfer):
        """A transfer with the lower tier has ended: what was stored there is written to the pool."""
        block: cython.int
        if transfer.is_load:
            for item in transfer.names:
                block = item
                self.loading[block] -= 1
            return 0
        self.tier.hold(transfer.names)
        written: PoolTransfer = PoolTransfer(self, transfer.row, transfer.names, False)
        self.moving.append(written)
        self.pool.ask(self.now, written)
        self.storing[transfer.row] -= 1
        return self._forget(transfer.row)

    def _forget(self, row):
        """The answers to a request that has ended, and has no store under way, are forgotten."""
        block: cython.int
        if not self.told[row] or self.storing[row] or row not in self.asked:
            return 0
        for item in self.asked.pop(row):
            block = item
            self.askers[block] -= 1
            if self.askers[block] == 0:
                self.answers[block] = cython.cast(cython.schar, UNKNOWN)
        self.outputs.pop(row, None)
        return 0
