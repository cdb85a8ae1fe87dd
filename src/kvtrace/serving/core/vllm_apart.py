"""vLLM's workers of one kind (0.33.0, NixlConnector): one keeps blocks until they are read, the other reads them."""

import cython
from cython.cimports.kvtrace.cache.core.blocks import PagedCache
from cython.cimports.kvtrace.serving.core.apart import RESERVED
from cython.cimports.kvtrace.serving.core.instance import DECODES, Requests
from cython.cimports.kvtrace.serving.core.vllm import ARRIVED, LOADING, HoldingInstance, VllmInstance

# A decode worker gives a waiting request blocks for its prompt, reads what does not hit from the prefill worker, and
# admits it once that has come; the last token is computed again, which gives the first output token. A request that
# was preempted computes its prompt there. A prefill worker serves requests of one output token, and keeps their
# blocks until they are read. A worker process reports a read that has ended with the next step that it begins, and
# the scheduler learns of it with that step's output. An engine with nothing to compute looks for it each millisecond.
# Not modelled: with asynchronous scheduling, the blocks of a preempted request are free only when the step in flight
# has ended.
#
# Checked against vLLM's own schedulers and connector: tests/clients/test_vllm_apart.py.


NEVER = cython.declare(cython.double, 1e300)
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
