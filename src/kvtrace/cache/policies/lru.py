"""LRU: the block that was released longest ago goes first.

Blocks of a request are released tail first, so a plain queue does what the founding document's heap of heaps (last
use, then prefix length) does. A block that is used again leaves the queue and joins its end when it is released.
"""

import cython

if cython.compiled:
    from cython.cimports.kvtrace.cache.policies.base import Context, Policy
    from cython.cimports.kvtrace.cache.structures.fetch import fetch
    from cython.cimports.kvtrace.cache.structures.queue import Places, Queue


@cython.final
@cython.cclass
class LRU(Policy):
    """Least recently used."""

    queue: Queue

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.keeps_parents = True  # a parent is used and released no earlier than its child
        self.queue = Queue(Places(context.blocks))

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def use(self, block: cython.int) -> cython.int:
        if self.queue.holds(block):
            self.queue.drop(block)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def release(self, block: cython.int) -> cython.int:
        return self.queue.push(block)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def victim(self) -> cython.int:
        return self.queue.first()

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def remove(self, block: cython.int) -> cython.int:
        return self.queue.drop(block)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def touch(self, block: cython.int) -> cython.int:
        return self.queue.move(block)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def bring(self, block: cython.int) -> cython.int:
        return self.queue.push(block)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def coming(self) -> cython.int:
        return self.queue.ahead()

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def soon(self, far: cython.int, near: cython.int) -> cython.int:
        fetch(cython.address(self.queue.places.at[far]))
        return 0
