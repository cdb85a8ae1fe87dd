"""SGLang's scheduler, where steps in which all running requests decode and none ends are taken together.

Such a run ends before a request ends or arrives, or the pages run out; `make_room` evicts the same leaves then as step
by step. sglang_scheduler.py has the rules, and takes each step separately.
"""

import cython
from cython.cimports.kvtrace.serving.core.requests import Requests
from cython.cimports.kvtrace.serving.core.sglang_queue import DECODE
from cython.cimports.kvtrace.serving.core.sglang_scheduler import SglangScheduler
from cython.cimports.kvtrace.serving.core.step_time import decode_seconds

from kvtrace._base.errors import UsageError

NEVER = cython.declare(cython.double, 1e300)
NOTED = cython.declare(cython.longlong, 16)  # of the steps that only decode, one in 16 has a row of the time line
LAST = cython.declare(cython.longlong, 1 << 62)  # a key after all others


class SglangInstance(SglangScheduler):
    """One instance of SGLang."""

    def take(self, row):
        requests: Requests = self.requests
        if self.asleep:
            self.now = max(self.now, requests.arrival[row])
            self.asleep = False
        self.load += requests.tokens[row]
        self.prefill += requests.tokens[row]
        return self._wait(row)

    def run(self, until):
        self.until = until
        while not self.asleep and self.now < self.until:
            self._begin_turn()
            if not self._decode_together(self.until):
                self._turn()
        if self.asleep and until >= NEVER and self.active():
            raise UsageError("SGLang's scheduler never admits a request of the trace. Try a larger --capacity.")
        return 0

    def next_turn(self):
        return NEVER if self.asleep else self.now

    def steps_left(self, row):
        return min(self.requests.output[row], self.limit[row]) - self.outputs[row]

    def _decode_together(self, until):
        """Take the next steps together if all of them give one token to each request that runs; False if not."""
        i: cython.int
        row: cython.Py_ssize_t
        steps: cython.longlong
        context: cython.double = 0
        if not self.settled or self.last_kind != DECODE:
            return False
        if self.head < self.tail and (self.limits.preempts or not self.full):
            return False
        steps = self._steps_without_end()
        if steps > 0:
            steps = self._steps_that_fit(steps)
        if steps <= 0:
            return False
        for i in range(self.count):
            context += self.held[self.running[i]] + 1
        steps = self._steps_until(until, context, steps)
        if self.watched:
            self._note_decodes(context, steps)
        self.cache.make_room(self._pages_of(steps - 1) + self.count)
        self.cache.free -= self._pages_of(steps)
        if self.logs:
            self._log_decodes(steps)
        self._pass_steps(context, steps)
        for i in range(self.count):
            row = self.running[i]
            self.held[row] += steps
            self.outputs[row] += steps
            self.launched[row] = self.steps
        return True

    def _note_decodes(self, context, steps):
        """Add the states of the next steps, which only decode, to the time line: one of every 16."""
        step: cython.longlong = 0
        begin: cython.double = max(self.free_at, self.now)
        while step < steps:
            self._note(
                begin + (self._seconds(context, step) if step else 0), self.live, self.tail - self.head,
                self._used() + self._pages_of(step) * self.page // self.cache.block_size,
            )  # fmt: skip
            step += NOTED
        return 0

    def _steps_without_end(self):
        """Steps in which no request ends, or has its last token under way."""
        i: cython.int
        row: cython.Py_ssize_t
        least: cython.longlong = LAST
        for i in range(self.count):
            row = self.running[i]
            least = min(least, min(self.requests.output[row], self.limit[row]) - self.outputs[row])
        return least - 1 if self.count else 0

    def _steps_that_fit(self, most):
        """The most steps, up to `most`, for which free and evictable pages suffice."""
        low: cython.longlong = 0
        middle: cython.longlong
        room: cython.longlong = self.cache.free + self.cache.evictable - self.count
        if self._pages_of(most - 1) <= room:
            return most
        while low < most:  # `low` steps fit
            middle = (low + most + 1) // 2
            if self._pages_of(middle - 1) <= room:
                low = middle
            else:
                most = middle - 1
        return low

    def _pages_of(self, steps):
        """Pages that the next steps take."""
        i: cython.int
        pages: cython.longlong = 0
        for i in range(self.count):
            pages += self._pages(self.held[self.running[i]] + steps) - self._pages(self.held[self.running[i]])
        return pages

    def _steps_until(self, until, context, most):
        """The fewest steps, at most `most`, after which the next one is planned at `until` or later."""
        low: cython.longlong = 1
        middle: cython.longlong
        while low < most:
            middle = (low + most) // 2
            if self._planned_after(context, middle) >= until:
                most = middle
            else:
                low = middle + 1
        return low

    def _planned_after(self, context, steps):
        """The time at which the step after the next `steps` steps is planned."""
        if self.limits.overlap:
            return self.free_at + (self._seconds(context, steps - 1) if steps > 1 else 0)
        return self.now + self._seconds(context, steps)

    def _seconds(self, context, steps):
        """Seconds of the next steps, if they only decode."""
        return decode_seconds(cython.address(self.cost), self.count, context, steps)

    def _pass_steps(self, context, steps):
        """Advance the clock, the ratio and the count of steps by `steps` steps."""
        begin: cython.double = self.free_at if self.limits.overlap else self.now
        self.now = self._planned_after(context, steps)
        self._pass_until(begin, self._seconds(context, steps))
        self.steps += steps
        while steps > 0 and self.ratio > self.limits.least_ratio:  # one by one, for equal rounding
            self.ratio = max(self.ratio - self.limits.decay, self.limits.least_ratio)
            steps -= 1
        return 0

    def _log_decodes(self, steps):
        i: cython.int
        parts: list = []
        for i in range(self.count):
            parts.append([self.running[i], self.held[self.running[i]], 1])
        self.log.append([max(self.free_at, self.now), steps, "decode", parts, []])
