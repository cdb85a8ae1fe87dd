"""Dynamo's offline replay, step by step, in plain Python: mocked engines that take vLLM's steps, and its KV router.

`serve(case)` takes the cases of `tests.serving.scheduler_cases.dynamo_case` with a cost (`DynamoCost().terms`), and
returns for each request its worker, cached tokens, begin, first token, end and preemptions, in seconds.

* A request is routed at its arrival, when all workers have taken the steps that began before it.
* The cost of a worker, in tokens: uncomputed prompts there + prompt tokens that would not hit + block size x (distinct
  full blocks of the active prompts and of the request's own). The least cost wins, of equal ones the lowest draw.
* The router knows what has ended by now: a step's blocks, first tokens and ends are seen when the step ends. A prompt
  that ends with a block may hit all of it.
"""

from __future__ import annotations

from tests.reference.vllm_scheduler import Live, Scheduler, seconds_of

MASK = (1 << 64) - 1


def mix(value):
    """The output function of SplitMix64."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


class Worker:
    """An engine with its clock, and what the router knows of it."""

    def __init__(self, case):
        self.scheduler, self.case, self.now = Scheduler(case), case, 0.0
        self.cached = set()  # hashes, when the last step began
        self.active = {}  # row -> (full blocks of the prompt, prompt tokens that did not hit at its arrival)

    @property
    def busy(self):
        return bool(self.scheduler.running or self.scheduler.waiting)

    def plan(self, requests):
        """Begin a step; its parts."""
        self.cached = set(self.scheduler.pool.copies)
        parts, preempted = self.scheduler.plan() if self.busy else ([], [])
        for live, before, _ in parts:
            if requests[live.row][2] is None:
                requests[live.row][1:3] = [before, self.now]
        for row in preempted:
            requests[row][5] += 1
        return parts

    def seconds(self, parts):
        """Seconds of a step; 0 without parts."""
        return seconds_of(self.case["cost"], parts) if parts else 0

    def learn(self, parts, requests):
        """The step has ended."""
        self.tell(self.scheduler.learn(parts) if parts else [], requests)

    def tell(self, tokens, requests):
        """Requests have output tokens, and perhaps their last ones."""
        for live, last in tokens:
            if requests[live.row][3] is None:
                requests[live.row][3] = self.now
            if last:
                requests[live.row][4] = self.now

    def new_tokens(self, row, at):
        """The prompt tokens of a request that would not hit, as far as the router knows at a time."""
        size, known = self.case["block_size"], self.cached if self.now > at else self.scheduler.pool.copies
        hits = 0
        for name in row["ids"][: row["tokens"] // size]:
            if name not in known:
                break
            hits += 1
        return row["tokens"] - hits * size

    def cost(self, row, at, requests):
        """The cost of a request here."""
        size = self.case["block_size"]
        active = {
            number: one
            for number, one in self.active.items()
            if requests[number][4] is None or requests[number][4] > at
        }
        waiting = sum(
            new for number, (_, new) in active.items() if requests[number][3] is None or requests[number][3] > at
        )
        blocks = {name for names, _ in active.values() for name in names} | set(row["ids"][: row["tokens"] // size])
        return waiting + self.new_tokens(row, at) + size * len(blocks)


def run(group, until, requests):
    """Take the steps of a group of ranks that begin before a time; a step lasts as long as the slowest rank's."""
    while group[0].now < until and any(rank.busy for rank in group):
        planned = [rank.plan(requests) for rank in group]
        seconds = max(rank.seconds(parts) for rank, parts in zip(group, planned, strict=True))
        for rank in group:
            rank.now += seconds
        for rank, parts in zip(group, planned, strict=True):
            rank.learn(parts, requests)


def serve(case, seed=0, winner=None, workers=None):
    """Each request's worker, cached tokens, begin, first token, end and preemptions; `winner` wins each tie.

    With `ranks`, so many of the workers of a case are the ranks of one, which step together: every n-th, of n.
    """
    rows, size, count = case["requests"], case["block_size"], case["workers"]
    workers = workers or [Worker(case) for _ in range(count)]
    number_of_groups = count // case.get("ranks", 1)
    groups = [workers[first::number_of_groups] for first in range(number_of_groups)]
    requests = [[-1, -1, None, None, None, 0] for _ in rows]
    for number, row in enumerate(rows):
        at = row["arrival"]
        for group in groups:
            run(group, at, requests)
        chosen = number % count
        if case["router"] == "dynamo":
            costs = [worker.cost(row, at, requests) for worker in workers]
            draws = [mix((seed + mix(number * count + i + 1)) & MASK) for i in range(count)]
            wins = [winner is None or i != winner[number] for i in range(count)]
            chosen = min(range(count), key=lambda i: (costs[i], wins[i], draws[i]))
        worker = workers[chosen]
        full, blocks = row["tokens"] // size, (row["tokens"] + row["output"]) // size
        hashes = [*row["ids"][:full], *((number, block) for block in range(full, blocks))]
        worker.active[number] = (row["ids"][:full], worker.new_tokens(row, at))
        group = next(one for one in groups if worker in one)
        if not any(rank.busy for rank in group):
            for rank in group:
                rank.now = max(rank.now, at)
        worker.scheduler.add(Live(number, row["tokens"], row["output"], hashes, 0, at))
        requests[number][0] = chosen
    for group in groups:
        run(group, float("inf"), requests)
    return requests
