"""Dynamo's offline replay with multi-token prediction, in plain Python.

`serve(case)` takes the cases of `tests.serving.scheduler_cases.dynamo_mtp_case` with a cost (`DynamoCost().terms`), and
returns what `tests.reference.dynamo_times.serve` returns.

* In a step, each request whose prompt is complete gets one token, and one for each drafted token that is accepted, up
  to the first that is not. The step that completes a prompt does so too, and takes the time of a decode as well.
* Acceptance is drawn for the requests in order of their admission, from ChaCha12.
* A step takes blocks for all drafted tokens, and gives back those that it does not use: they have lost their content.
  If blocks run out, the last admitted request is preempted.
* The last block of a hit is computed again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tests.reference import dynamo_times
from tests.reference.vllm_scheduler import Scheduler, polynomial_seconds_of

MASK = (1 << 64) - 1


class Draws:
    """Rust's StdRng (rand 0.9): ChaCha12 with a seed that PCG32 has spread."""

    def __init__(self, seed):
        self.words, self.counter, key = [], 0, []
        for _ in range(8):
            seed = (seed * 6364136223846793005 + 11634580027462260723) & MASK
            word, turn = ((seed >> 18 ^ seed) >> 27) & 0xFFFFFFFF, seed >> 59
            key.append((word >> turn | word << (32 - turn)) & 0xFFFFFFFF)
        self.start = [*struct.unpack("<4I", b"expand 32-byte k"), *key]

    def next(self):
        """The next number of 64 bits."""
        self.words = self.words or self.block()
        low, high, *self.words = self.words
        return high << 32 | low

    def block(self):
        start = [*self.start, self.counter & 0xFFFFFFFF, self.counter >> 32, 0, 0]
        words, self.counter = list(start), self.counter + 1

        def quarter(a, b, c, d):
            for first, second, third, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                words[first] = (words[first] + words[second]) & 0xFFFFFFFF
                mixed = words[third] ^ words[first]
                words[third] = (mixed << by | mixed >> 32 - by) & 0xFFFFFFFF

        for _ in range(6):
            for i in range(4):
                quarter(i, 4 + i, 8 + i, 12 + i)
            for i in range(4):
                quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
        return [(one + two) & 0xFFFFFFFF for one, two in zip(words, start, strict=True)]


@dataclass
class Prompt:
    """A request whose output tokens are counted elsewhere."""

    prompt: int
    got: int = 0


class MtpScheduler(Scheduler):
    """The scheduler of one worker."""

    def __init__(self, case, number):
        super().__init__(case)
        self.rates, self.draws = case["mtp"]["rates"], Draws(case["mtp"]["seed"] + number)
        self.cost = case["cost"]

    def find(self, live):
        found = self.pool.hits(live.hashes[: live.tokens // self.size])
        self.pinned = sum(self.pool.pins[block] > 0 for block in found)
        hits = found[: max(0, min(len(found), (live.tokens - 1) // self.size) - 1)]
        return hits, len(hits) * self.size

    def admits(self, live, hits, computed, chunk):
        return self.blocks_of(live.tokens) - min(self.pinned, len(hits)) <= len(self.pool.free)

    def lacks(self, hits, tokens):
        """Whether blocks for so many tokens do not fit. (What `admits` counts may be pinned in other hits.)"""
        idle = sum(self.pool.pins[block] == 0 for block in hits)
        return self.blocks_of(tokens) - len(hits) + idle > len(self.pool.free)

    def plan(self):
        budget, parts, preempted = self.schedule_running(0)
        self.admitted = []  # also those that are preempted in the same step
        while not preempted and budget > 0 and self.waiting and len(self.running) < self.seats:
            live = self.waiting[0]
            hits, computed = self.find(live)
            chunk = min(live.tokens - computed, budget)
            if not self.admits(live, hits, computed, chunk):
                break
            self.waiting.popleft()
            while self.lacks(hits, computed + chunk):
                victim = self.running.pop()
                undone = [part for part in parts if part[0] is victim]
                parts = [part for part in parts if part[0] is not victim]
                budget += sum(part[2] for part in undone)
                self.preempt(victim)
                preempted.append(victim)
            self.start(live, hits, computed)
            live.computed, live.running = computed, True
            self.running.append(live)
            self.admitted.append((live, computed))
            self.allocate(live, chunk)
            parts.append((live, computed, chunk))
            budget -= chunk
        self.advance(parts)
        return parts, [live.row for live in preempted]

    def predict(self, parts):
        """[(request, whether it has its last token)] of those that get tokens, who is preempted, and the seconds."""
        preempted = []
        while True:
            ready = [live for live in self.running if live.computed == live.tokens]
            most = [min(len(self.rates) + 1, live.output - live.got) for live in ready]
            needed = sum(
                self.blocks_of(live.tokens + more) - self.blocks_of(live.tokens)
                for live, more in zip(ready, most, strict=True)
            )
            if needed <= len(self.pool.free):
                break
            victim = self.running.pop()
            self.preempt(victim)
            preempted.append(victim.row)
        seconds = polynomial_seconds_of(self.cost, [(Prompt(live.prompt), *part) for live, *part in parts])
        if ready:
            context = min(sum(live.tokens for live in ready), self.cost["cache_tokens"])
            square, linear = self.cost["decode_square_s"] * context**2, self.cost["decode_token_s"] * context
            seconds += square + linear + self.cost["decode_step_s"]
        told, taken = [], [self.pool.take() for _ in range(needed)]
        counts = [min(self.accepted(), live.output - live.got) for live in ready]
        for live, count in zip(ready, counts, strict=True):
            for _ in range(count):
                self.publish(live, live.tokens)
                live.got += 1
                if len(live.blocks) < self.blocks_of(live.tokens):
                    live.blocks.append(taken.pop())
            live.computed = live.tokens - 1
            told.append((live, live.got == live.output))
            if live.got == live.output:
                self.release(live)
                self.running.remove(live)
        self.pool.release(taken)
        return told, preempted, seconds

    def accepted(self):
        """The tokens that a request gets in a step, if it does not end before."""
        count = 1
        for rate in self.rates:
            if rate < 1 and self.draws.next() >= int(rate * 2.0**64):
                break
            count += 1
        return count


class Worker(dynamo_times.Worker):
    """An engine with its clock, and what the router knows of it."""

    def __init__(self, case, number):
        super().__init__(case)
        self.scheduler = MtpScheduler(case, number)

    def plan(self, requests):
        self.cached = set(self.scheduler.pool.copies)
        parts, preempted = self.scheduler.plan()
        for live, before in self.scheduler.admitted:
            if requests[live.row][2] is None:
                requests[live.row][1:3] = [before, self.now]
        told, more, seconds = self.scheduler.predict(parts)
        for row in [*preempted, *more]:
            requests[row][5] += 1
        return told, seconds

    def seconds(self, planned):
        return planned[1]

    def learn(self, planned, requests):
        self.tell(planned[0], requests)


def serve(case, seed=0, winner=None):
    """Each request's worker, cached tokens, begin, first token, end and preemptions."""
    return dynamo_times.serve(case, seed, winner, [Worker(case, number) for number in range(case["workers"])])
