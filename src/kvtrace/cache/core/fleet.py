"""Many caches behind a router: each request goes to one of them, by turns, by what it shares, or by how busy they are.

Twin: tests/reference/fleet.py.
"""

import cython
import numpy as np

from kvtrace.errors import UsageError

if cython.compiled:
    from cython.cimports.kvtrace.cache.core.engine import Engine

ONE = cython.declare(cython.int, 0)  # kinds of schedule, as core/engine.py has them
TURNS = cython.declare(cython.int, 0)  # the kinds of router: in turns,
KEYED = cython.declare(cython.int, 1)  # by a number of each request's own,
OVERLAP = cython.declare(cython.int, 2)  # where most blocks would hit,
LOADED = cython.declare(cython.int, 3)  # where the fewest tokens are live,
AWARE = cython.declare(cython.int, 4)  # where the blocks to compute and those that are live are fewest,
METRIC = cython.declare(cython.int, 5)  # or where tokens to compute times requests that are live are fewest
KINDS = {"round-robin": TURNS, "sticky": KEYED, "overlap": OVERLAP, "least-loaded": LOADED, "kv-aware": AWARE,
         "lmetric": METRIC}  # fmt: skip


@cython.final
@cython.cclass
class Fleet:
    """Engines over the same jobs, and who is sent to which; requests end by the schedule of the first."""

    engines: list
    count: cython.int
    router: cython.int
    key: cython.const[cython.longlong][::1]  # request -> number that a keyed router goes by
    tokens: cython.const[cython.longlong][::1]  # request -> tokens of its prompt
    held: cython.const[cython.longlong][::1]  # request -> tokens that it holds while it is live
    size: cython.longlong  # tokens a block
    instance: cython.int[::1]  # request -> the engine that served it, -1 = none yet
    load: cython.longlong[::1]  # engine -> tokens that are live
    sent: cython.longlong[::1]  # engine -> requests so far
    row: cython.Py_ssize_t

    def __init__(self, engines, router, key, tokens, held, size):
        rows = len(tokens)
        self.engines, self.count, self.router, self.size = engines, len(engines), KINDS[router], size
        self.key = np.ascontiguousarray(key, dtype=np.int64)
        self.tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        self.held = np.ascontiguousarray(held, dtype=np.int64)
        self.instance = np.full(rows, -1, dtype=np.int32)
        self.load = np.zeros(self.count, dtype=np.int64)
        self.sent = np.zeros(self.count, dtype=np.int64)
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
            chosen = self._choose(row)
            engine = self.engines[chosen]
            engine.context.request = row
            engine.context.now = engine.arrival[row]
            self.instance[row] = chosen
            self.load[chosen] += self.held[row]
            self.sent[chosen] += 1
            before = engine.early_frees
            engine.serve(row)
            if engine.early_frees != before:
                self._count(chosen)
            if first.kind == ONE:
                self._end(row)
            self.row = row + 1

    def close(self):
        """Let all end, and recount each engine."""
        for engine in self.engines:
            engine.close()

    @cython.cfunc
    def _retire(self, row: cython.Py_ssize_t, first: Engine):
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

    @cython.cfunc
    def _end(self, row: cython.Py_ssize_t):
        engine: Engine = self.engines[self.instance[row]]
        self.load[self.instance[row]] -= self.held[row]
        engine._end(row)

    @cython.cfunc
    def _count(self, chosen: cython.int):
        """The live tokens of an engine that ended requests early, counted anew."""
        engine: Engine = self.engines[chosen]
        live = (np.asarray(engine.admitted) == 1) & (np.asarray(self.instance) == chosen)
        self.load[chosen] = int(np.asarray(self.held)[live].sum())

    @cython.cfunc
    def _choose(self, row: cython.Py_ssize_t) -> cython.int:
        """The engine that a request goes to: that of the least cost, then the one sent fewest, then the first."""
        best: cython.int = 0
        i: cython.int
        cost: cython.double
        least: cython.double = 0
        if self.router == TURNS:
            return cython.cast(cython.int, row % self.count)
        if self.router == KEYED:
            return cython.cast(cython.int, self.key[row] % self.count)
        for i in range(self.count):
            cost = self._cost(row, i)
            if i == 0 or cost < least or (cost == least and self.router == LOADED and self.sent[i] < self.sent[best]):
                best, least = i, cost
        return best

    @cython.cfunc
    def _cost(self, row: cython.Py_ssize_t, i: cython.int) -> cython.double:
        engine: Engine = self.engines[i]
        hit: cython.longlong
        new: cython.longlong
        if self.router == LOADED:
            return self.load[i]
        hit = engine.peek(row)
        if self.router == OVERLAP:
            return -hit
        if self.router == AWARE:
            size: cython.double = self.size
            return max(0.0, self.tokens[row] / size - hit) + self.load[i] / size
        new = max(0, self.tokens[row] - hit * self.size)
        return cython.cast(cython.double, new) * (engine.live + 1)


def check(router):
    """UsageError where there is no such router."""
    if router not in KINDS:
        raise UsageError(f"there is no router {router!r}. Try {', '.join(KINDS)}.")
