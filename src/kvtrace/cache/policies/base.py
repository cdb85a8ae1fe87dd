"""What an eviction order is: five verbs over block numbers, and what it may know besides.

The engine owns residency, pins and counts; a policy holds an order among the evictable blocks and nothing else.
"""

NONE = -2  # no block: -1 says that an exception is on its way


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

    def insert(self, block):
        """Allocated: now resident and pinned."""
        return 0

    def use(self, block):
        """Wanted again: pinned, whether it was evictable or not."""
        return 0

    def release(self, block):
        """Evictable from now on; the blocks of a request come tail first."""
        return 0

    def victim(self):
        """The next to go among the evictable, which stays in the order until `remove`; NONE where there is none."""
        return NONE

    def remove(self, block):
        """Gone: an evictable block is no longer resident."""
        return 0

    def expired(self):
        """An evictable block whose time is over, or NONE."""
        return NONE

    def miss(self, block):
        """Not resident, and wanted: room is made for it next, then it is inserted."""
        return 0

    def touch(self, block):
        """An evictable block is used and released at once; an override says the same in fewer steps."""
        self.use(block)
        return self.release(block)

    def bring(self, block):
        """A block is inserted and released at once; an override says the same in fewer steps."""
        self.insert(block)
        return self.release(block)

    def coming(self):
        """A block that may be the victim before long, or NONE; what is kept of it is fetched, nothing changes."""
        return NONE

    def soon(self, far, near):
        """Two blocks will be wanted, `near` before `far`: what is kept of them may be fetched; nothing changes."""
        return 0
