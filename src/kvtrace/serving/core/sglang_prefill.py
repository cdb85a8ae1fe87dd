"""SGLang's prefill batches (0.5.23, PrefillAdder in srt/managers/schedule_policy.py): who is admitted.

A request is admitted if its prompt and the outputs that it and the active requests are expected to have fit. One
request at a time is in chunks. By priority, running requests are preempted for a waiting one.
"""

import cython
from cython.cimports.kvtrace.cache.core.locked_tree import ROOT
from cython.cimports.kvtrace.serving.core.requests import Requests
from cython.cimports.kvtrace.serving.core.sglang_pages import SglangPages
from cython.cimports.kvtrace.serving.core.sglang_queue import CONTINUE, NO_TOKEN, OTHER, PREFILL

from kvtrace._base.errors import UsageError

NOBODY = cython.declare(cython.int, -1)
MOST_PREEMPTIONS = cython.declare(cython.int, 10_000)  # of a request; with lpm SGLang 0.5.23 can go on for ever


class SglangPrefill(SglangPages):
    """Prefill batches, within the budgets of tokens and pages."""

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
        self.cache.lock(node, ROOT)
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

    def _clip(self, outputs):
        return min(outputs, self.limits.clip)

    def _expected(self, row):
        """The tokens that a running request is expected to need."""
        ratio: cython.double = 1 if self.limits.ignore_eos else self.ratio
        return self._clip(self.limit[row] - self.outputs[row]) * ratio

    def _seats_left(self, seated):
        """Requests that can be admitted, if `seated` of the batch have a seat."""
        return min(self.limits.seats - self.count, max(self.vacant + seated, 0))

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

    def _add_part(self, row, before, tokens):
        self.batch_row[1 - self.side, self.parts] = cython.cast(cython.int, row)
        self.part_before[self.parts], self.part_tokens[self.parts] = before, tokens
        self.parts += 1
        return 0
