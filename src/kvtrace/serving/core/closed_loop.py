"""The arrivals of a closed loop: lanes play session trees, and a request arrives after what it waits for.

A lane takes the next tree when all requests of its tree have ended. A request without dependencies arrives at an offset
from that moment; another one at the latest of its dependencies: when the request that it names arrived or ended, plus a
delay. Ties: the first row. Waiting times are on the clock of their lane, so that an idle cap moves all of them forward
together. Twin: tests/reference/closed_loop.py.
"""

from heapq import heappop, heappush

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE
from cython.cimports.kvtrace.cache.structures.heap import Heaps
from cython.cimports.kvtrace.serving.core.requests import Requests

NEVER = cython.declare(cython.double, 1e300)
DISPATCH = cython.declare(cython.int, 0)  # as in trace/dependencies.py
COMPLETION = cython.declare(cython.int, 1)


class ClosedLoop:
    """Plays of session trees on lanes.

    `plays` has arrays: `first` and `rows` (the rows of each play, end to end); of each row `play`, `offset` (seconds),
    `waits` (its dependencies) and `lead` (the least seconds from its end to an arrival that it can cause); and the rows
    that wait for it (`start`, `waiting`, `trigger`, `delay`). `primers` are rows with their lanes: they arrive first,
    and the lanes begin when all of them have ended.
    """

    def __init__(self, requests: Requests, plays, lanes, several=False, primers=((), ()), warm_up=0, duration=NEVER,
                 idle_cap=NEVER, tree_cap=NEVER):  # fmt: skip
        rows: cython.Py_ssize_t = len(plays["play"])
        self.requests = requests
        self.first, self.rows, self.play, self.offset = plays["first"], plays["rows"], plays["play"], plays["offset"]
        self.start, self.waiting = plays["start"], plays["waiting"]
        self.trigger, self.delay, self.lead = plays["trigger"], plays["delay"], plays["lead"]
        self.missing = np.array(plays["waits"], dtype=np.int32)
        self.ready, self.caused, self.planned = np.zeros((3, rows))
        self.arrived, self.completed = np.empty((2, rows), dtype=np.int32)
        self.several, self.unsettled, self.seen, self.ended = several, [], 0, 0
        self.primes = np.full(rows, -1, dtype=np.int32)
        self.lanes, self.warm_up, self.duration = lanes, warm_up, duration
        self.idle_cap, self.tree_cap = idle_cap, tree_cap
        self.timers, self.order = Heaps(rows, lanes), Heaps(lanes, 1)
        plays_in_all: cython.Py_ssize_t = len(plays["first"]) - 1
        self.play_lane = np.full(plays_in_all, -1, dtype=np.int32)
        self.begins, self.ends = np.full((2, plays_in_all), np.nan)
        self.left, self.issued, self.lane_outstanding = np.zeros((3, lanes), dtype=np.int64)
        self.lane_shift, self.lane_end = np.zeros((2, lanes))
        self.count = self.outstanding = self.cursor = self.window_from = 0
        self.shift, self.tree_shift, self.last_end, self.window_start, self.deadline = 0, 0, 0, -1, NEVER
        self.cold, self.exhausted = lanes, False
        self._start(*primers)

    @property
    def outcome(self):
        """Rows in order of arrival, the plays, and the window."""
        return {
            "rows": np.asarray(self.arrived)[: self.count].copy(),
            "completed": np.asarray(self.completed)[: self.ended].copy(), "lane": np.asarray(self.play_lane),
            "begins": np.asarray(self.begins), "ends": np.asarray(self.ends), "plays": self.cursor,
            "window_from": self.window_from, "window_start": self.window_start, "deadline": self.deadline,
            "exhausted": self.exhausted, "idle_s": self.shift, "tree_idle_s": self.tree_shift,
            "unfinished": int(np.asarray(self.left).sum()),
        }  # fmt: skip

    @property
    def due(self):
        """Row -> when it arrives by what has ended so far, in seconds with the idle time that caps left out."""
        return np.asarray(self.planned)

    def next_arrival(self):
        """When the next request arrives, NEVER if none does before one ends."""
        at: cython.double = self._next_timer()
        return at if at < self.deadline else NEVER

    def take(self):
        """The next request arrives; returns its row."""
        lane: cython.int = self.order.first(0)
        row: cython.int = self.timers.first(lane)
        at: cython.double = max(self._next_timer(), self.caused[row])
        self.timers.drop(row)
        self._place(lane)
        self.requests.arrival[row] = at
        self.arrived[self.count] = row
        self.count += 1
        self.outstanding += 1
        self.lane_outstanding[lane] += 1
        if self.primes[row] < 0:
            self.issued[lane] += 1
            self._release(row, lane, DISPATCH, at)
            if self.issued[lane] == self.warm_up:
                self._warmed(at)
        return row

    def complete(self, row, at):
        """A request has ended. Of several instances, the ends wait for `settle`, which takes them in order of time."""
        if not self.several:
            return self._complete(row, at)
        heappush(self.unsettled, (at, self.seen, row))
        self.seen += 1
        return 0

    def next_event(self):
        """When the next request arrives, or the first end that is not settled; NEVER if there is neither."""
        return min(self.next_arrival(), self.unsettled[0][0]) if self.unsettled else self.next_arrival()

    def settle(self, until):
        """Take the first end, if it is up to a time before which no other end can come, and no arrival is before it."""
        at: cython.double
        row: cython.Py_ssize_t
        if not self.unsettled or self.unsettled[0][0] > min(until, self.next_arrival()):
            return False
        at, _, row = heappop(self.unsettled)
        self._complete(row, at)
        return True

    def _complete(self, row, at):
        lane: cython.int = self.primes[row] if self.primes[row] >= 0 else self.play_lane[self.play[row]]
        self.completed[self.ended] = cython.cast(cython.int, row)
        self.ended += 1
        self.outstanding -= 1
        self.lane_outstanding[lane] -= 1
        self.last_end = max(self.last_end, at)
        self.lane_end[lane] = max(self.lane_end[lane], at)
        if self.primes[row] >= 0:
            self.primers_left -= 1
            return self._begin(self.last_end) if self.primers_left == 0 else 0
        self._release(row, lane, COMPLETION, at)
        self.left[lane] -= 1
        if self.left[lane] == 0:
            self.ends[self.play[row]] = self.lane_end[lane]
            self._take_play(lane, self.lane_end[lane])
        self._cap_tree(lane)
        self._cap_all()
        return 0

    # ---- lanes

    def _start(self, primers, primer_lanes):
        """Primers arrive at 0; without primers the lanes begin."""
        row: cython.int
        lane: cython.int
        self.primers_left = len(primers)
        for one, of in zip(primers, primer_lanes, strict=True):
            row, lane = one, of
            self.primes[row] = lane
            self._set_timer(row, lane, 0)
        if not self.primers_left:
            self._begin(0)

    def _begin(self, at):
        """All lanes take their first trees."""
        lane: cython.int
        if self.warm_up == 0:
            self._open_window(at)
        for lane in range(self.lanes):
            self.lane_end[lane] = at
            self._take_play(lane, at)
            self._cap_tree(lane)
        self._cap_all()
        return 0

    def _take_play(self, lane, at):
        """A lane takes the next tree, if one is left and time is."""
        k: cython.Py_ssize_t
        row: cython.int
        play: cython.Py_ssize_t = self.cursor
        self.lane_shift[lane] = 0
        if at >= self.deadline or play == self.first.shape[0] - 1:
            self.exhausted |= at < self.deadline
            if self.issued[lane] < self.warm_up:
                self._warmed(at)
            return 0
        self.cursor += 1
        self.play_lane[play], self.begins[play] = lane, at
        self.left[lane] = self.first[play + 1] - self.first[play]
        for k in range(self.first[play], self.first[play + 1]):
            row = self.rows[k]
            if self.missing[row] == 0:
                self.caused[row] = at
                self._set_timer(row, lane, at + self.shift + self.offset[row])
        return 0

    def _warmed(self, at):
        """A lane has issued its warm-up requests, or has no tree left; with the last one the window opens."""
        self.cold -= 1
        if self.cold == 0:
            self._open_window(at)
        return 0

    def _open_window(self, at):
        self.window_start, self.window_from = at, self.count
        self.deadline = at + self.duration
        return 0

    # ---- timers

    def _release(self, row, lane, trigger, at):
        """Those that wait for a request's arrival, or for its end, wait for one request less."""
        k: cython.Py_ssize_t
        waiting: cython.int
        clock: cython.double = at + self.shift + self.lane_shift[lane]
        for k in range(self.start[row], self.start[row + 1]):
            if self.trigger[k] == trigger:
                waiting = self.waiting[k]
                self.ready[waiting] = max(self.ready[waiting], clock + self.delay[k])
                self.caused[waiting] = max(self.caused[waiting], at)
                self.missing[waiting] -= 1
                if self.missing[waiting] == 0:
                    self._set_timer(waiting, lane, self.ready[waiting])
        return 0

    def _set_timer(self, row, lane, clock):
        self.timers.put(lane, row, clock, row)
        self.planned[row] = clock - self.lane_shift[lane]
        return self._place(lane)

    def _place(self, lane):
        """Put a lane at the place of its first timer."""
        row: cython.int = self.timers.first(lane)
        if self.order.holds(lane):
            self.order.drop(lane)
        if row != NONE:
            self.order.put(0, lane, self.timers.key[row] - self.lane_shift[lane], row)
        return 0

    def _next_timer(self):
        lane: cython.int = self.order.first(0)
        return self.order.key[lane] - self.shift if lane != NONE else NEVER

    def _cap_tree(self, lane):
        """If a tree has nothing outstanding, its first timer is at most `tree_cap` later; the others move with it."""
        row: cython.int = self.timers.first(lane)
        excess: cython.double
        if self.lane_outstanding[lane] or row == NONE or self.tree_cap >= NEVER:
            return 0
        excess = self.timers.key[row] - self.lane_shift[lane] - self.shift - self.lane_end[lane] - self.tree_cap
        if excess > 0:
            self.lane_shift[lane] += excess
            self.tree_shift += excess
            self.planned[row] -= excess
            self._place(lane)
        return 0

    def _cap_all(self):
        """If nothing is outstanding, the first timer is at most `idle_cap` later; all others move with it."""
        at: cython.double = self._next_timer()
        if self.outstanding == 0 and at < NEVER:
            self.shift += max(0.0, at - self.last_end - self.idle_cap)
        return 0
