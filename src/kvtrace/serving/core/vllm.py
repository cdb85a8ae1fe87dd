"""vLLM's scheduler: who gets tokens in a step, who is preempted, and steps that are taken together."""

from heapq import heappop, heappush

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.blocks import PagedCache
from cython.cimports.kvtrace.cache.core.engine import FITS, NO_BLOCKS, StepCache
from cython.cimports.kvtrace.serving.core.instance import (
    PREFILLS,
    Instance,
    Requests,
    StepWork,
    add_part,
    begin_work,
    decode_seconds,
    step_seconds,
)

# vLLM's scheduler (0.33.0, vllm/v1/core/sched/scheduler.py): who gets tokens in a step, and who is preempted.
#
# Requests that run get tokens first, in order of admission; then waiting requests are admitted while tokens are left
# and their blocks fit. If blocks run out, the last admitted request is preempted: it gives up its blocks and starts
# over at the head of the queue. With `asynchronous`, a step is planned while the one before it runs.
#
# Twin: tests/reference/vllm_scheduler.py.


NEVER = cython.declare(cython.double, 1e300)


class VllmEngineCore(Instance):
    """An instance of vLLM, step by step; `limits` is a dict of the fields of VllmLimits (vllm.pxd).

    `waiting` is a heap of (priority, order, row). Rows of `running` are prefilling, decoding, or draining: their last
    token is planned, but not known yet. With `log`, each step is recorded as (begin, times, parts, preempted).

    `step_timer` takes the place of the cost: it gets the begin of each step and its parts (row, tokens before, chunk,
    goal), and returns its seconds. So a program can execute the steps, and time passes as it measures.
    """

    def __init__(self, engine: StepCache, requests: Requests, cost, limits, log=False):
        Instance.__init__(self, engine, requests, cost)
        self.cache, self.slides, self.splits, self.limits = engine, engine.slides, engine.splits, limits
        self.block_size = engine.demand.trace.block_size
        drafting = engine.demand.drafting
        self.ahead = drafting is not None and drafting.needs_next  # a block is published once the next token is known
        self.log, self.logs = [], log
        never_taken: cython.longlong = engine.context.capacity - engine.size  # free for ever
        self.limits.watermark = max(0, self.limits.watermark - never_taken)
        seats: cython.Py_ssize_t = min(self.limits.requests, requests.tokens.shape[0])
        self.waiting, self.appended, self.prepended = [], 0, 0
        self.running, self.part_row = np.empty((2, seats + 1), dtype=np.int32)
        self.part_chunk = np.empty(seats + 1, dtype=np.int64)
        self.count = self.prefilling = self.draining = self.parts = self.cursor = 0
        self.blocked = self.flying = False
        self.free_at = 0
        self.first_tokens, self.last_tokens, self.preempted = [], [], []
        rows: cython.Py_ssize_t = requests.tokens.shape[0] if engine.slides else 0
        self.last_step, self.last_chunk = np.full((2, rows), -1, dtype=np.int64)

    def active(self):
        return len(self.waiting) + self.count

    def take(self, row):
        requests: Requests = self.requests
        if not self._is_busy():
            self.now = max(self.now, requests.arrival[row])
        else:
            self.wake(requests.arrival[row])
        requests.goal[row] = requests.tokens[row]
        self.load += requests.tokens[row]
        self.prefill += requests.tokens[row]
        self.appended += 1
        if self.limits.by_priority:
            heappush(self.waiting, (requests.priority[row], requests.arrival[row], row))
        else:
            heappush(self.waiting, (0, self.appended, row))
        if self.limits.by_priority or not self.limits.whole_prompt:  # another head, or a smaller chunk of the head
            self.blocked = False
        return 0

    def wake(self, at):
        if self.now >= NEVER:
            self.now = at
        return 0

    def run(self, until):
        self.until = until
        while self.now < self.until and self._is_busy():
            self._begin_turn()
            self._plan()
            self._report_counts()
        return 0

    def _begin_turn(self):
        self._report_counts()
        return Instance._begin_turn(self)

    def next_turn(self):
        return self.now if self._is_busy() else NEVER

    def _is_busy(self):
        """Whether there is a step to plan, or one whose output is not known yet."""
        return self.active() or self.flying

    # ---- planning a step

    def _plan(self):
        """Plan a step and run it."""
        budget: cython.longlong = self.limits.step_tokens
        first: list = []
        last: list = []
        self.cache.begin_step()
        self.parts, self.preempted = 0, []
        self._schedule_running(cython.address(budget))
        if not self.preempted:
            self._schedule_waiting(cython.address(budget))
        seconds: cython.double = self._seconds_of_parts()
        if self.logs and (self.parts or self.preempted):
            self._log_planned()
        if self.parts:
            self._advance_parts(first, last)
            return self._execute(seconds, first, last)
        if self.flying:
            self.flying = False
            return self._learn(self.free_at, self.first_tokens, self.last_tokens)
        return self._stall()

    def _stall(self):
        """Nothing can be planned until KV caches have gone: a request that was sent here fits into an empty cache."""
        self.now = NEVER
        return 0

    def _schedule_running(self, budget):
        """Give tokens to the requests that run, in order of admission; preempt others if blocks run out."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        computed: cython.longlong
        chunk: cython.longlong
        long_prefill: cython.longlong = self._long_prefill()
        self.cursor = 0
        while self.cursor < self.count and budget[0] > 0:
            row = self.running[self.cursor]
            if self._drains(row):
                self.cursor += 1
                continue
            computed = requests.computed[row]
            chunk = self._chunk(row, computed, long_prefill, budget[0])
            if self.splits:
                chunk = self.cache.chunk_end(row, computed, computed + chunk) - computed
                if chunk == 0:
                    self.cursor += 1
                    continue
            if self._make_room(row, chunk, budget):
                self._schedule(row, chunk)
                budget[0] -= chunk
                self.cursor += 1
            elif not self.limits.by_priority or self._runs(row):
                break
        self.cursor = 0
        return 0

    def _make_room(self, row, chunk, budget):
        """Preempt requests until a chunk of a request fits; False if it cannot, or is preempted itself."""
        victim: cython.Py_ssize_t
        computed: cython.longlong = self.requests.computed[row]
        if self.slides:
            self.cache.slide(row, computed - self._in_flight(row))
        while not self.cache.fits(row, computed, computed + chunk):
            victim = self._victim()
            if not self._may_preempt(victim):
                return False
            self._preempt(victim, budget)
            if victim == row:
                return False
        return True

    def _may_preempt(self, row):
        """Whether a running request can be preempted in this step."""
        return True

    def _schedule_waiting(self, budget):
        """Admit waiting requests in order, while tokens are left and their blocks fit."""
        requests: Requests = self.requests
        cache: StepCache = self.cache
        row: cython.Py_ssize_t
        room: cython.int
        goal: cython.longlong
        computed: cython.longlong
        chunk: cython.longlong
        long_prefill: cython.longlong = self._long_prefill()
        self.blocked = False
        while self.waiting and budget[0] > 0 and self.count < self.limits.requests:
            row = self.waiting[0][2]
            goal = requests.goal[row]
            computed = cache.find(row, goal)
            chunk = self._chunk(row, computed, long_prefill, budget[0])
            if self.splits:
                chunk = cache.chunk_end(row, computed, computed + chunk) - computed
                if chunk == 0:
                    break
            room = cache.admission(
                row, computed, computed + chunk, goal if self.limits.whole_prompt else 0,
                self.limits.watermark if self.count else 0,
            )  # fmt: skip
            if room != FITS:
                self.blocked = room == NO_BLOCKS
                break
            heappop(self.waiting)
            cache.open(row, computed)
            self._admit(row, computed, chunk, budget)
        return 0

    def _admit(self, row, computed, chunk, budget):
        """A request runs, with `computed` tokens in its blocks, and gets its next ones."""
        requests: Requests = self.requests
        requests.computed[row] = computed
        if requests.preempted[row]:
            requests.recomputed[row] += requests.goal[row] - computed
        else:
            self._begin(row, computed)
        self.prefill -= min(computed, requests.tokens[row])
        self.running[self.count] = cython.cast(cython.int, row)
        self.count += 1
        self._schedule(row, chunk)
        budget[0] -= chunk
        return 0

    def _begin(self, row, computed):
        """A request begins to run for the first time, with `computed` tokens in its blocks."""
        self.requests.started[row] = max(self.now, self.free_at)
        self.requests.cached[row] = computed
        self.cache.hit[row] = cython.cast(cython.int, computed // self.block_size)
        return 0

    def _chunk(self, row, computed, long_prefill, budget):
        """The tokens that a request gets in the step, after `computed` tokens."""
        chunk: cython.longlong = self.requests.goal[row] - computed
        return min(chunk if not long_prefill else min(chunk, long_prefill), budget)

    def _long_prefill(self):
        """The largest chunk of a prompt in this step, 0 = no limit: a request alone has none."""
        alive: cython.longlong = self.active()
        if not self.limits.long_prefill or alive < 2:
            return 0
        if self.limits.adaptive_long_prefill:
            return max(self.limits.long_prefill, self.limits.step_tokens // alive)
        return self.limits.long_prefill

    def _schedule(self, row, chunk):
        """Add a chunk of a request to the step. The full blocks of its prompt can be found from now on."""
        requests: Requests = self.requests
        computed: cython.longlong = requests.computed[row]
        self.cache.extend(row, computed, computed + chunk)
        if self.slides:
            self.cache.publish(row, self._published(row, chunk))
        elif computed < requests.tokens[row]:  # else at its end: nobody else has these blocks
            self.cache.publish(row, min(min(computed + chunk, requests.tokens[row]), requests.goal[row] - self.ahead))
        self.part_row[self.parts] = cython.cast(cython.int, row)
        self.part_chunk[self.parts] = chunk
        self.parts += 1
        return 0

    def _victim(self):
        """The running request to preempt: the last admitted, or the one of the lowest priority that came last."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.int
        worst: cython.int = self.running[self.count - 1]
        if not self.limits.by_priority:
            return worst
        worst = self.running[0]
        for i in range(1, self.count):
            row = self.running[i]
            if requests.priority[row] > requests.priority[worst] or (
                requests.priority[row] == requests.priority[worst] and requests.arrival[row] > requests.arrival[worst]
            ):
                worst = row
        return worst

    def _preempt(self, row, budget):
        """Take all blocks of a running request; it starts over at the head of the queue."""
        requests: Requests = self.requests
        chunk: cython.longlong = self._unschedule(row)
        budget[0] += chunk
        self.cache.publish(row, self._published(row, chunk))
        self.cache.release(row)
        self._remove(row)
        self.blocked = False
        self.preempted.append(row)
        requests.preempted[row] += 1
        self.prefill += min(requests.computed[row], requests.tokens[row])
        if self._drains(row):  # its last token is on the way
            self.draining -= 1
            return 0
        requests.computed[row] = 0
        return self._requeue(row)

    def _requeue(self, row):
        """A preempted request waits at the head of the queue."""
        requests: Requests = self.requests
        self.prepended += 1
        if self.limits.by_priority:
            heappush(self.waiting, (requests.priority[row], requests.arrival[row], row))
        else:
            heappush(self.waiting, (0, -self.prepended, row))
        return 0

    def _unschedule(self, row):
        """Take a request out of the step; returns the tokens that it had."""
        i: cython.int
        chunk: cython.longlong
        for i in range(self.parts):
            if self.part_row[i] == row:
                chunk = self.part_chunk[i]
                self.parts -= 1
                while i < self.parts:
                    self.part_row[i], self.part_chunk[i] = self.part_row[i + 1], self.part_chunk[i + 1]
                    i += 1
                return chunk
        return 0

    # ---- running a step

    def _seconds_of_parts(self):
        """Seconds of the planned step."""
        requests: Requests = self.requests
        work: StepWork
        i: cython.int
        row: cython.Py_ssize_t
        if self.step_timer is not None:
            return self._timed()
        begin_work(cython.address(work))
        for i in range(self.parts):
            row = self.part_row[i]
            add_part(
                cython.address(work),
                requests.computed[row],
                self.part_chunk[i],
                requests.tokens[row],
                requests.goal[row],
            )
        return step_seconds(cython.address(self.cost), cython.address(work))

    def _timed(self):
        """Seconds of the planned step, from `step_timer`."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.Py_ssize_t
        parts: list = []
        for i in range(self.parts):
            row = self.part_row[i]
            parts.append((row, requests.computed[row], self.part_chunk[i], requests.goal[row]))
        return self.step_timer(max(self.now, self.free_at), parts) if parts else 0.0

    def _advance_parts(self, first, last):
        """Count the tokens of the planned step; list the requests whose first and last output tokens it gives."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.Py_ssize_t
        prompt: cython.longlong
        for i in range(self.parts):
            row = self.part_row[i]
            prompt = requests.tokens[row]
            self.prefill -= max(0, min(requests.computed[row] + self.part_chunk[i], prompt) - requests.computed[row])
            requests.computed[row] += self.part_chunk[i]
            if requests.computed[row] == requests.goal[row]:
                if requests.goal[row] == prompt and requests.first[row] != requests.first[row]:  # NaN: none yet
                    first.append(row)
                requests.goal[row] += 1
                requests.sampled_before[row], requests.sampled[row] = requests.sampled[row], self.steps
                if self._drains(row):
                    last.append(row)
                    self.draining += 1
            if self.slides:
                self.last_step[row], self.last_chunk[row] = self.steps, self.part_chunk[i]
        self.prefilling = 0
        for i in range(self.count):
            row = self.running[i]
            self.prefilling += not (self._decodes(row) or self._drains(row)) or (
                self.slides and not self._is_steady(row)
            )
        return 0

    def _is_steady(self, row):
        """Whether the next step frees the blocks behind one more token: so it is after a step with one token."""
        if not self.limits.asynchronous or self._drains(row):
            return True
        return self.last_step[row] == self.steps and self.last_chunk[row] == 1

    def _execute(self, seconds, first, last):
        """Run a step, which gives some requests their first and last tokens; learn its output, or that of the last."""
        begin: cython.double = max(self.now, self.free_at)
        self._note_state(begin)
        self.steps += 1
        self.busy += seconds
        self.cache.step_ends = begin + seconds
        if not self.limits.asynchronous:
            self.now = begin + seconds
            return self._learn(self.now, first, last)
        known_at: cython.double = self.free_at
        known_first: list = self.first_tokens
        known_last: list = self.last_tokens
        was_flying: cython.bint = self.flying
        self.first_tokens, self.last_tokens = first, last
        self.free_at, self.flying = begin + seconds, True
        return self._learn(known_at, known_first, known_last) if was_flying else 0

    def _learn(self, at, first, last):
        """The output of a step that ended at a time becomes known."""
        row: cython.Py_ssize_t
        self.now = at
        for item in first:
            row = item
            self.requests.first[row] = at
        for item in last:
            row = item
            self._end(row, at)
        if last and self.active() == 0:
            self._note_state(at)
        self.blocks = self.cache.size - self.cache.free()
        return 0

    def _note_state(self, at):
        """Add the present state to the time line."""
        return self._note(at, self.count, self.active() - self.count, self.cache.size - self.cache.free())

    def _report_counts(self):
        """Report requests and KV use to the balancer, if the requests have changed: before a step and after it."""
        waiting: cython.longlong
        if self.reports is None:
            return 0
        waiting = self.active() - self.count
        if self.count == self.reported_running and waiting == self.reported_waiting:
            return 0
        self.reported_running, self.reported_waiting = self.count, waiting
        capacity: cython.double = self.cache.context.capacity
        free: cython.double = capacity - self.cache.size + self.cache.free()
        return self._report(self.now, self.count, waiting, 1.0 - free / capacity)

    def _end(self, row, at):
        """A request has its last token."""
        self._ended(row, at)
        self.load -= self.requests.tokens[row]
        if self._runs(row):  # else it was preempted while its last token was on the way
            self.cache.publish(row, self.requests.computed[row])
            if self.role != PREFILLS:  # else a decode worker still reads its blocks
                self.cache.release(row)
            self._remove(row)
            self.draining -= 1
            self.blocked = False
        return 0

    def _remove(self, row):
        """Take a request out of those that run."""
        i: cython.int = 0
        while self.running[i] != row:
            i += 1
        if i < self.cursor:
            self.cursor -= 1
        self.count -= 1
        while i < self.count:
            self.running[i] = self.running[i + 1]
            i += 1
        return 0

    # ---- the state of a request

    def steps_left(self, row):
        return self.requests.tokens[row] + self.requests.output[row] - self.requests.goal[row]

    def _runs(self, row):
        """Whether a request is among those that run."""
        i: cython.int = 0
        while i < self.count and self.running[i] != row:
            i += 1
        return i < self.count

    def _drains(self, row):
        """Whether the last output token of a request is planned, and not known yet."""
        return self.requests.goal[row] == self.requests.tokens[row] + self.requests.output[row]

    def _decodes(self, row):
        """Whether the next token of a request is all that it needs for an output token."""
        computed: cython.longlong = self.requests.computed[row]
        return computed >= self.requests.tokens[row] and computed == self.requests.goal[row] - 1

    def _in_flight(self, row):
        """The tokens of a request in the step before, if that has not ended."""
        return self.last_chunk[row] if self.flying and self.last_step[row] == self.steps - 1 else 0

    def _published(self, row, chunk):
        """The tokens of a request, with a chunk in the planned step, whose full blocks have their hashes by now.

        A block gets its hash when the step that fills it is planned, if its tokens are known then. Asynchronous: the
        output token of the step before is not known, and was not when that step was planned.
        """
        requests: Requests = self.requests
        unknown: cython.bint = self.flying and requests.sampled[row] == self.steps - 1
        known: cython.longlong = requests.goal[row] - unknown
        if chunk:
            return min(requests.computed[row] + chunk, known - self.ahead)
        tokens: cython.longlong = requests.computed[row] - (unknown and requests.sampled_before[row] == self.steps - 2)
        return min(tokens, known - self.ahead)

    def _log_planned(self):
        i: cython.int
        parts: list = []
        for i in range(self.parts):
            parts.append([self.part_row[i], self.requests.computed[self.part_row[i]], self.part_chunk[i]])
        self.log.append([max(self.now, self.free_at), 1, parts, self.preempted])


NOBODY = cython.declare(cython.int, -1)
CALENDAR = 1024  # steps; a request without an event for longer is looked at in between


class VllmInstance(VllmEngineCore):
    """vLLM's scheduler, where steps in which all running requests decode are taken together.

    Such a run of steps ends before the next one in which a request ends or needs a block, or which may admit a request.
    `VllmEngineCore` has the rules, and takes each step separately.
    """

    def __init__(self, engine: StepCache, requests: Requests, cost, limits, log=False):
        VllmEngineCore.__init__(self, engine, requests, cost, limits, log)
        self.due = np.full(CALENDAR if engine.slides else min(self.block_size, CALENDAR), NOBODY, dtype=np.int32)
        self.decoding = False
        self.context = self.batch = self.decoding_since = 0

    def run(self, until):
        self.until = until
        while self.now < self.until and self._is_busy():
            self._begin_turn()
            if self._must_plan():
                self._stop_decoding()
                self._plan()
            else:
                self._decode(self.until)
            self._report_counts()
        return 0

    def steps_left(self, row):
        taken: cython.longlong = self.steps - self.decoding_since if self.decoding else 0
        return VllmEngineCore.steps_left(self, row) - taken

    def _must_plan(self):
        """Whether the next step may do more than give one token to each request that runs."""
        decodes: cython.longlong = self.count - self.draining
        if self.step_timer is not None:  # which gets each step
            return True
        if self.slides and self.limits.asynchronous and not self.flying:
            return True
        if self.prefilling or decodes == 0 or decodes > self.limits.step_tokens:
            return True
        return not self.blocked and self._may_admit()

    def _may_admit(self):
        """Whether a request waits, and there is a seat and a token for it in the next step."""
        decodes: cython.longlong = self.count - self.draining
        return self.waiting and self.count < self.limits.requests and decodes < self.limits.step_tokens

    def _start_decoding(self):
        """Find the next step of each request in which it needs a block or ends."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.Py_ssize_t
        self.decoding, self.decoding_since = True, self.steps
        self.batch, self.context = self.count - self.draining, 0
        for i in range(self.count):
            row = self.running[i]
            if not self._drains(row):
                self.context += requests.computed[row] + 1
                requests.computed[row] -= self.steps
                self._await(row, self.steps)
        return 0

    def _stop_decoding(self):
        """Return to counts of each request."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.Py_ssize_t
        if not self.decoding:
            return 0
        self.decoding = False
        for i in range(self.due.shape[0]):
            self.due[i] = NOBODY
        for i in range(self.count):
            row = self.running[i]
            if not self._drains(row):
                requests.computed[row] += self.steps
                requests.goal[row] = requests.computed[row] + 1
                if self.steps > self.decoding_since:
                    requests.sampled_before[row] = (
                        requests.sampled[row] if self.steps == self.decoding_since + 1 else self.steps - 2
                    )
                    requests.sampled[row] = self.steps - 1
                    if self.slides:
                        self.last_step[row], self.last_chunk[row] = self.steps - 1, 1
        return 0

    def _await(self, row, step):
        """File a request under the first step from `step` on in which it needs a block or gives its last token."""
        requests: Requests = self.requests
        computed: cython.longlong = requests.computed[row] + step
        block: cython.longlong = self.cache.quiet(row, computed, self.limits.asynchronous, self.ahead)
        last: cython.longlong = requests.tokens[row] + requests.output[row] - 2 - computed
        steps: cython.longlong = self.due.shape[0]
        place: cython.longlong = (step + min(min(block, last), steps - 1)) % steps
        requests.following[row] = self.due[place]
        self.due[place] = cython.cast(cython.int, row)
        return 0

    def _decode(self, until):
        """Take steps up to the next one in which a request needs a block or ends, or up to a time."""
        plain: cython.longlong = 0
        size: cython.longlong = self.due.shape[0]
        if not self.decoding:
            self._start_decoding()
        while self.due[(self.steps + plain) % size] == NOBODY:
            plain += 1
        if plain == 0:
            return self._decode_event()
        if self.limits.asynchronous and (not self.flying or self.first_tokens or self.last_tokens):
            plain = 1
        return self._decode_steps(self._steps_until(until, plain))

    def _decode_steps(self, steps):
        """Take steps in which each request gets a token and nothing else happens."""
        before: cython.double = self._seconds(steps - 1) if steps > 1 else 0
        self._log_decoding(steps)
        if steps > 1:  # the last one is noted when it begins
            self._note_state(max(self.now, self.free_at))
        self.cache.begin_step()
        self.steps += steps - 1
        self.busy += before
        self.context += cython.cast(cython.double, (steps - 1) * self.batch)
        if self.limits.asynchronous:
            self.free_at += before
        else:
            self.now += before
        seconds: cython.double = self._seconds(1)
        self.context += self.batch
        return self._execute(seconds, [], [])

    def _decode_event(self):
        """Take a step in which requests need blocks or give their last tokens."""
        requests: Requests = self.requests
        place: cython.longlong = self.steps % self.due.shape[0]
        row: cython.int = self.due[place]
        needs: cython.longlong = 0
        following: cython.int
        computed: cython.longlong
        last: list = []
        while row != NOBODY:
            computed = requests.computed[row] + self.steps
            needs += self.cache.missing(row, computed, computed + 1)
            row = requests.following[row]
        if needs > self.cache.free() or (self.slides and self._may_admit()):
            self._stop_decoding()
            return self._plan()
        self.cache.begin_step()
        self._log_decoding(1)
        seconds: cython.double = self._seconds(1)
        self.context += self.batch
        if self.slides:
            self._slide(place)
        row, self.due[place] = self.due[place], NOBODY
        while row != NOBODY:
            following = requests.following[row]
            computed = requests.computed[row] + self.steps
            if not self.slides:
                self.cache.extend(row, computed, computed + 1)
            if computed == requests.tokens[row] + requests.output[row] - 2:
                requests.computed[row], requests.goal[row] = computed + 1, computed + 2
                requests.sampled_before[row] = (
                    requests.sampled[row] if self.steps == self.decoding_since else self.steps - 1
                )
                requests.sampled[row] = self.steps
                self.draining += 1
                self.batch -= 1
                self.context -= computed + 2
                last.append(row)
            else:
                self._await(row, self.steps + 1)
            row = following
        return self._execute(seconds, [], last if len(last) < 2 else self._in_order(last))

    def _slide(self, place):
        """Take, free and publish the blocks of the requests that are due, in order of admission as vLLM does."""
        computed: cython.longlong
        free: cython.longlong
        lag: cython.longlong = self.limits.asynchronous
        row: cython.int = self.due[place]
        rows: list = []
        while row != NOBODY:
            rows.append(row)
            row = self.requests.following[row]
        for item in rows if len(rows) < 2 else self._in_order(rows):
            row = item
            computed = self.requests.computed[row] + self.steps
            free = self.cache.free()
            self.cache.slide(row, computed - lag)
            if self.cache.free() > free or self.cache.missing(row, computed, computed + 1):
                self.blocked = False
            self.cache.extend(row, computed, computed + 1)
            self.cache.publish(row, computed + 1 - lag - self.ahead)

    def _in_order(self, rows):
        """Rows in order of admission: requests that end together free their blocks in this order."""
        i: cython.int
        ordered: list = []
        chosen: set = set(rows)
        for i in range(self.count):
            if self.running[i] in chosen:
                ordered.append(self.running[i])
        return ordered

    def _steps_until(self, until, max_steps):
        """The fewest steps, at most `max_steps`, after which the next one is planned at `until` or later."""
        low: cython.longlong = 1
        middle: cython.longlong
        planned_at: cython.double
        while low < max_steps:
            middle = (low + max_steps) // 2
            if self.limits.asynchronous:
                planned_at = self.free_at + (self._seconds(middle - 1) if middle > 1 else 0)
            else:
                planned_at = self.now + self._seconds(middle)
            if planned_at >= until:
                max_steps = middle
            else:
                low = middle + 1
        return low

    def _seconds(self, steps):
        """Seconds of the next steps, if they only decode."""
        return decode_seconds(cython.address(self.cost), self.batch, self.context, steps)

    def _log_decoding(self, steps):
        i: cython.int
        parts: list = []
        if not self.logs:
            return
        for i in range(self.count):
            if not self._drains(self.running[i]):
                parts.append([self.running[i], self.requests.computed[self.running[i]] + self.steps, 1])
        self.log.append([max(self.now, self.free_at), steps, parts, []])


class HoldingInstance(VllmInstance):
    """An instance whose connector loads what it finds elsewhere: requests hold blocks while they wait for their load.

    A subclass says how far a request gets with what it finds (`_reach`), orders its load (`_load`), and takes note when
    the load has ended (`_arrive`) and when a request begins to run for the first time (`_begin`).
    """

    def __init__(self, engine: PagedCache, requests: Requests, cost, limits, log=False):
        VllmInstance.__init__(self, engine, requests, cost, limits, log)
        self.paged, self.holding, self.held_order = engine, [], 0
        self.stage = np.zeros(requests.tokens.shape[0], dtype=np.int8)
        self.launched = np.full(requests.tokens.shape[0], -1, dtype=np.int32)

    def active(self):
        return len(self.waiting) + len(self.holding) + self.count

    def _may_preempt(self, row):
        """A load could fill the blocks of a request while the step before still writes them (defer_block_free)."""
        return not (self.flying and max(self.launched[row], self.requests.sampled[row]) == self.steps - 1)

    def _advance_parts(self, first, last):
        i: cython.int
        for i in range(self.parts):
            self.launched[self.part_row[i]] = self.steps
        return VllmInstance._advance_parts(self, first, last)

    def _reach(self, row, hits, goal):
        """The tokens that a request has with its hits and what it would load; LATER if nobody can tell yet."""
        return hits * self.paged.block_size

    def _load(self, row, hits, computed):
        """Order the load of a request, up to `computed` tokens."""
        return 0

    def _arrive(self, row):
        """The load of a request has ended, and it is looked at again."""
        return 0

    def _schedule_waiting(self, budget):
        """Admit requests that hold blocks, then others, while tokens are left and their blocks fit."""
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
        skipped_holding: list = []
        queue: list
        self.blocked = False
        while (self.holding or self.waiting) and budget[0] > 0 and self.count < self.limits.requests:
            queue = self.holding if self.holding else self.waiting
            row = queue[0][2]
            if self.stage[row] == LOADING:
                skipped_holding.append(heappop(queue))
                continue
            if self.stage[row] == ARRIVED:
                self._arrive(row)
            goal = requests.goal[row]
            hits = 0
            idle = 0
            loads = False
            computed = requests.computed[row]
            if computed == 0:
                hits = cache.look_up(row, goal)
                idle = cache.idle_hits
                computed = self._reach(row, hits, goal)
                if computed == LATER:
                    skipped.append(heappop(queue))
                    continue
                loads = computed > hits * cache.block_size
            chunk = 0 if loads else self._chunk(row, computed, long_prefill, budget[0])
            held = cache.count[row] + hits
            free = cache.queue.free - idle - (self.limits.watermark if self.count else 0)
            if self.limits.whole_prompt and cache.blocks_of(goal) - held > max(free, 0):
                self.blocked = True
                break
            if loads:
                free -= self._reserved(skipped_holding)
            if cache.blocks_of(computed + chunk) - held > free or free < 0:
                self.blocked = True
                break
            item = heappop(queue)
            if cache.count[row] == 0:
                cache.start_with(row, hits)
            if loads:
                requests.computed[row] = computed
                self._load(row, hits, computed)
                skipped_holding.append(item)
                continue
            self._admit(row, computed, chunk, budget)
        for item in skipped:
            heappush(self.waiting, item)
        for item in skipped_holding:
            self._hold(item)
        return 0

    def _hold(self, item):
        """Put a request among those that hold blocks, in the order in which their loads were ordered."""
        if not self.limits.by_priority and item[0] != 1:  # not held before
            self.held_order += 1
            item = (1, self.held_order, item[2])
        heappush(self.holding, item)
        return 0

    def _reserved(self, skipped_holding: list):
        """Blocks that prompts in progress still need: a load must leave them free."""
        i: cython.int
        blocks: cython.longlong = 0
        for i in range(self.count):
            if not self._drains(self.running[i]):
                blocks += self._remaining(self.running[i])
        for item in self.holding:
            blocks += self._remaining(item[2])
        for item in skipped_holding:
            blocks += self._remaining(item[2])
        return blocks

    def _remaining(self, row):
        return max(0, self.paged.blocks_of(self.requests.goal[row]) - self.paged.count[row])
