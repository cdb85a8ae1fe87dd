"""The data-parallel ranks of a server: all ranks begin a step together, and end it together.

vLLM's ranks of a model with experts, those of Dynamo's mocked workers, and SGLang's data-parallel attention.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.serving.core.instance import (
    WHOLE,
    StepWork,
    add_part,
    begin_work,
    expert_seconds,
    step_seconds,
)
from cython.cimports.kvtrace.serving.core.sglang import SglangEventLoop
from cython.cimports.kvtrace.serving.core.sglang_prefill import DECODE, NOTHING
from cython.cimports.kvtrace.serving.core.vllm import VllmEngineCore

from kvtrace._base.errors import UsageError
from kvtrace.serving.core.instance import NO_TERMS

NEVER = cython.declare(cython.double, 1e300)


# ---- vLLM
#
# vLLM 0.33.0: DPEngineCoreProc.run_busy_loop (v1/engine/core.py). A rank that has nothing to compute while the engines
# run executes a dummy batch of one token, so that the ranks' collectives meet in each step. The experts of all ranks'
# tokens are computed by the GPUs of all ranks (layers/fused_moe/config.py), with expert parallelism or without.
#
# A host takes no time. It waits for the other hosts in each step (coordinate_batch_across_dp), and with a batch
# flying until that has ended; so a rank without requests begins to wait for a step before the others plan it, and a
# request that comes then is planned a step later. A host that executes a dummy batch is at most two steps ahead.
#
# Every 16 steps, and in the first one, the ranks tell each other whether they have requests (dp_sync_interval). If none
# has, all stop, and the next request wakes them. What they report of their requests names the wave and the step.
#
# Twin: tests/reference/vllm_lockstep.py.


SYNC_EVERY = cython.declare(cython.longlong, 16)  # steps


class VllmRank(VllmEngineCore):
    """A rank of a VllmLockstep. It plans a step (`plan_step`), and the group says when that ends (`end_step`)."""

    def take(self, row):
        VllmEngineCore.take(self, row)
        self.late += 1
        self.wakes = self.group.wake(self.requests.arrival[row]) or self.wakes
        return 0

    def _report_counts(self):
        waiting: cython.longlong = self.active() - self.count - self.late
        free: cython.double = self.cache.context.capacity - self.cache.size + self.cache.free()
        if self.reports is not None and (self.count != self.reported_running or waiting != self.reported_waiting):
            self.reported_running, self.reported_waiting = self.count, waiting
            use: cython.double = 1.0 - free / self.cache.context.capacity
            self.reports.append((self.now, self.count, waiting, use, self.group.waves, self.group.steps))
        return 0

    def report_wave(self, at):
        """Report that a wave begins or ends: a message without counts."""
        if self.reports is not None:
            self.reports.append((at,))
        return 0

    def run(self, until):
        return self.group.run(until)

    def next_turn(self):
        return self.group.polls[self.place]

    def plan_step(self, at):
        """Plan the next step; returns when the rank begins to wait for the others."""
        i: cython.int
        reached: cython.double
        self.now, self.late, self.planned = at, 0, False
        if self.wakes:
            self.wakes = False
            self.report_wave(at)
        self._begin_turn()
        if self._is_busy():
            self._plan()  # if nothing is left to compute, it waits for the last step, and learns its output
        reached = self.now
        self.planned_tokens = 0
        for i in range(self.parts if self.planned else 0):
            self.planned_tokens += self.part_chunk[i]
        self.now = NEVER  # in a step: a router sees the counts from before it
        return reached

    def _execute(self, seconds, first, last):
        """Keep the step that is planned, until the group says how long it takes."""
        self._note_state(max(self.now, self.free_at))
        self.steps += 1
        self.planned, self.planned_s = True, seconds
        self.planned_first, self.planned_last = first, last
        return 0

    def end_step(self, begin, end, met, before):
        """A step of all ranks: it lasts from `begin` to `end`.

        The hosts have waited for each other until `met`, and the step before the last one ended at `before`. Returns
        when the rank plans its next step.
        """
        at: cython.double
        known_at: cython.double = self.free_at
        known_first: list = self.first_tokens
        known_last: list = self.last_tokens
        was_flying: cython.bint = self.flying
        self.free_at = end
        if self.planned:
            self.cache.step_ends = end
        if not self.planned:
            self.dummies += 1
            at = max(met, before if self.limits.asynchronous else begin)
        elif not self.limits.asynchronous:
            self._learn(end, self.planned_first, self.planned_last)
            at = end
        else:
            self.first_tokens, self.last_tokens, self.flying = self.planned_first, self.planned_last, True
            if was_flying:
                self._learn(known_at, known_first, known_last)
            at = max(met, known_at) if was_flying else met
        self.now = at
        self._report_counts()
        return at


class VllmLockstep:
    """The ranks of a server. `cost` is that of an instance alone; its experts are spread over the GPUs of all ranks."""

    def __init__(self, ranks, cost):
        i: cython.int
        rank: VllmRank
        work: StepWork
        count: cython.int = len(ranks)
        self.ranks, self.count, self.cost = ranks, count, NO_TERMS | cost
        self.polls = np.full(count, NEVER)
        self.running, self.left, self.steps, self.waves = False, 0, 0, 0
        self.until = self.met = self.before = self.end = self.idle_since = 0
        for i in range(count):
            rank = ranks[i]
            rank.group, rank.place = self, i
            rank.cost.expert_token_s = rank.cost.expert_step_s = 0
        begin_work(cython.address(work))
        add_part(cython.address(work), 0, 1, 0, 0)
        rank = ranks[0]
        self.dummy_s = step_seconds(cython.address(rank.cost), cython.address(work))

    def wake(self, at):
        """A request has arrived: if the ranks have stopped, all of them plan a step. True if its rank wakes them."""
        i: cython.int
        rank: VllmRank
        if self.running:
            return self.steps == 0 and at <= self.polls[0]
        self.running, self.left, self.met = True, self.count, 0
        for i in range(self.count):
            rank = self.ranks[i]
            rank.now = self.polls[i] = max(at, self.idle_since)
        return True

    def run(self, until):
        """Let the ranks plan all steps before a time, or before an arrival that an end of these steps causes."""
        i: cython.int
        first: cython.int
        rank: VllmRank
        self.until = until
        while True:
            first = 0
            for i in range(1, self.count):
                if self.polls[i] < self.polls[first]:
                    first = i
            if self.polls[first] >= self.until:
                return 0
            rank = self.ranks[first]
            self.met = max(self.met, rank.plan_step(self.polls[first]))
            self.polls[first] = NEVER
            self.left -= 1
            if self.left == 0:
                self._step()
            if rank.loop is not None:
                self.until = min(self.until, rank.loop.next_event())

    def _step(self):
        """All ranks have planned: the step takes as long as the slowest rank's, and the experts of all tokens."""
        i: cython.int
        rank: VllmRank
        slowest: cython.double = 0
        tokens: cython.double = 0
        is_work: cython.bint = False
        begin: cython.double = max(self.end, self.met)
        before: cython.double = self.before
        for i in range(self.count):
            rank = self.ranks[i]
            slowest = max(slowest, rank.planned_s if rank.planned else self.dummy_s)
            tokens += rank.planned_tokens if rank.planned else 1
            is_work = is_work or rank.planned
        self.before = self.end
        self.end = begin + slowest + expert_seconds(cython.address(self.cost), tokens) / self.count
        for i in range(self.count):
            rank = self.ranks[i]
            if is_work:
                rank.busy += self.end - begin
            self.polls[i] = rank.end_step(begin, self.end, self.met, before)
        self.left, self.met = self.count, 0
        self.steps += 1
        if self.steps == 1 or self.steps % SYNC_EVERY == 0:
            self._synchronize()
        return 0

    def _synchronize(self):
        """The hosts wait for each other; if no rank knows a request, all stop."""
        i: cython.int
        rank: VllmRank
        latest: cython.double = 0
        known: cython.bint = False
        waiting: cython.bint = False
        for i in range(self.count):
            rank = self.ranks[i]
            latest = max(latest, self.polls[i])
            known = known or rank.active() > rank.late
            waiting = waiting or rank.late > 0
        for i in range(self.count):
            rank = self.ranks[i]
            self.polls[i] = latest if known else NEVER
            rank.now = latest
            if i == 0 and (not known or self.steps == 1):
                rank.report_wave(latest)
        if not known:
            self.running, self.steps, self.idle_since = False, 0, latest
            self.waves += 1
            for i in range(self.count):
                rank = self.ranks[i]
                rank.wakes = rank.late > 0
            if waiting:
                self.wake(latest)
        return 0


class DynamoLockstep(VllmLockstep):
    """The data-parallel ranks of one of Dynamo's mocked workers (ai-dynamo-runtime 1.6.1): all ranks begin a pass
    together, which lasts as long as the slowest rank's. A rank without requests takes no time, and ranks that are idle
    together stop at once. Twin: tests/reference/dynamo_times.py."""

    def _step(self):
        i: cython.int
        rank: VllmRank
        slowest: cython.double = 0
        is_work: cython.bint = False
        known: cython.bint = False
        begin: cython.double = max(self.end, self.met)
        for i in range(self.count):
            rank = self.ranks[i]
            slowest = max(slowest, rank.planned_s if rank.planned else 0)
            is_work = is_work or rank.planned
        self.end = begin + slowest
        for i in range(self.count):
            rank = self.ranks[i]
            if is_work:
                rank.busy += slowest
            rank.end_step(begin, self.end, self.met, begin)
            known = known or rank.active() > 0
        for i in range(self.count):
            rank = self.ranks[i]
            rank.now = self.end
            self.polls[i] = self.end if known else NEVER
        self.left, self.met = self.count, 0
        self.running, self.idle_since = known, self.end
        return 0


# ---- SGLang
#
# SGLang 0.5.23 (srt/managers/scheduler_components/dp_attn.py): the schedulers of all ranks wait for each other in each
# turn, and where one has a batch, those without one run an idle batch. Each of them chooses by itself between a prefill
# and a decode. With overlap, an idle batch is waited for as any other, so all ranks look for requests at one time.
# Without overlap, a rank with an idle batch looks for them when that begins: a request that comes later waits for a
# turn. Not modelled: where a rank prefills, SGLang may run another's decode batch as a prefill, by its CUDA graphs.
#
# Twin: tests/reference/sglang_lockstep.py.


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
