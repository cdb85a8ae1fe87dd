"""SGLang's scheduler and radix tree, step by step, in plain Python: the rules of 0.5.23 for full attention, one rank.

`serve(case)` takes the cases of tests/clients/sglang_scheduler.py and returns what that returns, without the version.

Files: S scheduler.py, B schedule_batch.py, P schedule_policy.py (srt/managers); R batch_result_processor.py
(srt/managers/scheduler_components); U unified_radix_cache.py, A allocation.py, C common.py (srt/mem_cache).

* The loop (S:2026, S:2061): take what has arrived, plan, launch, process a result. Without overlap that of this step,
  with it that of the step before: a step is planned when the one before begins, and sees the tokens of none under way.
* With scheduler_recv_interval, turns are counted up to it until the loop takes what has arrived: a turn after a decode
  batch or after none counts 1, another one 1,000 (recv_skipper.py in srt/managers/scheduler_components).
* A plan (S:3894): a chunk that was computed is inserted into the tree; the requests of the last prefill join those
  that run; ended ones leave; then a prefill batch if there is one (S:4079), else a decode batch (S:4459).
* No prefill is tried while `full` is set (S:4099): it is set when a request did not fit or all seats are taken, and
  cleared when the running requests become fewer, or none. An arrival does not clear it. A chunk goes on always. A
  prefill that finds nobody running, or a mixed one, becomes the running batch with its own flag, which is not set.
* The queue: arrival order, retracted requests last (S:3480), by priority if that is on. With lpm and at most 128
  waiting: the longest match first; last are requests with a match of at most 32 tokens that share 32 or more with one
  before them (P:346). Otherwise every 32nd pass with a queue touches the prefixes of its first 128 (P:282).
* Admission (P:1395, P:1592): uncached tokens + remaining limit (at most 4,096) + a page must be less than free +
  evictable - needed; the first that does not fit ends the pass. needed: (limit - done, at most 4,096) x ratio a running
  request (P:785; ratio 1 with ignore_eos), and paged tokens + limit + a page for each admitted one (a chunk: no limit).
  A prefill has max_prefill_tokens and chunked_prefill_size tokens, charged in pages; a request is looked at while both
  are left. It may exceed the former, except without chunks, where only the first may. What does not fit into the chunk
  is cut at a page; one request at a time is in chunks (P:1140). At least one token of a request is computed.
* Slots: a prefill evicts for its tokens and a page a request, a decode for a page a request, also where no new page is
  needed; with pages of one token both evict for their tokens (A:175, A:572).
* The tree is written when a result is processed: a prompt at its first token (with overlap one step later), a chunk
  when the next step is planned, the outputs at the end (S:3894, R:258, C:400). An end inserts all tokens with KV.
  Each insertion past the prompt divides the node at the prompt's last page (U:1164).
* Eviction takes whole nodes, least recently used first; a node without children and locks can go (U:952).
  A match uses its whole path, the root first; a division uses the rest of the node just before
  (unified_tree_core.py:1012, 1467).
* Decode (S:4459): requests whose last token is under way and ends them by length sit out (S:4444). If the next tokens
  do not fit after eviction: if some sit out, no step; else retraction (B:3451): at least one, from the fewest outputs
  and the longest prompt, until it fits. It releases without insertion and at once makes room for 20 tokens a request
  that stays. The requests that stay are then in the order of retraction. A step that fits lowers the ratio by
  (first - least) / 600; a retraction sets it to (outputs + 20 n) / (limits + 1); an idle server resets it.
* A retracted request loses the token that is under way. A request that ends by a stop token runs one step too many.
* Mixed chunks (S:4375): the running requests, less those that sit out, decode in the prefill's step if they fit; their
  number is taken off both token budgets. The ratio does not change then.
* Priorities (P:1707): a waiting request that finds `full` set preempts running ones whose priority is lower by more
  than the threshold, if what they would still need covers its need; they go back into the queue.

0.5.23 ends (here MemoryError) where a chunk goes on although nothing is free (prefill_budget.py:142), and has a
negative chunk where more requests run than a mixed chunk has tokens. With lpm and preemption it can admit and preempt
the same request for ever.

In a run of decode-only steps these stay constant: who runs, their order, the tree without its recency, and `full`. A
step differs from the one before by a token a request, and lowers the ratio. With a queue, `full` is set (a pass that
admits nobody sets it) and nobody is looked at; preemption by priority alone looks at each step. So steps can be taken
together until: an end, or with overlap the step before it; less than a page a request free (eviction, later
retraction); an arrival where nobody waits and `full` is not set.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count

from tests.reference.radix import Node, Radix, shared
from tests.reference.vllm_scheduler import step_seconds

CONSTANTS = {
    "SGLANG_INIT_NEW_TOKEN_RATIO": 0.7,
    "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR": 0.14,
    "SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS": 600,
    "SGLANG_RETRACT_DECODE_STEPS": 20,
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": 4096,
}
MATCHED_WAITING = 128  # waiting requests that are matched, or touched
TOUCH_EVERY = 32  # passes
SHARED_PREFIX = 32  # tokens; in-batch prefix caching
PROMPTS_WEIGH = 1000  # against 1 of a decode, until new requests are taken


class Tree(Radix):
    """The radix tree over pages of tokens."""

    def __init__(self, pages, size, bigram=False):
        super().__init__(pages, "lru")
        self.size = size
        self.ahead = int(bigram)  # with a drafter the keys are pairs of tokens

    def available(self):
        """Tokens."""
        return self.free * self.size

    def with_evictable(self):
        return (self.free + self.evictable()) * self.size

    def pages(self, tokens):
        full = max(len(tokens) - self.ahead, 0) // self.size
        return [tuple(tokens[i * self.size : (i + 1) * self.size + self.ahead]) for i in range(full)]

    def look_up(self, pages):
        """The number of leading pages that are cached, and their last node."""
        nodes = self.match(pages)
        return sum(len(node.run) for node in nodes), (nodes or [self.root])[-1]

    def unlock(self, node):
        if node is not None:
            super().unlock(node)

    def make_room_for(self, tokens):
        self.make_room(-(-tokens // self.size))

    def take(self, pages):
        self.free -= pages
        if self.free < 0:
            raise MemoryError("out of memory: SGLang would end here")


@dataclass(eq=False)
class Request:
    row: int
    prompt: list  # tokens
    output: int
    limit: int  # max_new_tokens
    priority: int
    entered: int = 0  # place in the order of all entries into the queue
    out: int = 0  # tokens it has
    fill: int = 0  # tokens that the last round knew
    prefix: int = 0  # computed, or cached
    end: int = 0  # of the last extend
    node: Node | None = None  # of the last match
    locked: Node | None = None
    protected: int = 0  # leading tokens that the tree owns
    held: int = 0  # tokens with a slot
    has_row: bool = False
    middle: int = 0  # chunks under way that are not the last
    matched: int = 0
    best: Node | None = None  # with a host tier: the last node of the match, also on the host
    host_hit: int = 0  # pages of it that are on the host alone
    loaded: int = 0  # tokens that came from the host
    inserted: int = 0  # leading pages that it has inserted
    finished: bool = False
    retracted: bool = False

    def __hash__(self):
        return self.row  # SGLang iterates over a set of preempted requests; the oracle has the same hash

    def tokens(self):
        return [*self.prompt, *((self.row, i) for i in range(self.out))]


@dataclass(eq=False)
class Batch:
    requests: list
    kind: str = "decode"
    full: bool = False
    chunked: Request | None = None
    decoding: list = field(default_factory=list)
    parts: list = field(default_factory=list)  # (request, tokens before, tokens)

    def filter(self, exclude=()):
        self.requests = [one for one in self.requests if not one.finished and one not in exclude]


class Adder:
    """Which requests a prefill step takes."""

    def __init__(self, scheduler, running, mixed):
        self.scheduler, self.tree, self.size, self.running = scheduler, scheduler.tree, scheduler.size, running
        self.clip = scheduler.constant["SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION"]
        self.input_left = scheduler.max_prefill_tokens - mixed
        self.chunk_left = None if scheduler.chunk is None else scheduler.chunk - mixed
        self.now_needed = mixed
        self.needed = mixed + sum([self.expected(one) for one in running.requests])
        self.requests, self.preempted, self.new_chunked = [], [], None

    def expected(self, request):
        ratio = 1.0 if self.scheduler.ignore_eos else self.scheduler.ratio
        return min(request.limit - request.out, self.clip) * ratio

    def left(self):
        return self.tree.with_evictable() - self.needed

    def state(self):
        if self.left() <= 0 or self.tree.with_evictable() - self.now_needed <= 0:
            return "no token"
        if self.input_left <= 0 or (self.chunk_left is not None and self.chunk_left <= 0):
            return "other"
        return "continue"

    def charge(self, extend, outputs):
        paged = self.scheduler.paged(extend)
        self.needed += paged + self.size + outputs
        self.now_needed += paged + self.size
        self.input_left -= paged
        if self.chunk_left is not None:
            self.chunk_left -= paged

    def add_chunk(self, request):
        """The next chunk; the request if it is not the last."""
        if self.chunk_left is None:
            raise RuntimeError("a chunk without chunks")
        room = min(self.chunk_left, int(self.left()))
        room = room if room > 0 else self.chunk_left
        rest = request.fill - request.prefix
        request.end = request.prefix + min(rest, room)
        self.requests.append(request)
        self.charge(request.end - request.prefix, 0 if rest > room else min(request.limit, self.clip))
        return request if rest > room else None

    def add(self, request):
        extend = request.fill - request.prefix
        outputs = min(max(request.limit - request.out, 0), self.clip)
        self.tree.lock(request.node)
        fits = extend + outputs + self.size < self.left()
        self.tree.unlock(request.node)
        if not fits:
            return "no token"
        paged = self.scheduler.paged(extend)
        if self.chunk_left is None and self.requests and paged >= self.input_left:
            return "other"
        outputs = min(request.limit, self.clip)
        chunked = self.chunk_left is not None and paged > self.chunk_left
        if chunked:
            extend = self.chunk_left // self.size * self.size
            if extend <= 0:
                return "other"
            outputs, self.new_chunked = 0, request
        request.end = request.prefix + extend
        request.locked = request.node
        self.tree.lock(request.node)
        self.requests.append(request)
        self.charge(extend, outputs)
        return self.state()

    def preempt(self, request):
        """Release running requests of so much less priority that the request may fit; True if it may."""
        scheduler, running = self.scheduler, self.running.requests
        sign = -scheduler.sign
        need = request.fill - request.prefix + min(request.limit, self.clip) - self.left()
        victims = []
        for one in sorted(running, key=lambda one: (one.priority * sign, -one.entered)):
            if one.finished or one in self.preempted:
                continue
            if (request.priority - one.priority) * sign <= scheduler.threshold:
                break
            victims.append(one)
            need -= self.expected(one)
            if need <= 0:
                break
        if not victims or need > 0:
            return False
        for done, one in enumerate((one for one in running if one in victims), 1):
            self.needed -= self.expected(one)
            scheduler.drop(one, len(running) - done)
        self.running.requests = [one for one in running if one not in victims]
        self.preempted.extend(set(victims))
        return True


class Scheduler:
    """`plan` makes the next batch, `learn` takes the tokens of one."""

    adder = Adder
    looks_twice = False  # an idle server plans once more before it waits for a copy

    def __init__(self, case):
        settings = case["settings"]
        self.constant = {**CONSTANTS, **case.get("env", {})}
        self.size = settings["page_size"]
        self.capacity = case["capacity"]
        self.tree = Tree(self.capacity // self.size, self.size, case.get("bigram", False))
        self.chunk = settings["chunked_prefill_size"] if settings["chunked_prefill_size"] > 0 else None
        self.max_prefill_tokens = settings.get("max_prefill_tokens", 16384)
        self.seats = self.rows = settings["max_running_requests"]
        self.policy = settings.get("schedule_policy", "fcfs")
        self.mixed = self.chunk is not None and settings.get("enable_mixed_chunk", False)
        self.overlap = not settings.get("disable_overlap_schedule", False)
        self.by_priority = settings.get("enable_priority_scheduling", False)
        self.preempts = self.by_priority and not settings.get("disable_priority_preemption", False)
        self.sign = 1 if settings.get("schedule_low_priority_values_first", False) else -1
        self.threshold = settings.get("priority_scheduling_preemption_threshold", 10)
        self.retracts_by_priority = settings.get("retraction_policy", "length") == "priority"
        self.ignore_eos = case.get("ignore_eos", False)
        begin = self.constant["SGLANG_INIT_NEW_TOKEN_RATIO"] * settings.get("schedule_conservativeness", 1.0)
        self.first_ratio = self.ratio = min(begin, 1.0)
        self.least_ratio = min(self.ratio * self.constant["SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR"], 1.0)
        self.decay = (self.ratio - self.least_ratio) / self.constant["SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS"]
        self.retract_steps = self.constant["SGLANG_RETRACT_DECODE_STEPS"]
        self.waiting, self.running, self.last = [], Batch([]), None
        self.chunked, self.passes, self.entries = None, 0, count()
        self.in_flight = deque()  # batches whose tokens are not known
        self.now = self.free = 0.0  # the clock, and when the model is free
        self.dropped = []  # retracted since the last step

    def paged(self, tokens):
        return -(-tokens // self.size) * self.size

    def add(self, request):
        request.entered = next(self.entries)
        self.waiting.append(request)

    def idle(self):
        return not self.waiting and not self.running.requests and self.chunked is None

    def plan(self):
        """The next batch, or None."""
        self.merge()
        batch = self.prefill()
        if batch is None and self.running.requests:
            batch = self.decode(self.running)
        return batch if batch is not None and batch.requests else None

    def merge(self):
        """The requests of the last prefill join those that run."""
        exclude = []
        if self.chunked is not None:
            exclude.append(self.chunked)
            if self.chunked.end > self.chunked.prefix:
                self.checkpoint(self.chunked)
        last = self.last
        if last is not None and last.kind != "decode":
            if last.chunked is not None:
                exclude.append(last.chunked)
            size = len(last.requests)
            last.filter(exclude)
            if len(last.requests) < size:
                self.running.full = False
            if last.requests:
                if self.running.requests:
                    self.running.requests = self.running.requests + last.requests
                else:
                    self.running = last
        size = len(self.running.requests)
        self.running.filter()
        if len(self.running.requests) < size:
            self.running.full = False

    def prefill(self):
        running = self.running
        if self.preempts or not running.requests:
            running.full = False
        if (running.full or not self.waiting) and self.chunked is None:
            return None
        if self.allocatable() <= 0 and self.chunked is None and not self.preempts:
            running.full = True
            return None
        self.sort_waiting()
        adder = self.adder(self, running, len(running.requests) if self.mixed else 0)
        if self.chunked is not None:
            self.chunked.fill = len(self.chunked.prompt) + self.chunked.out
            self.chunked = adder.add_chunk(self.chunked)
        for request in self.waiting:
            if adder.state() == "other":
                break
            if len(adder.requests) >= self.allocatable(sum(one.has_row for one in adder.requests)):
                running.full = True
            if running.full and not (self.preempts and adder.preempt(request)):
                break
            if not self.ready(request):
                continue
            self.look_up(request)
            if self.lost(request):
                continue
            verdict = adder.add(request)
            if verdict != "continue":
                if verdict == "no token":
                    running.full = bool(adder.requests or running.requests)
                break
        self.waiting = [one for one in self.waiting if one not in adder.requests]
        self.admitted(adder.requests)
        for request in adder.preempted:
            self.add(request)
        if not adder.requests:
            return None
        if adder.new_chunked is not None:
            self.chunked = adder.new_chunked
        if self.chunked is not None:
            self.chunked.middle += 1
        batch = Batch(adder.requests, "prefill", chunked=self.chunked)
        self.extend(batch)
        if self.mixed and running.requests:
            self.mix(batch, running)
        return batch

    def allocatable(self, held=0):
        return min(self.seats - len(self.running.requests), max(self.rows + held, 0))

    def look_up(self, request):
        """Match all tokens but the last."""
        tokens = request.tokens()
        request.fill = len(tokens)
        pages, request.node = self.tree.look_up(self.tree.pages(tokens[:-1]))
        request.prefix = request.protected = pages * self.size

    def sort_waiting(self):
        if self.policy == "lpm" and len(self.waiting) <= MATCHED_WAITING:
            self.sort_by_prefix()
            return
        if self.policy == "fcfs" and self.by_priority:
            self.waiting.sort(key=lambda one: (one.priority * self.sign, one.entered))
        if not self.waiting:
            return
        if self.passes % TOUCH_EVERY == 0:
            for request in reversed(self.waiting[:MATCHED_WAITING]):
                self.tree.look_up(self.tree.pages(request.tokens()))
        self.passes += 1

    def sort_by_prefix(self):
        """The longest match first; last those that share 32 tokens with one before that has no match to speak of."""
        seen = []
        for request in self.waiting:
            tokens = request.tokens()
            pages, request.node = self.tree.look_up(self.tree.pages(tokens))
            request.prefix = pages * self.size
            key = -min(self.matched(request, pages), len(tokens) - 1)
            if request.prefix <= SHARED_PREFIX:
                if any(shared(tokens, other, 0) >= SHARED_PREFIX for other in seen):
                    key = float("inf")
                else:
                    seen.append(tokens)
            request.matched = key
        self.waiting.sort(key=lambda request: request.matched)

    def matched(self, request, pages):
        """Tokens of a match of so many pages on the device."""
        return pages * self.size

    def extend(self, batch):
        """Slots for the tokens of a prefill."""
        for request in batch.requests:
            if not request.has_row:
                request.has_row = True
                self.rows -= 1
        batch.parts = [(one, one.prefix, one.end - one.prefix) for one in batch.requests]
        tokens = sum(part[2] for part in batch.parts)
        spare = len(batch.requests) * self.size if self.size > 1 else 0
        self.tree.make_room_for(tokens + spare)
        self.tree.take(sum(self.paged(one.end) - self.paged(one.prefix) for one in batch.requests) // self.size)
        for request in batch.requests:
            request.held, request.retracted = request.end, False

    def mix(self, batch, running):
        """Requests that run decode in the same step, if their tokens have room."""
        finishing = self.finishing(running)
        running.filter(finishing)
        if finishing:
            running.full = False
        if not running.requests or not self.decode_fits(running.requests):
            return
        self.decode_slots(running)
        for request in running.requests:
            request.fill, request.end = len(request.prompt) + request.out, request.held
        batch.kind = "mixed"
        batch.decoding = running.requests
        batch.requests = batch.requests + running.requests
        batch.parts = batch.parts + running.parts
        self.running = Batch([], full=running.full)

    def finishing(self, batch):
        """Those whose last token is under way."""
        if not self.overlap or not self.in_flight:
            return []
        known = self.in_flight[0][1]
        return [one for one in batch.requests if one in known and one.out + 1 >= one.limit]

    def decode_fits(self, requests):
        need = sum(one.held % self.size == 0 for one in requests) * self.size
        self.tree.make_room_for(need)
        return self.tree.available() >= need

    def decode_slots(self, batch):
        self.tree.make_room_for(len(batch.requests) * self.size)
        self.tree.take(sum(one.held % self.size == 0 for one in batch.requests))
        batch.parts = [(one, one.held, 1) for one in batch.requests]
        for request in batch.requests:
            request.held += 1

    def decode(self, batch):
        size = len(batch.requests)
        finishing = self.finishing(batch)
        batch.filter(finishing)
        if not batch.requests:
            batch.full = False
            return None
        fits = self.decode_fits(batch.requests)
        if not fits and finishing:
            batch.full = False
            return None
        if fits:
            self.ratio = max(self.ratio - self.decay, self.least_ratio)
        else:
            self.retract(batch)
        if len(batch.requests) < size:
            batch.full = False
        if not batch.requests:
            return None
        self.decode_slots(batch)
        batch.kind = "decode"
        return batch

    def retract(self, batch):
        """Those with the fewest outputs, of these the longest prompt, give back their slots and wait again, last."""
        order = sorted(batch.requests, key=self.keep_first, reverse=True)
        gone = []
        while len(order) > 1 and (not gone or not self.decode_fits(order)):
            gone.append(order.pop())
            self.drop(gone[-1], len(order))
        if len(order) == 1 and not self.decode_fits(order):
            raise MemoryError("out of memory: SGLang would abort the last request")
        batch.requests = order
        outputs, limits = sum(one.out for one in order), sum(one.limit for one in order)
        self.ratio = min(1.0, (outputs + self.retract_steps * len(order)) / (limits + 1))
        for request in gone:
            self.add(request)

    def keep_first(self, request):
        by_length = (request.out, -len(request.prompt))
        return (-self.sign * request.priority, *by_length) if self.retracts_by_priority else by_length

    def drop(self, request, others):
        """Release a request without making it findable, and room for the next steps of the others."""
        self.release(request)
        self.tree.make_room_for(others * self.retract_steps)
        request.prefix = request.protected = request.middle = request.inserted = 0
        request.retracted = True
        self.dropped.append(request)

    def release(self, request):
        """Give back the slots that the tree does not own, the lock and the row."""
        self.tree.free += (self.paged(request.held) - request.protected) // self.size
        self.tree.unlock(request.locked)
        request.locked, request.has_row, request.held = None, False, 0
        self.rows += 1

    def checkpoint(self, request):
        """What is computed becomes findable; the tree's copy replaces the request's where there is one."""
        self.publish(request, min(request.end, request.fill))
        request.prefix = request.end

    def publish(self, request, upto):
        if upto <= 0:
            return
        pages = self.tree.pages(request.tokens()[:upto])
        before, node = self.tree.insert(pages, inserted=request.inserted)
        self.tree.free += max(before - request.protected // self.size, 0)
        request.inserted = max(request.inserted, len(pages))
        prompt = len(self.tree.pages(request.prompt))
        if 0 < prompt < len(pages):
            self.tree.insert(pages[:prompt], inserted=prompt)
        self.tree.unlock(request.locked)
        self.tree.lock(node)
        request.locked, request.protected = node, len(pages) * self.size

    def launch(self, batch, begin, seconds):
        """The model computes a batch."""
        self.free = begin + seconds

    def processed(self):
        """The result of a batch was processed."""

    def next_copy(self):
        """When the next copy between the tiers below ends; None without one."""

    def begin_turn(self):
        """The next turn of the event loop begins."""

    def spins(self):
        """Whether an idle server has something to do at once, in its next turn."""
        return False

    def ready(self, request):
        """Whether a waiting request may be looked at."""
        return True

    def lost(self, request):
        """Whether a request waits again, since its match became shorter."""
        return False

    def admitted(self, requests):
        """Requests are in the next prefill."""

    def learn(self, batch, requests):
        """The tokens of a batch; the requests that got one."""
        told = []
        for request in requests:
            if request.retracted or (request.finished and request.middle <= 0):
                continue
            if request.middle > 0:
                request.middle -= 1
                continue
            request.out += 1
            told.append(request)
            if request.out == request.output or request.out >= request.limit:
                request.finished = True
                owned = min(request.held, len(request.prompt) + request.out)
                self.publish(request, owned)
                self.release(request)
            elif batch.kind != "decode" and request not in batch.decoding:
                self.checkpoint(request)
        return told


def request_of(case, number):
    """The request of a row; its limit as SGLang clips it to the pool."""
    row, size = case["requests"][number], case["settings"]["page_size"]
    tokens = [id_ for id_ in row["ids"] for _ in range(case["block_size"])][: row["tokens"]]
    room = case["capacity"] - -(-len(tokens) // size) * size - size - 1
    limit = max(0, min(row.get("limit", row["output"]), room))
    return Request(number, tokens, row["output"], limit, row.get("priority", 0))


def serve(case, scheduler=None):
    """The steps of a case, and for each request cached tokens, begin, first token, end and retractions."""
    taken = turns(case, scheduler or Scheduler(case))
    while True:
        try:
            next(taken)
        except StopIteration as done:
            return done.value


def turns(case, scheduler):
    """Take the turns of the event loop, one for each `next`; the value at the end is that of `serve`."""
    rows = case["requests"]
    requests = [[-1, None, None, None, 0] for _ in rows]
    steps, arrived, retried = [], 0, False
    weight, interval = 0, case["settings"].get("scheduler_recv_interval", 1)
    for _ in range(case.get("max_plans", 1 << 62)):
        yield
        scheduler.begin_turn()
        weight += 1 if scheduler.last is None or scheduler.last.kind == "decode" else PROMPTS_WEIGH
        if weight >= interval:
            weight = 0
            while arrived < len(rows) and rows[arrived]["arrival"] <= scheduler.now:
                scheduler.add(request_of(case, arrived))
                arrived += 1
        batch = scheduler.plan()
        if batch is not None:
            begin, retried = max(scheduler.free, scheduler.now), False
            work = [(len(one.prompt), before, chunk) for one, before, chunk in batch.parts]
            scheduler.launch(batch, begin, step_seconds(case["cost"], work))
            parts = [[one.row, before, chunk] for one, before, chunk in batch.parts]
            gone, scheduler.dropped = sorted(one.row for one in scheduler.dropped), []
            steps.append([begin, batch.kind, parts, gone])
            for row, before, _ in parts:
                if requests[row][1] is None:
                    requests[row][:2] = [before, begin]
            for row in gone:
                requests[row][4] += 1
            kept = Batch(batch.requests, batch.kind, decoding=batch.decoding)
            scheduler.in_flight.append((kept, batch.requests, scheduler.free))
        elif not scheduler.in_flight:
            if scheduler.spins():
                scheduler.ratio = scheduler.first_ratio if scheduler.idle() else scheduler.ratio
                scheduler.last = None
                continue
            copied = scheduler.next_copy()
            if scheduler.idle():
                scheduler.ratio = scheduler.first_ratio
            elif (copied is None or scheduler.looks_twice) and not retried:  # a preemption may have made room
                retried, scheduler.last = True, None
                continue
            if copied is not None and (arrived == len(rows) or copied < rows[arrived]["arrival"]):
                scheduler.now = copied
            elif arrived < len(rows):
                scheduler.now = max(scheduler.now, rows[arrived]["arrival"])
            elif scheduler.idle():
                break
            else:
                raise RuntimeError("stuck: a request does not fit")
        if scheduler.last is not None if scheduler.overlap else batch is not None:
            old, known, now_free = scheduler.in_flight.popleft()
            scheduler.now = now = max(scheduler.now, now_free)
            for request in scheduler.learn(old, known):
                times = requests[request.row]
                times[2] = now if times[2] is None else times[2]
                times[3] = now if request.finished else None
            scheduler.processed()
        scheduler.last = batch
    for request in scheduler.dropped:  # where max_plans ended the case before the next step
        requests[request.row][4] += 1
    return {"steps": steps, "requests": requests}
