"""Dynamo's KV router and mocked vLLM engines, in plain Python: each worker's cost of a request, and the choice.

The cost of a worker, in blocks: (tokens that wait for prefill + tokens of the request that would not hit) / block size
+ distinct complete blocks of live prompts, including the request's. The least cost wins; ties are drawn at random.
"""

import heapq
import random
from collections import Counter, OrderedDict
from dataclasses import dataclass

TIE = 1e-9  # tolerance for ties; costs are sums of a few quotients
PREFILL = (4.209989e-07, 1.518344e-02, 1.650142e01)  # ms of a prefill step by new tokens: square, linear, constant
DECODE = (-25.74, 54.01, 5.74)  # ms of a decode step by the share of the cache in use: square, linear, constant
STEP = 8192  # maximum new tokens per step


def prefill_ms(tokens):
    """Time to first token of an idle worker: full steps, then the rest."""
    square, linear, constant = PREFILL
    steps = [STEP] * (tokens // STEP) + [tokens % STEP] * (tokens % STEP > 0)
    return sum(square * step**2 + linear * step + constant for step in steps)


def decode_ms(context, capacity_tokens):
    """Time per token of a worker whose live requests have `context` tokens of context."""
    square, linear, constant = DECODE
    used = min(context / capacity_tokens, 1)
    return max(square * used**2 + linear * used + constant, 1)


@dataclass(frozen=True)
class Rules:
    """Differences between Dynamo's router and ours: each is true for Dynamo, false for `kv-aware`."""

    waiting: bool = True  # prompts of other requests that wait for prefill count too
    shared: bool = True  # live blocks are distinct prompt blocks; else all tokens of live prompts count
    bunched: bool = True  # requests with the same arrival are routed before any of them is cached
    whole: bool = True  # a prompt of complete blocks may hit fully; else its last token, and so its block, is computed
    drawn: bool = True  # ties are drawn at random; else the first worker is taken


class Worker:
    """A worker's free blocks, the next victim first, and the router's record of its live requests."""

    def __init__(self, capacity):
        self.free = OrderedDict.fromkeys(range(capacity))
        self.copies, self.holds, self.pins, self.held = {}, {}, Counter(), {}
        self.waiting, self.live, self.tokens = {}, Counter(), 0

    def peek(self, path):
        hit = 0
        while hit < len(path) and self.copies.get(path[hit]):
            hit += 1
        return hit

    def admit(self, row, job):
        """Allocate the prompt and all blocks of the output; returns the hit blocks."""
        hit = self.peek(job.path[: job.limit])
        reused = [self.copies[block][0] for block in job.path[:hit]]
        for block in reused:
            self.free.pop(block, None)
        self.held[row] = reused
        for number in job.path[hit:] + [(row, i) for i in range(job.grown)] + [None] * job.tail:
            block, _ = self.free.popitem(last=False)
            if block in self.holds:
                self.copies[self.holds.pop(block)].remove(block)
            if number is not None:
                self.holds[block] = number
                self.copies.setdefault(number, []).append(block)
            self.held[row].append(block)
        self.pins.update(self.held[row])
        return hit

    def finish(self, row):
        for block in reversed(self.held.pop(row)):
            self.pins[block] -= 1
            if not self.pins[block]:
                self.free[block] = None
                if block not in self.holds:
                    self.free.move_to_end(block, last=False)

    def cost(self, job, rules):
        hit = self.peek(job.path if rules.whole else job.path[: job.limit])
        new = max(0, job.tokens - hit * job.size)
        if rules.waiting:
            new += sum(self.waiting.values())
        if not rules.shared:
            return new / job.size + self.tokens / job.size
        return new / job.size + len(self.live) + sum(block not in self.live for block in job.path)

    def enter(self, row, job):
        self.waiting[row] = max(0, job.tokens - self.peek(job.path) * job.size)
        self.live.update(job.path)
        self.tokens += job.tokens

    def leave(self, job):
        self.live.subtract(job.path)
        for block in job.path:
            if not self.live[block]:
                del self.live[block]
        self.tokens -= job.tokens


@dataclass(frozen=True)
class Job:
    """The demand of one request: complete blocks, of which `limit` may hit, and blocks and tokens of its output."""

    path: list
    limit: int
    grown: int
    tail: int
    tokens: int
    output: int
    size: int


def jobs(trace):
    size, result = trace.block_size, []
    for row in range(len(trace)):
        tokens, output = int(trace.input_length[row]), int(trace.output_length[row])
        full, cached = tokens // size, tokens + max(output - 1, 0)
        path, grown = trace.prompt(row)[:full].tolist(), cached // size - full
        result.append(Job(path, (tokens - 1) // size, grown, int(cached % size > 0), tokens, output, size))
    return result


def decisions(trace, seen, capacity, workers):
    """(requests sent to a worker of least cost, requests with ties, hit blocks of each request).

    `seen` is Dynamo's record: arrays `worker`, `admit`, `first` and `end`, one value per request.
    """
    demand, fleet = jobs(trace), [Worker(capacity) for _ in range(workers)]
    fits = ties = 0
    hits = [0] * len(trace)
    events = [(seen.end[row], 0, row, "end") for row in range(len(trace))]
    events += [(seen.first[row], 0, row, "first") for row in range(len(trace))]
    events += [(trace.timestamp[row], 1, row, "arrive") for row in range(len(trace))]
    events += [(seen.admit[row], 2, row, "admit") for row in range(len(trace))]
    for _, _, row, what in sorted(events):
        job, worker = demand[row], fleet[seen.worker[row]]
        if what == "arrive":
            costs = [one.cost(job, Rules()) for one in fleet]
            fits += costs[seen.worker[row]] < min(costs) + TIE
            ties += sum(cost < min(costs) + TIE for cost in costs) > 1
            worker.enter(row, job)
        elif what == "admit":
            hits[row] = worker.admit(row, job)
        elif what == "first":
            worker.waiting.pop(row, None)
        else:
            worker.finish(row)
            worker.leave(job)
    return fits, ties, hits


def routed(trace, capacity, workers, ms_per_token, rules, seed=1):
    """Hit blocks of all requests, if each is live `ms_per_token` per output token and its prefill runs alone."""
    demand, fleet, rng = jobs(trace), [Worker(capacity) for _ in range(workers)], random.Random(seed)
    events, hits, routes = [], 0, []  # events: a heap of (time, row, worker, kind)

    def route(row):
        costs = [one.cost(demand[row], rules) for one in fleet]
        least = [number for number, cost in enumerate(costs) if cost < min(costs) + TIE]
        chosen = rng.choice(least) if rules.drawn else least[0]
        fleet[chosen].enter(row, demand[row])
        routes.append((row, chosen))

    def admit(row, chosen):
        hit = fleet[chosen].admit(row, demand[row])
        now, job = trace.timestamp[row], demand[row]
        heapq.heappush(events, (now + prefill_ms(job.tokens - hit * job.size), row, chosen, "first"))
        heapq.heappush(events, (now + ms_per_token * job.output, row, chosen, "end"))
        return hit

    for row in range(len(trace)):
        while events and events[0][0] <= trace.timestamp[row]:
            _, other, worker, what = heapq.heappop(events)
            if what == "first":
                fleet[worker].waiting.pop(other, None)
            else:
                fleet[worker].finish(other)
                fleet[worker].leave(demand[other])
        route(row)
        last = row + 1 == len(trace) or trace.timestamp[row + 1] > trace.timestamp[row]
        if last or not rules.bunched:
            hits += sum(admit(*one) for one in routes)
            routes.clear()
    return hits
