"""vLLM's scheduler and block pool, step by step, in plain Python: the rules of 0.33.0 for one group of full attention.

`serve(case)` takes the cases of tests/clients/vllm_scheduler.py and returns what that returns, without the version.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


class Blocks:
    """The pool: a queue of free blocks, cached or not, and a table from hashes to the blocks that have them."""

    def __init__(self, capacity):
        self.free = dict.fromkeys(range(capacity))  # in the order in which they are taken
        self.pins = [0] * capacity
        self.hash = [None] * capacity
        self.copies = {}  # hash -> its blocks, the oldest first

    def hits(self, hashes):
        """The blocks of the leading hashes that are cached."""
        found = []
        for one in hashes:
            if one not in self.copies:
                break
            found.append(next(iter(self.copies[one])))
        return found

    def pin(self, block):
        self.free.pop(block, None)
        self.pins[block] += 1

    def take(self):
        block = next(iter(self.free))
        del self.free[block]
        if self.hash[block] is not None:
            copies = self.copies[self.hash[block]]
            del copies[block]
            if not copies:
                del self.copies[self.hash[block]]
            self.hash[block] = None
        self.pins[block] = 1
        return block

    def publish(self, block, name):
        self.hash[block] = name
        self.copies.setdefault(name, {})[block] = None

    def release(self, blocks):
        """Unpin, tail first; blocks without a hash are taken next."""
        first = []
        for block in reversed(blocks):
            self.pins[block] -= 1
            if self.pins[block] == 0:
                if self.hash[block] is None:
                    first.append(block)
                else:
                    self.free[block] = None
        if first:
            self.free = dict.fromkeys([*first, *self.free])


@dataclass(eq=False)
class Live:
    """A request that has arrived and not ended."""

    row: int
    prompt: int
    output: int
    hashes: list
    priority: int
    arrival: float
    computed: int = 0  # tokens that are scheduled
    got: int = 0  # output tokens
    placeholders: int = 0  # async: output tokens of steps whose output is not known yet
    flight: int = 0  # async: tokens of such steps
    stale: int = 0  # async: of these, tokens of steps before a preemption
    published: int = 0
    blocks: list = field(default_factory=list)
    running: bool = False

    @property
    def tokens(self):
        return self.prompt + self.got

    @property
    def order(self):
        return (self.priority, self.arrival, self.row)


class Scheduler:
    """`plan` chooses who gets tokens in a step, `learn` takes the output of a step."""

    def __init__(self, case):
        settings = case["settings"]
        self.size, self.pool = case["block_size"], Blocks(case["capacity"])
        self.budget = settings.get("max_num_batched_tokens", 8192)
        self.seats = settings.get("max_num_seqs", 256)
        self.threshold = settings.get("long_prefill_token_threshold", 0)
        self.adaptive = settings.get("long_prefill_token_threshold_adaptive", False)
        self.chunked = settings.get("enable_chunked_prefill", True)
        self.whole = settings.get("scheduler_reserve_full_isl", True)
        self.watermark = int(settings.get("watermark", 0.0) * (case["capacity"] + 1))
        self.by_priority = settings.get("policy", "fcfs") == "priority"
        self.is_async = bool(settings.get("async"))
        self.running, self.waiting = [], deque()

    def add(self, live, first=False):
        if self.by_priority:
            place = sum(other.order <= live.order for other in self.waiting)
            self.waiting.insert(place, live)
        elif first:
            self.waiting.appendleft(live)
        else:
            self.waiting.append(live)

    def may_preempt(self, live):
        return True

    def long_prefill(self, waiting):
        """The largest chunk of a prompt in this step; 0 means no limit."""
        alive = len(self.running) + waiting
        limit = self.threshold if alive > 1 else 0
        return max(limit, self.budget // alive) if limit and self.adaptive else limit

    def schedule_running(self, limit):
        """The tokens that are left, [(request, computed before, tokens)] of those that run, and who is preempted."""
        budget, parts, preempted = self.budget, [], []
        place = 0
        while place < len(self.running) and budget > 0:
            live = self.running[place]
            ends = live.placeholders > 0 and live.computed + 2 - live.placeholders >= live.prompt + live.output
            chunk = live.tokens + live.placeholders - live.computed
            chunk = min(chunk, limit) if 0 < limit < chunk else chunk
            chunk = self.shortened(live, live.computed, min(chunk, budget))
            if ends or chunk == 0:
                place += 1
                continue
            stuck = False
            while not self.room(live, chunk):
                last = max(self.running, key=lambda one: one.order[:2]) if self.by_priority else self.running[-1]
                if not self.may_preempt(last):
                    stuck = True
                    break
                at = self.running.index(last)
                del self.running[at]
                if at < place:
                    place -= 1
                for part in [part for part in parts if part[0] is last]:
                    parts.remove(part)
                    budget += part[2]
                self.preempt(last)
                preempted.append(last)
                if last is live:
                    break
            if stuck or not live.running:
                if self.by_priority and not stuck:
                    continue
                break
            self.allocate(live, chunk)
            parts.append((live, live.computed, chunk))
            budget -= chunk
            place += 1
        return budget, parts, preempted

    def plan(self):
        """[(request, computed before, tokens)] of the next step, and who is preempted."""
        limit = self.long_prefill(len(self.waiting))
        budget, parts, preempted = self.schedule_running(limit)
        skipped = []
        while not preempted and budget > 0 and self.waiting and len(self.running) < self.seats:
            live = self.waiting[0]
            if live.stale:
                skipped.append(self.waiting.popleft())
                continue
            hits, computed = self.find(live)
            chunk = live.tokens - computed
            chunk = min(chunk, limit) if 0 < limit < chunk else chunk
            if not self.chunked and chunk > budget:
                break
            chunk = self.shortened(live, computed, min(chunk, budget))
            if chunk == 0 or not self.admits(live, hits, computed, chunk):
                break
            self.waiting.popleft()
            self.start(live, hits, computed)
            live.computed, live.running = computed, True
            self.running.append(live)
            self.allocate(live, chunk)
            parts.append((live, computed, chunk))
            budget -= chunk
        for live in skipped if self.by_priority else reversed(skipped):
            self.add(live, first=True)
        self.advance(parts)
        return parts, [live.row for live in preempted]

    def advance(self, parts):
        for live, _, chunk in parts:
            live.computed += chunk
            live.flight += chunk
            if self.is_async and live.computed >= live.tokens + live.placeholders:
                live.placeholders += 1

    def learn(self, parts):
        """The output of a step: a token for each request all of whose tokens were computed. Returns (row, is_last)."""
        told = []
        for live, before, chunk in parts:
            live.flight -= chunk
            stale = live.stale > 0
            live.stale -= chunk if stale else 0
            if before + chunk < live.tokens:
                continue
            live.got += 1
            told.append((live, live.got == live.output))
            if not stale and live.placeholders > 0:
                live.placeholders -= 1
                if live.running:
                    self.publish(live, live.computed - live.flight)
            if live.got == live.output:
                self.release(live)
                if live in self.running:
                    self.running.remove(live)
                else:
                    self.waiting.remove(live)
        return told

    # ---- the cache

    @property
    def used(self):
        """The blocks that requests hold."""
        return len(self.pool.pins) - len(self.pool.free)

    def blocks_of(self, tokens):
        return -(-tokens // self.size)

    def find(self, live):
        """The blocks that hit, and their tokens."""
        hits = self.pool.hits(live.hashes[: (live.tokens - 1) // self.size])
        return hits, len(hits) * self.size

    def shortened(self, live, start, chunk):
        """The tokens of a chunk that may be computed in this step."""
        return chunk

    def admits(self, live, hits, computed, chunk):
        """Whether the blocks of a request fit beside those of others."""
        idle = sum(self.pool.pins[block] == 0 for block in hits)
        spare = self.watermark if self.running else 0
        need = self.blocks_of(live.tokens if self.whole else computed + chunk) - len(hits) + idle
        return need + spare <= len(self.pool.free)

    def start(self, live, hits, computed):
        for block in hits:
            self.pool.pin(block)
        live.blocks, live.published = list(hits), len(hits)

    def release(self, live):
        self.pool.release(live.blocks)

    def room(self, live, chunk):
        return self.blocks_of(live.computed + chunk) - len(live.blocks) <= len(self.pool.free)

    def allocate(self, live, chunk):
        while len(live.blocks) < self.blocks_of(live.computed + chunk):
            live.blocks.append(self.pool.take())
        self.publish(live, min(live.computed + chunk, live.tokens))

    def publish(self, live, tokens):
        while live.published < tokens // self.size:
            self.pool.publish(live.blocks[live.published], live.hashes[live.published])
            live.published += 1

    def preempt(self, live):
        self.release(live)
        live.blocks, live.computed, live.published, live.running = [], 0, 0, False
        live.stale, live.placeholders = live.flight, 0
        self.add(live, first=True)


def seconds_of(cost, parts):
    """The time of a step of requests with the tokens before, and those of the step."""
    if cost.get("is_polynomial"):
        return polynomial_seconds_of(cost, parts)
    return step_seconds(cost, [(live.prompt, before, chunk) for live, before, chunk in parts])


def step_seconds(cost, parts):
    """The time of a step, for (prompt tokens, tokens before, tokens of the step) of each request; 0 for a missing term.

    A request that decodes reads its new token too, and its pairs are not counted.
    """

    def term(name):
        return cost.get(name, 0.0)

    tokens, pairs, read = 0, 0, 0
    for prompt, before, chunk in parts:
        tokens += chunk
        if chunk == 1 and before >= prompt:
            read += before + 1
        else:
            pairs += chunk * (2 * before + chunk)
            read += before
    seconds = max(term("token_s") * tokens + term("pair_s") * pairs, term("step_s") + term("read_s") * read)
    touched = 1 - (1 - term("expert_share")) ** tokens
    seconds += max(term("expert_token_s") * tokens, term("expert_step_s") * touched)
    ways = [term("exchange_s") * tokens]
    if term("bulk_exchange_s"):
        ways.append(term("bulk_exchange_step_s") + term("bulk_exchange_s") * tokens)
    must = 0 < term("bulk_exchange_tokens") < tokens
    seconds += (ways[-1] if must else min(ways)) + term("overhead_s") + term("request_s") * len(parts)
    seconds += term("attention_pair_s") * pairs + term("attention_read_s") * read
    window = term("window_tokens")
    seconds += term("window_read_s") * min(read, window * len(parts))
    seconds += term("window_pair_s") * min(pairs, 2 * window * tokens)
    has_prompt = any(before < prompt for prompt, before, _ in parts)
    return max(seconds, term("launch_s")) if has_prompt and tokens > term("graph_tokens") else seconds


def polynomial_seconds_of(cost, parts):
    """The time of a step in Dynamo's mocked engine: prompt tokens by whole-number means, and contexts of decodes."""
    prompts = [(before, min(before + chunk, live.prompt)) for live, before, chunk in parts if before < live.prompt]
    decodes = [live.tokens for live, before, chunk in parts if live.got and before + chunk == live.tokens]
    seconds = 0.0
    if prompts:
        before, after = (sum(column) // len(prompts) for column in zip(*prompts, strict=True))
        if tokens := len(prompts) * (after - before):
            square, linear = cost["prefill_square_s"] * tokens**2, cost["prefill_token_s"] * tokens
            seconds = square + linear + cost["prefill_step_s"]
    if decodes:
        context = min(sum(decodes), cost["cache_tokens"])
        square, linear = cost["decode_square_s"] * context**2, cost["decode_token_s"] * context
        seconds += square + linear + cost["decode_step_s"]
    return seconds


def serve(case, states=None, kind=Scheduler):
    """The steps of a case, and for each request cached tokens, begin, first token, end and preemptions.

    A list `states` gets each step's begin, requests that run and wait, and blocks in use. A preempted request whose
    last token is on the way does not wait.
    """
    scheduler, rows, size = kind(case), case["requests"], case["block_size"]
    requests = [[-1, None, None, None, 0] for _ in rows]
    steps, queue, now, free, arrived = [], [], 0.0, 0.0, 0
    depth = 2 if case["settings"].get("async") else 1
    while True:
        while arrived < len(rows) and rows[arrived]["arrival"] <= now:
            row = rows[arrived]
            full, blocks = row["tokens"] // size, (row["tokens"] + row["output"]) // size
            hashes = [*row["ids"][:full], *((arrived, block) for block in range(full, blocks))]
            scheduler.add(Live(arrived, row["tokens"], row["output"], hashes, row.get("priority", 0), row["arrival"]))
            arrived += 1
        if scheduler.running or scheduler.waiting:
            parts, preempted = scheduler.plan()
            begin = max(free, now)
            if parts or preempted:
                steps.append([begin, [[live.row, before, chunk] for live, before, chunk in parts], sorted(preempted)])
            for live, before, _ in parts:
                if requests[live.row][1] is None:
                    requests[live.row][:2] = [before, begin]
            for row in preempted:
                requests[row][4] += 1
            if parts and states is not None:
                flying = [part for parts, _ in queue for part in parts]
                ending = [live for live, before, chunk in flying if before + chunk >= live.prompt + live.output - 1]
                waiting = sum(live not in ending for live in scheduler.waiting)
                states.append([begin, len(scheduler.running), waiting, scheduler.used])
            if parts:
                free = begin + seconds_of(case["cost"], parts)
                queue.append((parts, free))
                if len(queue) < depth:
                    continue
        if queue:
            parts, now = queue.pop(0)
            for live, last in scheduler.learn(parts):
                if requests[live.row][2] is None:
                    requests[live.row][2] = now
                if last:
                    requests[live.row][3] = now
        elif arrived < len(rows):
            now = max(now, rows[arrived]["arrival"])
        elif not (scheduler.running or scheduler.waiting):
            return {"steps": steps, "requests": requests}
