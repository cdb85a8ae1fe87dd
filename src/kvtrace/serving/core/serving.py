"""Serving simulation: instances with continuous batching, each with a queue and a prefix cache, behind a router.

A step of an instance computes one token of each decoding request and chunks of the prompts in prefill. A roofline model
gives its time. Hits shorten prefills, which changes when requests end, which changes the hits; the simulation follows
this loop event by event. Consecutive decode-only steps are combined in closed form.

Twin: tests/reference/serving.py, which takes each step separately.
"""

from heapq import heappop, heappush

import cython
import numpy as np

NEVER = cython.declare(cython.double, 1e300)


class Serving:
    """The requests in order of arrival, with the instance and the times in seconds of each.

    `limits` and `cost` are dicts of the fields of BatchLimits and StepCost (serving.pxd). `need` is the maximum number
    of blocks that a request holds.
    """

    def __init__(self, engines, router, arrival, tokens, output, need, limits, cost, prefetches=True):
        rows = len(tokens)
        self.engines, self.router = engines, router
        self.arrival = np.ascontiguousarray(arrival, dtype=np.float64)
        self.tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        self.output = np.ascontiguousarray(output, dtype=np.int64)
        self.need = np.ascontiguousarray(need, dtype=np.int64)
        self.limits, self.cost = limits, cost
        self.instance = np.full(rows, -1, dtype=np.int32)
        self.done = np.zeros(rows, dtype=np.int64)
        self.cached = np.zeros(rows, dtype=np.int64)
        self.ready = np.zeros(rows)
        self.prefetches = prefetches
        self.started = np.full(rows, np.nan)
        self.first = np.full(rows, np.nan)
        self.ended = np.full(rows, np.nan)
        self.instances = [Instance(engine, self) for engine in engines]
        self.row = 0

    @property
    def outcomes(self):
        """Results by name: arrays with one value per request."""
        return {
            "instance": np.asarray(self.instance),
            "started": np.asarray(self.started),
            "first": np.asarray(self.first),
            "ended": np.asarray(self.ended),
            "cached": np.asarray(self.cached),
        }

    @property
    def busy(self):
        """Seconds of computing of each instance."""
        return [cython.cast(Instance, one).busy for one in self.instances]

    def advance(self, rows):
        """Let the next `rows` requests arrive."""
        one: Instance
        chosen: cython.int
        stop: cython.Py_ssize_t = min(self.row + rows, self.tokens.shape[0])
        while self.row < stop:
            for one in self.instances:
                one.run(self.arrival[self.row])
            if self.need[self.row] <= self.limits.blocks:  # else it is rejected: it does not fit any instance
                self._update_router()
                chosen = self.router.send(self.row)
                self.instance[self.row] = chosen
                one = self.instances[chosen]
                one.take(self.row)
            self.row += 1

    def close(self):
        """Run all instances until no request is left, then self-check each cache."""
        one: Instance
        for one in self.instances:
            one.run(NEVER)
        for engine in self.engines:
            engine.close()

    def _update_router(self):
        """Update the router's counts of each instance."""
        i: cython.int
        one: Instance
        router: Router = self.router
        for i in range(router.count):
            one = self.instances[i]
            router.load[i], router.waiting[i] = one.load, one.prefill
            router.blocks[i], router.active[i] = one.reserved, one.active()


class Instance:
    """One instance: its waiting, prefilling and decoding requests, and its clock.

    `queue` holds the waiting rows, the oldest at `head`. `decoding` is a heap of (step after which it ends, row).
    `context` counts the cached tokens of decoding requests, `reserved` the blocks that live requests can come to hold,
    `prefill` the prompt tokens still to compute, and `load` all tokens of requests that have not ended.
    """

    def __init__(self, engine, serving):
        self.engine, self.serving = engine, serving
        self.queue, self.prefilling, self.decoding = [], [], []
        self.head = 0
        self.now = self.busy = 0
        self.steps = self.batch = self.context = self.reserved = self.prefill = self.load = 0

    def active(self):
        """Number of requests that have arrived and not ended."""
        return len(self.queue) - self.head + len(self.prefilling) + self.batch

    def take(self, row):
        """Add a request to the queue."""
        s: Serving = self.serving
        if self.active() == 0:
            self.now = max(self.now, s.arrival[row])
        self.queue.append(row)
        self.prefill += s.tokens[row]
        self.load += s.tokens[row] + s.output[row]

    def run(self, until):
        """Run all steps that begin before `until`."""
        while self.now < until and self.active() > 0:
            self._admit()
            if self.prefilling:
                self._mixed(until)
            else:
                self._decode(until)

    def _admit(self):
        """Admit waiting requests in order, while there is room for all blocks that they can come to hold."""
        s: Serving = self.serving
        row: cython.Py_ssize_t
        while self.head < len(self.queue) and len(self.prefilling) + self.batch < s.limits.requests:
            row = self.queue[self.head]
            if self.reserved + s.need[row] > s.limits.blocks:
                break
            self.head += 1
            self.reserved += s.need[row]
            self.engine.context.request = row
            self.engine.context.now = self.now * 1000
            self.engine.serve(row)
            s.started[row] = self.now
            hit_tokens: cython.longlong = self.engine.hit[row] * s.limits.block_size
            s.cached[row] = max(0, min(hit_tokens, s.tokens[row] - 1))  # the last token is always computed
            if self.engine.lower_tier_hits(row):
                self._fetch_or_recompute(row)
            s.done[row] = s.cached[row]
            self.prefill -= s.cached[row]
            self.prefilling.append(row)
        if self.head > 1024 and 2 * self.head > len(self.queue):
            del self.queue[: self.head]
            self.head = 0

    def _fetch_or_recompute(self, row):
        """Fetch the hits of lower tiers, or recompute them if that is faster. A prompt waits for its transfer.

        With prefetching, the transfer starts when the request arrives.
        """
        s: Serving = self.serving
        upper: cython.double = max(0, s.cached[row] - self.engine.lower_tier_hits(row) * s.limits.block_size)
        all_hits: cython.double = s.cached[row]
        fetch: cython.double = self.engine.fetch_seconds(row)
        begins: cython.double = s.arrival[row] if s.prefetches else self.now
        left: cython.double = max(0.0, begins + fetch - self.now)
        if left > s.cost.token_s * (all_hits - upper) + s.cost.pair_s * (all_hits * all_hits - upper * upper):
            s.cached[row] = cython.cast(cython.longlong, upper)
        else:
            s.ready[row] = self.now + left

    def _mixed(self, until):
        """One step: a token of each decoding request, and chunks of prompts up to the step's token limit."""
        s: Serving = self.serving
        row: cython.Py_ssize_t
        chunk: cython.longlong
        budget: cython.longlong = max(s.limits.step_tokens - self.batch, 1)
        tokens: cython.longlong = self.batch
        cached: cython.longlong = self.context
        pairs: cython.double = 0
        start: cython.double
        soonest: cython.double = NEVER
        chunks: list = []
        for item in self.prefilling:
            row = item
            if budget <= 0:
                break
            if s.ready[row] > self.now:
                soonest = min(soonest, s.ready[row])
                continue
            chunk = min(max(s.tokens[row] - s.done[row], 1), budget)
            start = s.done[row]
            pairs += (start + chunk) * (start + chunk) - start * start
            cached += s.done[row]
            tokens += chunk
            budget -= chunk
            chunks.append((row, chunk))
        if not chunks and not self.batch:  # all prompts wait for their transfers
            self.now = min(soonest, until)
            return
        self._pass(self._time(tokens, pairs, cached))
        self._token(1)
        for item in chunks:
            row, chunk = item
            s.done[row] += chunk
            self.prefill -= chunk if s.tokens[row] else 0
            if s.done[row] >= s.tokens[row]:
                self._first(row)
        prefilling: list = []
        for item in self.prefilling:
            row = item
            if s.first[row] != s.first[row]:  # NaN: no token yet
                prefilling.append(row)
        self.prefilling = prefilling

    def _decode(self, until):
        """Decode-only steps, up to the first end of a request or the last step that begins before `until`."""
        low: cython.longlong = 1
        high: cython.longlong = self.decoding[0][0] - self.steps
        middle: cython.longlong
        while low < high:  # bisect for the fewest steps that reach `until`
            middle = (low + high) // 2
            if self.now + self._times(middle) >= until:
                high = middle
            else:
                low = middle + 1
        self._pass(self._times(low))
        self._token(low)

    def _token(self, steps):
        """Give `steps` tokens to each decoding request; requests with their last token end."""
        s: Serving = self.serving
        row: cython.Py_ssize_t
        self.steps += steps
        self.context += steps * self.batch
        while self.decoding and self.decoding[0][0] <= self.steps:
            _, row = heappop(self.decoding)
            self.batch -= 1
            self.context -= s.tokens[row] + s.output[row]
            self._end(row)

    def _first(self, row):
        """A prompt is complete and gives the first token; the request starts to decode."""
        s: Serving = self.serving
        s.first[row] = self.now
        if s.output[row] <= 1:
            self._end(row)
            return
        self.batch += 1
        self.context += s.tokens[row] + 1
        heappush(self.decoding, (self.steps + s.output[row] - 1, row))

    def _end(self, row):
        s: Serving = self.serving
        s.ended[row] = self.now
        self.reserved -= s.need[row]
        self.load -= s.tokens[row] + s.output[row]
        self.engine._end(row)

    def _pass(self, seconds):
        self.now += seconds
        self.busy += seconds

    def _time(self, tokens, pairs, cached):
        """Seconds of a step: the longer of compute and memory time, plus the overhead."""
        cost: StepCost = self.serving.cost
        computing: cython.double = cost.token_s * tokens + cost.pair_s * pairs
        return max(computing, cost.step_s + cost.read_s * cached) + cost.overhead_s

    def _times(self, steps):
        """Seconds of `steps` decode-only steps. Each step reads one more token per decoding request than the last."""
        cost: StepCost = self.serving.cost
        batch: cython.double = self.batch
        context: cython.double = self.context
        compute: cython.double = cost.token_s * batch
        bound: cython.double = 0  # steps until memory time exceeds compute time
        if cost.read_s > 0:
            bound = min(max((compute - cost.step_s) / cost.read_s - context, 0.0) / batch, 1e15)
        elif compute > cost.step_s:
            bound = 1e15
        before: cython.longlong = min(steps, cython.cast(cython.longlong, bound) + (bound > 0))
        after: cython.double = steps - before
        sum_of: cython.double = after * before + after * (after - 1) / 2  # sum of the step numbers after `before`
        read: cython.double = after * (cost.step_s + cost.read_s * context) + cost.read_s * batch * sum_of
        return before * compute + read + steps * cost.overhead_s
