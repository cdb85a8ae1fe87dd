"""Requests in simulated time, the time of a step, and the instances that all schedulers are made from."""

from heapq import heappop, heappush

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE
from cython.cimports.kvtrace.cache.structures.queues import Heaps
from cython.cimports.libc.math import nextafter, pow


class Requests:
    """The requests of a simulation in time: what they ask for, where they stand, and their times in seconds."""

    def __init__(self, arrival, tokens, output, need, priority=None):
        rows = len(tokens)
        self.arrival = np.array(arrival, dtype=np.float64)
        self.tokens, self.output, self.need, self.priority = (
            np.ascontiguousarray(column, dtype=np.int64)
            for column in (tokens, output, need, np.zeros(rows) if priority is None else priority)
        )
        self.instance = np.full(rows, -1, dtype=np.int32)
        self.computed, self.goal, self.cached, self.recomputed = np.zeros((4, rows), dtype=np.int64)
        self.following, self.preempted = np.zeros((2, rows), dtype=np.int32)
        self.sampled, self.sampled_before = np.full((2, rows), -1, dtype=np.int64)
        self.ready = np.zeros(rows)
        self.started, self.first, self.ended = np.full((3, rows), np.nan)

    @property
    def outcomes(self):
        """Results by name: arrays with one value per request."""
        return {
            "arrival": np.asarray(self.arrival), "instance": np.asarray(self.instance),
            "started": np.asarray(self.started), "first": np.asarray(self.first), "ended": np.asarray(self.ended),
            "cached": np.asarray(self.cached), "preempted": np.asarray(self.preempted),
            "recomputed": np.asarray(self.recomputed),
        }  # fmt: skip


# The time of a step: the longer of compute and memory time, likewise of experts, plus what overlaps with neither.
#
# Or Dynamo's: a polynomial of the prompt tokens to compute, plus one of the context of the requests that decode.


def begin_work(work):
    """The work of a step without requests."""
    work.requests = work.tokens = work.pairs = work.read = work.context = 0
    work.prefills = work.prompt_before = work.prompt_after = 0


def add_part(work, computed, chunk, prompt, goal):
    """Add a chunk of a request after its first `computed` tokens; with `goal` tokens it gives an output token."""
    work.requests += 1
    work.tokens += chunk
    if chunk == 1 and computed >= prompt:  # it decodes
        work.read += computed + 1
    else:
        work.pairs += cython.cast(cython.double, chunk) * (2 * computed + chunk)
        work.read += computed
    if computed < prompt:
        work.prefills += 1
        work.prompt_before += computed
        work.prompt_after += min(computed + chunk, prompt)
    if goal > prompt and computed + chunk == goal:
        work.context += goal


def expert_seconds(cost, tokens):
    """Seconds of the routed experts: their products, or the reading of those that some token of the step uses.

    Each token uses a share of the experts, as if drawn at random: after n tokens (1 - share)^n of them are untouched.
    """
    touched: cython.double
    if cost.expert_step_s == 0:
        return cost.expert_token_s * tokens
    touched = 1 - pow(1 - cost.expert_share, tokens)
    return max(cost.expert_token_s * tokens, cost.expert_step_s * touched)


def exchange_seconds(cost, tokens):
    """Seconds of what GPUs exchange for the tokens of a step, without the fixed ones of small steps."""
    bulk: cython.double
    seconds: cython.double = cost.exchange_s * tokens
    if cost.bulk_exchange_s > 0:
        bulk = cost.bulk_exchange_step_s + cost.bulk_exchange_s * tokens
        if bulk < seconds or 0 < cost.bulk_exchange_tokens < tokens:
            seconds = bulk
    return seconds


def window_seconds(cost, work):
    """Seconds of attention within windows. The requests' sums bound what each of them reads and pairs.

    Where all contexts are shorter than the window, or all longer, this is exact; else it is a little too much.
    """
    if cost.window_tokens <= 0:
        return 0
    read: cython.double = min(work.read, cost.window_tokens * work.requests)
    pairs: cython.double = min(work.pairs, 2 * cost.window_tokens * work.tokens)
    return cost.window_read_s * read + cost.window_pair_s * pairs


def step_seconds(cost, work):
    """Seconds of a step."""
    if cost.is_polynomial:
        return _polynomial_step(cost, work)
    computing: cython.double = cost.token_s * work.tokens + cost.pair_s * work.pairs
    overlapped: cython.double = max(computing, cost.step_s + cost.read_s * work.read)
    products: cython.double = overlapped + expert_seconds(cost, work.tokens)
    alone: cython.double = cost.overhead_s + cost.request_s * work.requests + exchange_seconds(cost, work.tokens)
    attention: cython.double = cost.attention_pair_s * work.pairs + cost.attention_read_s * work.read
    seconds: cython.double = products + alone + attention + window_seconds(cost, work)
    if work.prefills > 0 and work.tokens > cost.graph_tokens:
        seconds = max(seconds, cost.launch_s)
    return seconds


def decode_seconds(cost, batch, context, steps):
    """Seconds of steps that only decode. The first reads `context` tokens, each later one `batch` tokens more.

    Their experts and what GPUs exchange depend on the tokens of a step alone, so each of the steps takes the same.
    """
    if cost.is_polynomial:
        return _polynomial_decode(cost, batch, context, steps)
    compute: cython.double = cost.token_s * batch
    bound: cython.double = 0  # steps until memory time exceeds compute time
    if cost.read_s > 0:
        bound = min(max((compute - cost.step_s) / cost.read_s - context, 0.0) / batch, 1e15)
    elif compute > cost.step_s:
        bound = 1e15
    before: cython.longlong = min(steps, cython.cast(cython.longlong, bound) + (bound > 0))
    after: cython.double = steps - before
    sum_of: cython.double = after * before + after * (after - 1) / 2  # sum of the step numbers after `before`
    read: cython.double = after * (cost.step_s + cost.read_s * context) + cost.read_s * batch * sum_of
    all_steps: cython.double = steps
    reads: cython.double = all_steps * context + batch * all_steps * (all_steps - 1) / 2
    each: cython.double = cost.overhead_s + cost.request_s * batch + exchange_seconds(cost, batch)
    each += expert_seconds(cost, batch)
    alone: cython.double = all_steps * each + cost.attention_read_s * reads
    return before * compute + read + alone + cost.window_read_s * _window_reads(cost, batch, context, steps)


def _window_reads(cost, batch, context, steps):
    """Tokens that windows read in steps that only decode: the contexts, until each request's window is full."""
    full: cython.double = batch * cost.window_tokens
    if full <= 0:
        return 0
    growing: cython.longlong = 0  # steps whose contexts fit in the windows
    if context <= full:
        growing = min(steps, cython.cast(cython.longlong, min((full - context) / batch, 1e15)) + 1)
    n: cython.double = growing
    return n * context + batch * n * (n - 1) / 2 + (steps - growing) * full


def _polynomial_step(cost, work):
    """Dynamo's seconds of a step. It counts prompt tokens by whole-number means: requests x (mean after - before)."""
    tokens: cython.double = 0
    seconds: cython.double = 0
    if work.prefills:
        tokens = work.prefills * (work.prompt_after // work.prefills - work.prompt_before // work.prefills)
    if tokens > 0:
        seconds = (cost.prefill_square_s * tokens + cost.prefill_token_s) * tokens + cost.prefill_step_s
    return seconds + _polynomial_decode(cost, 0, work.context, 1) if work.context > 0 else seconds


def _polynomial_decode(cost, batch, context, steps):
    """Dynamo's seconds of steps that only decode, as `decode_seconds`: sums of the steps' numbers and their squares."""
    cache_tokens: cython.double = cost.cache_tokens
    within: cython.longlong = steps  # steps with a context of at most `cache_tokens`
    if context > cache_tokens:
        within = 0
    elif batch > 0:
        within = min(steps, cython.cast(cython.longlong, min((cache_tokens - context) / batch, 1e15)) + 1)
    n: cython.double = within
    numbers: cython.double = n * (n - 1) / 2
    squares: cython.double = numbers * (2 * n - 1) / 3
    tokens: cython.double = n * context + batch * numbers
    tokens_squared: cython.double = n * context * context + 2 * context * batch * numbers + batch * batch * squares
    full: cython.double = (cost.decode_square_s * cache_tokens + cost.decode_token_s) * cache_tokens
    sums: cython.double = cost.decode_square_s * tokens_squared + cost.decode_token_s * tokens
    return sums + (steps - within) * full + steps * cost.decode_step_s


# The arrivals of a closed loop: lanes play session trees, and a request arrives after what it waits for.
#
# A lane takes the next tree when all requests of its tree have ended. A request without dependencies arrives at an
# offset from that moment; another one at the latest of its dependencies: when the request that it names arrived or
# ended, plus a delay. Ties: the first row. Waiting times are on the clock of their lane, so that an idle cap moves all
# of them forward together. Twin: tests/reference/closed_loop.py.


NEVER = cython.declare(cython.double, 1e300)
DISPATCH = cython.declare(cython.int, 0)  # as in trace/dependencies.py
COMPLETION = cython.declare(cython.int, 1)


class SessionLanes:
    """Plays of session trees on lanes.

    `plays` has arrays: `first` and `rows` (the rows of each play, end to end); of each row `play`, `offset` (seconds),
    `waits` (its dependencies) and `lead` (the least seconds from its end to an arrival that it can cause); and the rows
    that wait for it (`start`, `waiting`, `trigger`, `delay`). `primers` are rows with their lanes: they arrive first,
    and the lanes begin when all of them have ended. `front` has the seconds that the API server takes for each row, one
    after another, and those of the way to the engine: a request is sent, and then taken by the engine.
    """

    def __init__(
        self, requests: Requests, plays, lanes, several, primers, warm_up, duration, idle_cap, tree_cap, front
    ):  # fmt: skip
        rows: cython.Py_ssize_t = len(plays["play"])
        self.requests = requests
        self.first, self.rows, self.play, self.offset = plays["first"], plays["rows"], plays["play"], plays["offset"]
        self.start, self.waiting = plays["start"], plays["waiting"]
        self.trigger, self.delay, self.lead = plays["trigger"], plays["delay"], plays["lead"]
        self.missing = np.array(plays["waits"], dtype=np.int32)
        self.ready, self.caused, self.planned = np.zeros((3, rows))
        self.arrived, self.completed = np.empty((2, rows), dtype=np.int32)
        self.several, self.unsettled, self.seen, self.ended = several, [], 0, 0
        self.front, self.front_delay = front
        self.sent, self.front_free = np.zeros(rows), 0
        self.primes = np.full(rows, -1, dtype=np.int32)
        self.lanes, self.warm_up, self.duration = lanes, warm_up, duration
        self.idle_cap, self.tree_cap = idle_cap, tree_cap
        self.timers, self.order = Heaps(rows, lanes), Heaps(lanes, 1)
        plays_in_all: cython.Py_ssize_t = len(plays["first"]) - 1
        self.play_lane = np.full(plays_in_all, -1, dtype=np.int32)
        self.begins, self.ends = np.full((2, plays_in_all), np.nan)
        self.left, self.issued, self.lane_outstanding = np.zeros((3, lanes), dtype=np.int64)
        self.lane_shift, self.lane_end = np.zeros((2, lanes))
        self.count = self.taken = self.outstanding = self.cursor = self.window_from = 0
        self.shift, self.tree_shift, self.last_end, self.window_start, self.deadline = 0, 0, 0, -1, NEVER
        self.cold, self.exhausted = lanes, False
        self._start(*primers)

    @property
    def outcome(self):
        """Rows in order of arrival, the plays, and the window."""
        return {
            "rows": np.asarray(self.arrived)[: self.count].copy(), "sent": np.asarray(self.sent),
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
        """When the next request arrives at the engine, NEVER if none does before one ends."""
        at: cython.double
        if self.taken < self.count:
            return self.requests.arrival[self.arrived[self.taken]]
        at = self._next_sending()
        return self._entry(self.timers.first(self.order.first(0)), at) if at < self.deadline else NEVER

    def take(self):
        """The next request arrives at the engine; returns its row."""
        if self.taken == self.count:
            self._send()
        self.taken += 1
        return self.arrived[self.taken - 1]

    def _send(self):
        """The client of the first timer sends its request."""
        lane: cython.int = self.order.first(0)
        row: cython.int = self.timers.first(lane)
        at: cython.double = self._next_sending()
        self.timers.drop(row)
        self._place(lane)
        self.sent[row], self.requests.arrival[row] = at, self._entry(row, at)
        self.front_free = max(at, self.front_free) + self.front[row]
        self.arrived[self.count] = row
        self.count += 1
        self.outstanding += 1
        self.lane_outstanding[lane] += 1
        if self.primes[row] < 0:
            self.issued[lane] += 1
            self._release(row, lane, DISPATCH, at)
            if self.issued[lane] == self.warm_up:
                self._warmed(at)
        return 0

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
        while self._next_sending() < min(at, self.deadline):  # sent before this end, perhaps not yet at the engine
            self._send()
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
        for primer, primer_lane in zip(primers, primer_lanes, strict=True):
            row, lane = primer, primer_lane
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

    def _next_sending(self):
        """When the request of the first timer is sent: not before what it waited for, by rounding."""
        lane: cython.int = self.order.first(0)
        return max(self._next_timer(), self.caused[self.timers.first(lane)]) if lane != NONE else NEVER

    def _entry(self, row, at):
        """When a request reaches the engine that its client sends at a time: the API server takes one at a time."""
        return max(at, self.front_free) + self.front[row] + self.front_delay

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


LEAST = cython.declare(cython.double, 1 - 1e-9)  # sums of steps are rounded

# the terms of a cost; each kind of cost has some of them
NO_TERMS = dict.fromkeys((
    "token_s", "pair_s", "step_s", "read_s", "overhead_s", "request_s", "attention_pair_s", "attention_read_s",
    "exchange_s", "bulk_exchange_s", "bulk_exchange_step_s", "bulk_exchange_tokens", "expert_token_s", "expert_step_s",
    "expert_share", "window_read_s", "window_pair_s", "window_tokens", "launch_s", "graph_tokens", "is_polynomial",
    "prefill_square_s", "prefill_token_s", "prefill_step_s", "decode_square_s", "decode_token_s", "decode_step_s",
    "cache_tokens",
), 0)  # fmt: skip


class Instance:
    """An instance of a serving engine in simulated time: a scheduler with its requests, a cache, and a clock.

    A scheduler is a subclass with three verbs: `active` (requests that have not ended), `take` (a request arrives) and
    `run` (all steps up to a time). It keeps the counts that a router reads.
    """

    def __init__(self, engine, requests, cost):
        self.engine, self.requests, self.cost = engine, requests, NO_TERMS | cost
        self.now = self.busy = 0
        self.steps = self.load = self.prefill = self.blocks = 0
        self.load_before = self.prefill_before = self.blocks_before = self.active_before = 0
        self.timeline, self.watched = [], False
        self.until, self.loop, self.role, self.group_of_workers = 0, None, WHOLE, None
        self.least_step_s = 0 if self.cost.is_polynomial else LEAST * (
            self.cost.step_s + self.cost.overhead_s + self.cost.request_s
        )  # fmt: skip

    def watch(self):
        """Keep a time line: rows of (seconds, running, waiting, blocks in use), each valid until the next one."""
        self.watched = True

    def listen(self):
        """Keep what the engine reports to its balancer: rows of (seconds, running, waiting, use of the KV cache)."""
        self.reports = []

    def active(self):
        """The requests that have arrived and not ended."""
        return 0

    def take(self, row):
        """A request arrives."""
        return 0

    def run(self, until):
        """Run all steps that begin before `until`, or before the next arrival that an end of these steps causes."""
        return 0

    def next_turn(self):
        """When the next turn of `run` begins; NEVER if there is nothing to do."""
        return self.now if self.active() else NEVER

    def steps_left(self, row):
        """A lower bound of the steps until a request ends that has not ended."""
        return 0

    def join(self, group, prefills):
        """Be a worker that only computes prompts, or only outputs; `group` has `tell`."""
        self.group_of_workers, self.role = group, PREFILLS if prefills else DECODES

    def wake(self, at):
        """Look for something to do from a time on, if there was nothing."""
        return 0

    def moved(self, row, at):
        """The KV cache of a request has gone from here, or has come."""
        return 0

    def computed_tokens(self, row):
        """The prompt tokens of a request that are computed, for a worker that sends its chunks."""
        return 0

    def send(self, row):
        """A router sends a request."""
        self.take(row)
        self.load_before += self.requests.tokens[row]
        self.prefill_before += self.requests.tokens[row]
        self.active_before += 1
        return 0

    def _begin_turn(self):
        """Keep the counts from before a step: a router sees no effect of the step until it ends."""
        self.load_before, self.prefill_before, self.blocks_before = self.load, self.prefill, self.blocks
        self.active_before = self.active()
        return 0

    def _note(self, seconds, running, waiting, blocks):
        """Add a row to the time line, if it is kept."""
        if self.watched:
            self.timeline.append((seconds, running, waiting, blocks))
        return 0

    def _report(self, at, running, waiting, size):
        """Add a row to the reports, if they are kept."""
        if self.reports is not None:
            self.reports.append((at, running, waiting, size))
        return 0

    def _ended(self, row, at):
        """A request has ended. In a closed loop others may arrive because of that, and `run` stops before they do."""
        self.requests.ended[row] = at
        if self.group_of_workers is not None:
            self.group_of_workers.tell(self.role, row, at)
        if self.loop is not None:
            self.loop.complete(row, at)
            self.until = min(self.until, self.loop.next_event())
        return 0

    def _pass(self, seconds):
        self.now += seconds
        self.busy += seconds
        return 0


class RecordedInstance(Instance):
    """An engine without limits that takes as long as was recorded: each request ends its service time after its
    arrival.

    """

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


# A scheduler that never preempts: a request is admitted if all blocks that it can come to hold fit.
#
# Consecutive decode-only steps are combined in closed form. Twin: tests/reference/serving.py, which takes each step
# separately.


class ReservingInstance(Instance):
    """Waiting, prefilling and decoding requests.

    `queue` holds the waiting rows, the oldest at `head`. `decoding` is a heap of (step after which it ends, row).
    `context` counts the cached tokens of decoding requests.
    """

    def __init__(self, engine, requests, cost, limits, prefetches=True):
        Instance.__init__(self, engine, requests, cost)
        self.limits, self.prefetches = limits, prefetches
        self.queue, self.prefilling, self.decoding = [], [], []
        self.head = self.admissions = 0
        self.batch = self.context = 0

    def active(self):
        return len(self.queue) - self.head + len(self.prefilling) + self.batch

    def take(self, row):
        requests: Requests = self.requests
        if self.active() == 0:
            self.now = max(self.now, requests.arrival[row])
        self.queue.append(row)
        self.prefill += requests.tokens[row]
        self.load += requests.tokens[row]
        return 0

    def run(self, until):
        self.until = until
        while self.now < self.until and self.active() > 0:
            self._begin_turn()
            self._admit()
            self._note_state()
            if self.prefilling:
                self._mixed(self.until)
            else:
                self._decode(self.until)
            if self.active() == 0:
                self._note_state()
        return 0

    def _note_state(self):
        """Add the present state to the time line; all blocks that a request can come to hold are in use."""
        return self._note(self.now, len(self.prefilling) + self.batch, len(self.queue) - self.head, self.blocks)

    def steps_left(self, row):
        requests: Requests = self.requests
        if requests.first[row] != requests.first[row]:  # NaN: no token yet
            return requests.output[row]
        return requests.sampled[row] - self.steps

    def _admit(self):
        """Admit waiting requests in order, while there is room for all blocks that they can come to hold."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        while self.head < len(self.queue) and len(self.prefilling) + self.batch < self.limits.requests:
            row = self.queue[self.head]
            if self.blocks + requests.need[row] > self.limits.blocks:
                break
            self.head += 1
            self.blocks += requests.need[row]
            self.engine.context.request, self.engine.context.order = row, self.admissions
            self.admissions += 1
            self.engine.context.now = self.now * 1000
            self.engine.serve(row)
            requests.started[row] = self.now
            hit_tokens: cython.longlong = self.engine.hit[row] * self.limits.block_size
            requests.cached[row] = max(
                0, min(hit_tokens, requests.tokens[row] - 1)
            )  # the last token is always computed
            if self.engine.lower_tier_hits(row):
                self._fetch_or_recompute(row)
            requests.computed[row] = requests.cached[row]
            self.prefill -= requests.cached[row]
            self.prefilling.append(row)
        if self.head > 1024 and 2 * self.head > len(self.queue):
            del self.queue[: self.head]
            self.head = 0

    def _fetch_or_recompute(self, row):
        """Fetch the hits of lower tiers, or recompute them if that is faster. A prompt waits for its transfer.

        With prefetching, the transfer starts when the request arrives.
        """
        requests: Requests = self.requests
        upper: cython.double = max(0, requests.cached[row] - self.engine.lower_tier_hits(row) * self.limits.block_size)
        all_hits: cython.double = requests.cached[row]
        fetch: cython.double = self.engine.fetch_seconds(row)
        begins: cython.double = requests.arrival[row] if self.prefetches else self.now
        left: cython.double = max(0.0, begins + fetch - self.now)
        if left > self._compute_seconds(upper, all_hits):
            requests.cached[row] = cython.cast(cython.longlong, upper)
        else:
            requests.ready[row] = self.now + left

    def _compute_seconds(self, start, end):
        """Seconds to compute the tokens of a prompt from `start` to `end`, without the fixed parts of a step."""
        exchange_s: cython.double = self.cost.bulk_exchange_s or self.cost.exchange_s
        token_s: cython.double = self.cost.token_s + self.cost.expert_token_s + exchange_s
        pair_s: cython.double = self.cost.pair_s + self.cost.attention_pair_s
        return token_s * (end - start) + pair_s * (end * end - start * start)

    def _mixed(self, until):
        """One step: a token of each decoding request, and chunks of prompts up to the step's token limit."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        chunk: cython.longlong
        budget: cython.longlong = max(self.limits.step_tokens - self.batch, 1)
        work: StepWork
        soonest: cython.double = NEVER
        chunks: list = []
        begin_work(cython.address(work))
        for item in self.prefilling:
            row = item
            if budget <= 0:
                break
            if requests.ready[row] > self.now:
                soonest = min(soonest, requests.ready[row])
                continue
            chunk = min(max(requests.tokens[row] - requests.computed[row], 1), budget)
            add_part(cython.address(work), requests.computed[row], chunk, requests.computed[row] + chunk, 0)
            budget -= chunk
            chunks.append((row, chunk))
        if not chunks and not self.batch:  # all prompts wait for their transfers
            self.now = min(soonest, until)
            return
        work.requests += self.batch
        work.tokens += self.batch
        work.read += self.context
        work.context = self.context
        self._pass(step_seconds(cython.address(self.cost), cython.address(work)))
        self._token(1)
        for item in chunks:
            row, chunk = item
            requests.computed[row] += chunk
            self.prefill -= chunk if requests.tokens[row] else 0
            if requests.computed[row] >= requests.tokens[row]:
                self._first(row)
        prefilling: list = []
        for item in self.prefilling:
            row = item
            if requests.first[row] != requests.first[row]:  # NaN: no token yet
                prefilling.append(row)
        self.prefilling = prefilling

    def _decode(self, until):
        """Decode-only steps, up to the first end of a request or the last step that begins before `until`."""
        low: cython.longlong = 1
        high: cython.longlong = self.decoding[0][0] - self.steps
        middle: cython.longlong
        while low < high:  # bisect for the fewest steps that reach `until`
            middle = (low + high) // 2
            if self.now + self._seconds(middle) >= until:
                high = middle
            else:
                low = middle + 1
        self._pass(self._seconds(low))
        self._token(low)

    def _token(self, steps):
        """Give `steps` tokens to each decoding request; requests with their last token end."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        self.steps += steps
        self.context += steps * self.batch
        while self.decoding and self.decoding[0][0] <= self.steps:
            _, row = heappop(self.decoding)
            self.batch -= 1
            self.context -= requests.tokens[row] + requests.output[row]
            self._end(row)

    def _first(self, row):
        """A prompt is complete and gives the first token; the request starts to decode."""
        requests: Requests = self.requests
        requests.first[row] = self.now
        if requests.output[row] <= 1:
            self._end(row)
            return
        self.batch += 1
        self.context += requests.tokens[row] + 1
        requests.sampled[row] = self.steps + requests.output[row] - 1  # the step that gives its last token
        heappush(self.decoding, (requests.sampled[row], row))

    def _end(self, row):
        requests: Requests = self.requests
        self._ended(row, self.now)
        self.engine.context.now = self.now * 1000
        self.blocks -= requests.need[row]
        self.load -= requests.tokens[row]
        self.engine._end(row)

    def _seconds(self, steps):
        """Seconds of steps that only decode."""
        return decode_seconds(cython.address(self.cost), self.batch, self.context, steps)
