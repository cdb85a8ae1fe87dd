"""SGLang's prefill batches: its queue, the pages of its requests, and who is admitted."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.hicache import HiPagedRadix
from cython.cimports.kvtrace.cache.core.radix import ROOT, PagedRadix
from cython.cimports.kvtrace.serving.core.instance import Instance, Requests

from kvtrace._base.errors import UsageError

# What SGLang's scheduler knows of each request, and its queue (0.5.23, srt/managers/schedule_policy.py).
#
# The queue is in order of arrival, or of priority; retracted requests enter it anew. With lpm, the longest cached
# prefix comes first. Twin of both files: tests/reference/sglang_scheduler.py.


NOBODY = cython.declare(cython.int, -1)
MATCHED_WAITING = cython.declare(cython.Py_ssize_t, 128)  # waiting requests that are matched, or touched
TOUCH_EVERY = cython.declare(cython.longlong, 32)  # passes
SHARED_PREFIX = cython.declare(cython.longlong, 32)  # tokens; in-batch prefix caching
LAST = cython.declare(cython.longlong, 1 << 62)  # a key after all others


class SglangQueue(Instance):
    """The state of an instance of SGLang; `settings` is a dict of the fields of SglangLimits (sglang_prefill.pxd).

    `most` has the largest number of output tokens of each request that its client allows (max_new_tokens). With `log`,
    steps are recorded as (begin, times, kind, parts, retracted).
    """

    def __init__(self, engine: PagedRadix, requests: Requests, cost, settings, max_new_tokens, log=False):
        Instance.__init__(self, engine, requests, cost)
        self.cache, self.limits, self.page = engine, settings, engine.page_size
        self.hosted = engine if isinstance(engine, HiPagedRadix) else None
        self.stored = self.hosted.storage if self.hosted is not None else None
        self.log, self.logs = [], log
        rows: cython.Py_ssize_t = requests.tokens.shape[0]
        size: cython.Py_ssize_t = min(self.limits.seats, rows) + 2
        tokens = np.asarray(requests.tokens)
        room = engine.pages * self.page - -(-tokens // self.page) * self.page - self.page - 1
        self.limit = np.maximum(np.minimum(np.asarray(max_new_tokens, dtype=np.int64), room), 0)
        self.outputs, self.fill, self.prefix, self.end, self.held = np.zeros((5, rows), dtype=np.int64)
        self.owned, self.launched, self.entered = np.zeros((3, rows), dtype=np.int64)
        self.node, self.locked, self.middle = np.zeros((3, rows), dtype=np.int32)
        self.inserted, self.loaded = np.zeros((2, rows), dtype=np.int64)
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
        self.unseen, self.unpolled = [], 0
        self.naps, self.idle_from = False, 0

    def active(self):
        return self.tail - self.head + self.live + len(self.unseen)

    def _wait(self, row):
        """A request enters the queue, at its place by priority if there are priorities, else last."""
        place: cython.Py_ssize_t
        key: cython.longlong = self._rank(row)
        if self.stored is not None:
            self._prefetch(row, -1)
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

    def _prefetch(self, row, hit_end):
        """Ask SGLang's storage for what follows a request's match; `hit_end` is known to exist, -1 = nothing is."""
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
            key = -min(self.prefix[row] + self._host_hit(), self._known(row) - 1)
            if self.prefix[row] <= SHARED_PREFIX and self._known(row) >= SHARED_PREFIX:
                name = self.cache.token_name(row, SHARED_PREFIX - 1)  # the same name: the same 32 tokens
                if name in seen:
                    key = LAST
                seen.add(name)
            order.append((key, i, row))
        order.sort()
        i = self.head
        for entry in order:
            self.waiting[i] = entry[2]
            i += 1
        return 0

    def _host_hit(self):
        """Tokens of the last match that are on the host alone."""
        return self.hosted.host_hit * self.page if self.hosted is not None else 0

    def _match_all(self, row):
        return self.cache.match(row, self.cache.pages_of(self._known(row)))

    def _known(self, row):
        """The tokens of a request that are known: prompt and output."""
        return self.requests.tokens[row] + self.outputs[row]


class SglangPages(SglangQueue):
    """The pages of SGLang's requests (0.5.23): which of them the tree owns, when they are published, and given back.

    A prompt becomes findable when its result is known, a chunk when the next step is planned, outputs at the end.
    """

    def _checkpoint(self, row):
        """The computed tokens become findable; the tree's pages replace the request's where it has them."""
        self._publish(row, min(self.end[row], self.fill[row]))
        self.prefix[row] = self.end[row]
        return 0

    def _publish(self, row, tokens):
        cache: PagedRadix = self.cache
        pages: cython.longlong = cache.pages_of(tokens)
        prompt: cython.longlong = cache.pages_of(self.requests.tokens[row])
        node: cython.int
        if self.hosted is not None:
            node = self._publish_in_tiers(row, pages, prompt)
        else:
            node = cache.insert(row, pages)
            cache.free += max(cache.matched - self.owned[row], 0)
            if 0 < prompt < pages:
                cache.insert(row, prompt)
        cache.unlock(self.locked[row])
        cache.lock(node, ROOT)
        self.locked[row], self.owned[row] = node, pages
        return 0

    def _publish_in_tiers(self, row, pages, prompt):
        """Insert pages of a request that count it once; returns their last node."""
        hosted: HiPagedRadix = self.hosted
        hosted.owned, hosted.inserted = self.owned[row], self.inserted[row]
        node: cython.int = hosted.insert(row, pages)
        hosted.free += hosted.duplicates
        self.inserted[row] = max(self.inserted[row], pages)
        if 0 < prompt < pages:
            hosted.owned = hosted.inserted = prompt
            hosted.insert(row, prompt)
        return node

    def _make_room(self, pages):
        """Evict until so many pages are free; with write_back the scheduler waits for what it copies to the host."""
        if self.hosted is None:
            return self.cache.make_room(pages)
        self.hosted.now, self.hosted.busy = self.now, self.free_at
        self.hosted.make_room(pages)
        self.now = self.hosted.now
        return 0

    def _drop(self, row, others):
        """Release a request without making it findable, and room for the next steps of the others."""
        requests: Requests = self.requests
        self.prefill += min(self.held[row], requests.tokens[row])
        self._release(row)
        self._make_room(self._pages(others * self.limits.retract_steps))
        self.prefix[row] = self.owned[row] = self.inserted[row] = 0
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

    def _take_pages(self, pages):
        self.cache.free -= pages
        if self.cache.free < 0:
            raise UsageError(
                "SGLang 0.5.23 would end here: its cache is too small for the next chunk of a prompt. "
                "Try a larger --capacity, fewer requests at once or a larger schedule_conservativeness."
            )
        return 0

    def _pages(self, tokens):
        return (tokens + self.page - 1) // self.page

    def _paged(self, tokens):
        """Tokens of whole pages."""
        return (tokens + self.page - 1) // self.page * self.page

    def _with_evictable(self):
        return (self.cache.free + self.cache.evictable) * self.page


MOST_PREEMPTIONS = cython.declare(cython.int, 10_000)  # of a request; with lpm SGLang 0.5.23 can go on for ever


class SglangPrefill(SglangPages):
    """SGLang's prefill batches (0.5.23, PrefillAdder in srt/managers/schedule_policy.py): who is admitted.

    A request is admitted if its prompt and the outputs that it and the active requests are expected to have fit. One
    request at a time is in chunks. By priority, running requests are preempted for a waiting one.
    """

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
        parts: cython.int
        at: cython.Py_ssize_t = self.head
        passed: list = []  # that wait for their prefetch
        while at < self.tail and self._state() != OTHER:
            if self.parts >= self._seats_left(chunks):
                self.full = True
            row = self.waiting[at]
            if self.full and not (self.limits.preempts and self._preempt_for(row)):
                break
            if self.stored is not None and not self.stored.ready(row, self.now):
                passed.append(row)
                at += 1
                continue
            self._look_up(row)
            if self.stored is not None and self.stored.lost(row, self.prefix[row] + self._host_hit()):
                self.stored.count_attempt(row)
                self._prefetch(row, -1)
                passed.append(row)
                at += 1
                continue
            parts = self.parts
            verdict = self._admit(row)
            at += self.parts - parts
            if verdict == NO_TOKEN:
                self.full = self.parts > 0 or self.count > 0
            if verdict != CONTINUE:
                break
        self.head = at
        while passed:
            self.head -= 1
            self.waiting[self.head] = passed.pop()
        if self.stored is not None:
            for parts in range(self.parts):
                self.stored.admitted(self.batch_row[1 - self.side, parts])
        for item in self.preempted:
            self._wait(item)
        return 0

    def _look_up(self, row):
        """Match all tokens but the last."""
        self.fill[row] = self._known(row)
        self.node[row] = self.cache.match(row, self.cache.pages_of(self.fill[row] - 1))
        self.owned[row] = self.cache.matched
        self.prefix[row] = self.cache.matched * self.page
        return 0

    def _prefetch(self, row, hit_end):
        self.hosted.now, self.hosted.busy = self.now, self.free_at
        self._look_up(row)
        return self.stored.prefetch(
            row, self.prefix[row] // self.page + self.hosted.host_hit, self.hosted.best, self.fill[row] - 1, hit_end
        )

    def _ask_again(self):
        """Requests whose pages were not found ask for them again, after some plans."""
        i: cython.Py_ssize_t
        waiting: list = []
        if self.stored.retries:
            for i in range(self.head, self.tail):
                waiting.append(self.waiting[i])
        for row, hit_end in self.stored.due(waiting):
            self.stored.count_attempt(row)
            self._prefetch(row, hit_end)
        return 0

    def _admit(self, row):
        """Add a waiting request to the batch if it fits. The verdict says whether others may fit, too."""
        requests: Requests = self.requests
        node: cython.int = self.node[row]
        host_hit: cython.longlong = self._host_hit()
        whole: cython.longlong = self.fill[row] - self.prefix[row] + self.page
        whole += self._clip(max(self.limit[row] - self.outputs[row], 0))
        self.loaded[row] = 0
        self.cache.lock(node, ROOT)
        verdict: cython.int = self._fit(row, whole, host_hit)
        if verdict == CONTINUE and host_hit and not self._load_back(row):
            verdict = self._fit(row, whole, 0)
        if verdict != CONTINUE:
            self.cache.unlock(node)
            return verdict
        if self.node[row] != node:
            self.cache.lock(self.node[row], ROOT)
            self.cache.unlock(node)
        if self.extend_cut:
            self.new_chunked = cython.cast(cython.int, row)
        if requests.preempted[row]:
            requests.recomputed[row] += self.fill[row] - self.prefix[row]
        self.prefill -= min(self.prefix[row], requests.tokens[row])
        self.end[row], self.locked[row] = self.prefix[row] + self.extend_tokens, self.node[row]
        self._add_part(row, self.prefix[row], self.extend_tokens)
        self._charge(self.extend_tokens, 0 if self.extend_cut else self._clip(self.limit[row]))
        return self._state()

    def _fit(self, row, whole, host_hit):
        """Whether a request fits that needs `whole` tokens and has so many on the host; then what it computes now."""
        extend: cython.longlong = self.fill[row] - self.prefix[row] - host_hit
        paged: cython.longlong = self._paged(extend)
        self.extend_cut = False
        if not whole < self._left():
            return NO_TOKEN
        if not self.limits.chunk_tokens:
            if self.parts and paged >= self.input_left:
                return OTHER
        elif paged > self.chunk_left:
            extend = self.chunk_left // self.page * self.page
            if extend <= 0:
                return OTHER
            self.extend_cut = True
        self.extend_tokens = extend
        return CONTINUE

    def _load_back(self, row):
        """Load what a request's match has on the host; False if it is not loaded."""
        hosted: HiPagedRadix = self.hosted
        hosted.now, hosted.busy = self.now, self.free_at
        best: cython.int = hosted.best
        pages: cython.longlong = hosted.load_back(best, hosted.host_hit)
        self.now = hosted.now
        if pages == 0:
            return False
        self.loaded[row] = pages * self.page
        self.prefix[row] += self.loaded[row]
        self.owned[row] += pages
        self.node[row] = best
        return True

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
        candidate: cython.Py_ssize_t
        order: list = []
        victims: list = []
        need: cython.double = self.fill[row] - self.prefix[row] + self._clip(self.limit[row]) - self._left()
        for i in range(self.count):
            candidate = self.running[i]
            if self._rank(candidate) - self._rank(row) > self.limits.threshold:
                order.append((-self._rank(candidate), -self.entered[candidate], candidate))
        order.sort()
        for entry in order:
            candidate = entry[2]
            if requests.preempted[candidate] > MOST_PREEMPTIONS:
                raise UsageError("SGLang 0.5.23 would preempt a request for ever. Set disable_priority_preemption.")
            victims.append(candidate)
            need -= self._expected(candidate)
            if need <= 0:
                break
        if not victims or need > 0:
            return False
        self._preempt(set(victims))
        return True

    def _preempt(self, victims: set):
        """Release running requests; they wait again once the batch is planned, in the order of a set, as in SGLang."""
        i: cython.int
        row: cython.Py_ssize_t
        stay: cython.int = 0
        gone: cython.int = 0
        for i in range(self.count):
            row = self.running[i]
            if row in victims:
                gone += 1
                self.needed -= self._expected(row)
                self._drop(row, self.count - gone)
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
        if self.hosted is not None:
            self.hosted.now, self.hosted.busy = self.now, self.free_at
            self.loaded_at = self.hosted.start_loading()
        self._make_room(self._pages(tokens) + (self.parts if self.page > 1 else 0))
        return self._take_pages(pages)

    def _add_part(self, row, before, tokens):
        self.batch_row[1 - self.side, self.parts] = cython.cast(cython.int, row)
        self.part_before[self.parts], self.part_tokens[self.parts] = before, tokens
        self.parts += 1
        return 0
