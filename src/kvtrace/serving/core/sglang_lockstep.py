"""SGLang's data-parallel attention: all ranks begin a step together, and end it together."""

import cython
from cython.cimports.kvtrace.serving.core.instance import WHOLE, StepWork, begin_work, expert_seconds, step_seconds
from cython.cimports.kvtrace.serving.core.sglang import SglangEventLoop
from cython.cimports.kvtrace.serving.core.sglang_prefill import DECODE, NOTHING

from kvtrace._base.errors import UsageError
from kvtrace.serving.core.instance import NO_TERMS

# SGLang 0.5.23 (srt/managers/scheduler_components/dp_attn.py): the schedulers of all ranks wait for each other in each
# turn, and where one has a batch, those without one run an idle batch. Each of them chooses by itself between a prefill
# and a decode. With overlap, an idle batch is waited for as any other, so all ranks look for requests at one time.
# Without overlap, a rank with an idle batch looks for them when that begins: a request that comes later waits for a
# turn. Not modelled: where a rank prefills, SGLang may run another's decode batch as a prefill, by its CUDA graphs.
#
# Twin: tests/reference/sglang_lockstep.py.


NEVER = cython.declare(cython.double, 1e300)


class SglangRank(SglangEventLoop):
    """A rank of a SglangLockstep, which says when a planned step begins and how long it takes."""

    def take(self, row):
        self.load += self.requests.tokens[row]
        self.prefill += self.requests.tokens[row]
        if self.requests.arrival[row] > self.looked:
            self.late.append(row)
        else:
            self._wait(row)
        self.group.wake(self.requests.arrival[row])
        return 0

    def wake(self, at):
        return self.group.wake(at)

    def run(self, until):
        return self.group.run(until)

    def next_turn(self):
        return NEVER if self.group.asleep else self.group.now

    def steps_left(self, row):
        return min(self.requests.output[row], self.limit[row]) - self.outputs[row]

    def plan_step(self):
        """Plan a batch."""
        i: cython.int
        self._begin_turn()
        self.planned = self._plan()
        self.looked = NEVER
        for item in self.late:
            self._wait(item)
        self.late = []
        self.planned_tokens = 0
        if self.planned:
            self.planned_s = SglangEventLoop._seconds_of_parts(self)
            for i in range(self.parts):
                self.planned_tokens += self.part_tokens[i]
        return 0

    def _seconds_of_parts(self):
        return self.group.seconds

    def end_step(self, launched, before):
        """Run the planned batch, or an idle one; learn what the last step, which ended at `before`, gave.

        `launched`: some rank has a batch.
        """
        side: cython.int = self.side
        kind: cython.int = self.last_kind
        flew: cython.bint = self.flying
        if self.planned:
            self._launch()
        elif launched:
            self.dummies += 1
            self.busy += self.group.seconds
            if not self.limits.overlap:
                self.looked = max(self.free_at, self.now)
            self.free_at = max(self.free_at, self.now) + self.group.seconds
        self.last_kind = self.kind if self.planned else NOTHING
        if self.limits.overlap:
            self.flying = self.planned
            if flew:
                self._report_load(kind != DECODE)
                self._learn(side)
            self.now = max(self.now, before)
        elif self.planned:
            self._report_load(self.kind != DECODE)
            self._learn(self.side)
        elif launched:
            self.now = self.free_at
        self.blocks = self._used()
        if self.active() == 0:
            self._note_state(self.now)
        return 0

    def is_idle(self):
        """Whether it has no request."""
        return self.head == self.tail and self.count == 0 and self.chunked < 0 and not self.late

    def sleep(self):
        """Nothing is left to do before the next arrival."""
        if self.is_idle():
            self.ratio = self.limits.first_ratio
        self._report_load(True)
        self.last_kind = NOTHING
        return 0


class SglangLockstep:
    """The ranks of a server. `cost` is that of an instance alone; its experts are spread over the GPUs of all ranks."""

    def __init__(self, ranks, cost):
        rank: SglangRank
        work: StepWork
        self.ranks, self.cost = ranks, NO_TERMS | cost
        self.now = self.end = self.seconds = 0
        self.asleep, self.flying, self.retried = True, False, False
        for rank in ranks:
            rank.group, rank.late, rank.looked = self, [], NEVER
            rank.cost.expert_token_s = rank.cost.expert_step_s = 0
        rank = ranks[0]
        self.overlap = rank.limits.overlap
        begin_work(cython.address(work))
        self.idle_s = step_seconds(cython.address(rank.cost), cython.address(work))

    def wake(self, at):
        """A request has arrived."""
        rank: SglangRank
        if self.asleep:
            self.asleep, self.now = False, max(self.now, at)
            for rank in self.ranks:
                rank.now = self.now
        return 0

    def run(self, until):
        """Let the ranks take all turns before a time, or before an arrival that an end of these turns causes."""
        rank: SglangRank = self.ranks[0]
        rank.until = until  # which an event of any of the ranks shortens
        while not self.asleep and self.now < rank.until:
            self._turn()
            if rank.loop is not None:
                rank.until = min(rank.until, rank.loop.next_event())
        if self.asleep and until >= NEVER and rank.role == WHOLE:
            for rank in self.ranks:
                if rank.active():
                    raise UsageError("SGLang's scheduler never admits a request of the trace. Try a larger --capacity.")
        return 0

    def _turn(self):
        """Each rank plans a batch; the step takes as long as the slowest one, and the experts of all tokens."""
        rank: SglangRank
        slowest: cython.double = self.idle_s
        tokens: cython.double = 0
        before: cython.double = self.end if self.flying else 0
        launched: cython.bint = False
        idle: cython.bint = True
        for rank in self.ranks:
            rank.plan_step()
            if rank.planned:
                launched, tokens = True, tokens + rank.planned_tokens
                slowest = max(slowest, rank.planned_s)
            idle = idle and rank.is_idle()
        if launched:
            self.seconds = slowest + expert_seconds(cython.address(self.cost), tokens) / len(self.ranks)
            self.retried = False
        elif not self.flying:
            self.asleep = idle or self.retried
            self.retried = not self.asleep
            for rank in self.ranks:
                rank.last_kind = NOTHING
                if self.asleep:
                    rank.sleep()
            if self.retried:
                return 0
        for rank in self.ranks:
            rank.end_step(launched, before)
            self.now = max(self.now, rank.now)
            self.end = rank.free_at
        for rank in self.ranks:
            rank.now = self.now
        self.flying = launched and self.overlap
        return 0
