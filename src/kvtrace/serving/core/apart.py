"""Workers that compute prompts and workers that compute outputs: a request goes from one to the other with its KV.

First what lies between them, for all engines: two routers, the links, and the order of what happens; then what a worker
of one kind does in vLLM, and in SGLang.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.blocks import PagedCache
from cython.cimports.kvtrace.cache.core.engine import Engine
from cython.cimports.kvtrace.cache.core.radix import ROOT
from cython.cimports.kvtrace.serving.core.instance import (
    DECODES,
    PREFILLS,
    WHOLE,
    Instance,
    Requests,
)
from cython.cimports.kvtrace.serving.core.interleaved import InterleavedServing
from cython.cimports.kvtrace.serving.core.serving import Router
from cython.cimports.kvtrace.serving.core.sglang_prefill import SglangPrefill
from cython.cimports.kvtrace.serving.core.vllm import ARRIVED, LOADING, HoldingInstance, VllmInstance

NEVER = cython.declare(cython.double, 1e300)
NOBODY = cython.declare(cython.Py_ssize_t, -1)


class Links:
    """The link of each worker, over which its transfers go one after another: each waits for both of its ends.

    A transfer takes `byte_s` per byte of both links, and arrives `latency` after its last one.
    """

    def __init__(self, worker, prefill_workers, decode_workers, byte_s, latency):
        self.worker = np.ascontiguousarray(worker, dtype=np.int64)
        self.out, self.sent = np.zeros((2, prefill_workers))
        self.into, self.received = np.zeros((2, decode_workers))
        self.byte_s, self.latency = byte_s, latency

    def begin(self, sender, receiver, size, at):
        """A transfer is ordered at a time; returns when it arrives."""
        end: cython.double = max(at, max(self.out[sender], self.into[receiver])) + size * self.byte_s
        self.out[sender] = self.into[receiver] = end
        self.sent[sender] += size
        self.received[receiver] += size
        return end + self.latency


class Decider:
    """The rules by which a decode worker computes a prompt itself (serving/deciders.py); None: a rule is not used."""

    def __init__(self, most_local=None, most_queued=None, by_length=False, by_load=False, eff_isl_threshold=0,
                 eff_isl_ratio_threshold=0.0, prefill_busy_threshold=0.0, decode_busy_threshold=0.0, prefill_tokens=0,
                 decode_blocks=0, policy=None):  # fmt: skip
        self.most_local = -1 if most_local is None else most_local
        self.by_queue, self.most_queued = most_queued is not None, most_queued or 0
        self.by_length, self.by_load = by_length, by_load
        self.threshold, self.ratio = eff_isl_threshold, eff_isl_ratio_threshold
        self.busy_tokens = prefill_busy_threshold * prefill_tokens
        self.busy_blocks = decode_busy_threshold * decode_blocks
        self.peeks = by_length or by_load
        self.used = self.peeks or self.by_queue or most_local is not None

    def keeps(self, tokens, fresh, queued, prefill_tokens, blocks):
        """Whether a prompt with so many tokens, of which `fresh` do not hit, stays at its decode worker.

        `queued` requests wait for a prefill worker. The prefill worker that the router would take has prompts of
        `prefill_tokens` to compute; the decode worker would have `blocks` of prompts.
        """
        keeps: cython.bint
        if not self.peeks:
            return fresh <= self.most_local or (self.by_queue and queued >= self.most_queued)
        keeps = self.by_length and fresh < self.threshold and fresh < self.ratio * max(tokens, 1)
        return (keeps or (self.by_load and prefill_tokens > self.busy_tokens)) and blocks <= self.busy_blocks


class ApartServing(InterleavedServing):
    """Serving simulation with workers of two kinds.

    `requests` has the arrivals at the first engine; each kind of worker has Requests of its own, in which `arrival` is
    when one of its workers gets the request. Early: a request goes to both workers at once, and its prompt is computed
    when the decode worker has room for it (SGLang); else it goes to the decode worker when its prompt is computed, and
    its KV cache moves when the decode worker has room (vLLM). With `chunks`, a chunk moves as soon as it is computed
    (SGLang). With `layers`, what a step of a prefill worker computes moves in so many parts, one after another, during
    the step. Push: a request goes to both workers at once, and what is computed moves once the decode worker has room.

    A decode worker computes a prompt itself if the decider says so.
    """

    def __init__(
        self, workers, routers, requests: Requests, kinds, capacities, links: Links, transfer, rules, decider: Decider
    ):  # fmt: skip
        instance: Instance
        prefill, decode = workers
        rows: cython.Py_ssize_t = requests.tokens.shape[0]
        InterleavedServing.__init__(self, [*prefill, *decode], routers[0], requests, capacities[0])
        self.decode_router, self.decode_capacity = routers[1], capacities[1]
        self.prefills, self.decodes = kinds
        self.links, self.prefillers = links, len(prefill)
        self.size, self.token_bytes = np.ascontiguousarray(transfer[0], dtype=np.float64), transfer[1]
        self.early, self.push, self.chunks, self.layers = rules
        self.parts, self.reserved = [], np.zeros(rows, dtype=np.uint8)
        self.ready = np.zeros(rows)
        self.decider, self.queued = decider, []
        self.brought, self.blocks_of = np.zeros((2, rows), dtype=np.int64)
        self.uncomputed, self.prompt_blocks = np.zeros((2, len(self.instances)), dtype=np.int64)
        self.local = np.zeros(rows, dtype=np.int64)
        self.sender, self.receiver = np.full((2, rows), NOBODY, dtype=np.int64)
        self.left = np.zeros(rows)
        self.computed, self.begun, self.arrived = np.full((3, rows), np.nan)
        self.to_prefill = self.to_decode = 0
        self.noted = []
        for instance in self.instances:
            instance.join(self, instance in prefill)

    def close(self):
        """Run all workers until no request is left, then self-check each cache."""
        self.run_until(NEVER)
        for worker in self.instances:
            if hasattr(worker, "settle"):
                worker.settle()
        sent = (np.asarray(self.sender) >= 0) | (np.asarray(self.receiver) >= 0)
        if not (sent & np.isnan(self.decodes.outcomes["ended"])).any():  # else they wait for ever, which is an error
            InterleavedServing.close(self)

    # ---- what happens

    def tell(self, kind, row, seconds):
        """A worker tells what it has done at a time."""
        if kind == CHUNK:
            self._note(seconds, COMPUTED, ~row)
        else:
            self._note(seconds, kind, row)

    def _note(self, seconds, kind, row):
        """Something happens at a time; of one moment and kind, in this order."""
        self.noted.append(row)
        return self.at(seconds, kind, len(self.noted) - 1)

    def compute(self, row, begin, end, before, after):
        """A step of a prefill worker computes tokens of a prompt, a layer after another, from a time to another."""
        i: cython.int
        share: cython.double
        for i in range(1, self.layers + 1):
            share = cython.cast(cython.double, i) / self.layers
            self.parts.append((row, before + share * (after - before)))
            self.at(begin + share * (end - begin), LAYER, len(self.parts) - 1)
        return 0

    def happen(self, seconds, kind, row):
        instance: Instance
        if kind == LAYER:
            return self._take_part(row, seconds)
        row = self.noted[row]
        if kind == ARRIVES:
            if self.lanes.next_arrival() <= seconds:
                row = self.lanes.take()
                if not self._arrive(row):
                    self.lanes.complete(row, seconds)
                self._plan_arrival()
        elif kind == COMPUTED and row < 0:
            if not self.chunks:
                return 0
            row = ~row
            instance = self.instances[self.sender[row]]
            self._move(
                row, self.left[row] - self.token_bytes * (self.prefills.tokens[row] - instance.computed_tokens(row)),
                seconds, False,
            )  # fmt: skip
        elif kind == COMPUTED:
            self.computed[row] = seconds
            self.uncomputed[self.sender[row]] -= self.brought[row]
            if self.reserved[row]:
                self._move(row, self.left[row], seconds, True)
            elif not self.push:
                self._send_to_decode(row, seconds)
        elif kind == RESERVED:
            self.reserved[row] = True
            self.left[row] = max(0.0, self.size[row] - self.token_bytes * self.decodes.cached[row])
            if self.early:
                instance = self.instances[self.sender[row]]
                instance.admit(row, self.decodes.cached[row], seconds)
            elif self.computed[row] == self.computed[row]:  # not NaN
                self._move(row, self.left[row], seconds, True)
            elif self.ready[row] > 0:
                self._move_computed(row, self.ready[row], seconds)
        elif kind == MOVED:
            self.arrived[row] = seconds
            instance = self.instances[self.sender[row]]
            instance.moved(row, seconds)
            instance = self.instances[self.receiver[row]]
            instance.moved(row, seconds)
        else:
            self.prompt_blocks[self.receiver[row]] -= self.blocks_of[row]
            if self.lanes is not None:
                self.lanes.complete(row, seconds)
                self._plan_arrival()
        return 0

    def _plan_arrival(self):
        """The next arrival of a closed loop is an event; one that is no longer the next one is not taken."""
        at: cython.double = self.lanes.next_arrival()
        return self._note(at, ARRIVES, NOBODY) if at < NEVER else 0

    # ---- where a request goes

    def _arrive(self, row):
        at: cython.double = self.requests.arrival[row]
        fits: cython.bint = self.prefills.need[row] <= self.capacity and self.decodes.need[row] <= self.decode_capacity
        self.row += 1
        if not fits:
            return False
        if self.early:
            self._send_to_decode(row, at)
            self._send_to_prefill(row, at)
        else:
            self.local[row] = self.decider.used and self._keeps(row, at)
            if self.local[row] or self.push:
                self._send_to_decode(row, at)
            if not self.local[row]:
                self._send_to_prefill(row, at)
        return True

    def _keeps(self, row, at):
        """Whether a decode worker computes the prompt: the one that the request is sent to, or would be."""
        engine: Engine
        decider = self.decider
        place: cython.int
        prefill_tokens: cython.longlong = 0
        tokens: cython.longlong = self.decodes.tokens[row]
        size: cython.longlong
        if decider.peeks:
            self._count(self.decode_router, self.prefillers, at)
            place = self.prefillers + self._peek(self.decode_router, row, self.to_decode)
        else:  # its decode worker stays the one that was looked at
            self._choose_decode(row, at)
            place = cython.cast(cython.int, self.receiver[row])
        engine = cython.cast(Instance, self.instances[place]).engine
        size = engine.context.trace.block_size
        if decider.by_load:
            self._count(self.router, 0, at)
            prefill_tokens = self.uncomputed[self._peek(self.router, row, self.to_prefill)]
        return decider.keeps(
            tokens, tokens - engine.peek(row) * size, self._queued(at) if decider.by_queue else 0, prefill_tokens,
            self.prompt_blocks[place] + (tokens + size - 1) // size,
        )  # fmt: skip

    def _queued(self, at):
        """The requests that wait for a prefill worker: no step there has them."""
        row: cython.Py_ssize_t
        waiting: list = []
        for item in self.queued:
            row = item
            if not self.prefills.started[row] <= at:  # NaN: not yet
                waiting.append(row)
        self.queued = waiting
        return len(waiting)

    def _peek(self, router: Router, row, turn):
        """The worker that a router would take; it forgets that it was asked."""
        chosen: cython.int
        place: cython.Py_ssize_t = router.place
        last: cython.Py_ssize_t = router.last_turn
        router.turn = turn
        chosen = router.send(row)
        router.sent[chosen] -= 1
        router.place, router.last_turn = place, last
        return chosen

    def _send_to_prefill(self, row, at):
        instance: Instance
        self._count(self.router, 0, at)
        self.router.turn = self.to_prefill
        self.to_prefill += 1
        self.sender[row] = self.router.send(row)
        self.prefills.arrival[row], self.prefills.instance[row] = at, cython.cast(cython.int, self.sender[row])
        instance = self.instances[self.sender[row]]
        if self.decider.by_queue:
            self.queued.append(row)
        if self.decider.by_load:
            self.brought[row] = self.prefills.tokens[row] - (
                instance.engine.peek(row) * instance.engine.context.trace.block_size
            )
            self.uncomputed[self.sender[row]] += self.brought[row]
        instance.send(row)
        return 0

    def _choose_decode(self, row, at):
        place: cython.int
        engine: Engine
        self._count(self.decode_router, self.prefillers, at)
        self.decode_router.turn = self.to_decode
        self.to_decode += 1
        place = self.decode_router.send(row)
        self.receiver[row], self.decodes.instance[row] = self.prefillers + place, place
        engine = cython.cast(Instance, self.instances[self.receiver[row]]).engine
        size: cython.longlong = engine.context.trace.block_size
        self.blocks_of[row] = (self.decodes.tokens[row] + size - 1) // size
        self.prompt_blocks[self.receiver[row]] += self.blocks_of[row]
        return 0

    def _send_to_decode(self, row, at):
        instance: Instance
        if self.receiver[row] < 0:
            self._choose_decode(row, at)
        self.decodes.arrival[row] = at
        instance = self.instances[self.receiver[row]]
        instance.send(row)
        return 0

    def _take_part(self, part, at):
        """Some layers of a step are computed."""
        row: cython.Py_ssize_t
        tokens: cython.double
        row, tokens = self.parts[part]
        self.ready[row] = max(self.ready[row], tokens)
        return self._move_computed(row, tokens, at) if self.reserved[row] else 0

    def _move_computed(self, row, tokens, at):
        """Send what is computed of a KV cache: as much as so many prompt tokens have."""
        size: cython.double = self.left[row] - self.token_bytes * (self.prefills.tokens[row] - tokens)
        return self._move(row, size, at, False) if size > 0 else 0

    def _move(self, row, size, at, is_last):
        """Send a part of a KV cache; after the last one, its place is free and the decode worker has it."""
        workers = self.links.worker
        end: cython.double
        size = max(0.0, min(size, self.left[row]))
        if size == 0 and not is_last:
            return 0
        if self.begun[row] != self.begun[row]:  # NaN: the first part
            self.begun[row] = at
        self.left[row] -= size
        end = self.links.begin(workers[self.sender[row]], workers[self.receiver[row]], size, at)
        return self._note(end, MOVED, row) if is_last else 0


# ---- vLLM
#
# vLLM 0.33.0, NixlConnector. A decode worker gives a waiting request blocks for its prompt, reads what does not hit
# from the prefill worker, and admits it once that has come; the last token is computed again, which gives the first
# output token. A request that was preempted computes its prompt there. A prefill worker serves requests of one output
# token, and keeps their blocks until they are read. A worker process reports a read that has ended with the next step
# that it begins, and the scheduler learns of it with that step's output. An engine with nothing to compute looks for it
# each millisecond.
#
# Checked against vLLM's own schedulers and connector: tests/clients/test_vllm_apart.py.


POLL_S = cython.declare(cython.double, 0.001)  # EngineCore sleeps so long after a step without tokens
READ = cython.declare(cython.int, 3)  # a request reads once


class VllmWorker(HoldingInstance):
    """A worker of one kind. `local` is ApartServing's: requests whose prompts are computed by their decode worker."""

    def __init__(self, engine: PagedCache, requests: Requests, cost, limits, log=False):
        HoldingInstance.__init__(self, engine, requests, cost, limits, log)
        self.come, self.reported = [], []
        self.ready = self.unfit = 0
        self.idle_since = 0

    def join(self, group, prefills):
        VllmInstance.join(self, group, prefills)
        self.local, self.sends_parts = group.local, group.layers > 0

    def settle(self):
        """The run is over: nothing is planned that would report the last reads."""
        if self.role != DECODES:
            self._read(self.reported + self.come)
            self.reported, self.come = [], []

    def moved(self, row, at):
        """The KV cache of a request has been read: by this worker, or from it."""
        polls: cython.longlong
        self.come.append(row)
        if self.now >= NEVER:
            polls = cython.cast(cython.longlong, max(0.0, at - self.idle_since) / POLL_S)
            self.now = self.idle_since + polls * POLL_S
            while self.now < at:
                polls += 1
                self.now = self.idle_since + polls * POLL_S
        return 0

    def _must_plan(self):
        return self.come or self.reported or self.ready or VllmInstance._must_plan(self)

    def _may_admit(self):
        """Also a request that has its KV cache, and did not fit."""
        decodes: cython.longlong = self.count - self.draining
        if self.unfit and self.count < self.limits.requests and decodes < self.limits.step_tokens:
            return True
        return VllmInstance._may_admit(self)

    def _plan(self):
        begun: cython.double = self.now
        VllmInstance._plan(self)
        if self.reported and not self.flying:
            self._read(self.reported)
            self.reported = []
        if self.now >= NEVER:  # a step without tokens
            self.idle_since = begun
            if self.come or self.ready or self.preempted:
                self._read(self.come)
                self.come = []
                self.now = begun + POLL_S
        return 0

    def _execute(self, seconds, first, last):
        i: cython.int
        row: cython.Py_ssize_t
        begin: cython.double = max(self.now, self.free_at)
        reported: list = self.reported
        if self.role != DECODES and self.sends_parts:
            for i in range(self.parts):
                row = self.part_row[i]
                self.group_of_workers.compute(
                    row, begin, begin + seconds, self.requests.computed[row] - self.part_chunk[i],
                    self.requests.computed[row],
                )  # fmt: skip
        self.reported, self.come = self.come, []
        if not self.limits.asynchronous:
            reported, self.reported = self.reported, []
        VllmInstance._execute(self, seconds, first, last)
        return self._read(reported)

    def _read(self, rows):
        """The scheduler learns what has been read."""
        row: cython.Py_ssize_t
        for item in rows:
            row = item
            self.blocked = False
            if self.role == DECODES:
                self.stage[row] = ARRIVED
                self.ready += 1
            else:
                self.paged.release(row)
        return 0

    def _schedule_waiting(self, budget):
        if self.role != DECODES:
            return VllmInstance._schedule_waiting(self, budget)
        return HoldingInstance._schedule_waiting(self, budget)

    def _reach(self, row, hits, goal):
        reads: cython.bint = self.stage[row] == 0 and not self.local[row] and not self.requests.preempted[row]
        return self.requests.tokens[row] if reads else hits * self.paged.block_size

    def _load(self, row, hits, computed):
        """Give a request blocks for its whole prompt, and order the read of what does not hit."""
        self.requests.cached[row] = hits * self.paged.block_size
        self.paged.hit[row] = hits
        self.paged.extend(row, 0, computed)
        self.stage[row] = LOADING
        self.group_of_workers.tell(RESERVED, row, self.now)
        return 0

    def _arrive(self, row):
        """The last token of the prompt is computed again."""
        requests: Requests = self.requests
        self.stage[row] = READ
        self.ready -= 1
        self.unfit += 1
        self.paged.publish(row, requests.tokens[row] - self.ahead)
        requests.computed[row] = min(requests.tokens[row], requests.goal[row] - 1)
        return 0

    def _begin(self, row, computed):
        if self.role != DECODES or self.local[row]:
            return VllmInstance._begin(self, row, computed)
        self.unfit -= self.stage[row] == READ
        self.requests.started[row] = max(self.now, self.free_at)
        return 0


# ---- SGLang
#
# SGLang 0.5.23 (srt/disaggregation/decode.py, srt/disaggregation/prefill.py). Each turn of a decode worker begins
# with its queues: retracted requests come back from host memory; requests get pages for their prompts, in order of
# arrival, while the next outputs of all active ones keep room (DecodePreallocQueue); those whose KV cache has come
# (DecodeTransferQueue) join the batch, with the first token from the prefill worker, while it has seats.
#
# A prefill worker queues a prompt once the decode worker has its pages. What is cached is sent when the pass begins,
# a chunk when it is computed; the pages and the seat are free when a turn finds that the last part has arrived. A
# decode worker has a radix cache only with --disaggregation-decode-enable-radix-cache: then it receives what does not
# hit. Twin: tests/reference/sglang_apart.py.


FEW = cython.declare(cython.longlong, 32)  # seats, up to which a decode worker has three times as many places for KV
HAS_ROOM = cython.declare(cython.int, 1)  # the progress of a request: the decode worker has pages for its prompt,
HAS_COME = cython.declare(cython.int, 2)  # its KV cache has come


class SglangApart(SglangPrefill):
    """What a worker of one kind does beside its batches."""

    def join(self, group, prefills):
        SglangPrefill.join(self, group, prefills)
        self.sends_parts = group.layers > 0
        rows: cython.Py_ssize_t = self.requests.tokens.shape[0]
        self.incoming, self.moving, self.joining, self.offloaded = [], [], [], []
        self.progress, self.sent = np.zeros((2, rows), dtype=np.int64)
        self.admitted = self.arrived = 0
        self.buffers, self.still = 2 * self.limits.seats, False
        if self.role == PREFILLS:
            self.limit = np.ones(rows, dtype=np.int64)
        elif self.limits.seats <= FEW:
            self.vacant += 2 * self.limits.seats

    def receive(self, reserve, keeps):
        """The options of a decode worker: num_reserved_decode_tokens, and whether it has a radix cache."""
        self.reserve, self.keeps = reserve, keeps

    def active(self):
        active: cython.longlong = SglangPrefill.active(self)
        return active if self.role == WHOLE else active + len(self.incoming) + len(self.offloaded)

    def computed_tokens(self, row):
        return self.sent[row]

    def admit(self, row, held, at):
        self.progress[row], self.sent[row] = HAS_ROOM, held
        self.admitted += 1
        return self.wake(at)

    def moved(self, row, at):
        """The KV cache of a request has been received: here, or by its decode worker."""
        self.progress[row] = HAS_COME
        self.arrived += 1
        return self.wake(at)

    def _wait(self, row):
        if self.role == WHOLE:
            return SglangPrefill._wait(self, row)
        if self.retracted[row]:
            self.entries += 1
            self.entered[row] = self.entries
            self.offloaded.append(row)
        else:
            self.incoming.append(row)
        return 0

    def _has_news(self):
        """Whether the next turn may do more than decode."""
        return self.incoming or self.arrived or self.joining or self.offloaded

    # ---- a prefill worker

    def _begin_prefills(self):
        """Requests for which the decode worker has pages enter the queue, in order of arrival."""
        row: cython.Py_ssize_t = 0
        if not self.still:
            self._leave()
        while self.admitted and self.buffers and row >= 0:
            row = self._take_out(self.incoming, HAS_ROOM)
            if row >= 0:  # else the worker has not seen it yet
                self.admitted -= 1
                self.buffers -= 1
                SglangPrefill._wait(self, row)
        return 0

    def _take_out(self, rows: list, progress):
        """Take the first request of such a progress out of a list; -1 without one."""
        i: cython.Py_ssize_t
        row: cython.Py_ssize_t
        for i in range(len(rows)):
            row = rows[i]
            if self.progress[row] == progress:
                del rows[i]
                return row
        return -1

    def _leave(self):
        """Prompts that have arrived are inserted once more, and give back their pages and seats."""
        row: cython.Py_ssize_t
        while self.arrived:
            row = self._take_out(self.moving, HAS_COME)
            self._publish(row, self.held[row])
            self._release(row)
            self.buffers += 1
            self.arrived -= 1
        return 0

    def _send_part(self, row, tokens, at):
        """Whole pages of a prompt can be sent."""
        tokens -= tokens % self.page
        if tokens > self.sent[row]:
            self.sent[row] = tokens
            self.group_of_workers.tell(CHUNK, row, at)
        return 0

    # ---- a decode worker

    def _receive(self):
        """The queues of a decode worker, before it plans a batch."""
        row: cython.Py_ssize_t
        if self.offloaded:
            self._resume()
        if not self.offloaded:
            if self.incoming:
                self._reserve_incoming()
            while self.arrived:
                row = self._take_out(self.moving, HAS_COME)
                self.arrived -= 1
                self.buffers += 1
                self.entries += 1
                self.entered[row] = self.entries
                self.joining.append(row)
        return self._join() if self.joining else 0

    def _resume(self):
        """Retracted requests get pages again, in order, while they fit."""
        row: cython.Py_ssize_t
        tokens: cython.longlong
        while self.offloaded and self.vacant > 0:
            row = self.offloaded[0]
            tokens = self._known(row) - 1
            if self._paged(tokens) + self.reserve > self._budget(-1):
                break
            del self.offloaded[0]
            self.cache.make_room(self._pages(tokens))
            self._take_pages(self._pages(tokens))
            self.held[row], self.seated[row], self.retracted[row] = tokens, True, False
            self.vacant -= 1
            self.live += 1
            self.prefill -= min(tokens, self.requests.tokens[row])
            self.joining.append(row)
        return 0

    def _reserve_incoming(self):
        """Requests get pages for their prompts, in order, while they fit."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        i: cython.int
        node: cython.int = ROOT
        hits: cython.longlong = 0
        need: cython.longlong
        retractable: cython.longlong = 0
        taken: cython.Py_ssize_t = 0
        for i in range(self.count):
            retractable += self._known(self.running[i])
        if self.limits.by_priority:
            self.incoming.sort(key=self._entry)
        for item in self.incoming:
            row = item
            if self.vacant <= 0 or self.buffers <= 0:
                break
            if self.keeps:
                node = self.cache.match(row, self.cache.pages_of(requests.tokens[row]))
                hits = self.cache.matched
                self.cache.lock(node, ROOT)
            need = (self._pages(requests.tokens[row]) - hits) * self.page
            if max(
                need + self.reserve,
                requests.tokens[row] - hits * self.page + self._clip(self.limit[row]) - retractable,
            ) > self._budget(retractable):  # fmt: skip
                if self.keeps:
                    self.cache.unlock(node)
                break
            taken += 1
            self.cache.make_room(need // self.page)
            self._take_pages(need // self.page)
            self.locked[row], self.owned[row] = node, hits
            self.held[row], self.seated[row] = requests.tokens[row], True
            self.vacant -= 1
            self.live += 1
            self.buffers -= 1
            self.moving.append(row)
            self.prefill -= requests.tokens[row]
            requests.cached[row] = min(hits * self.page, requests.tokens[row])
            self.cache.hit[row] = cython.cast(cython.int, requests.cached[row] // self.cache.block_size)
            self.group_of_workers.tell(RESERVED, row, self.now)
        del self.incoming[:taken]
        return 0

    def _entry(self, item):
        row: cython.Py_ssize_t = item
        return self._rank(row), self.entered[row]

    def _budget(self, retractable):
        """Tokens that can be given out: free ones, less what active requests need. `retractable`: -1 = not counted."""
        i: cython.int
        row: cython.Py_ssize_t
        longest: cython.longlong = 0
        available: cython.longlong = self.cache.free + (self.cache.evictable if self.keeps else 0)
        active: cython.longlong = self.count + len(self.moving) + len(self.joining)
        if retractable >= 0 and self.count:
            for i in range(self.count):
                row = self.running[i]
                longest = max(longest, self._clip(self.limit[row]) + self.requests.tokens[row])
            longest -= retractable
        return available * self.page - max(self.reserve * active, longest)

    def _join(self):
        """Requests with their KV cache and first token join the batch, in order, while it has seats."""
        requests: Requests = self.requests
        row: cython.Py_ssize_t
        seats: cython.longlong = self.limits.seats - self.count
        if self.limits.by_priority:
            self.joining.sort(key=self._entry)
        joined: list = self.joining[: max(seats, 0)]
        del self.joining[: len(joined)]
        for item in joined if self.keeps else ():
            row = item
            self._publish(row, self.held[row])
        for item in joined:
            row = item
            if self.outputs[row] == 0:
                self.outputs[row] = 1
                requests.started[row] = requests.first[row] = self.now
            if self.outputs[row] == requests.output[row] or self.outputs[row] >= self.limit[row]:
                self._end(row)
            else:
                self.running[self.count] = cython.cast(cython.int, row)
                self.count += 1
                self.settled = False
        return 0

    def _end(self, row):
        """A request has its last token; the event loop defines it."""
        return 0
