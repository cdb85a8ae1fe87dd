"""Prefill and decode workers of Dynamo's offline replay, and the transfers between them, in milliseconds."""

from heapq import heappop

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import FITS
from cython.cimports.kvtrace.serving.core.instance import Instance, Requests
from cython.cimports.kvtrace.serving.core.interleaved import InterleavedServing
from cython.cimports.kvtrace.serving.core.serving import Router
from cython.cimports.kvtrace.serving.core.vllm import VllmEngineCore, VllmInstance
from cython.cimports.libc.math import ceil, fabs, floor, fma, fmod, nextafter, rint

from kvtrace._base.errors import UsageError

# Dynamo's offline replay of prefill and decode workers (ai-dynamo-runtime 1.6.1, aisimulate-core 0.13.0:
# src/replay/disagg.rs, src/engine/scheduler/vllm/core.rs), with its mocked engine for vLLM.
#
# A prefill worker computes a prompt and one token, and holds its blocks. Then the request is routed to a decode worker,
# where the first in a queue takes the blocks of its prompt, if they are free; the transfer begins; when it has ended,
# the blocks can be found, the request waits for a step, and the prefill worker gives up its blocks. A worker does none
# of this during a step, but at the step's end. Of one moment: steps end on prefill workers, then on decode workers, in
# their order, then transfers end; then everything is done that this asks for, in its order; then steps begin.
#
# Times are milliseconds, and steps whole nanoseconds, as there: steps that end together there end together here.
#
# Twin: tests/reference/dynamo_disaggregated.py.

NEVER = cython.declare(cython.double, 1e300)
NOBODY = cython.declare(cython.int, -1)


def polynomial(square, linear, constant, value):
    """A polynomial of the second degree, in the replay's order of operations."""
    return square * (value * value) + linear * value + constant


def rounded(milliseconds):
    """A duration of whole nanoseconds, in ms as the replay adds them."""
    seconds: cython.double = milliseconds / 1000
    product: cython.double = seconds * 1e9
    error: cython.double = fma(seconds, 1e9, -product)
    nanos: cython.double = rint(product)
    if fabs(product - nanos) == 0.5 and error != 0:  # the product was rounded to a half
        nanos = ceil(product) if error > 0 else floor(product)
    return (floor(nanos / 1e9) + fmod(nanos, 1e9) / 1e9) * 1000


def silent_first(rows, silent):
    """Rows with those that have no output first: they end before the others do."""
    row: cython.Py_ssize_t
    first: list = []
    others: list = []
    for item in rows:
        row = item
        (first if silent[row] else others).append(item)
    return first + others


class DynamoPrefill(VllmEngineCore):
    """A prefill worker: vLLM's steps, after which a request that has ended keeps its blocks until `give_up`."""

    def __init__(self, engine, requests: Requests, cost, limits):
        VllmEngineCore.__init__(self, engine, requests, cost, limits)
        self.stalled, self.instant, self.held, self.refused = False, False, [], []
        self.silent = np.zeros(requests.tokens.shape[0], dtype=np.uint8)

    def give_up(self, row, at):
        """The blocks of a request are on its decode worker."""
        self.cache.release(row)
        self.blocked = False
        if self.stalled:
            self.stalled, self.now = False, at
        return 0

    def _is_busy(self):
        return not self.stalled and self.active() > 0

    def _stall(self):
        """The head of the queue does not fit beside held blocks; a preempted request is tried again at once."""
        self.stalled = not self.preempted and not self.refused
        return self._refuse(self.now)

    def _schedule_waiting(self, budget):
        """Admit requests in order; a prompt that does not fit into an empty cache leaves when it is the first.

        One without an output may find its whole prompt, and needs no token then.
        """
        requests: Requests = self.requests
        cache = self.cache
        row: cython.Py_ssize_t
        goal: cython.longlong
        hit: cython.longlong
        chunk: cython.longlong
        self.blocked = False
        while self.waiting and self.count < self.limits.requests:
            row = self.waiting[0][2]
            if self._too_large(row):
                heappop(self.waiting)
                self.refused.append(row)
                continue
            goal = requests.goal[row]
            hit = cache.find(row, goal + self.silent[row])
            chunk = min(goal - hit, budget[0])
            if chunk == 0 and hit < goal:
                break
            if cache.admission(row, hit, hit + chunk, goal, 0) != FITS:
                self.blocked = True
                break
            heappop(self.waiting)
            cache.open(row, hit)
            self._admit(row, hit, chunk, budget)
            if budget[0] == 0 and chunk == 0:
                break
        return 0

    def _too_large(self, row):
        return (self.requests.tokens[row] + self.block_size - 1) // self.block_size > self.cache.context.capacity

    def _refuse(self, at):
        """Prompts that are too large are rejected when the step ends."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        for item in self.refused:
            row = item
            requests.first[row] = requests.ended[row] = at
            self.load -= requests.tokens[row]
            self.prefill -= requests.tokens[row]
            self.serving.rejected[row] = True
            self.serving.finished(row, at)
        self.refused = []
        return 0

    def _seconds_of_parts(self):
        """Milliseconds of the planned step: of the prompt tokens, counted by whole-number means."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.Py_ssize_t
        before: cython.longlong = 0
        after: cython.longlong = 0
        count: cython.longlong = 0
        for i in range(self.parts):
            row = self.part_row[i]
            if self.part_chunk[i] == 0:
                continue
            count += 1
            before += requests.computed[row]
            after += requests.computed[row] + self.part_chunk[i]
        if count == 0 or after // count == before // count:
            return 0.0
        tokens: cython.double = count * (after // count - before // count)
        cost = self.cost
        return rounded(polynomial(cost.prefill_square_s, cost.prefill_token_s, cost.prefill_step_s, tokens))

    def _learn(self, at, first, last):
        VllmEngineCore._learn(self, at, first, silent_first(last, self.silent))
        self._refuse(at)
        if self.held and self.instant:
            return self.serving.ended_at_once(self.place, at)
        if self.held:
            self.serving.expect_end(self.place)
        return 0

    def _execute(self, seconds, first, last):
        self.instant = seconds == 0
        return VllmEngineCore._execute(self, seconds, first, last)

    def _end(self, row, at):
        """The prefill of a request has ended."""
        self._ended(row, at)
        self.load -= self.requests.tokens[row]
        self._remove(row)
        self.draining -= 1
        self.blocked = False
        self.held.append(row)
        return 0


class DynamoDecode(VllmInstance):
    """A decode worker: vLLM's steps for requests whose prompts were computed elsewhere. Prompts cost nothing here."""

    def __init__(self, engine, requests: Requests, cost, limits):
        VllmInstance.__init__(self, engine, requests, cost, limits)
        self.stalled = self.instant = False
        self.pending, self.head, self.ready, self.arrived = [], 0, [], 0
        self.order = np.zeros(requests.tokens.shape[0], dtype=np.int64)
        self.changes, self.tried, self.tried_changes = 0, NOBODY, 0
        self.silent = np.zeros(requests.tokens.shape[0], dtype=np.uint8)

    # ---- what others ask for

    def is_due(self):
        """Whether the first request without blocks may have room, since it was tried last."""
        if self.head == len(self.pending):
            return False
        return self.tried != self.pending[self.head] or self.tried_changes != self.changes

    def accept(self, row, at):
        """A request comes whose prefill has ended."""
        self.order[row] = self.arrived
        self.arrived += 1
        self.pending.append(row)
        self.load += self.requests.tokens[row]
        if self.now > at:
            self.blocked = False
            return self.serving.expect_end(self.place)
        self._wake(at)  # while it waits for blocks, those that have theirs go first
        return self.reserve(at)

    def reserve(self, at):
        """The first request without blocks takes those of its prompt, if there is a seat for it and room."""
        cache = self.cache
        row: cython.Py_ssize_t
        hit: cython.longlong
        tokens: cython.longlong
        if not self.is_due():
            return 0
        row = self.pending[self.head]
        self.tried, self.tried_changes = row, self.changes
        if self.count >= self.limits.requests:
            return 0
        tokens = self.requests.tokens[row]
        hit = cache.find(row, tokens + 1)  # all full blocks of the prompt
        if cache.admission(row, hit, tokens, tokens, 0) != FITS:
            return 0
        self.head += 1
        cache.open(row, hit)
        cache.extend(row, hit, tokens)
        self._wake(at)
        size: cython.longlong = self.block_size
        return self.serving.reserved_for(row, cython.cast(cython.int, (tokens + size - 1) // size - hit // size), at)

    def activate(self, row, at):
        """The KV cache of a request is there: it waits for a step, before those that came later."""
        i: cython.Py_ssize_t = 0
        other: cython.Py_ssize_t
        self.requests.computed[row] = self.requests.goal[row] = self.requests.tokens[row]
        self.cache.publish(row, self.requests.tokens[row])
        while i < len(self.waiting):
            other = self.waiting[i]
            if self.order[other] > self.order[row]:
                break
            i += 1
        self.waiting.insert(i, row)
        i = len(self.ready)
        while i > 0:
            other = self.ready[i - 1]
            if self.order[other] < self.order[row]:
                break
            i -= 1
        self.ready.insert(i, row)
        self._wake(at)
        return self.reserve(at)

    def _wake(self, at):
        self.blocked = self.stalled = False
        self.now = max(self.now, at)
        return 0

    # ---- steps

    def run(self, until):
        self.until = until
        while (self.now < self.until or self.instant) and self._is_busy():
            self._begin_turn()
            self.instant = False
            if self._must_plan():
                self._stop_decoding()
                self._plan()
            else:
                self._decode(self.until)
        return 0

    def _is_busy(self):
        return not self.stalled and self.active() > 0

    def _may_admit(self):
        return len(self.waiting) > 0 and self.count < self.limits.requests

    def _stall(self):
        """Nobody can be admitted. A preempted request is tried again at once, and so is one without blocks."""
        before: cython.Py_ssize_t = self.head
        if self.is_due():
            self.serving.ended(self.place, self.now)
        self.instant = len(self.preempted) > 0 or self.head > before
        self.stalled = not self.instant
        return 0

    def _schedule_waiting(self, budget):
        """Admit requests: those with their blocks need no token, and while others wait for blocks nobody else does."""
        requests: Requests = self.requests
        cache = self.cache
        row: cython.Py_ssize_t
        goal: cython.longlong
        hit: cython.longlong
        chunk: cython.longlong
        self.blocked = False
        while self.waiting and self.count < self.limits.requests:
            if self.head < len(self.pending):
                if not self.ready:
                    self.blocked = True
                    break
                row = self.ready[0]
            else:
                row = self.waiting[0]
            goal = requests.goal[row]
            if requests.computed[row] > 0:
                chunk = 0
                self.ready.remove(row)
                requests.started[row] = self.now
            else:
                hit = cache.find(row, goal)
                chunk = min(goal - hit, budget[0])
                if chunk == 0:
                    break
                if cache.admission(row, hit, hit + chunk, goal, 0) != FITS:
                    self.blocked = True
                    break
                cache.open(row, hit)
                requests.computed[row] = hit
                requests.recomputed[row] += goal - hit
            self.waiting.remove(row)
            self.running[self.count] = cython.cast(cython.int, row)
            self.count += 1
            self._schedule(row, chunk)
            budget[0] -= chunk
            if budget[0] == 0 and chunk == 0:  # the step is full: one more that needs no token, and no other
                break
        return 0

    def _requeue(self, row):
        self.waiting.insert(0, row)
        self.changes += 1
        return 0

    def _seconds_of_parts(self):
        """Milliseconds of the planned step: of the contexts of requests that get a token."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.Py_ssize_t
        context: cython.double = 0
        for i in range(self.parts):
            row = self.part_row[i]
            if requests.computed[row] + self.part_chunk[i] == requests.goal[row] and not self.silent[row]:
                context += requests.goal[row]
        return self._milliseconds(context) if context > 0 else 0.0

    def _seconds(self, steps):
        return self._milliseconds(self.context)

    def _milliseconds(self, context):
        """Milliseconds of a step that decodes: of the share of the cache that its contexts would fill unshared."""
        cost = self.cost
        used: cython.double = min(context / cost.cache_tokens, 1.0)
        return rounded(polynomial(cost.decode_square_s, cost.decode_token_s, cost.decode_step_s, used))

    def _steps_until(self, until, max_steps):
        return max_steps

    def _decode_steps(self, steps):
        """Take steps in which each request gets a token and nothing else happens, up to a time."""
        milliseconds: cython.double = self._seconds(1)
        self.cache.begin_step()
        if self.is_due():
            steps = 1
        while steps > 1 and self.now + milliseconds < self.until:
            self.now += milliseconds
            self.busy += milliseconds
            self.steps += 1
            self.context += self.batch
            milliseconds = self._seconds(1)
            steps -= 1
        self.context += self.batch
        return VllmInstance._execute(self, milliseconds, [], [])

    def _execute(self, seconds, first, last):
        self.instant = seconds == 0
        return VllmInstance._execute(self, seconds, first, last)

    def _learn(self, at, first, last):
        VllmInstance._learn(self, at, first, silent_first(last, self.silent))
        return self._end_pass()

    def _end_pass(self):
        """The step has ended, or will: the first request without blocks is tried again."""
        if not self.is_due():
            return 0
        if self.instant:
            return self.serving.ended(self.place, self.now)
        return self.serving.expect_end(self.place)

    def _end(self, row, at):
        self.changes += 1
        self.serving.finished(row, at)
        return VllmInstance._end(self, row, at)


class DynamoServing(InterleavedServing):
    """Prefill workers and decode workers, with a router for each kind; arrivals and all times are in milliseconds.

    `requests` are those of the prefill workers, with one token of output each; `decoded` those of the decode workers.
    A transfer takes the bytes of its tokens over `bandwidth` (bytes per ms), or `latency` if that is 0.
    """

    def __init__(self, prefills, decodes, router: Router, decode_router: Router, requests: Requests, decoded: Requests,
                 capacity, link):  # fmt: skip
        InterleavedServing.__init__(self, [*prefills, *decodes], router, requests, capacity)
        self.decode_router, self.decoded = decode_router, decoded
        self.prefills, self.decodes, self.routed = len(prefills), len(decodes), 0
        self.bytes_per_token, self.bandwidth = link["bytes_per_token"], link["bandwidth"]
        self.latency, self.missing_only = link["latency"], link["missing_only"]
        rows: cython.Py_ssize_t = requests.tokens.shape[0]
        self.actions, self.deferred, self.late_at = [], [[] for _ in self.instances], NEVER
        self.expected = np.full(len(self.instances), -1.0)
        self.reserved, self.transferring, self.transferred, self.activated, self.released = np.full((5, rows), np.nan)
        self.sent, self.rejected = np.zeros(rows, dtype=np.int32), np.zeros(rows, dtype=np.uint8)
        self.finishes = []
        for place, instance in enumerate(self.instances):
            instance.serving, instance.place = self, place

    def finished(self, row, at):
        """A request leaves at a time: in a closed loop, this can cause arrivals."""
        if self.lanes is None:
            return 0
        self.finishes.append(row)
        return self.at(at, FINISHED, len(self.finishes) - 1)

    def _plan_arrival(self):
        """The next arrival of a closed loop is an event; one that is no longer the next one is not taken."""
        at: cython.double = self.lanes.next_arrival()
        return self.at(at, ARRIVES, 0) if at < NEVER else 0

    @property
    def outcomes(self):
        """Results of the decode side and of the transfers by name: arrays with one value per request."""
        times = {"reserved": self.reserved, "transferring": self.transferring, "transferred": self.transferred,
                 "activated": self.activated, "released": self.released}  # fmt: skip
        counts = {"sent": self.sent, "rejected": self.rejected}
        return {name: np.asarray(column) for name, column in (times | counts).items()}

    def expect_end(self, place):
        """The end of an instance's present step is an event."""
        instance: Instance = self.instances[place]
        if self.expected[place] != instance.now:
            self.expected[place] = instance.now
            self.at(instance.now, PASS_END, place)
        return 0

    def horizon(self, i):
        decode: DynamoDecode
        if i < self.prefills:
            return cython.cast(Instance, self.instances[i]).next_turn()
        decode = self.instances[i]
        return decode.next_turn() if self.lanes is not None or decode.head < len(decode.pending) else NEVER

    def happen(self, seconds, kind, row):
        if kind == PASS_END:
            self.ended(cython.cast(cython.int, row), seconds)
        elif kind == TRANSFERRED:
            self.transferred[row] = seconds
            self.actions.append((ACTIVATE, row))
        elif kind == LATE:
            self.late_at = seconds
        elif kind == FINISHED:
            self.lanes.complete(self.finishes[row], seconds)
            self._plan_arrival()
        elif kind == ARRIVES:
            while self.lanes.next_arrival() <= seconds:
                self.actions.append((SUBMIT, self.lanes.take()))
            self._plan_arrival()
        return 0

    def ended(self, place, at):
        """An instance's step has ended: what was left for it is done now, and requests leave a prefill worker."""
        prefill: DynamoPrefill
        row: cython.Py_ssize_t
        if self.deferred[place]:
            self.actions += self.deferred[place]
            self.deferred[place] = []
        if place >= self.prefills:
            return cython.cast(DynamoDecode, self.instances[place]).reserve(at)
        prefill = self.instances[place]
        for item in prefill.held:
            row = item
            self.actions.append((RESERVE, row))
        prefill.held = []
        return 0

    def ended_at_once(self, place, at):
        """A step that takes no time has ended: what that asks for is done when the steps of this moment have begun."""
        self.ended(place, at)
        return self.at(nextafter(at, NEVER), LATE, 0)

    def reserved_for(self, row, fresh, at):
        """A request has the blocks of its prompt on a decode worker, so many of them empty."""
        self.reserved[row], self.sent[row] = at, fresh
        self.actions.append((TRANSFER, row))
        if self.running != NOBODY:  # in a step that takes no time
            self.at(at, ACTIONS, 0)
        return 0

    def settle(self, seconds):
        """Do what the events of a moment ask for, and what that asks for."""
        done: cython.Py_ssize_t = 0
        if seconds == self.late_at:
            seconds = nextafter(seconds, 0)
        while done < len(self.actions):
            action, row = self.actions[done]
            done += 1
            self._execute(action, row, seconds)
        self.actions = []
        return 0

    def _execute(self, action, row, at):
        decode: DynamoDecode
        place: cython.int
        if action == RESERVE:
            return self._route(row, at)
        if action == TRANSFER:
            return self._transfer(row, at)
        if action == SUBMIT:
            return 0 if self._arrive(row) else self.finished(row, at)
        if action == CANCEL:
            self.decoded.ended[row] = at
            return self.finished(row, at)
        if action == ACTIVATE:
            place = self.prefills + self.decoded.instance[row]
            if self._defer(place, ACTIVATE, row, at):
                return 0
            self.activated[row] = at
            self.actions.append((RELEASE, row))
            decode = self.instances[place]
            return decode.activate(row, at)
        place = self.requests.instance[row]
        if self._defer(place, RELEASE, row, at):
            return 0
        self.released[row] = at
        return cython.cast(DynamoPrefill, self.instances[place]).give_up(row, at)

    def _route(self, row, at):
        """Route a request whose prefill has ended to a decode worker."""
        i: cython.int
        instance: Instance
        router: Router = self.decode_router
        decode: DynamoDecode
        self.decoded.arrival[row] = at
        for i in range(router.count):
            instance = self.instances[self.prefills + i]
            router.load[i], router.blocks[i], router.active[i] = instance.load, instance.blocks, instance.active()
        router.turn = self.routed
        self.routed += 1
        self.decoded.instance[row] = router.send(row)
        decode = self.instances[self.prefills + self.decoded.instance[row]]
        if (self.decoded.tokens[row] + decode.block_size - 1) // decode.block_size > decode.cache.context.capacity:
            self.rejected[row] = True
            self.actions += [(RELEASE, row), (CANCEL, row)]
            return 0
        return decode.accept(row, at)

    def _transfer(self, row, at):
        """Begin a transfer."""
        size: cython.longlong = self.router.size
        tokens: cython.double = self.sent[row] * size if self.missing_only else self.requests.tokens[row]
        milliseconds: cython.double = self.latency
        if self.bandwidth > 0:
            milliseconds = tokens * self.bytes_per_token / self.bandwidth * 1000
        self.transferring[row] = at
        if milliseconds > 0:
            self.at(at + milliseconds, TRANSFERRED, row)
        else:
            self.transferred[row] = at
            self.actions.append((ACTIVATE, row))
        return 0

    def _defer(self, place, action, row, at):
        """Leave an action to the end of an instance's step; False if it is not in one."""
        instance: Instance = self.instances[place]
        if instance.now <= at:
            return False
        self.deferred[place].append((action, row))
        self.expect_end(place)
        return True

    def close(self):
        """Run all instances until no request is left, then self-check each cache. UsageError if some cannot end."""
        row: cython.Py_ssize_t
        left: cython.Py_ssize_t = 0
        self.run_until(NEVER)
        for row in range(self.requests.tokens.shape[0]):
            if self.requests.instance[row] != NOBODY and not self.rejected[row]:
                left += self.decoded.ended[row] != self.decoded.ended[row]
        if left:
            raise UsageError(
                f"The decode workers are stuck with {left:,} requests: preempted ones wait for blocks that later "
                f"ones hold. Dynamo's replay stops here, too. Raise --decode-capacity, or add --decode-workers."
            )
        InterleavedServing.close(self)
