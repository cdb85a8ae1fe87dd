"""An engine without limits that takes as long as was recorded: each request ends its service time after its arrival."""

from heapq import heappop, heappush

import cython
import numpy as np
from cython.cimports.kvtrace.serving.core.instance import Instance
from cython.cimports.kvtrace.serving.core.requests import Requests
from cython.cimports.libc.math import nextafter

NEVER = cython.declare(cython.double, 1e300)


class RecordedInstance(Instance):
    """Requests that run at once. `service` has the seconds of each; `under_way` is a heap of (end, row)."""

    def __init__(self, engine, requests, cost, service):
        Instance.__init__(self, engine, requests, cost)
        self.service = np.ascontiguousarray(service, dtype=np.float64)
        self.under_way, self.admissions = [], 0

    def active(self):
        return len(self.under_way)

    def take(self, row):
        requests: Requests = self.requests
        at: cython.double = requests.arrival[row]
        size: cython.longlong = self.engine.context.trace.block_size
        self.now = max(self.now, at)
        self.engine.context.request, self.engine.context.order = row, self.admissions
        self.engine.context.now = at * 1000
        self.admissions += 1
        self.engine.serve(row)
        requests.started[row] = at
        requests.cached[row] = min(self.engine.hit[row] * size, requests.tokens[row])
        self.load += requests.tokens[row]
        self.blocks += requests.need[row]
        heappush(self.under_way, (at + self.service[row], row))
        return self._note_state()

    def run(self, until):
        row: cython.Py_ssize_t
        end: cython.double
        self.until = until
        while self.under_way and self.under_way[0][0] <= self.until:
            self._begin_turn()
            end, row = heappop(self.under_way)
            self.now = max(self.now, end)
            self.load -= self.requests.tokens[row]
            self.blocks -= self.requests.need[row]
            self.requests.first[row] = end  # when the first token came was not recorded
            self.engine._end(row)
            self._note_state()
            self._ended(row, end)
        return 0

    def next_turn(self):
        """Just before the next end, so that a request that arrives then finds it ended."""
        return nextafter(self.under_way[0][0], -NEVER) if self.under_way else NEVER

    def _note_state(self):
        return self._note(self.now, len(self.under_way), 0, self.blocks)
