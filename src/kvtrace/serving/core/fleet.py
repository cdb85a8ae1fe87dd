"""Several caches behind a router; requests run one at a time, or each is live for a known time.

Twin: tests/reference/fleet.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import SERIAL, Engine
from cython.cimports.kvtrace.serving.core.router import Router


class Fleet:
    """Engines over the same block demand, and the engine of each request; the first engine's schedule ends requests."""

    def __init__(self, engines, router, held):
        self.engines, self.router = engines, router
        self.held = np.ascontiguousarray(held, dtype=np.int64)
        self.instance = np.full(len(held), -1, dtype=np.int32)
        self.row = 0

    @property
    def instances(self):
        """The index of each request's engine."""
        return np.asarray(self.instance)

    def advance(self, rows):
        """Run the next `rows` requests."""
        row: cython.Py_ssize_t
        stop: cython.Py_ssize_t = min(self.row + rows, self.instance.shape[0])
        chosen: cython.int
        engine: Engine
        first: Engine = self.engines[0]
        while self.row < stop:
            row = self.row
            self._retire(row, first)
            self._update_router()
            self.router.turn = row
            chosen = self.router.send(row)
            engine = self.engines[chosen]
            engine.context.request = engine.context.order = row
            engine.context.now = engine.arrival[row]
            self.instance[row] = chosen
            self.router.load[chosen] += self.held[row]
            before = engine.early_frees
            engine.serve(row)
            if engine.early_frees != before:
                self._recount_load(chosen)
            if first.kind == SERIAL:
                self._end(row)
            self.row = row + 1

    def close(self):
        """Finish all live requests and self-check each engine."""
        for engine in self.engines:
            engine.close()

    def _retire(self, row, first):
        """Finish the requests that end before a request arrives, on all engines."""
        ending: cython.Py_ssize_t
        engine: Engine
        while first.ended < first.by_end.shape[0]:
            ending = first.by_end[first.ended]
            if first.end[ending] > first.arrival[row] or ending >= row:
                break
            first.ended += 1
            engine = self.engines[self.instance[ending]]
            if engine.admitted[ending]:
                self._end(ending)

    def _end(self, row):
        engine: Engine = self.engines[self.instance[row]]
        self.router.load[self.instance[row]] -= self.held[row]
        engine._end(row)

    def _recount_load(self, chosen):
        """Recount the live tokens of an engine that freed requests early."""
        engine: Engine = self.engines[chosen]
        live = (np.asarray(engine.admitted) == 1) & (np.asarray(self.instance) == chosen)
        self.router.load[chosen] = int(np.asarray(self.held)[live].sum())

    def _update_router(self):
        """Update the router's counts. No request waits here, and live blocks are estimated from their prompts."""
        i: cython.int
        engine: Engine
        router: Router = self.router
        for i in range(router.count):
            engine = self.engines[i]
            router.active[i] = engine.live
            router.blocks[i] = router.load[i] / cython.cast(cython.double, router.size)
