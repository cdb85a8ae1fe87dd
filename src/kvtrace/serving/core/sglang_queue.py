"""What SGLang's scheduler knows of each request, and its queue (0.5.23, srt/managers/schedule_policy.py).

The queue is in order of arrival, or of priority; retracted requests enter it anew. With lpm, the longest cached prefix
comes first. Twin of the five files: tests/reference/sglang_scheduler.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.paged_radix import PagedRadix
from cython.cimports.kvtrace.serving.core.instance import Instance
from cython.cimports.kvtrace.serving.core.requests import Requests

NOBODY = cython.declare(cython.int, -1)
MATCHED_WAITING = cython.declare(cython.Py_ssize_t, 128)  # waiting requests that are matched, or touched
TOUCH_EVERY = cython.declare(cython.longlong, 32)  # passes
SHARED_PREFIX = cython.declare(cython.longlong, 32)  # tokens; in-batch prefix caching
LAST = cython.declare(cython.longlong, 1 << 62)  # a key after all others


class SglangQueue(Instance):
    """The state of an instance of SGLang; `settings` is a dict of the fields of SglangLimits (sglang_queue.pxd).

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
