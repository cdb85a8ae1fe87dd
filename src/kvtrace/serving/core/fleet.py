"""Many caches behind a router: one request at a time, or each live for a known time.

Twin: tests/reference/fleet.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import SERIAL, Engine
from cython.cimports.kvtrace.serving.core.router import Router


class Fleet:
    """Engines over the same block demand, and the engine of each request; requests end by the schedule of the first."""

    def __init__(self, engines, router, held):
        self.engines, self.router = engines, router
        self.held = np.ascontiguousarray(held, dtype=np.int64)
        self.instance = np.full(len(held), -1, dtype=np.int32)
        self.row = 0

    @property
    def done(self):
        """Requests that were served so far."""
        return self.row

    @property
    def instances(self):
        """The engine of each request."""
        return np.asarray(self.instance)

    def advance(self, rows):
        """Serve so many more requests."""
        row: cython.Py_ssize_t
        stop: cython.Py_ssize_t = min(self.row + rows, self.instance.shape[0])
        chosen: cython.int
        engine: Engine
        first: Engine = self.engines[0]
        while self.row < stop:
            row = self.row
            self._retire(row, first)
            self._tell()
            chosen = self.router.send(row)
            engine = self.engines[chosen]
            engine.context.request = row
            engine.context.now = engine.arrival[row]
            self.instance[row] = chosen
            self.router.load[chosen] += self.held[row]
            before = engine.early_frees
            engine.serve(row)
            if engine.early_frees != before:
                self._count(chosen)
            if first.kind == SERIAL:
                self._end(row)
            self.row = row + 1

    def close(self):
        """Let all end, and recount each engine."""
        for engine in self.engines:
            engine.close()

    def _retire(self, row, first):
        """Finish the requests that ended before a request comes, wherever they are."""
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

    def _count(self, chosen):
        """The live tokens of an engine that ended requests early, counted anew."""
        engine: Engine = self.engines[chosen]
        live = (np.asarray(engine.admitted) == 1) & (np.asarray(self.instance) == chosen)
        self.router.load[chosen] = int(np.asarray(self.held)[live].sum())

    def _tell(self):
        """Update the router's counts; no request waits here, and live tokens stand for live blocks."""
        i: cython.int
        engine: Engine
        router: Router = self.router
        for i in range(router.count):
            engine = self.engines[i]
            router.here[i] = engine.live
            router.blocks[i] = router.load[i] / cython.cast(cython.double, router.size)
