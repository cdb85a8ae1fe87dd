"""An instance of a serving engine in simulated time: a scheduler with its requests, a cache, and a clock.

A scheduler is a subclass with three verbs: `active` (requests that have not ended), `take` (a request arrives) and
`run` (all steps up to a time). It keeps the counts that a router reads.
"""

import cython

NEVER = cython.declare(cython.double, 1e300)
LEAST = cython.declare(cython.double, 1 - 1e-9)  # sums of steps are rounded

# the fields of Dynamo's cost, which other costs lack
NO_POLYNOMIAL = {
    "is_polynomial": False, "prefill_square_s": 0.0, "prefill_token_s": 0.0, "prefill_step_s": 0.0,
    "decode_square_s": 0.0, "decode_token_s": 0.0, "decode_step_s": 0.0, "cache_tokens": 0.0,
}  # fmt: skip


class Instance:
    """The clock of an instance, in seconds, and what a router sees of it. `cost` is a dict of terms (step_cost.pxd)."""

    def __init__(self, engine, requests, cost):
        self.engine, self.requests, self.cost = engine, requests, NO_POLYNOMIAL | cost
        self.now = self.busy = 0
        self.steps = self.load = self.prefill = self.blocks = 0
        self.load_before = self.prefill_before = self.blocks_before = self.active_before = 0
        self.timeline, self.watched = [], False
        self.until, self.loop = 0, None
        self.least_step_s = 0 if self.cost.is_polynomial else LEAST * (
            self.cost.step_s + self.cost.overhead_s + self.cost.request_s
        )  # fmt: skip

    def watch(self):
        """Keep a time line: rows of (seconds, running, waiting, blocks in use), each valid until the next one."""
        self.watched = True

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

    def _ended(self, row, at):
        """A request has ended. In a closed loop others may arrive because of that, and `run` stops before they do."""
        self.requests.ended[row] = at
        if self.loop is not None:
            self.loop.complete(row, at)
            self.until = min(self.until, self.loop.next_event())
        return 0

    def _pass(self, seconds):
        self.now += seconds
        self.busy += seconds
        return 0
