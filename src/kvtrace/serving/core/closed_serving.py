"""Serving simulation in a closed loop: the ends of requests decide when others arrive.

No instance runs past an arrival that an end can still cause. One instance runs up to the next arrival that is known,
and its ends can only bring that forward. Of several, the one that is furthest behind runs, up to its first end or to
the first arrival that another one can cause: an end there, after the steps that its tokens still need, and then a
delay. So routers see what they see in the open loop with the same arrivals.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.serving.core.closed_loop import ClosedLoop
from cython.cimports.kvtrace.serving.core.instance import Instance
from cython.cimports.kvtrace.serving.core.requests import Requests
from cython.cimports.kvtrace.serving.core.router import Router
from cython.cimports.kvtrace.serving.core.serving import Serving
from cython.cimports.libc.math import nextafter

NEVER = cython.declare(cython.double, 1e300)
NOBODY = cython.declare(cython.int, -1)
IN_FLIGHT = cython.declare(cython.longlong, 2)  # steps that can have begun whose tokens are not counted yet


class ClosedServing(Serving):
    """The requests of a closed loop, on instances that hold `capacity` blocks each."""

    def __init__(self, instances, router: Router, requests: Requests, capacity, loop: ClosedLoop):
        Serving.__init__(self, instances, router, requests, capacity)
        self.loop, self.over = loop, False
        self.horizon, self.looked = np.full((2, len(instances)), -1.0)
        self.newest = np.full(len(instances), NOBODY, dtype=np.int32)
        self.older = np.full(requests.tokens.shape[0] if loop.several else 0, NOBODY, dtype=np.int32)
        for one in instances:
            one.loop = loop

    def advance(self, rows):
        """Let the next `rows` requests arrive; `over` is true after the last one."""
        row: cython.Py_ssize_t
        while rows > 0 and not self.over:
            self._reach_next_arrival()
            if self.loop.next_arrival() >= NEVER:
                self.over = True
                break
            row = self.loop.take()
            if not self._arrive(row):  # who waits for a rejected request goes on at once
                self.loop.complete(row, self.requests.arrival[row])
            elif self.loop.several:
                self._watch(row)
            rows -= 1

    def _reach_next_arrival(self):
        """Run all steps that begin before the next arrival, which may be one that these steps cause."""
        i: cython.int
        behind: cython.int
        begin: cython.double
        earliest: cython.double = 0
        bound: cython.double  # before which no other instance causes an arrival
        following: cython.double
        one: Instance
        while earliest < NEVER:
            earliest = bound = NEVER
            behind = 0
            for i in range(len(self.instances)):
                one = self.instances[i]
                begin = one.next_turn()
                following = begin
                if self.loop.several and begin < NEVER:
                    following = self._horizon(i, one, begin)
                if begin < earliest:
                    bound = min(bound, self.horizon[behind]) if earliest < NEVER else bound
                    earliest, behind = begin, i
                else:
                    bound = min(bound, following)
            if self.loop.settle(earliest):
                earliest = 0
            elif earliest >= self.loop.next_arrival():
                return 0
            else:
                one = self.instances[behind]
                one.run(min(self.loop.next_event(), max(bound, nextafter(earliest, NEVER))))
        return 0

    def _horizon(self, i, one, begin):
        """The time before which an instance causes no arrival. It is computed anew when that has passed."""
        row: cython.int = self.newest[i]
        newer: cython.int = NOBODY
        steps: cython.longlong
        if self.horizon[i] > begin or self.looked[i] == begin:
            return self.horizon[i]
        self.looked[i], self.horizon[i] = begin, NEVER
        while row != NOBODY:
            if self.requests.ended[row] == self.requests.ended[row]:  # not NaN: it has ended
                if newer == NOBODY:
                    self.newest[i] = self.older[row]
                else:
                    self.older[newer] = self.older[row]
            else:
                steps = max(0, one.steps_left(row) - IN_FLIGHT)
                self.horizon[i] = min(self.horizon[i], begin + steps * one.least_step_s + self.loop.lead[row])
                newer = row
            row = self.older[row]
        return self.horizon[i]

    def _watch(self, row):
        """A request was sent to an instance."""
        i: cython.int = self.requests.instance[row]
        one: Instance = self.instances[i]
        at: cython.double = self.requests.arrival[row]
        steps: cython.longlong = max(0, self.requests.output[row] - IN_FLIGHT)
        self.older[row], self.newest[i] = self.newest[i], cython.cast(cython.int, row)
        self.horizon[i] = min(self.horizon[i], at + steps * one.least_step_s + self.loop.lead[row])
        self.looked[i] = -1
        return 0
