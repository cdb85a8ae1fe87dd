"""Dynamo's KV router (ai-dynamo-runtime 1.6.1, lib/kv-router/src/scheduling/selector): the worker of least cost.

The cost of a worker, in blocks: (prompt tokens there that wait for their prefill + prompt tokens of the request that do
not hit) / block size + distinct full blocks of active prompts, with those of the request. Ties are drawn at random. The
router learns of a step's blocks, first tokens and ends when the step ends; requests of one instant are routed before
any of them is cached. Twin: tests/reference/dynamo_times.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace._native.mixing import mix
from cython.cimports.kvtrace.cache.core.engine import Engine
from cython.cimports.kvtrace.serving.core.requests import Requests
from cython.cimports.kvtrace.serving.core.router import Router

NOBODY = cython.declare(cython.int, -1)


class DynamoRouter(Router):
    """A router with its own record of each engine's active requests."""

    def __init__(self, engines, requests: Requests, blocks, size, seed=0, winner=None):
        rows: cython.Py_ssize_t = requests.tokens.shape[0]
        Router.__init__(self, engines, "round-robin", np.zeros(rows, np.int64), requests.tokens, size)
        self.requests, self.seed = requests, seed
        self.winner = np.full(rows, -1, np.int32) if winner is None else np.ascontiguousarray(winner, np.int32)
        self.uses = np.zeros((self.count, max(1, blocks)), np.int32)
        self.distinct, self.uncomputed = np.zeros((2, self.count), np.int64)
        self.brought, self.least = np.zeros((2, rows), np.int64)
        self.newest, self.older = np.full(self.count, -1, np.int32), np.full(rows, -1, np.int32)
        self.ties = 0
        for engine in engines:
            if hasattr(engine, "watch"):
                engine.watch()

    def send(self, row):
        """Route a request to the engine with the least cost."""
        best: cython.int = 0
        i: cython.int
        tied: cython.int = 0
        cost: cython.longlong
        lowest: cython.longlong = 0
        for i in range(self.count):
            self._settle(i, self.requests.arrival[row])
            cost = self._tokens(row, i)
            if i == 0 or cost < lowest:
                best, lowest, tied = i, cost, 1
            elif cost == lowest:
                tied += 1
                if i == self.winner[row] or (best != self.winner[row] and self._draw(i) < self._draw(best)):
                    best = i
        self.ties += tied > 1
        self.least[row] = lowest
        self._enter(row, best)
        self.sent[best] += 1
        return best

    def _tokens(self, row, i):
        """The cost of an engine in tokens: whole numbers, so that equal costs are equal."""
        engine: Engine = self.engines[i]
        k: cython.Py_ssize_t
        start: cython.Py_ssize_t = engine.start[row]
        blocks: cython.longlong = self.distinct[i]
        for k in range(start, start + engine.full[row]):
            blocks += self.uses[i, engine.ids[k]] == 0
        return self.uncomputed[i] + self._new_tokens(row, engine) + blocks * self.size

    def _new_tokens(self, row, engine):
        """The prompt tokens of a request that would not hit. All blocks of a prompt may hit, the last one too."""
        return max(0, self.tokens[row] - engine.peek_ended(row, self.requests.arrival[row]) * self.size)

    def _draw(self, i):
        """The number that the request of this turn draws for an engine; the lowest wins a tie."""
        return mix(self.seed + mix(cython.cast(cython.ulonglong, self.turn) * self.count + i + 1))

    def _settle(self, i, now):
        """Forget the prompts that were computed by now, and the requests that have ended."""
        requests: Requests = self.requests
        row: cython.int = self.newest[i]
        newer: cython.int = NOBODY
        while row != NOBODY:
            if requests.first[row] <= now:  # false for NaN: no token yet
                self.uncomputed[i] -= self.brought[row]
                self.brought[row] = 0
            if requests.ended[row] <= now:
                self._leave(row, i)
                if newer == NOBODY:
                    self.newest[i] = self.older[row]
                else:
                    self.older[newer] = self.older[row]
            else:
                newer = row
            row = self.older[row]
        return 0

    def _enter(self, row, i):
        """A request is active at an engine from now on."""
        engine: Engine = self.engines[i]
        k: cython.Py_ssize_t
        start: cython.Py_ssize_t = engine.start[row]
        for k in range(start, start + engine.full[row]):
            self.distinct[i] += self.uses[i, engine.ids[k]] == 0
            self.uses[i, engine.ids[k]] += 1
        self.brought[row] = self._new_tokens(row, engine)
        self.uncomputed[i] += self.brought[row]
        self.older[row] = self.newest[i]
        self.newest[i] = cython.cast(cython.int, row)
        return 0

    def _leave(self, row, i):
        """A request has ended."""
        engine: Engine = self.engines[i]
        k: cython.Py_ssize_t
        start: cython.Py_ssize_t = engine.start[row]
        for k in range(start, start + engine.full[row]):
            self.uses[i, engine.ids[k]] -= 1
            self.distinct[i] -= self.uses[i, engine.ids[k]] == 0
        return 0
