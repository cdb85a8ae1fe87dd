"""FIFO: the block that was allocated longest ago goes first; of a request's new blocks the root came first.

A hit changes nothing. A block that may not go, pinned or (leaf-first) a parent, is passed over and keeps its place;
`release` lets it go from where it stands. No two blocks come at the same time, so there are no ties.
"""

import cython

if cython.compiled:
    from cython.cimports.kvtrace.cache.policies.base import Context, Policy
    from cython.cimports.kvtrace.cache.structures.fetch import fetch
    from cython.cimports.kvtrace.cache.structures.masked_fifo import Line
    from cython.cimports.kvtrace.cache.structures.queue import Places


@cython.final
@cython.cclass
class FIFO(Policy):
    """First in, first out."""

    line: Line

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.line = Line(Places(context.blocks))

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def insert(self, block: cython.int) -> cython.int:
        return self.line.push(block)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def use(self, block: cython.int) -> cython.int:
        return self.line.forbid(block)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def release(self, block: cython.int) -> cython.int:
        return self.line.allow(block)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def victim(self) -> cython.int:
        return self.line.first()

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def remove(self, block: cython.int) -> cython.int:
        return self.line.drop(block)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def touch(self, block: cython.int) -> cython.int:
        return 0  # it stays where it is, and may go as before

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def bring(self, block: cython.int) -> cython.int:
        return self.line.join(block)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def coming(self) -> cython.int:
        return self.line.ahead(self.line.front)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def soon(self, far: cython.int, near: cython.int) -> cython.int:
        fetch(cython.address(self.line.places.at[far]))
        return 0
