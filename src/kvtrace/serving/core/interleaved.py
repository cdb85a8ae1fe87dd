"""Instances that affect each other: one loop in time over their turns, and over events between them."""

from heapq import heappop, heappush

import cython
from cython.cimports.kvtrace.serving.core.instance import Instance, Requests
from cython.cimports.kvtrace.serving.core.serving import Router, Serving
from cython.cimports.libc.math import nextafter

NOBODY = cython.declare(cython.int, -1)
NEVER = cython.declare(cython.double, 1e300)


class InterleavedServing(Serving):
    """Serving simulation of instances that affect each other: the turn that begins first is always the next one.

    A turn is a call of an instance's `run`: a step, or several that are taken together. It begins at `next_turn()`, and
    lasts up to the next event, or to the horizon of another instance, which is the time before which that instance
    affects no other. Of one moment, events come first, by their kinds and then by their rows, then arrivals, then
    turns; of turns the first instance's. So a step sees all that happened up to its begin, and what it does to others
    when it ends is an event at its end.

    A subclass defines `happen`; `settle` is called after the last event of each moment. It may define `horizon`: the
    later it is, the more steps are taken together. An instance in its turn may call `at`: it then runs no further than
    to that event. Twin: `Serving` for instances that do not affect each other.
    """

    def __init__(self, instances, router: Router, requests: Requests, capacity):
        Serving.__init__(self, instances, router, requests, capacity)
        self.events, self.running, self.turns = [], NOBODY, 0

    def advance(self, rows):
        """Let the next `rows` requests arrive."""
        stop: cython.Py_ssize_t = min(self.row + rows, self.requests.tokens.shape[0])
        while self.row < stop:
            self.run_until(self.requests.arrival[self.row])
            self._arrive(self.row)

    def close(self):
        """Run all instances until no request is left, then self-check each cache."""
        instance: Instance
        self.run_until(NEVER)
        for instance in self.instances:
            instance.engine.close()

    def at(self, seconds, kind, row):
        """Something happens at a time that is not before the present one: `happen` gets its kind and its row."""
        instance: Instance
        heappush(self.events, (seconds, kind, row))
        if self.running != NOBODY:
            instance = self.instances[self.running]
            instance.until = min(instance.until, seconds)
        return 0

    def happen(self, seconds, kind, row):
        """An event happens. All turns that began before it have been taken."""
        return 0

    def settle(self, seconds):
        """All events of a moment have happened."""
        return 0

    def horizon(self, i):
        """The time before which an instance neither affects another one nor causes an event."""
        instance: Instance = self.instances[i]
        return instance.next_turn()

    def run_until(self, until):
        """Let all events happen up to a time, and take all turns that begin before it."""
        event: tuple
        while self._turn(until):
            event = heappop(self.events)
            self.happen(event[0], event[1], event[2])
            if not self.events or self.events[0][0] > event[0]:
                self.settle(event[0])
        return 0

    def _turn(self, until):
        """Take turns up to the next event; False if there is none up to a time, and no turn begins before it."""
        i: cython.int
        first: cython.int
        begin: cython.double
        earliest: cython.double
        bound: cython.double  # before which no other instance affects this one
        event: cython.double
        instance: Instance
        while True:
            event = self.events[0][0] if self.events else NEVER
            earliest, first = NEVER, NOBODY
            for i in range(len(self.instances)):
                instance = self.instances[i]
                begin = instance.next_turn()
                if begin < earliest:
                    earliest, first = begin, i
            if event <= until and event <= earliest and event < NEVER:
                return True
            if earliest >= until:
                return False
            bound = min(event, until)
            for i in range(len(self.instances)):
                if i != first and bound > earliest:
                    bound = min(bound, self.horizon(i))
            instance = self.instances[first]
            self.running = first
            self.turns += 1
            instance.run(max(bound, nextafter(earliest, NEVER)))
            self.running = NOBODY
