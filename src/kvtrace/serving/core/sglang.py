"""SGLang's scheduler: prefill and decode batches, retraction, and steps that are taken together."""

import cython
from cython.cimports.kvtrace.cache.core.radix import WRITE_BACK
from cython.cimports.kvtrace.serving.core.apart import SglangApart
from cython.cimports.kvtrace.serving.core.instance import (
    DECODES,
    PREFILLS,
    WHOLE,
    Requests,
    StepWork,
    add_part,
    begin_work,
    decode_seconds,
    step_seconds,
)
from cython.cimports.kvtrace.serving.core.sglang_prefill import DECODE, MIXED, NOTHING, PREFILL

from kvtrace._base.errors import UsageError

NOBODY = cython.declare(cython.int, -1)
KINDS = {PREFILL: "prefill", MIXED: "mixed", DECODE: "decode"}
PROMPTS_WEIGH = cython.declare(cython.longlong, 1000)  # against 1 of a decode, until new requests are looked for
PATIENCE = cython.declare(cython.int, 3)  # turns in which a worker of one kind finds nothing, until it sleeps
REPORT_EVERY = cython.declare(cython.int, 15)  # results of decode batches: SGLang's load_snapshot_publish_interval


class SglangEventLoop(SglangApart):
    """SGLang's scheduler (0.5.23, srt/managers/scheduler.py): prefill batches first, decode batches, retraction.

    A turn plans a batch, begins it, and processes a result: its own, or with `overlap` that of the batch before. A plan
    lets the requests of the last prefill join those that run, then makes a prefill batch if there is one, else a decode
    batch. If the next tokens do not fit, requests are retracted: they give up their pages and wait again.
    """

    def _turn(self):
        """Plan a batch, begin it, and process a result."""
        planned: cython.bint
        before: cython.int = self.side
        kind_before: cython.int = self.last_kind
        flew: cython.bint = self.flying
        copied: cython.double = NEVER
        began: cython.double = self.now
        self.naps = False
        if self.stored is not None:
            self.stored.shared.reach(self.now)
        self._poll()
        planned = self._plan()
        if planned:
            self._launch()
        elif not flew and self.role != WHOLE:
            self.idle_turns += 1
            self.asleep = self.idle_turns >= PATIENCE and not self.unseen
        elif not flew:
            if self.stored is not None and self.stored.spins(self.head < self.tail, self.now):
                if self.head == self.tail and self.count == 0 and self.chunked == NOBODY:
                    self.ratio = self.limits.first_ratio
                self.last_kind = NOTHING
                return 0
            if self.hosted is not None:
                copied = self.hosted.next_copy()
            if self.stored is not None:
                copied = min(copied, self.stored.next_end(self.now))
            if self.head == self.tail and self.count == 0 and self.chunked == NOBODY:
                self.ratio = self.limits.first_ratio
            elif (copied >= NEVER or self.stored is not None) and not self.retried:
                self.retried, self.last_kind = True, NOTHING
                return 0
            if copied < NEVER:  # awake until it ends, or until the next arrival
                self.last_kind = NOTHING
                if not self.unseen:
                    self.naps, self.idle_from, self.now = True, self.now, max(self.now, copied)
                return 0
            self._report_load(True)
            self.asleep = not self.unseen  # until the next arrival; with unseen ones, the loop goes on
        self.last_kind = self.kind if planned else NOTHING
        if self.limits.overlap:
            self.flying = planned
            if flew:
                self._report_load(kind_before != DECODE)
                self._learn(before)
                self._flush_copies()
        elif planned:
            self._report_load(self.kind != DECODE)
            self._learn(self.side)
            self._flush_copies()
        if self.role == PREFILLS:
            self.still = self.now == began
            if self.still:
                self._leave()
        self.blocks = self._used()
        if self.active() == 0:
            self._note_state(self.now)
        return 0

    def _flush_copies(self):
        """A result was processed: submit the copies to the host that it decided."""
        if self.hosted is not None:
            self.hosted.now, self.hosted.busy = self.now, self.free_at
            self.hosted.flush()
        return 0

    def _poll(self):
        """See the requests that have arrived, if the turns since the last look weigh as many as `poll_every` decodes.

        SGLang's SchedulerRecvSkipper: a turn after a decode, or after none, weighs 1, any other 1,000.
        """
        if self.limits.poll_every <= 1 and self.stored is None:  # none is unseen
            return 0
        self.unpolled += 1 if self.last_kind == DECODE or self.last_kind == NOTHING else PROMPTS_WEIGH
        if self.unpolled < self.limits.poll_every:
            return 0
        self.unpolled = 0
        for row in self.unseen:
            self._wait(row)
        self.unseen.clear()
        return 0

    def _used(self):
        """Blocks that requests hold."""
        return (self.cache.pages - self.cache.free - self.cache.evictable) * self.page // self.cache.block_size

    def _note_state(self, at):
        """Add the present state to the time line."""
        return self._note(at, self.live, self.tail - self.head, self._used())

    def _plan(self):
        """Plan the next batch; False if there is none."""
        if self.role == DECODES:
            self._receive()
        elif self.role == PREFILLS:
            self._begin_prefills()
        if self.hosted is not None:
            self.hosted.now, self.hosted.busy = self.now, self.free_at
            self.hosted.see_copies()
        if self.stored is not None:
            self._ask_again()
        self.loaded_at = 0
        self._merge()
        self.parts = 0
        if self.role != DECODES and self._plan_prefill():
            if self.limits.mixed and self.count:
                self._mix()
            return True
        return self.count > 0 and self._plan_decode()

    def _merge(self):
        """The requests of the last prefill join those that run; ended ones leave."""
        i: cython.int
        row: cython.int
        joined: cython.int = 0
        if self.chunked != NOBODY and self.end[self.chunked] > self.prefix[self.chunked]:
            self._checkpoint(self.chunked)
            if self.role == PREFILLS and not self.limits.overlap:
                self._send_part(self.chunked, self.end[self.chunked], self.now)
        if self.role != PREFILLS and (self.last_kind == PREFILL or self.last_kind == MIXED):
            for i in range(self.size[self.side]):
                row = self.batch_row[self.side, i]
                if not self.finished[row] and row != self.chunked and row != self.last_chunked:
                    self.running[self.count + joined] = row
                    joined += 1
            if joined < self.size[self.side] or (joined and self.count == 0):
                self.full = False
            self.count += joined
        if self._remove_ended():
            self.full = False
        return 0

    def _remove_ended(self):
        """The number of ended requests that leave those that run."""
        i: cython.int
        stay: cython.int = 0
        gone: cython.int
        for i in range(self.count):
            if not self.finished[self.running[i]]:
                self.running[stay] = self.running[i]
                stay += 1
        gone = self.count - stay
        self.count = stay
        return gone

    def _mix(self):
        """Requests that run decode in the same step, if their tokens have room."""
        i: cython.int
        row: cython.Py_ssize_t
        if self._remove_finishing():
            self.full = False
        if self.count == 0 or not self._decode_fits():
            return 0
        self._add_decodes()
        for i in range(self.count):
            row = self.running[i]
            self.fill[row], self.end[row] = self._known(row), self.held[row]
        self.kind, self.count = MIXED, 0
        return 0

    def _plan_decode(self):
        """Plan a decode batch; False if there is none."""
        finishing: cython.int = self._remove_finishing()
        if finishing:
            self.full = False
        if self.count == 0:
            return False
        if self._decode_fits():
            self.ratio = max(self.ratio - self.limits.decay, self.limits.least_ratio)
        elif finishing:
            return False
        else:
            self._retract()
        self.kind, self.decodes_from[1 - self.side] = DECODE, 0
        self._add_decodes()
        return True

    def _remove_finishing(self):
        """Remove the requests whose last token is under way from those that run; returns their number."""
        i: cython.int
        row: cython.int
        stay: cython.int = 0
        gone: cython.int
        if not self.flying or self.role == DECODES:  # the loop of a decode worker has no request sit out
            return 0
        for i in range(self.count):
            row = self.running[i]
            if self.launched[row] != self.steps or self.outputs[row] + 1 < self.limit[row]:
                self.running[stay] = row
                stay += 1
        gone = self.count - stay
        self.count = stay
        return gone

    def _decode_fits(self):
        """Whether the next tokens of those that run fit, after eviction."""
        need: cython.longlong = self._new_pages()
        self._make_room(need)
        return self.cache.free >= need

    def _new_pages(self):
        """Pages that a decode step takes."""
        i: cython.int
        need: cython.longlong = 0
        for i in range(self.count):
            need += self.held[self.running[i]] % self.page == 0
        return need

    def _add_decodes(self):
        """Add a token of each request that runs to the batch."""
        i: cython.int
        row: cython.Py_ssize_t
        self._make_room(self.count)
        self._take_pages(self._new_pages())
        for i in range(self.count):
            row = self.running[i]
            self._add_part(row, self.held[row], 1)
            self.held[row] += 1
        return 0

    def _retract(self):
        """Those with the fewest outputs, of these the longest prompt, give back their pages and wait again, last."""
        i: cython.int
        row: cython.Py_ssize_t
        outputs: cython.longlong = 0
        limits: cython.longlong = 0
        gone: list = []
        self._sort_by_progress()
        while self.count > 1 and (not gone or not self._decode_fits()):
            self.count -= 1
            row = self.running[self.count]
            gone.append(row)
            self._drop(row, self.count)
        if self.count == 1 and not self._decode_fits():
            raise UsageError("SGLang would abort a request: nothing is left to retract. Try a larger --capacity.")
        self.full = False
        for i in range(self.count):
            outputs += self.outputs[self.running[i]]
            limits += self.limit[self.running[i]]
        expected: cython.double = outputs + self.limits.retract_steps * self.count
        self.ratio = min(1.0, expected / (limits + 1))
        for item in gone:
            if self.stored is not None:
                self.stored.restart(item)
            self._wait(item)
        return 0

    def _sort_by_progress(self):
        """Sort those that run: who is retracted first is last."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.Py_ssize_t
        rank: cython.longlong
        order: list = []
        for i in range(self.count):
            row = self.running[i]
            rank = self._rank(row) if self.limits.retract_by_priority else 0
            order.append((rank, -self.outputs[row], requests.tokens[row], i, row))
        order.sort()
        for i in range(self.count):
            self.running[i] = order[i][4]
        return 0

    def _launch(self):
        """Begin the planned batch."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.Py_ssize_t
        begin: cython.double = max(self.free_at, self.now)
        seconds: cython.double = self._seconds_of_parts()
        self.side = 1 - self.side
        self.size[self.side] = self.parts
        self.steps += 1
        self.idle_turns = 0
        for i in range(self.parts):
            row = self.batch_row[self.side, i]
            self.launched[row] = self.steps
            if self.role == PREFILLS and self.part_before[i] % self.page == 0:  # what is cached is sent at once
                self._send_part(row, self.part_before[i], begin)
            if requests.started[row] != requests.started[row]:  # NaN: its first step
                requests.started[row], requests.cached[row] = begin, self.part_before[i]
                self.cache.hit[row] = cython.cast(cython.int, self.part_before[i] // self.cache.block_size)
                self._note_loaded(row, self.part_before[i])
            self.prefill -= max(
                0, min(self.part_before[i] + self.part_tokens[i], requests.tokens[row]) - self.part_before[i]
            )
        if self.logs:
            self._log_parts(begin)
        self._note_state(begin)
        self.dropped = []
        self._pass_until(begin, seconds)
        if self.loaded_at > self.free_at:  # each layer waits for its part of what is loaded
            self.busy += self.loaded_at - self.free_at
            self.free_at = self.ends[self.side] = self.loaded_at
        self.settled, self.retried = self.kind == DECODE, False
        if self.role == PREFILLS and self.sends_parts:
            for i in range(self.parts):
                row = self.batch_row[self.side, i]
                self.group_of_workers.compute(
                    row, begin, self.ends[self.side], self.part_before[i], self.part_before[i] + self.part_tokens[i]
                )
        return 0

    def _note_loaded(self, row, before):
        """The blocks of a request's hits that came from the host, and those that were read from the storage for it."""
        size: cython.longlong = self.cache.block_size
        end: cython.longlong
        if self.hosted is not None:
            self.hosted.below[0, row] = cython.cast(cython.int, before // size - (before - self.loaded[row]) // size)
        if self.stored is not None and row in self.stored.span:
            span = self.stored.span[row]
            end = min(before, span[1])
            self.hosted.below[1, row] = max(0, end // size - span[0] // size)
            self.hosted.below[0, row] -= max(0, end // size - max(before - self.loaded[row], span[0]) // size)
        return 0

    def _pass_until(self, begin, seconds):
        """The model computes for `seconds` from `begin`."""
        self.busy += seconds
        self.free_at = begin + seconds
        self.ends[self.side] = self.free_at
        return 0

    def _seconds_of_parts(self):
        """Seconds of the planned step."""
        i: cython.int
        prompt: cython.longlong
        before: cython.longlong
        work: StepWork
        begin_work(cython.address(work))
        for i in range(self.parts):
            before, prompt = self.part_before[i], self.requests.tokens[self.batch_row[1 - self.side, i]]
            add_part(cython.address(work), before, self.part_tokens[i], prompt, before + 1 if before >= prompt else 0)
        return step_seconds(cython.address(self.cost), cython.address(work))

    def _report_load(self, at_once):
        """Report the load to the balancer before a result is processed: of a prefill at once, else of one in 15."""
        i: cython.Py_ssize_t
        tokens: cython.longlong = 0
        if self.reports is None:
            return 0
        self.unreported += 1
        if self.unreported < REPORT_EVERY and not at_once:
            return 0
        self.unreported = 0
        for i in range(self.head, self.tail):
            tokens += self._known(self.waiting[i])
        tokens += (self.cache.pages - self.cache.free - self.cache.evictable) * self.page
        return self._report(self.now, self.count, self.tail - self.head, tokens)

    def _learn(self, side):
        """The tokens of a batch become known."""
        requests: Requests = self.requests
        i: cython.int
        row: cython.Py_ssize_t
        self.now = max(self.now, self.ends[side])
        for i in range(self.size[side]):
            row = self.batch_row[side, i]
            if self.retracted[row] or (self.finished[row] and self.middle[row] <= 0):
                continue
            if self.middle[row] > 0:
                self.middle[row] -= 1
                if self.role == PREFILLS and self.limits.overlap:
                    self._send_part(row, self.prefix[row], self.now)
                continue
            self.outputs[row] += 1
            if self.outputs[row] == 1:
                requests.first[row] = self.now
            if self.outputs[row] == requests.output[row] or self.outputs[row] >= self.limit[row]:
                self._end(row)
            elif i < self.decodes_from[side]:
                self._checkpoint(row)
        return 0

    def _end(self, row):
        """A request has its last token."""
        requests: Requests = self.requests
        self._ended(row, self.now)
        self.load -= requests.tokens[row]
        self.finished[row], self.settled = True, False
        if self.role != DECODES or self.keeps:
            self._publish(row, min(self.held[row], self._known(row)))
        if self.role == PREFILLS:
            self.moving.append(row)
            return 0
        return self._release(row)

    def _log_parts(self, begin):
        i: cython.int
        parts: list = []
        for i in range(self.parts):
            parts.append([self.batch_row[self.side, i], self.part_before[i], self.part_tokens[i]])
        self.log.append([begin, 1, KINDS[self.kind], parts, self.dropped])


NEVER = cython.declare(cython.double, 1e300)
NOTED = cython.declare(cython.longlong, 16)  # of the steps that only decode, one in 16 has a row of the time line
LAST = cython.declare(cython.longlong, 1 << 62)  # a key after all others


class SglangInstance(SglangEventLoop):
    """SGLang's scheduler, where steps in which all running requests decode and none ends are taken together.

    Such a run ends before a request ends or arrives, or the pages run out; `make_room` evicts the same leaves then as
    step by step. `SglangEventLoop` has the rules, and takes each step separately.
    """

    def wake(self, at):
        self.idle_turns = 0
        if self.asleep:
            self.now = max(self.now, at)
            self.asleep = False
        if self.naps:
            self.now = max(self.idle_from, min(self.now, at))
        return 0

    def take(self, row):
        requests: Requests = self.requests
        self.wake(requests.arrival[row])
        self.load += requests.tokens[row]
        self.prefill += requests.tokens[row]
        if self.limits.poll_every <= 1 and self.stored is None:
            return self._wait(row)
        self.unseen.append(row)
        return 0

    def run(self, until):
        self.until = until
        while not self.asleep and self.now < self.until:
            self._begin_turn()
            if not self._decode_together(self.until):
                self._turn()
        if self.asleep and until >= NEVER and self.role == WHOLE and self.active():
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
        if (self.role == DECODES and self._has_news()) or (self.hosted is not None and self.hosted.has_copies()):
            return False
        if self.stored is not None and (self.stored.is_active() or self.stored.spins(self.head < self.tail, self.now)):
            return False
        if self.head < self.tail and (self.limits.preempts or not self.full):
            return False
        steps = self._steps_without_end()
        if self.unseen:
            steps = min(steps, self.limits.poll_every - 1 - self.unpolled)
        if steps > 0:
            steps = self._steps_that_fit(steps)
        if steps <= 0:
            return False
        for i in range(self.count):
            context += self.held[self.running[i]] + 1
        steps = self._steps_until(until, context, steps)
        if self.watched:
            self._note_decodes(context, steps)
        if self.reports is not None:
            self._report_decodes(context, steps)
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

    def _report_decodes(self, context, steps):
        """Report the load of the next steps, which only decode, as if they were taken one by one."""
        step: cython.longlong = REPORT_EVERY - 1 - self.unreported
        pages: cython.longlong
        tokens: cython.longlong = 0
        i: cython.Py_ssize_t
        for i in range(self.head, self.tail):
            tokens += self._known(self.waiting[i])
        while step < steps:
            pages = self.cache.pages - self.cache.free - self.cache.evictable + self._pages_of(step + 1)
            self._report(
                self._planned_after(context, step) if step else self.now, self.count, self.tail - self.head,
                tokens + pages * self.page,
            )  # fmt: skip
            step += REPORT_EVERY
        self.unreported = cython.cast(cython.int, (self.unreported + steps) % REPORT_EVERY)
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

    def _steps_that_fit(self, max_steps):
        """The most steps, up to `max_steps`, for which free and evictable pages suffice."""
        low: cython.longlong = 0
        middle: cython.longlong
        room: cython.longlong = self.cache.free + self.cache.evictable - self.count
        if self.hosted is not None and self.hosted.threshold == WRITE_BACK:
            room = self.cache.free - self.count  # an eviction takes time
        if self._pages_of(max_steps - 1) <= room:
            return max_steps
        while low < max_steps:  # `low` steps fit
            middle = (low + max_steps + 1) // 2
            if self._pages_of(middle - 1) <= room:
                low = middle
            else:
                max_steps = middle - 1
        return low

    def _pages_of(self, steps):
        """Pages that the next steps take."""
        i: cython.int
        pages: cython.longlong = 0
        for i in range(self.count):
            pages += self._pages(self.held[self.running[i]] + steps) - self._pages(self.held[self.running[i]])
        return pages

    def _steps_until(self, until, context, max_steps):
        """The fewest steps, at most `max_steps`, after which the next one is planned at `until` or later."""
        low: cython.longlong = 1
        middle: cython.longlong
        while low < max_steps:
            middle = (low + max_steps) // 2
            if self._planned_after(context, middle) >= until:
                max_steps = middle
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
        self.unpolled = (self.unpolled + steps) % max(1, self.limits.poll_every)
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
