"""Workers that compute prompts and workers that compute outputs: a request goes from one to the other with its KV.

The engines' rules are in their schedulers (vllm_apart.py, sglang_apart.py); here is what lies between: two routers, the
links, and the order of what happens.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import Engine
from cython.cimports.kvtrace.serving.core.instance import Instance, Requests, SessionLanes
from cython.cimports.kvtrace.serving.core.interleaved import InterleavedServing
from cython.cimports.kvtrace.serving.core.serving import Router

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
