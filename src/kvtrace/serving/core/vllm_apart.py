"""vLLM's workers of one kind (0.33.0, NixlConnector): one keeps blocks until they are read, the other reads them."""

from heapq import heappop, heappush

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.blocks import PagedCache
from cython.cimports.kvtrace.serving.core.apart import RESERVED
from cython.cimports.kvtrace.serving.core.instance import DECODES, Requests
from cython.cimports.kvtrace.serving.core.vllm import VllmInstance

# A decode worker gives a waiting request blocks for its prompt, reads what does not hit from the prefill worker, and
# admits it once that has come; the last token is computed again, which gives the first output token. A request that
# was preempted computes its prompt there. A prefill worker serves requests of one output token, and keeps their
# blocks until they are read. A worker process reports a read that has ended with the next step that it begins, and
# the scheduler learns of it with that step's output. An engine with nothing to compute looks for it each millisecond.
# Not modelled: with asynchronous scheduling, the blocks of a preempted request are free only when the step in flight
# has ended.
#
# Checked against vLLM's own schedulers and connector: tests/clients/test_vllm_apart.py.


NEVER = cython.declare(cython.double, 1e300)
POLL_S = cython.declare(cython.double, 0.001)  # EngineCore sleeps so long after a step without tokens
LOADING = cython.declare(cython.int, 1)
ARRIVED = cython.declare(cython.int, 2)
READ = cython.declare(cython.int, 3)  # a request reads once


class VllmWorker(VllmInstance):
    """A worker of one kind. `local` is ApartServing's: requests whose prompts are computed by their decode worker."""

    def __init__(self, engine: PagedCache, requests: Requests, cost, limits, log=False):
        VllmInstance.__init__(self, engine, requests, cost, limits, log)
        self.paged = engine
        self.holding, self.come, self.reported = [], [], []
        self.stage = np.zeros(requests.tokens.shape[0], dtype=np.int8)
        self.ready = self.held_order = 0
        self.idle_since = 0

    def join(self, group, prefills):
        VllmInstance.join(self, group, prefills)
        self.local = group.local

    def settle(self):
        """The run is over: nothing is planned that would report the last reads."""
        if self.role != DECODES:
            self._read(self.reported + self.come)
            self.reported, self.come = [], []

    def active(self):
        return len(self.waiting) + len(self.holding) + self.count

    def moved(self, row, at):
        """The KV cache of a request has been read: by this worker, or from it."""
        polls: cython.longlong
        self.come.append(row)
        if self.now >= NEVER:
            polls = cython.cast(cython.longlong, max(0.0, at - self.idle_since) / POLL_S)
            self.now = self.idle_since + polls * POLL_S
            while self.now < at:
                polls += 1
                self.now = self.idle_since + polls * POLL_S
        return 0

    def _must_plan(self):
        return self.come or self.reported or self.ready or VllmInstance._must_plan(self)

    def _plan(self):
        begun: cython.double = self.now
        VllmInstance._plan(self)
        if self.reported and not self.flying:
            self._read(self.reported)
            self.reported = []
        if self.now >= NEVER:  # a step without tokens
            self.idle_since = begun
            if self.come or self.ready or self.preempted:
                self._read(self.come)
                self.come = []
                self.now = begun + POLL_S
        return 0

    def _execute(self, seconds, first, last):
        reported: list = self.reported
        self.reported, self.come = self.come, []
        if not self.limits.asynchronous:
            reported, self.reported = self.reported, []
        VllmInstance._execute(self, seconds, first, last)
        return self._read(reported)

    def _read(self, rows):
        """The scheduler learns what has been read."""
        row: cython.Py_ssize_t
        for item in rows:
            row = item
            self.blocked = False
            if self.role == DECODES:
                self.stage[row] = ARRIVED
                self.ready += 1
            else:
                self.paged.release(row)
        return 0

    def _schedule_waiting(self, budget):
        """Admit requests whose KV cache has come; give blocks to others, or admit them, while theirs fit."""
        requests: Requests = self.requests
        cache: PagedCache = self.paged
        row: cython.Py_ssize_t
        hits: cython.int
        goal: cython.longlong
        computed: cython.longlong
        chunk: cython.longlong
        held: cython.longlong
        idle: cython.longlong
        free: cython.longlong
        loads: cython.bint
        long_prefill: cython.longlong = self._long_prefill()
        skipped: list = []
        queue: list
        if self.role != DECODES:
            return VllmInstance._schedule_waiting(self, budget)
        self.blocked = False
        while (self.holding or self.waiting) and budget[0] > 0 and self.count < self.limits.requests:
            queue = self.holding if self.holding else self.waiting
            row = queue[0][2]
            if self.stage[row] == LOADING:
                skipped.append(heappop(queue))
                continue
            goal = requests.goal[row]
            if self.stage[row] == ARRIVED:
                self.stage[row] = READ
                self.ready -= 1
                cache.publish(row, requests.tokens[row] - self.ahead)
                requests.computed[row] = min(requests.tokens[row], goal - 1)
            hits = 0
            idle = 0
            loads = False
            computed = requests.computed[row]
            if computed == 0:
                hits = cache.look_up(row, goal)
                idle = cache.idle_hits
                computed = hits * cache.block_size
                loads = self.stage[row] == 0 and not self.local[row] and not requests.preempted[row]
                if loads:
                    computed = requests.tokens[row]
            chunk = 0 if loads else self._chunk(row, computed, long_prefill, budget[0])
            held = cache.count[row] + hits
            free = cache.queue.free - idle - (self.limits.watermark if self.count else 0)
            if self.limits.whole_prompt and cache.blocks_of(goal) - held > max(free, 0):
                self.blocked = True
                break
            if loads:
                free -= self._reserved(skipped)
            if cache.blocks_of(computed + chunk) - held > free or free < 0:
                self.blocked = True
                break
            item = heappop(queue)
            if cache.count[row] == 0:
                cache.start_with(row, hits)
            requests.computed[row] = computed
            if loads:
                self._load(row, hits)
                skipped.append(item)
                continue
            if requests.preempted[row]:
                requests.recomputed[row] += goal - computed
            else:
                requests.started[row] = max(self.now, self.free_at)
                if self.local[row]:
                    requests.cached[row] = computed
                    cache.hit[row] = hits
            self.prefill -= min(computed, requests.tokens[row])
            self.running[self.count] = cython.cast(cython.int, row)
            self.count += 1
            self._schedule(row, chunk)
            budget[0] -= chunk
        for item in skipped:
            self._hold(item)
        return 0

    def _load(self, row, hits):
        """Give a request blocks for its whole prompt, and order the read of what does not hit."""
        requests: Requests = self.requests
        requests.cached[row] = hits * self.paged.block_size
        self.paged.hit[row] = hits
        self.paged.extend(row, 0, requests.tokens[row])
        self.stage[row] = LOADING
        self.group_of_workers.tell(RESERVED, row, self.now)
        return 0

    def _hold(self, item):
        """Put a request among those that hold blocks, in the order in which their reads were ordered."""
        if self.limits.by_priority:
            heappush(self.holding, item)
            return 0
        if item[0] != 1:  # not held before
            self.held_order += 1
            item = (1, self.held_order, item[2])
        heappush(self.holding, item)
        return 0

    def _reserved(self, skipped):
        """Blocks that prompts in progress still need: a read must leave them free."""
        i: cython.int
        blocks: cython.longlong = 0
        for i in range(self.count):
            if not self._drains(self.running[i]):
                blocks += self._remaining(self.running[i])
        for item in self.holding:
            blocks += self._remaining(item[2])
        for item in skipped:
            blocks += self._remaining(item[2])
        return blocks

    def _remaining(self, row):
        return max(0, self.paged.blocks_of(self.requests.goal[row]) - self.paged.count[row])
