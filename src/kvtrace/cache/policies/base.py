"""What an eviction order is: five verbs over block numbers, and what it may know besides.

The engine owns residency, pins and counts; a policy holds an order among the evictable blocks and nothing else.
"""

import cython

NONE = cython.declare(cython.int, -2)  # no block: -1 says that an exception is on its way


@cython.cclass
class Context:
    """What a policy may know: how many blocks there are, the capacity, the trace, and the present moment.

    `request` is the row being served and `now` its arrival in milliseconds; the engine moves both on. `trace` and
    `jobs` (what each request asks for, see cache/jobs.py) are None in a live cache.

    >>> Context(blocks=4, capacity=2).request
    -1
    """

    def __init__(self, blocks, capacity, trace=None, jobs=None):
        self.blocks, self.capacity = blocks, capacity
        self.trace, self.jobs = trace, jobs
        self.request, self.now = -1, 0.0


@cython.cclass
class Policy:
    """An eviction order over blocks 0 ... context.blocks - 1; a subclass says which by five verbs.

    Verbs run without the interpreter lock. A policy written in Python goes through core/borrowed.py instead.
    """

    def __init__(self, context: Context):
        self.context = context
        self.needs_lock = False
        self.expires = False  # whether `expired` is asked before each request
        self.misses = False  # whether `miss` tells it of a block before room is made for it
        self.keeps_parents = False  # whether the order itself lets no block outlive its parent

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def insert(self, block: cython.int) -> cython.int:
        """Allocated: now resident and pinned."""
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def use(self, block: cython.int) -> cython.int:
        """Wanted again: pinned, whether it was evictable or not."""
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def release(self, block: cython.int) -> cython.int:
        """Evictable from now on; the blocks of a request come tail first."""
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def victim(self) -> cython.int:
        """The next to go among the evictable, which stays in the order until `remove`; NONE where there is none."""
        return NONE

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def remove(self, block: cython.int) -> cython.int:
        """Gone: an evictable block is no longer resident."""
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def expired(self) -> cython.int:
        """An evictable block whose time is over, or NONE."""
        return NONE

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def miss(self, block: cython.int) -> cython.int:
        """Not resident, and wanted: room is made for it next, then it is inserted."""
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def touch(self, block: cython.int) -> cython.int:
        """An evictable block is used and released at once; an override says the same in fewer steps."""
        self.use(block)
        return self.release(block)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def bring(self, block: cython.int) -> cython.int:
        """A block is inserted and released at once; an override says the same in fewer steps."""
        self.insert(block)
        return self.release(block)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def coming(self) -> cython.int:
        """A block that may be the victim before long, or NONE; what is kept of it is fetched, nothing changes."""
        return NONE

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(-1, check=False)
    def soon(self, far: cython.int, near: cython.int) -> cython.int:
        """Two blocks will be wanted, `near` before `far`: what is kept of them may be fetched; nothing changes."""
        return 0
