"""Serving simulation in a closed loop: the ends of requests decide when others arrive.

No instance runs past an arrival that an end can still cause. One instance runs up to the next arrival that is known,
and its ends can only bring that forward. Of several, the one that is furthest behind runs, up to the time of the next
one: until then nothing else can happen. So routers see what they see in the open loop with the same arrivals.
"""

import cython
from cython.cimports.kvtrace.serving.core.closed_loop import ClosedLoop
from cython.cimports.kvtrace.serving.core.instance import Instance
from cython.cimports.kvtrace.serving.core.requests import Requests
from cython.cimports.kvtrace.serving.core.router import Router
from cython.cimports.kvtrace.serving.core.serving import Serving
from cython.cimports.libc.math import nextafter

NEVER = cython.declare(cython.double, 1e300)


class ClosedServing(Serving):
    """The requests of a closed loop, on instances that hold `capacity` blocks each."""

    def __init__(self, instances, router: Router, requests: Requests, capacity, loop: ClosedLoop):
        Serving.__init__(self, instances, router, requests, capacity)
        self.loop, self.over = loop, False
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
            rows -= 1

    def _reach_next_arrival(self):
        """Run all steps that begin before the next arrival, which may be one that these steps cause."""
        one: Instance
        behind: Instance
        begin: cython.double
        earliest: cython.double = 0
        following: cython.double
        while earliest < NEVER:
            behind = self.instances[0]
            earliest = following = NEVER
            for one in self.instances:
                begin = one.next_turn()
                if begin < earliest:
                    earliest, following, behind = begin, earliest, one
                elif begin < following:
                    following = begin
            if self.loop.settle(earliest):
                earliest = 0
            elif earliest >= self.loop.next_arrival():
                return 0
            else:
                behind.run(min(self.loop.next_event(), max(following, nextafter(earliest, NEVER))))
        return 0
