"""vLLM's scheduler, where steps in which all running requests decode are taken together.

Such a run of steps ends before the next one in which a request ends or needs a block, or which may admit a request.
vllm_scheduler.py has the rules, and takes each step separately.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.step_cache import StepCache
from cython.cimports.kvtrace.serving.core.requests import Requests
from cython.cimports.kvtrace.serving.core.step_time import decode_seconds
from cython.cimports.kvtrace.serving.core.vllm_scheduler import VllmScheduler

NOBODY = cython.declare(cython.int, -1)
CALENDAR = 1024  # steps; a request without an event for longer is looked at in between


class VllmInstance(VllmScheduler):
    """One instance of vLLM. While `decoding`, the computed tokens of a running row are `done` + `steps`."""

    def __init__(self, engine: StepCache, requests: Requests, cost, limits, log=False):
        VllmScheduler.__init__(self, engine, requests, cost, limits, log)
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
        return 0

    def steps_left(self, row):
        taken: cython.longlong = self.steps - self.decoding_since if self.decoding else 0
        return VllmScheduler.steps_left(self, row) - taken

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
                self.context += requests.done[row] + 1
                requests.done[row] -= self.steps
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
                requests.done[row] += self.steps
                requests.goal[row] = requests.done[row] + 1
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
        done: cython.longlong = requests.done[row] + step
        block: cython.longlong = self.cache.quiet(row, done, self.limits.asynchronous)
        last: cython.longlong = requests.tokens[row] + requests.output[row] - 2 - done
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
        done: cython.longlong
        last: list = []
        while row != NOBODY:
            done = requests.done[row] + self.steps
            needs += self.cache.missing(row, done, done + 1)
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
            done = requests.done[row] + self.steps
            if not self.slides:
                self.cache.extend(row, done, done + 1)
            if done == requests.tokens[row] + requests.output[row] - 2:
                requests.done[row], requests.goal[row] = done + 1, done + 2
                requests.sampled_before[row] = (
                    requests.sampled[row] if self.steps == self.decoding_since else self.steps - 1
                )
                requests.sampled[row] = self.steps
                self.draining += 1
                self.batch -= 1
                self.context -= done + 2
                last.append(row)
            else:
                self._await(row, self.steps + 1)
            row = following
        return self._execute(seconds, [], last if len(last) < 2 else self._in_order(last))

    def _slide(self, place):
        """Take, free and publish the blocks of the requests that are due, in order of admission as vLLM does."""
        done: cython.longlong
        free: cython.longlong
        lag: cython.longlong = self.limits.asynchronous
        row: cython.int = self.due[place]
        rows: list = []
        while row != NOBODY:
            rows.append(row)
            row = self.requests.following[row]
        for item in rows if len(rows) < 2 else self._in_order(rows):
            row = item
            done = self.requests.done[row] + self.steps
            free = self.cache.free()
            self.cache.slide(row, done - lag)
            if self.cache.free() > free or self.cache.missing(row, done, done + 1):
                self.blocked = False
            self.cache.extend(row, done, done + 1)
            self.cache.publish(row, done + 1 - lag)

    def _in_order(self, rows):
        """Rows in order of admission: requests that end together free their blocks in this order."""
        i: cython.int
        ordered: list = []
        chosen: set = set(rows)
        for i in range(self.count):
            if self.running[i] in chosen:
                ordered.append(self.running[i])
        return ordered

    def _steps_until(self, until, most):
        """The fewest steps, at most `most`, after which the next one is planned at `until` or later."""
        low: cython.longlong = 1
        middle: cython.longlong
        planned_at: cython.double
        while low < most:
            middle = (low + most) // 2
            if self.limits.asynchronous:
                planned_at = self.free_at + (self._seconds(middle - 1) if middle > 1 else 0)
            else:
                planned_at = self.now + self._seconds(middle)
            if planned_at >= until:
                most = middle
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
                parts.append([self.running[i], self.requests.done[self.running[i]] + self.steps, 1])
        self.log.append([max(self.now, self.free_at), steps, parts, []])
