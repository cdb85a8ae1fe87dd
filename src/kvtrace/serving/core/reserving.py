"""A scheduler that never preempts: a request is admitted if all blocks that it can come to hold fit.

Consecutive decode-only steps are combined in closed form. Twin: tests/reference/serving.py, which takes each step
separately.
"""

from heapq import heappop, heappush

import cython
from cython.cimports.kvtrace.serving.core.instance import Instance
from cython.cimports.kvtrace.serving.core.requests import Requests
from cython.cimports.kvtrace.serving.core.step_time import StepWork, add_part, begin_work, decode_seconds, step_seconds

NEVER = cython.declare(cython.double, 1e300)


class ReservingInstance(Instance):
    """Waiting, prefilling and decoding requests.

    `queue` holds the waiting rows, the oldest at `head`. `decoding` is a heap of (step after which it ends, row).
    `context` counts the cached tokens of decoding requests.
    """

    def __init__(self, engine, requests, cost, limits, prefetches=True):
        Instance.__init__(self, engine, requests, cost)
        self.limits, self.prefetches = limits, prefetches
        self.queue, self.prefilling, self.decoding = [], [], []
        self.head = self.admissions = 0
        self.batch = self.context = 0

    def active(self):
        return len(self.queue) - self.head + len(self.prefilling) + self.batch

    def take(self, row):
        requests: Requests = self.requests
        if self.active() == 0:
            self.now = max(self.now, requests.arrival[row])
        self.queue.append(row)
        self.prefill += requests.tokens[row]
        self.load += requests.tokens[row]
        return 0

    def run(self, until):
        self.until = until
        while self.now < self.until and self.active() > 0:
            self._begin_turn()
            self._admit()
            self._note_state()
            if self.prefilling:
                self._mixed(self.until)
            else:
                self._decode(self.until)
            if self.active() == 0:
                self._note_state()
        return 0

    def _note_state(self):
        """Add the present state to the time line; all blocks that a request can come to hold are in use."""
        return self._note(self.now, len(self.prefilling) + self.batch, len(self.queue) - self.head, self.blocks)

    def steps_left(self, row):
        requests: Requests = self.requests
        if requests.first[row] != requests.first[row]:  # NaN: no token yet
            return requests.output[row]
        return requests.sampled[row] - self.steps

    def _admit(self):
        """Admit waiting requests in order, while there is room for all blocks that they can come to hold."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        while self.head < len(self.queue) and len(self.prefilling) + self.batch < self.limits.requests:
            row = self.queue[self.head]
            if self.blocks + requests.need[row] > self.limits.blocks:
                break
            self.head += 1
            self.blocks += requests.need[row]
            self.engine.context.request, self.engine.context.order = row, self.admissions
            self.admissions += 1
            self.engine.context.now = self.now * 1000
            self.engine.serve(row)
            requests.started[row] = self.now
            hit_tokens: cython.longlong = self.engine.hit[row] * self.limits.block_size
            requests.cached[row] = max(
                0, min(hit_tokens, requests.tokens[row] - 1)
            )  # the last token is always computed
            if self.engine.lower_tier_hits(row):
                self._fetch_or_recompute(row)
            requests.done[row] = requests.cached[row]
            self.prefill -= requests.cached[row]
            self.prefilling.append(row)
        if self.head > 1024 and 2 * self.head > len(self.queue):
            del self.queue[: self.head]
            self.head = 0

    def _fetch_or_recompute(self, row):
        """Fetch the hits of lower tiers, or recompute them if that is faster. A prompt waits for its transfer.

        With prefetching, the transfer starts when the request arrives.
        """
        requests: Requests = self.requests
        upper: cython.double = max(0, requests.cached[row] - self.engine.lower_tier_hits(row) * self.limits.block_size)
        all_hits: cython.double = requests.cached[row]
        fetch: cython.double = self.engine.fetch_seconds(row)
        begins: cython.double = requests.arrival[row] if self.prefetches else self.now
        left: cython.double = max(0.0, begins + fetch - self.now)
        token_s: cython.double = self.cost.token_s + self.cost.expert_token_s + self.cost.exchange_s
        pair_s: cython.double = self.cost.pair_s + self.cost.attention_pair_s
        if left > token_s * (all_hits - upper) + pair_s * (all_hits * all_hits - upper * upper):
            requests.cached[row] = cython.cast(cython.longlong, upper)
        else:
            requests.ready[row] = self.now + left

    def _mixed(self, until):
        """One step: a token of each decoding request, and chunks of prompts up to the step's token limit."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        chunk: cython.longlong
        budget: cython.longlong = max(self.limits.step_tokens - self.batch, 1)
        work: StepWork
        soonest: cython.double = NEVER
        chunks: list = []
        begin_work(cython.address(work))
        for item in self.prefilling:
            row = item
            if budget <= 0:
                break
            if requests.ready[row] > self.now:
                soonest = min(soonest, requests.ready[row])
                continue
            chunk = min(max(requests.tokens[row] - requests.done[row], 1), budget)
            add_part(cython.address(work), requests.done[row], chunk, requests.done[row] + chunk, 0)
            budget -= chunk
            chunks.append((row, chunk))
        if not chunks and not self.batch:  # all prompts wait for their transfers
            self.now = min(soonest, until)
            return
        work.requests += self.batch
        work.tokens += self.batch
        work.read += self.context
        work.context = self.context
        self._pass(step_seconds(cython.address(self.cost), cython.address(work)))
        self._token(1)
        for item in chunks:
            row, chunk = item
            requests.done[row] += chunk
            self.prefill -= chunk if requests.tokens[row] else 0
            if requests.done[row] >= requests.tokens[row]:
                self._first(row)
        prefilling: list = []
        for item in self.prefilling:
            row = item
            if requests.first[row] != requests.first[row]:  # NaN: no token yet
                prefilling.append(row)
        self.prefilling = prefilling

    def _decode(self, until):
        """Decode-only steps, up to the first end of a request or the last step that begins before `until`."""
        low: cython.longlong = 1
        high: cython.longlong = self.decoding[0][0] - self.steps
        middle: cython.longlong
        while low < high:  # bisect for the fewest steps that reach `until`
            middle = (low + high) // 2
            if self.now + self._seconds(middle) >= until:
                high = middle
            else:
                low = middle + 1
        self._pass(self._seconds(low))
        self._token(low)

    def _token(self, steps):
        """Give `steps` tokens to each decoding request; requests with their last token end."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        self.steps += steps
        self.context += steps * self.batch
        while self.decoding and self.decoding[0][0] <= self.steps:
            _, row = heappop(self.decoding)
            self.batch -= 1
            self.context -= requests.tokens[row] + requests.output[row]
            self._end(row)

    def _first(self, row):
        """A prompt is complete and gives the first token; the request starts to decode."""
        requests: Requests = self.requests
        requests.first[row] = self.now
        if requests.output[row] <= 1:
            self._end(row)
            return
        self.batch += 1
        self.context += requests.tokens[row] + 1
        requests.sampled[row] = self.steps + requests.output[row] - 1  # the step that gives its last token
        heappush(self.decoding, (requests.sampled[row], row))

    def _end(self, row):
        requests: Requests = self.requests
        self._ended(row, self.now)
        self.engine.context.now = self.now * 1000
        self.blocks -= requests.need[row]
        self.load -= requests.tokens[row]
        self.engine._end(row)

    def _seconds(self, steps):
        """Seconds of steps that only decode."""
        return decode_seconds(cython.address(self.cost), self.batch, self.context, steps)
