"""Workers that compute prompts and workers that compute outputs: a request goes from one to the other with its KV.

First what lies between them, for all engines: two routers, the links, and the order of what happens; then what a worker
of one kind does in vLLM, and in SGLang.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.blocks import PagedCache
from cython.cimports.kvtrace.cache.core.engine import Engine
from cython.cimports.kvtrace.cache.core.radix import ROOT
from cython.cimports.kvtrace.serving.core.instance import DECODES, PREFILLS, Instance, Requests, SessionLanes
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


class ApartServing(InterleavedServing):
    """Serving simulation with workers of two kinds.

    `requests` has the arrivals at the first engine; each kind of worker has Requests of its own, in which `arrival` is
    when one of its workers gets the request. Early: a request goes to both workers at once, and its prompt is computed
    when the decode worker has room for it (SGLang); else it goes to the decode worker when its prompt is computed, and
    its KV cache moves when the decode worker has room (vLLM). With `chunks`, a chunk moves as soon as it is computed.

    A decode worker computes a prompt itself if at most `most_local` of its tokens do not hit there (-1: none).
    """

    def __init__(self, workers, routers, requests: Requests, kinds, capacities, links: Links, transfer, rules):
        instance: Instance
        prefill, decode = workers
        rows: cython.Py_ssize_t = requests.tokens.shape[0]
        InterleavedServing.__init__(self, [*prefill, *decode], routers[0], requests, capacities[0])
        self.decode_router, self.decode_capacity = routers[1], capacities[1]
        self.prefills, self.decodes = kinds
        self.links, self.prefillers = links, len(prefill)
        self.size, self.token_bytes = np.ascontiguousarray(transfer[0], dtype=np.float64), transfer[1]
        self.early, self.chunks, self.most_local = rules
        self.local = np.zeros(rows, dtype=np.int64)
        self.sender, self.receiver = np.full((2, rows), NOBODY, dtype=np.int64)
        self.left = np.zeros(rows)
        self.computed, self.begun, self.arrived = np.full((3, rows), np.nan)
        self.to_prefill = self.to_decode = 0
        self.lanes, self.over, self.noted = None, False, []
        for instance in self.instances:
            instance.join(self, instance in prefill)

    def play(self, lanes: SessionLanes):
        """Take the arrivals of a closed loop."""
        self.lanes = lanes
        self._plan_arrival()

    def advance(self, rows):
        """Let the next `rows` requests arrive; of a closed loop all of them."""
        if self.lanes is None:
            InterleavedServing.advance(self, rows)
            return
        self.run_until(NEVER)
        self.over = True

    def close(self):
        """Run all workers until no request is left, then self-check each cache."""
        self.run_until(NEVER)
        for worker in self.instances:
            if hasattr(worker, "settle"):
                worker.settle()
        InterleavedServing.close(self)

    # ---- what happens

    def tell(self, kind, row, seconds):
        """A worker tells what it has done at a time."""
        self._note(seconds, kind, row)

    def _note(self, seconds, kind, row):
        """Something happens at a time; of one moment and kind, in this order."""
        self.noted.append(row)
        return self.at(seconds, kind, len(self.noted) - 1)

    def happen(self, seconds, kind, row):
        instance: Instance
        row = self.noted[row]
        if kind == ARRIVES:
            if self.lanes.next_arrival() <= seconds:
                row = self.lanes.take()
                if not self._arrive(row):
                    self.lanes.complete(row, seconds)
                self._plan_arrival()
        elif kind == COMPUTED:
            self.computed[row] = seconds
            if self.early:
                self._move(row, self.left[row], seconds, True)
            else:
                self._send_to_decode(row, seconds)
        elif kind == CHUNK:
            if self.chunks:
                instance = self.instances[self.sender[row]]
                self._move(
                    row, self.left[row] - self.token_bytes * (
                        self.prefills.tokens[row] - instance.computed_tokens(row)
                    ), seconds, False,
                )  # fmt: skip
        elif kind == RESERVED:
            instance = self.instances[self.receiver[row]]
            self.left[row] = max(0.0, self.size[row] - self.token_bytes * self.decodes.cached[row])
            if self.early:
                self._send_to_prefill(row, seconds)
            else:
                self._move(row, self.left[row], seconds, True)
        elif kind == MOVED:
            self.arrived[row] = seconds
            instance = self.instances[self.sender[row]]
            instance.moved(row, seconds)
            instance = self.instances[self.receiver[row]]
            instance.moved(row, seconds)
        elif self.lanes is not None:
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
        else:
            if self.most_local >= 0:
                self._choose_decode(row, at)
                if self.local[row]:
                    self._send_to_decode(row, at)
                    return True
            self._send_to_prefill(row, at)
        return True

    def _send_to_prefill(self, row, at):
        instance: Instance
        self._count(self.router, 0, at)
        self.router.turn = self.to_prefill
        self.to_prefill += 1
        self.sender[row] = self.router.send(row)
        self.prefills.arrival[row], self.prefills.instance[row] = at, cython.cast(cython.int, self.sender[row])
        instance = self.instances[self.sender[row]]
        instance.send(row)
        return 0

    def _choose_decode(self, row, at):
        engine: Engine
        place: cython.int
        self._count(self.decode_router, self.prefillers, at)
        self.decode_router.turn = self.to_decode
        self.to_decode += 1
        place = self.decode_router.send(row)
        self.receiver[row], self.decodes.instance[row] = self.prefillers + place, place
        if self.most_local >= 0:
            engine = cython.cast(Instance, self.instances[self.receiver[row]]).engine
            hits: cython.longlong = engine.peek(row) * engine.context.trace.block_size
            self.local[row] = self.decodes.tokens[row] - hits <= self.most_local
        return 0

    def _send_to_decode(self, row, at):
        instance: Instance
        if self.receiver[row] < 0:
            self._choose_decode(row, at)
        self.decodes.arrival[row] = at
        instance = self.instances[self.receiver[row]]
        instance.send(row)
        return 0

    def _move(self, row, size, at, is_last):
        """Send a part of a KV cache; after the last one, its place is free and the decode worker has it."""
        workers = self.links.worker
        end: cython.double
        if self.begun[row] != self.begun[row]:  # NaN: the first part
            self.begun[row] = at
        size = max(0.0, min(size, self.left[row]))
        self.left[row] -= size
        end = self.links.begin(workers[self.sender[row]], workers[self.receiver[row]], size, at)
        return self._note(end, MOVED, row) if is_last else 0

    def _count(self, router: Router, first, now):
        """Update a router's counts of its workers: those after the last step that has ended."""
        i: cython.int
        instance: Instance
        for i in range(router.count):
            instance = self.instances[first + i]
            if instance.now > now:  # in a step
                router.load[i], router.waiting[i] = instance.load_before, instance.prefill_before
                router.blocks[i], router.active[i] = instance.blocks_before, instance.active_before
            else:
                router.load[i], router.waiting[i] = instance.load, instance.prefill
                router.blocks[i], router.active[i] = instance.blocks, instance.active()
        return 0


# ---- vLLM
#
# vLLM 0.33.0, NixlConnector. A decode worker gives a waiting request blocks for its prompt, reads what does not hit
# from the prefill worker, and admits it once that has come; the last token is computed again, which gives the first
# output token. A request that was preempted computes its prompt there. A prefill worker serves requests of one output
# token, and keeps their blocks until they are read. A worker process reports a read that has ended with the next step
# that it begins, and the scheduler learns of it with that step's output. An engine with nothing to compute looks for it
# each millisecond. Not modelled: with asynchronous scheduling, the blocks of a preempted request are free only when the
# step in flight has ended.
#
# Checked against vLLM's own schedulers and connector: tests/clients/test_vllm_apart.py.


POLL_S = cython.declare(cython.double, 0.001)  # EngineCore sleeps so long after a step without tokens
READ = cython.declare(cython.int, 3)  # a request reads once


class VllmWorker(HoldingInstance):
    """A worker of one kind. `local` is ApartServing's: requests whose prompts are computed by their decode worker."""

    def __init__(self, engine: PagedCache, requests: Requests, cost, limits, log=False):
        HoldingInstance.__init__(self, engine, requests, cost, limits, log)
        self.come, self.reported = [], []
        self.ready = 0
        self.idle_since = 0

    def join(self, group, prefills):
        VllmInstance.join(self, group, prefills)
        self.local = group.local

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
        reported: list = self.reported
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
        self.paged.publish(row, requests.tokens[row] - self.ahead)
        requests.computed[row] = min(requests.tokens[row], requests.goal[row] - 1)
        return 0

    def _begin(self, row, computed):
        self.requests.started[row] = max(self.now, self.free_at)
        if self.local[row]:
            self.requests.cached[row] = computed
            self.paged.hit[row] = self.paged.count[row]
        return 0


# ---- SGLang
#
# SGLang 0.5.23 (srt/disaggregation/decode.py, srt/disaggregation/prefill.py). Each turn of a decode worker begins
# with its queues: retracted requests come back from host memory; requests get pages for their prompts, in order of
# arrival, while the next outputs of all active ones keep room (DecodePreallocQueue); those whose KV cache has come
# (DecodeTransferQueue) join the batch, with the first token from the prefill worker, while it has seats.
#
# A prompt is computed once the decode worker has its pages. Its KV cache is sent chunk by chunk, and the prefill
# worker's pages and seat are free when the last one has arrived. A decode worker has a radix cache only with
# --disaggregation-decode-enable-radix-cache: then it receives what does not hit.
#
# These rules are read from that code; SGLang itself was not driven.


FEW = cython.declare(cython.longlong, 32)  # seats, up to which a decode worker has three times as many places for KV


class SglangApart(SglangPrefill):
    """What a worker of one kind does beside its batches."""

    def join(self, group, prefills):
        SglangPrefill.join(self, group, prefills)
        self.incoming, self.come, self.joining, self.offloaded = [], [], [], []
        self.coming = 0
        if self.role == DECODES and self.limits.seats <= FEW:
            self.vacant += 2 * self.limits.seats

    def receive(self, reserve, keeps):
        """The options of a decode worker: num_reserved_decode_tokens, and whether it has a radix cache."""
        self.reserve, self.keeps = reserve, keeps

    def active(self):
        active: cython.longlong = SglangPrefill.active(self)
        return active + len(self.incoming) + len(self.offloaded) if self.role == DECODES else active

    def computed_tokens(self, row):
        return self.prefix[row] if self.limits.overlap else self.end[row]

    def moved(self, row, at):
        """The KV cache of a request has been received: here, or by its decode worker, so that its pages are free."""
        if self.role == PREFILLS:
            self._release(row)
        else:
            self.come.append(row)
        return self.wake(at)

    def _wait(self, row):
        if self.role != DECODES:
            return SglangPrefill._wait(self, row)
        if self.retracted[row]:
            self.offloaded.append(row)
        else:
            self.incoming.append(row)
        return 0

    def _has_news(self):
        """Whether the next turn may do more than decode."""
        return self.incoming or self.come or self.joining or self.offloaded

    def _receive(self):
        """The queues of a decode worker, before it plans a batch."""
        if self.offloaded:
            self._resume()
        if not self.offloaded:
            if self.incoming:
                self._reserve_incoming()
            self.coming -= len(self.come)
            self.joining.extend(self.come)
            self.come = []
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
            self.incoming.sort(key=self._order)
        for item in self.incoming:
            row = item
            if self.vacant <= 0:
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
            self.coming += 1
            self.prefill -= requests.tokens[row]
            requests.cached[row] = min(hits * self.page, requests.tokens[row])
            self.cache.hit[row] = cython.cast(cython.int, requests.cached[row] // self.cache.block_size)
            self.group_of_workers.tell(RESERVED, row, self.now)
        del self.incoming[:taken]
        return 0

    def _order(self, row):
        return self._rank(row)

    def _budget(self, retractable):
        """Tokens that can be given out: free ones, less what active requests need. `retractable`: -1 = not counted."""
        i: cython.int
        row: cython.Py_ssize_t
        longest: cython.longlong = 0
        available: cython.longlong = self.cache.free + (self.cache.evictable if self.keeps else 0)
        active: cython.longlong = self.count + self.coming + len(self.joining)
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
        joined: list = self.joining[: max(seats, 0)]
        del self.joining[: len(joined)]
        for item in joined:
            row = item
            if self.outputs[row] == 0:
                self.outputs[row] = 1
                requests.started[row] = requests.first[row] = self.now
            if self.keeps:
                self._publish(row, self.held[row])
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
