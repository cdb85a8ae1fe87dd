"""Routing: sends each request to one of several engines, in turn, by prefix overlap, or by load.

The caller (a Fleet or a Serving) keeps each engine's load up to date. The router reads the loads and the caches.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import Engine

KINDS = {"round-robin": TURNS, "sticky": KEYED, "overlap": OVERLAP, "least-loaded": LOADED, "kv-aware": AWARE,
         "lmetric": METRIC}  # fmt: skip


class Router:
    """Sends requests to engines. The caller keeps four counts of each engine up to date:

    `load` (prompt tokens of requests that have not ended), `waiting` (prompt tokens still to compute), `blocks` (live
    blocks) and `active` (requests that have not ended).
    """

    def __init__(self, engines, kind, key, tokens, size):
        count = len(engines)
        self.engines, self.count, self.kind, self.size = engines, count, KINDS[kind], size
        self.key = np.ascontiguousarray(key, dtype=np.int64)
        self.tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        self.load = np.zeros(count, dtype=np.int64)
        self.waiting = np.zeros(count, dtype=np.int64)
        self.sent = np.zeros(count, dtype=np.int64)
        self.active = np.zeros(count, dtype=np.int64)
        self.blocks = np.zeros(count)
        self.turn = 0

    def send(self, row):
        """Route a request to the engine with the least cost. Ties: the first; least-loaded: fewest requests sent."""
        best: cython.int = 0
        i: cython.int
        cost: cython.double
        lowest: cython.double = 0
        if self.kind == TURNS:
            best = cython.cast(cython.int, self.turn % self.count)
        elif self.kind == KEYED:
            best = cython.cast(cython.int, self.key[row] % self.count)
        else:
            for i in range(self.count):
                cost = self._cost(row, i)
                if (
                    i == 0
                    or cost < lowest
                    or (cost == lowest and self.kind == LOADED and self.sent[i] < self.sent[best])
                ):
                    best, lowest = i, cost
        self.sent[best] += 1
        return best

    def _cost(self, row, i):
        engine: Engine
        hit: cython.longlong
        size: cython.double = self.size
        if self.kind == LOADED:
            return self.load[i]
        engine = self.engines[i]
        hit = engine.peek(row)
        if self.kind == OVERLAP:
            return -hit
        if self.kind == AWARE:
            return max(0.0, (self.waiting[i] + self.tokens[row]) / size - hit) + self.blocks[i]
        return cython.cast(cython.double, max(0, self.tokens[row] - hit * self.size)) * (self.active[i] + 1)
