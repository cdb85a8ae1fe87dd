"""Dynamo's offline replay of prefill and decode workers, step by step, in plain Python (ai-dynamo-runtime 1.6.1).

`serve(case)` takes a case of `tests.serving.scheduler_cases.apart_case`: times are in ms, as the replay's, and each
step is rounded to a nanosecond, so that steps that end together there end together here. It returns for each request
the columns of tests/clients/dynamo_workers.py.

* A prefill worker takes vLLM's steps; each prompt gives one token, at no cost. Its blocks stay until they are released.
* A decode worker keeps a queue of requests whose prefill has ended. Its head takes the blocks of its prompt, those that
  the worker has cached among them; the next one follows when a step has ended, or when a transfer has. With room for
  nobody it waits until blocks or a seat have become free.
* Then the transfer begins; when it has ended the prompt's blocks can be found, the request waits for the next step
  there, and the prefill worker releases its blocks. A worker in a step does neither before the step's end.
* The first token comes with the first step on the decode worker, and computing prompts again costs nothing there.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from fractions import Fraction

from kvtrace.serving.schedulers.dynamo import DynamoCost
from tests.reference.dynamo_times import MASK, mix
from tests.reference.vllm_scheduler import Live, Scheduler

STEP, TRANSFER = 0, 1
PREFILL, DECODE = 0, 1
COLUMNS = (
    "prefill_worker", "decode_worker", "reused", "admitted", "held", "reserved", "activated", "decode_admitted",
    "released", "first", "end", "preempted", "decode_preempted",
)  # fmt: skip


def milliseconds(square_s, linear_s, constant_s, value):
    """The duration of a step: a polynomial, rounded to whole nanoseconds, in ms as the replay adds them."""
    square, linear, constant = (float(f"{1000 * term:.12g}") for term in (square_s, linear_s, constant_s))
    exact = Fraction((square * value**2 + linear * value + constant) / 1000) * 10**9
    seconds, nanos = divmod(round(exact), 10**9)
    return (seconds + nanos / 1e9) * 1000


class PrefillScheduler(Scheduler):
    """vLLM's scheduler, where a request that has ended keeps its blocks."""

    def __init__(self, case):
        super().__init__(case)
        self.refused = []  # prompts that are too large: they leave when they are the first
        self.silent = set()  # requests without an output: they may find their whole prompt

    def plan(self):
        budget, parts, preempted = self.schedule_running(0)
        while not preempted and self.waiting and len(self.running) < self.seats:
            live = self.waiting[0]
            if self.blocks_of(live.prompt) > len(self.pool.pins):
                self.refused.append(self.waiting.popleft())
                continue
            hits, computed = self.find(live)
            if live.row in self.silent:
                hits = self.pool.hits(live.hashes[: live.tokens // self.size])
                computed = len(hits) * self.size
            chunk = min(live.tokens - computed, budget)
            if (chunk == 0 and computed < live.tokens) or not self.admits(live, hits, computed, chunk):
                break
            self.waiting.popleft()
            self.start(live, hits, computed)
            live.computed, live.running = computed, True
            self.running.append(live)
            self.allocate(live, chunk)
            parts.append((live, computed, chunk))
            budget -= chunk
            if budget == chunk == 0:
                break
        self.advance(parts)
        return parts, [live.row for live in preempted]

    def release(self, live):
        if live.got < live.output:  # it is preempted
            super().release(live)

    def drop(self, live):
        """Release the blocks of a request that has ended."""
        self.pool.release(live.blocks)


class DecodeScheduler(Scheduler):
    """vLLM's scheduler for requests whose prompts were computed elsewhere."""

    def __init__(self, case):
        super().__init__(case)
        self.pending, self.orders, self.order_of = deque(), 0, {}
        self.room_changes = 0  # times that blocks or seats became free
        self.tried = None  # (request, room_changes) of the last attempt to reserve

    def accept(self, live):
        """A request whose prefill has ended."""
        self.order_of[live] = self.orders
        self.orders += 1
        self.pending.append(live)

    def reserve(self):
        """The head of the queue takes the blocks of its prompt; returns it with the blocks that are sent, or None."""
        if not self.pending or self.tried == (self.pending[0], self.room_changes):
            return None
        live = self.pending[0]
        self.tried = (live, self.room_changes)
        if len(self.running) >= self.seats:
            return None
        hits = self.pool.hits(live.hashes[: live.prompt // self.size])
        idle = sum(self.pool.pins[block] == 0 for block in hits)
        fresh = self.blocks_of(live.prompt) - len(hits)
        if fresh + idle > len(self.pool.free):
            return None
        self.pending.popleft()
        self.start(live, hits, 0)
        live.blocks += [self.pool.take() for _ in range(fresh)]
        return live, fresh

    def activate(self, live):
        """The KV cache of a request is there."""
        live.computed = live.prompt
        self.publish(live, live.prompt)
        later = (place for place, other in enumerate(self.waiting) if self.order_of[other] > self.order_of[live])
        self.waiting.insert(next(later, len(self.waiting)), live)

    def plan(self):
        budget, parts, preempted = self.schedule_running(0)
        while not preempted and len(self.running) < self.seats:
            ready = [live for live in self.waiting if live.computed]
            if self.pending:  # nobody else takes blocks before the head of that queue
                live = min(ready, key=self.order_of.get, default=None)
            else:
                live = self.waiting[0] if self.waiting else None
            if live is None:
                break
            if live.computed:
                chunk = 0
            else:
                hits, computed = self.find(live)
                chunk = min(live.tokens - computed, budget)
                if not self.admits(live, hits, computed, chunk) or chunk == 0:
                    break
                self.start(live, hits, computed)
                live.computed = computed
            self.waiting.remove(live)
            live.running = True
            self.running.append(live)
            self.allocate(live, chunk)
            parts.append((live, live.computed, chunk))
            budget -= chunk
            if budget == chunk == 0:  # the step is full: one more that needs no token, and no other
                break
        self.advance(parts)
        self.room_changes += len(preempted)
        return parts, [live.row for live in preempted]

    def learn(self, parts):
        told = super().learn(parts)
        self.room_changes += sum(last for _, last in told)
        return told


class Worker:
    """A worker, busy until the end of its step."""

    def __init__(self, kind, number, case):
        self.kind, self.number, self.case = kind, number, case
        self.scheduler = (PrefillScheduler if kind == PREFILL else DecodeScheduler)(case)
        self.busy, self.parts, self.known = False, [], set()
        self.silent = set()  # requests without an output: they end with a step that they do not lengthen

    @property
    def is_ready(self):
        return not self.busy and bool(self.scheduler.running or self.scheduler.waiting)

    def milliseconds(self, parts):
        cost = DynamoCost()
        if self.kind == DECODE:
            decodes = [
                live.tokens for live, before, chunk in parts
                if before + chunk == live.tokens and live.row not in self.silent
            ]  # fmt: skip
            used = min(sum(decodes) / (self.case["capacity"] * self.case["block_size"]), 1.0)
            terms = (cost.decode_square_s, cost.decode_used_s, cost.decode_step_s)
            return milliseconds(*terms, used) if decodes else 0.0
        prompts = [(before, min(before + chunk, live.prompt)) for live, before, chunk in parts if before < live.prompt]
        if not prompts:
            return 0.0
        before, after = (sum(column) // len(prompts) for column in zip(*prompts, strict=True))
        tokens = len(prompts) * (after - before)
        return milliseconds(cost.prefill_square_s, cost.prefill_token_s, cost.prefill_step_s, tokens) if tokens else 0.0


class Replay:
    """The replay of a case."""

    def __init__(self, case, seed=0):
        self.case, self.seed, self.size = case, seed, case["block_size"]
        shared = {"block_size": self.size}
        self.workers = [
            [Worker(kind, number, case[name] | shared) for number in range(case[name]["workers"])]
            for kind, name in ((PREFILL, "prefill"), (DECODE, "decode"))
        ]
        for worker in (*self.workers[PREFILL], *self.workers[DECODE]):
            worker.silent = {row for row, one in enumerate(case["requests"]) if not one["output"]}
            worker.scheduler.silent = worker.silent
        self.events, self.numbers, self.actions = [], 0, deque()
        self.deferred = defaultdict(list)  # worker -> actions
        self.requests = [dict.fromkeys(COLUMNS) | {"preempted": 0, "decode_preempted": 0} for _ in case["requests"]]
        self.lives = {}
        self.turns = [0, 0]
        self.uncomputed = defaultdict(dict)  # prefill worker -> row -> prompt tokens that did not hit
        self.active = defaultdict(dict)  # decode worker -> row -> full blocks of its prompt

    def outgrows(self, row):
        """Whether a decode worker can hold the prompt of a request, but not its output."""
        blocks = self.workers[DECODE][0].scheduler.blocks_of
        return (
            blocks(row["tokens"]) <= self.case["decode"]["capacity"] < blocks(row["tokens"] + max(row["output"], 1) - 1)
        )

    # ---- routers

    def route(self, kind, row):
        """The worker of a request."""
        workers, turn = self.workers[kind], self.turns[kind]
        self.turns[kind] += 1
        given = self.case.get("winners")  # of the ties
        if self.case["router"] != "dynamo":
            return workers[turn % len(workers)]
        cost = self.prefill_cost if kind == PREFILL else self.decode_cost
        costs = [cost(row, worker) for worker in workers]
        draws = [mix((self.seed + mix(turn * len(workers) + i + 1)) & MASK) for i in range(len(workers))]
        if given and costs[given[kind][row]] == min(costs):
            return workers[given[kind][row]]
        return workers[min(range(len(workers)), key=lambda i: (costs[i], draws[i]))]

    def new_tokens(self, row, worker):
        """The prompt tokens that would not hit on a prefill worker, as far as its last step's end has told."""
        one = self.case["requests"][row]
        known = worker.known if worker.busy else worker.scheduler.pool.copies
        hits = 0
        for name in one["ids"][: one["tokens"] // self.size]:
            if name not in known:
                break
            hits += 1
        return one["tokens"] - hits * self.size

    def prefill_cost(self, row, worker):
        return sum(self.uncomputed[worker].values()) + self.new_tokens(row, worker)

    def decode_cost(self, row, worker):
        return sum(self.active[worker].values())

    # ---- actions

    def execute(self, action, row, now):
        """Do what a request needs next, or leave it to the end of a step."""
        one = self.requests[row]
        if action == "submit" and self.outgrows(self.case["requests"][row]):  # the replay would stop; its turn passes
            self.turns[PREFILL] += 1
        elif action == "submit":
            worker = self.route(PREFILL, row)
            self.uncomputed[worker][row] = self.new_tokens(row, worker)
            one["prefill_worker"] = worker.number
            worker.scheduler.add(self.live(row, 1))
        elif action == "reserve":
            worker = self.route(DECODE, row)
            tokens = self.case["requests"][row]["tokens"]
            self.active[worker][row] = tokens // self.size
            if worker.scheduler.blocks_of(tokens) > len(worker.scheduler.pool.pins):
                one["refused_by"] = worker
                self.actions += [("release", row), ("cancel", row)]
                return
            one["decode_worker"] = worker.number
            worker.scheduler.accept(self.live(row, max(1, self.case["requests"][row]["output"])))
            if not worker.busy:
                self.reserve(worker, now)
        elif action == "cancel":
            self.active[one["refused_by"]].pop(row)
        elif action == "transfer":
            tokens = one.pop("sent") * self.size if self.case.get("missing_only") else self.lives[row].prompt
            delay_ms = tokens * self.case.get("bytes_per_token", 0) / (self.case.get("bandwidth") or 1) * 1000
            if not self.case.get("bandwidth"):
                delay_ms = self.case.get("latency_ms", 0.0)
            if delay_ms > 0:
                self.push(now + delay_ms, TRANSFER, row)
            else:
                self.actions.append(("activate", row))
        elif action == "activate":
            worker = self.workers[DECODE][one["decode_worker"]]
            if worker.busy:
                self.deferred[worker].append((action, row))
                return
            worker.scheduler.activate(self.lives[row])
            one["activated"] = now
            self.actions.append(("release", row))
            self.reserve(worker, now)
        elif action == "release":
            worker = self.workers[PREFILL][one["prefill_worker"]]
            if worker.busy:
                self.deferred[worker].append((action, row))
                return
            worker.scheduler.drop(one.pop("source"))
            one["released"] = now

    def live(self, row, output):
        """A request as a scheduler sees it."""
        one = self.case["requests"][row]
        full, blocks = one["tokens"] // self.size, (one["tokens"] + output) // self.size
        hashes = [*one["ids"][:full], *((row, block) for block in range(full, blocks))]
        self.lives[row] = Live(row, one["tokens"], output, hashes, 0, one["arrival"])
        return self.lives[row]

    def reserve(self, worker, now):
        """Let the head of a decode worker's queue take its blocks; False if it cannot, or was tried before."""
        if reserved := worker.scheduler.reserve():
            live, fresh = reserved
            self.requests[live.row] |= {"reserved": now, "sent": fresh}
            self.actions.append(("transfer", live.row))
        return reserved is not None

    # ---- steps

    def push(self, at, kind, what):
        place = (what.kind, what.number) if kind == STEP else (2, self.numbers)
        heapq.heappush(self.events, (at, kind, place, self.numbers, what))
        self.numbers += 1

    def begin(self, worker, now):
        """Begin a step; False if it does nothing."""
        worker.known = set(worker.scheduler.pool.copies)
        parts, preempted = worker.scheduler.plan()
        name, again = ("admitted", "preempted") if worker.kind == PREFILL else ("decode_admitted", "decode_preempted")
        for live, before, _ in parts:
            if self.requests[live.row][name] is None:
                self.requests[live.row][name] = now
                if worker.kind == PREFILL:
                    self.requests[live.row]["reused"] = before
        for row in preempted:
            self.requests[row][again] += 1
        if not parts and not preempted and not getattr(worker.scheduler, "refused", ()):  # it does nothing, and ends
            return worker.kind == DECODE and self.reserve(worker, now)
        worker.busy, worker.parts = True, parts
        took_ms = worker.milliseconds(parts)
        if took_ms > 0:
            self.push(now + took_ms, STEP, worker)
        else:
            self.end(worker, now)
        return True

    def end(self, worker, now):
        """A step has ended."""
        worker.busy = False
        self.actions += self.deferred.pop(worker, [])
        if worker.kind == PREFILL:
            for live in worker.scheduler.refused:
                self.uncomputed[worker].pop(live.row)
                self.requests[live.row]["prefill_worker"] = None
            worker.scheduler.refused = []
        # those without an output end before the others do
        told = worker.scheduler.learn(sorted(worker.parts, key=lambda part: part[0].row not in worker.silent))
        for live, last in told:
            one = self.requests[live.row]
            if worker.kind == PREFILL:
                self.uncomputed[worker].pop(live.row, None)
                one["held"], one["source"] = now, live
                self.actions.append(("reserve", live.row))
                continue
            if one["first"] is None:
                one["first"] = now
            if last:
                one["end"] = now
                self.active[worker].pop(live.row)
        if worker.kind == DECODE:
            self.reserve(worker, now)

    def drive(self, kind, now):
        """Begin steps on all workers that are ready, the first one first; False if there is none."""
        changed, stuck = False, set()
        while True:
            ready = [worker for worker in self.workers[kind] if worker.is_ready and worker not in stuck]
            if not ready:
                return changed
            if self.begin(ready[0], now):
                changed = True
            else:
                stuck.add(ready[0])

    def run(self):
        """All requests of the case."""
        rows, arrived = self.case["requests"], 0
        while True:
            times = [self.events[0][0]] if self.events else []
            times += [rows[arrived]["arrival"]] if arrived < len(rows) else []
            if not times:
                return self.requests
            now = min(times)
            while True:
                changed = False
                for kind in (STEP, TRANSFER):
                    while self.events and self.events[0][0] <= now and self.events[0][1] == kind:
                        what = heapq.heappop(self.events)[4]
                        changed = True
                        if kind == STEP:
                            self.end(what, now)
                        else:
                            self.actions.append(("activate", what))
                while arrived < len(rows) and rows[arrived]["arrival"] <= now:
                    self.actions.append(("submit", arrived))
                    arrived += 1
                while self.actions:
                    changed = True
                    self.execute(*self.actions.popleft(), now)
                changed |= self.drive(PREFILL, now)
                changed |= self.drive(DECODE, now)
                if not changed:
                    break


def serve(case, seed=0):
    """The columns of each request, as lists."""
    return [[one[name] for name in COLUMNS] for one in Replay(case, seed).run()]
