"""Serving simulation: instances, each with a scheduler and a prefix cache, behind a router.

Hits shorten prefills, which changes when requests end, which changes the hits; the simulation follows this loop event
by event. A request is routed at its arrival, when all instances have taken the steps that began before it.
"""

import cython
from cython.cimports.kvtrace.serving.core.instance import Instance
from cython.cimports.kvtrace.serving.core.requests import Requests
from cython.cimports.kvtrace.serving.core.router import Router

NEVER = cython.declare(cython.double, 1e300)


class Serving:
    """The requests, in order of arrival, on instances that hold `capacity` blocks each."""

    def __init__(self, instances, router: Router, requests: Requests, capacity):
        self.instances, self.router, self.requests, self.capacity = instances, router, requests, capacity
        self.row = 0

    @property
    def busy(self):
        """Seconds of computing of each instance."""
        return [cython.cast(Instance, one).busy for one in self.instances]

    def advance(self, rows):
        """Let the next `rows` requests arrive."""
        one: Instance
        requests: Requests = self.requests
        stop: cython.Py_ssize_t = min(self.row + rows, requests.tokens.shape[0])
        while self.row < stop:
            for one in self.instances:
                one.run(requests.arrival[self.row])
            self._arrive(self.row)

    def _arrive(self, row):
        """A request arrives: it is routed. False if it is rejected, because it does not fit any instance."""
        one: Instance
        chosen: cython.int
        requests: Requests = self.requests
        fits: cython.bint = requests.need[row] <= self.capacity
        if fits:
            self._update_router(requests.arrival[row])
            self.router.turn = self.row
            chosen = self.router.send(row)
            requests.instance[row] = chosen
            one = self.instances[chosen]
            one.send(row)
        self.row += 1
        return fits

    def close(self):
        """Run all instances until no request is left, then self-check each cache."""
        one: Instance
        for one in self.instances:
            one.run(NEVER)
        for one in self.instances:
            one.engine.close()

    def _update_router(self, now):
        """Update the router's counts of each instance: those after the last step that has ended."""
        i: cython.int
        one: Instance
        router: Router = self.router
        for i in range(router.count):
            one = self.instances[i]
            if one.now > now:  # in a step
                router.load[i], router.waiting[i] = one.load_before, one.prefill_before
                router.blocks[i], router.active[i] = one.blocks_before, one.active_before
            else:
                router.load[i], router.waiting[i] = one.load, one.prefill
                router.blocks[i], router.active[i] = one.blocks, one.active()
