"""SGLang's scheduler (0.5.23, srt/managers/scheduler.py): prefill batches first, decode batches, retraction.

A turn plans a batch, begins it, and processes a result: its own, or with `overlap` that of the batch before. A plan
lets the requests of the last prefill join those that run, then makes a prefill batch if there is one, else a decode
batch. If the next tokens do not fit, requests are retracted: they give up their pages and wait again. By priority, they
are also preempted for a waiting request.

Steps in which all running requests decode and none ends are taken together; `make_room` evicts the same leaves then as
step by step. Twin: tests/reference/sglang_scheduler.py, which takes each step separately and lists all rules.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.paged_radix import PagedRadix
from cython.cimports.kvtrace.serving.core.instance import Instance
from cython.cimports.kvtrace.serving.core.requests import Requests
from cython.cimports.kvtrace.serving.core.step_time import StepWork, add_part, begin_work, decode_seconds, step_seconds

from kvtrace._base.errors import UsageError

NOBODY = cython.declare(cython.int, -1)
NEVER = cython.declare(cython.double, 1e300)
MATCHED_WAITING = cython.declare(cython.Py_ssize_t, 128)  # so many waiting requests are matched, or touched
TOUCH_EVERY = cython.declare(cython.longlong, 32)  # passes
SHARED_PREFIX = cython.declare(cython.longlong, 32)  # tokens; in-batch prefix caching
NOTED = cython.declare(cython.longlong, 16)  # steps that only decode have a row of the time line for so many
LAST = cython.declare(cython.longlong, 1 << 62)  # a key after all others
MOST_PREEMPTIONS = cython.declare(cython.int, 10_000)  # of a request; with lpm SGLang 0.5.23 can go on for ever
KINDS = {PREFILL: "prefill", MIXED: "mixed", DECODE: "decode"}


class SglangInstance(Instance):
    """One instance of SGLang; `settings` is a dict of the fields of SglangLimits (sglang.pxd).

    `most` has the largest number of output tokens of each request that its client allows (max_new_tokens). With `log`,
    steps are recorded as (begin, times, kind, parts, retracted).
    """

    def __init__(self, engine: PagedRadix, requests: Requests, cost, settings, most, log=False):
        Instance.__init__(self, engine, requests, cost)
        self.cache, self.limits, self.page = engine, settings, engine.page_size
        self.log, self.logs = [], log
        rows: cython.Py_ssize_t = requests.tokens.shape[0]
        size: cython.Py_ssize_t = min(self.limits.seats, rows) + 2
        tokens = np.asarray(requests.tokens)
        room = engine.pages * self.page - -(-tokens // self.page) * self.page - self.page - 1
        self.limit = np.maximum(np.minimum(np.asarray(most, dtype=np.int64), room), 0)
        self.outputs, self.fill, self.prefix, self.end, self.held = np.zeros((5, rows), dtype=np.int64)
        self.owned, self.launched, self.entered = np.zeros((3, rows), dtype=np.int64)
        self.node, self.locked, self.middle = np.zeros((3, rows), dtype=np.int32)
        self.finished, self.retracted, self.seated = np.zeros((3, rows), dtype=np.int8)
        self.waiting = np.empty(2 * rows + 1, dtype=np.int32)
        self.head = self.tail = self.passes = self.entries = 0
        self.running = np.empty(size, dtype=np.int32)
        self.vacant = self.limits.seats
        self.chunked = self.last_chunked = self.new_chunked = NOBODY
        self.batch_row = np.empty((2, size), dtype=np.int32)
        self.part_before, self.part_tokens = np.empty((2, size), dtype=np.int64)
        self.dropped, self.preempted = [], []
        self.asleep, self.ratio, self.free_at = True, self.limits.first_ratio, 0

    def active(self):
        return self.tail - self.head + self.live

    def take(self, row):
        requests: Requests = self.requests
        if self.asleep:
            self.now = max(self.now, requests.arrival[row])
            self.asleep = False
        self.load += requests.tokens[row] + requests.output[row]
        self.prefill += requests.tokens[row]
        return self._wait(row)

    def run(self, until):
        while not self.asleep and self.now < until:
            if not self._decode_together(until):
                self._turn()
        if self.asleep and until >= NEVER and self.active():
            raise UsageError("SGLang's scheduler never admits a request of the trace. Try a larger --capacity.")
        return 0

    # ---- turns

    def _turn(self):
        """Plan a batch, begin it, and process a result."""
        planned: cython.bint = self._plan()
        before: cython.int = self.side
        flew: cython.bint = self.flying
        if planned:
            self._launch()
        elif not flew:
            if self.head == self.tail and self.count == 0 and self.chunked == NOBODY:
                self.ratio = self.limits.first_ratio
            elif not self.retried:
                self.retried, self.last_kind = True, NOTHING
                return 0
            self.asleep = True  # until the next arrival
        self.last_kind = self.kind if planned else NOTHING
        if self.limits.overlap:
            self.flying = planned
            if flew:
                self._learn(before)
        elif planned:
            self._learn(self.side)
        self.blocks = self._used()
        if self.active() == 0:
            self._note_state(self.now)
        return 0

    def _used(self):
        """Blocks that requests hold."""
        return (self.cache.pages - self.cache.free - self.cache.evictable) * self.page // self.cache.block_size

    def _note_state(self, at):
        """Add the present state to the time line."""
        return self._note(at, self.live, self.tail - self.head, self._used())

    def _plan(self):
        """Plan the next batch; False if there is none."""
        self._merge()
        self.parts = 0
        if self._plan_prefill():
            return True
        return self.count > 0 and self._plan_decode()

    def _merge(self):
        """The requests of the last prefill join those that run; ended ones leave."""
        i: cython.int
        row: cython.int
        joined: cython.int = 0
        if self.chunked != NOBODY and self.end[self.chunked] > self.prefix[self.chunked]:
            self._checkpoint(self.chunked)
        if self.last_kind == PREFILL or self.last_kind == MIXED:
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

    # ---- the queue

    def _wait(self, row):
        """A request enters the queue, at its place by priority if there are priorities, else last."""
        place: cython.Py_ssize_t
        key: cython.longlong = self._rank(row)
        if self.tail == self.waiting.shape[0]:
            self._move_queue()
        self.entries += 1
        self.entered[row] = self.entries
        place = self.tail
        self.tail += 1
        while place > self.head and self.limits.by_priority and self._rank(self.waiting[place - 1]) > key:
            self.waiting[place] = self.waiting[place - 1]
            place -= 1
        self.waiting[place] = cython.cast(cython.int, row)
        return 0

    def _move_queue(self):
        """Move the queue to the beginning of its array."""
        i: cython.Py_ssize_t
        for i in range(self.tail - self.head):
            self.waiting[i] = self.waiting[self.head + i]
        self.tail -= self.head
        self.head = 0
        return 0

    def _rank(self, row):
        """The priority of a request, low values first."""
        return self.requests.priority[row] * self.limits.sign

    def _sort_waiting(self):
        """Sort by matched prefixes, or at some passes touch the prefixes of the first."""
        i: cython.Py_ssize_t
        waiting: cython.Py_ssize_t = self.tail - self.head
        if self.limits.longest_match and waiting <= MATCHED_WAITING:
            return self._sort_by_prefix()
        if waiting == 0:
            return 0
        if self.passes % TOUCH_EVERY == 0:
            for i in range(min(waiting, MATCHED_WAITING) - 1, -1, -1):
                self._match_all(self.waiting[self.head + i])
        self.passes += 1
        return 0

    def _sort_by_prefix(self):
        """The longest match first; last those that share 32 tokens with one before that has no match to speak of."""
        i: cython.Py_ssize_t
        row: cython.Py_ssize_t
        key: cython.longlong
        name: cython.longlong
        seen: set = set()
        order: list = []
        for i in range(self.head, self.tail):
            row = self.waiting[i]
            self.node[row] = self._match_all(row)
            self.prefix[row] = self.cache.matched * self.page
            key = -min(self.prefix[row], self._known(row) - 1)
            if self.prefix[row] <= SHARED_PREFIX and self._known(row) >= SHARED_PREFIX:
                name = self.cache.token_name(row, SHARED_PREFIX - 1)  # the same name: the same 32 tokens
                if name in seen:
                    key = LAST
                seen.add(name)
            order.append((key, i, row))
        order.sort()
        i = self.head
        for one in order:
            self.waiting[i] = one[2]
            i += 1
        return 0

    def _match_all(self, row):
        return self.cache.match(row, self._known(row) // self.page)

    def _known(self, row):
        """The tokens of a request that are known: prompt and output."""
        return self.requests.tokens[row] + self.outputs[row]

    # ---- prefill

    def _plan_prefill(self):
        """Plan a prefill batch; False if there is none."""
        if self.count == 0 or self.limits.preempts:
            self.full = False
        if self.chunked == NOBODY:
            if self.full or self.head == self.tail:
                return False
            if self._seats_left(0) <= 0 and not self.limits.preempts:
                self.full = True
                return False
        self._sort_waiting()
        self._open_budgets()
        if self.chunked != NOBODY:
            self._add_chunk()
        self._admit_waiting()
        if self.parts == 0:
            return False
        if self.new_chunked != NOBODY:
            self.chunked = self.new_chunked
        self.last_chunked = self.chunked
        if self.chunked != NOBODY:
            self.middle[self.chunked] += 1
        self.kind, self.decodes_from[1 - self.side] = PREFILL, self.parts
        self._extend()
        if self.limits.mixed and self.count:
            self._mix()
        return True

    def _open_budgets(self):
        """The budgets of a prefill, less what running requests are expected to need."""
        i: cython.int
        mixed: cython.longlong = self.count if self.limits.mixed else 0
        expected: cython.double = 0
        for i in range(self.count):
            expected += self._expected(self.running[i])
        self.input_left, self.chunk_left = self.limits.prefill_tokens - mixed, self.limits.chunk_tokens - mixed
        self.now_needed, self.needed = mixed, mixed + expected
        self.new_chunked, self.preempted = NOBODY, []
        return 0

    def _expected(self, row):
        """The tokens that a running request is expected to need."""
        ratio: cython.double = 1 if self.limits.ignore_eos else self.ratio
        return self._clip(self.limit[row] - self.outputs[row]) * ratio

    def _admit_waiting(self):
        """Admit waiting requests in order until one does not fit."""
        row: cython.Py_ssize_t
        verdict: cython.int
        chunks: cython.int = self.parts
        admitted: cython.Py_ssize_t
        while self.head + self.parts - chunks < self.tail and self._state() != OTHER:
            if self.parts >= self._seats_left(chunks):
                self.full = True
            row = self.waiting[self.head + self.parts - chunks]
            if self.full and not (self.limits.preempts and self._preempt_for(row)):
                break
            self._look_up(row)
            verdict = self._admit(row)
            if verdict == NO_TOKEN:
                self.full = self.parts > 0 or self.count > 0
            if verdict != CONTINUE:
                break
        admitted = self.parts - chunks
        self.head += admitted
        for one in self.preempted:
            self._wait(one)
        return 0

    def _preempt_for(self, row):
        """Release running requests of so much less priority that a waiting one may fit; False if there are none."""
        requests: Requests = self.requests
        i: cython.int
        one: cython.Py_ssize_t
        order: list = []
        victims: list = []
        need: cython.double = self.fill[row] - self.prefix[row] + self._clip(self.limit[row]) - self._left()
        for i in range(self.count):
            one = self.running[i]
            if self._rank(one) - self._rank(row) > self.limits.threshold:
                order.append((-self._rank(one), -self.entered[one], one))
        order.sort()
        for entry in order:
            one = entry[2]
            if requests.preempted[one] > MOST_PREEMPTIONS:
                raise UsageError("SGLang 0.5.23 would preempt a request for ever. Set disable_priority_preemption.")
            victims.append(one)
            need -= self._expected(one)
            if need <= 0:
                break
        if not victims or need > 0:
            return False
        self._preempt(set(victims))
        return True

    def _preempt(self, victims: set):
        """Release running requests; they wait again once the batch is planned, in the order of a set, as in SGLang."""
        i: cython.int
        one: cython.Py_ssize_t
        stay: cython.int = 0
        gone: cython.int = 0
        for i in range(self.count):
            one = self.running[i]
            if one in victims:
                gone += 1
                self.needed -= self._expected(one)
                self._drop(one, self.count - gone)
            else:
                self.running[stay] = self.running[i]
                stay += 1
        self.count = stay
        self.preempted.extend(victims)
        return 0

    def _seats_left(self, seated):
        """Requests that can be admitted; so many of the batch have a seat."""
        return min(self.limits.seats - self.count, max(self.vacant + seated, 0))

    def _look_up(self, row):
        """Match all tokens but the last."""
        self.fill[row] = self._known(row)
        self.node[row] = self.cache.match(row, (self.fill[row] - 1) // self.page)
        self.owned[row] = self.cache.matched
        self.prefix[row] = self.cache.matched * self.page
        return 0

    def _admit(self, row):
        """Add a waiting request to the batch if it fits. The verdict says whether others may fit, too."""
        requests: Requests = self.requests
        extend: cython.longlong = self.fill[row] - self.prefix[row]
        outputs: cython.longlong = self._clip(max(self.limit[row] - self.outputs[row], 0))
        paged: cython.longlong = self._paged(extend)
        node: cython.int = self.node[row]
        self.cache.lock(node)
        if not extend + outputs + self.page < self._left():
            self.cache.unlock(node)
            return NO_TOKEN
        outputs = self._clip(self.limit[row])
        if not self.limits.chunk_tokens:
            if self.parts and paged >= self.input_left:
                self.cache.unlock(node)
                return OTHER
        elif paged > self.chunk_left:
            extend = self.chunk_left // self.page * self.page
            if extend <= 0:
                self.cache.unlock(node)
                return OTHER
            outputs, self.new_chunked = 0, cython.cast(cython.int, row)
        if requests.preempted[row]:
            requests.recomputed[row] += self.fill[row] - self.prefix[row]
        self.prefill -= min(self.prefix[row], requests.tokens[row])
        self.end[row], self.locked[row] = self.prefix[row] + extend, node
        self._add_part(row, self.prefix[row], extend)
        self._charge(extend, outputs)
        return self._state()

    def _add_chunk(self):
        """The next chunk of the request that is in chunks."""
        row: cython.Py_ssize_t = self.chunked
        room: cython.longlong = min(self.chunk_left, cython.cast(cython.longlong, self._left()))
        if room <= 0:
            room = self.chunk_left
        self.fill[row] = self._known(row)
        rest: cython.longlong = self.fill[row] - self.prefix[row]
        self.end[row] = self.prefix[row] + min(rest, room)
        self._add_part(row, self.prefix[row], self.end[row] - self.prefix[row])
        self._charge(self.end[row] - self.prefix[row], 0 if rest > room else self._clip(self.limit[row]))
        if rest <= room:
            self.chunked = NOBODY
        return 0

    def _charge(self, extend, outputs):
        paged: cython.longlong = self._paged(extend)
        self.needed += paged + self.page + outputs
        self.now_needed += paged + self.page
        self.input_left -= paged
        self.chunk_left -= paged
        return 0

    def _state(self):
        """Whether the batch has room for another request."""
        if self._left() <= 0 or self._with_evictable() <= self.now_needed:
            return NO_TOKEN
        if self.input_left <= 0 or (self.limits.chunk_tokens and self.chunk_left <= 0):
            return OTHER
        return CONTINUE

    def _left(self):
        """Tokens that are not needed by those who run, or are in the batch."""
        return self._with_evictable() - self.needed

    def _with_evictable(self):
        return (self.cache.free + self.cache.evictable) * self.page

    def _clip(self, outputs):
        return min(outputs, self.limits.clip)

    def _paged(self, tokens):
        """Tokens of whole pages."""
        return (tokens + self.page - 1) // self.page * self.page

    def _add_part(self, row, before, tokens):
        self.batch_row[1 - self.side, self.parts] = cython.cast(cython.int, row)
        self.part_before[self.parts], self.part_tokens[self.parts] = before, tokens
        self.parts += 1
        return 0

    def _extend(self):
        """Pages for the tokens of a prefill."""
        i: cython.int
        row: cython.Py_ssize_t
        tokens: cython.longlong = 0
        pages: cython.longlong = 0
        for i in range(self.parts):
            row = self.batch_row[1 - self.side, i]
            if not self.seated[row]:
                self.seated[row] = True
                self.vacant -= 1
                self.live += 1
            tokens += self.part_tokens[i]
            pages += self._pages(self.end[row]) - self._pages(self.prefix[row])
            self.held[row], self.retracted[row] = self.end[row], False
        self.cache.make_room(self._pages(tokens) + (self.parts if self.page > 1 else 0))
        return self._take_pages(pages)

    def _pages(self, tokens):
        return (tokens + self.page - 1) // self.page

    def _take_pages(self, pages):
        self.cache.free -= pages
        if self.cache.free < 0:
            raise UsageError(
                "SGLang 0.5.23 would end here: its cache is too small for the next chunk of a prompt. "
                "Try a larger --capacity, fewer requests at once or a larger schedule_conservativeness."
            )
        return 0

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

    # ---- decode

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
        if not self.flying:
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
        self.cache.make_room(need)
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
        self.cache.make_room(self.count)
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
            raise UsageError("SGLang would abort a request that does not fit alone. Try a larger --capacity.")
        self.full = False
        for i in range(self.count):
            outputs += self.outputs[self.running[i]]
            limits += self.limit[self.running[i]]
        expected: cython.double = outputs + self.limits.retract_steps * self.count
        self.ratio = min(1.0, expected / (limits + 1))
        for one in gone:
            self._wait(one)
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

    def _drop(self, row, others):
        """Release a request without making it findable, and room for the next steps of the others."""
        requests: Requests = self.requests
        self.prefill += min(self.held[row], requests.tokens[row])
        self._release(row)
        self.cache.make_room(self._pages(others * self.limits.retract_steps))
        self.prefix[row] = self.owned[row] = 0
        self.middle[row], self.retracted[row] = 0, True
        requests.preempted[row] += 1
        self.dropped.append(row)
        return 0

    def _release(self, row):
        """Give back the pages that the tree does not own, the lock and the seat."""
        self.cache.free += self._pages(self.held[row]) - self.owned[row]
        self.cache.unlock(self.locked[row])
        self.locked[row], self.seated[row], self.held[row] = 0, False, 0
        self.vacant += 1
        self.live -= 1
        return 0

    # ---- the tree is written

    def _checkpoint(self, row):
        """The computed tokens become findable; the tree's pages replace the request's where it has them."""
        self._publish(row, min(self.end[row], self.fill[row]))
        self.prefix[row] = self.end[row]
        return 0

    def _publish(self, row, tokens):
        cache: PagedRadix = self.cache
        pages: cython.longlong = tokens // self.page
        prompt: cython.longlong = self.requests.tokens[row] // self.page
        node: cython.int = cache.insert(row, pages)
        cache.free += max(cache.matched - self.owned[row], 0)
        if 0 < prompt < pages:
            cache.insert(row, prompt)
        cache.unlock(self.locked[row])
        cache.lock(node)
        self.locked[row], self.owned[row] = node, pages
        return 0

    # ---- a batch begins, and its tokens become known

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
        for i in range(self.parts):
            row = self.batch_row[self.side, i]
            self.launched[row] = self.steps
            if requests.started[row] != requests.started[row]:  # NaN: its first step
                requests.started[row], requests.cached[row] = begin, self.part_before[i]
                self.cache.hit[row] = cython.cast(cython.int, self.part_before[i] // self.cache.block_size)
            self.prefill -= max(
                0, min(self.part_before[i] + self.part_tokens[i], requests.tokens[row]) - self.part_before[i]
            )
        if self.logs:
            self._log_parts(begin)
        self._note_state(begin)
        self.dropped = []
        self._pass_until(begin, seconds)
        self.settled, self.retried = self.kind == DECODE, False
        return 0

    def _pass_until(self, begin, seconds):
        """The model computes for so many seconds from `begin`."""
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
        requests.ended[row] = self.now
        self.load -= requests.tokens[row] + requests.output[row]
        self.finished[row], self.settled = True, False
        self._publish(row, min(self.held[row], self._known(row)))
        return self._release(row)

    # ---- steps that only decode

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
        """The most steps, up to so many, in which each request has a free or evictable page at hand."""
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
        """The fewest steps, at most so many, after which the next one is planned at `until` or later."""
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
        """The time at which the step after so many steps is planned."""
        if self.limits.overlap:
            return self.free_at + (self._seconds(context, steps - 1) if steps > 1 else 0)
        return self.now + self._seconds(context, steps)

    def _seconds(self, context, steps):
        """Seconds of the next steps, if they only decode."""
        return decode_seconds(cython.address(self.cost), self.count, context, steps)

    def _pass_steps(self, context, steps):
        """The clock, the ratio and the count of steps after so many steps."""
        begin: cython.double = self.free_at if self.limits.overlap else self.now
        self.now = self._planned_after(context, steps)
        self._pass_until(begin, self._seconds(context, steps))
        self.steps += steps
        while steps > 0 and self.ratio > self.limits.least_ratio:  # one by one, for equal rounding
            self.ratio = max(self.ratio - self.limits.decay, self.limits.least_ratio)
            steps -= 1
        return 0

    # ---- the record of steps

    def _log_parts(self, begin):
        i: cython.int
        parts: list = []
        for i in range(self.parts):
            parts.append([self.batch_row[self.side, i], self.part_before[i], self.part_tokens[i]])
        self.log.append([begin, 1, KINDS[self.kind], parts, self.dropped])

    def _log_decodes(self, steps):
        i: cython.int
        parts: list = []
        for i in range(self.count):
            parts.append([self.running[i], self.held[self.running[i]], 1])
        self.log.append([max(self.free_at, self.now), steps, "decode", parts, []])
