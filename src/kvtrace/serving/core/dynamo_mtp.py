"""Dynamo's mocked worker with multi-token prediction (ai-dynamo-runtime 1.6.1): several tokens of a request in a step.

A step takes blocks for all drafted tokens, and gives back those that it does not use. Accepted tokens are drawn as in
the replay. Twin: tests/reference/dynamo_mtp.py.
"""

from heapq import heappop

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.blocks import NOTHING, PagedCache
from cython.cimports.kvtrace.serving.core.instance import Requests, StepWork, add_part, begin_work, step_seconds
from cython.cimports.kvtrace.serving.core.vllm import VllmInstance

MASK = (1 << 64) - 1


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


class DynamoMtpInstance(VllmInstance):
    """One worker; `rates` are the acceptance rates of drafted tokens, each if those before it were accepted."""

    def __init__(self, engine: PagedCache, requests: Requests, cost, limits, rates, seed, log=False):
        VllmInstance.__init__(self, engine, requests, cost, limits, log)
        self.paged, self.draws, self.most = engine, Draws(rates, seed), len(rates) + 1

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
        requests: Requests = self.requests
        cache: PagedCache = self.paged
        row: cython.Py_ssize_t
        physical: cython.int
        hits: cython.int
        pinned: cython.int
        goal: cython.longlong
        chunk: cython.longlong
        while self.waiting and budget[0] > 0 and self.count < self.limits.requests and not self.preempted:
            row = self.waiting[0][2]
            goal = requests.goal[row]
            hits = pinned = 0
            while hits < goal // cache.block_size:
                physical = cache.queue.copy[cache.block_at(row, hits)]
                if physical == NOTHING:
                    break
                pinned += cache.queue.pins[physical] > 0
                hits += 1
            hits = max(0, min(hits, cython.cast(cython.int, (goal - 1) // cache.block_size)) - 1)
            if cache.blocks_of(goal) - min(pinned, hits) > cache.queue.free:
                break
            chunk = min(goal - hits * cache.block_size, budget[0])
            heappop(self.waiting)
            self._make_space(row, hits, hits * cache.block_size + chunk, budget)
            cache.start_with(row, hits)
            requests.computed[row] = hits * cache.block_size
            if requests.preempted[row]:
                requests.recomputed[row] += goal - requests.computed[row]
            else:
                requests.started[row] = self.now
                requests.cached[row] = requests.computed[row]
                cache.hit[row] = hits
            self.prefill -= min(requests.computed[row], requests.tokens[row])
            self.running[self.count] = cython.cast(cython.int, row)
            self.count += 1
            self._schedule(row, chunk)
            budget[0] -= chunk
        return 0

    def _make_space(self, row, hits, end, budget):
        """Preempt requests until the blocks of a prompt fit: what its admission counts may be pinned in other hits."""
        cache: PagedCache = self.paged
        k: cython.int
        idle: cython.int
        while True:
            idle = 0
            for k in range(hits):
                idle += cache.queue.pins[cache.queue.copy[cache.block_at(row, k)]] == 0
            if cache.blocks_of(end) - hits + idle <= cache.queue.free:
                return 0
            self._preempt(self.running[self.count - 1], budget)
