"""The interface of eviction policies: five required verbs over block numbers, and eight optional ones.

The engine tracks residency, pins and counts. A policy only orders the evictable blocks.
"""


class Context:
    """The values that a policy can read: the number of blocks, the capacity, the trace, the current request and time.

    `request` is the current row, `now` its arrival in milliseconds and `order` the number of requests before it; the
    engine updates all three. `order` is the row, except in a closed loop, where requests come in another order. `trace`
    and `demand` (the BlockDemand of cache/demand.py) are None in a live cache.

    In a closed loop, `in_loop` is true, and `due` has the arrivals of requests that wait for nothing any more, for
    policies that look ahead; their clock is the loop's.

    >>> Context(blocks=4, capacity=2).request
    -1
    """

    def __init__(self, blocks, capacity, trace=None, demand=None):
        self.blocks, self.capacity = blocks, capacity
        self.trace, self.demand = trace, demand
        self.request, self.order, self.now = -1, -1, 0.0
        self.in_loop = False

    def set_due(self, due):
        """Give the arrivals of a closed loop: request -> seconds, an array that the loop fills."""
        self.in_loop, self.due = True, due


class Policy:
    """An eviction order over blocks 0 ... context.blocks - 1.

    A subclass defines five verbs: `insert`, `use`, `release`, `victim` and `remove`. The build checks that it does. The
    other verbs are optional and have defaults. The C signatures are in base.pxd; overrides inherit them. Verbs run
    without the interpreter lock. core/pool.py runs a policy that is written in Python.
    """

    def __init__(self, context: Context):
        self.context = context
        self.needs_lock = False
        self.expires = False  # whether the engine calls `expired` before each request
        self.misses = False  # whether the engine calls `miss` before it makes room for a block
        self.follows_requests = False  # whether the engine calls `request_started` and `request_ended`
        self.keeps_parents = False  # whether the order alone evicts every child before its parent

    # ---- required

    def insert(self, block):
        """A block becomes resident and pinned."""
        return 0

    def use(self, block):
        """A request uses a resident block. The block is pinned now; before, it was pinned or evictable."""
        return 0

    def release(self, block):
        """A block becomes evictable. The blocks of one request are released tail first."""
        return 0

    def victim(self):
        """The next block to evict, or NONE. The block stays in the order until `remove`."""
        return NONE

    def remove(self, block):
        """An evictable block is evicted."""
        return 0

    # ---- optional

    def expired(self):
        """An evictable block that has expired, or NONE. Called if `expires` is true. Default: NONE."""
        return NONE

    def miss(self, block):
        """A request misses a block. The engine then makes room and inserts the block.

        Called if `misses` is true. Default: nothing.
        """
        return 0

    def request_started(self, row):
        """A request is about to be matched. Called if `follows_requests` is true. Default: nothing."""
        return 0

    def request_ended(self, row):
        """A request has ended and released its blocks. Called if `follows_requests` is true. Default: nothing."""
        return 0

    def hit_idle(self, block):
        """A request uses an evictable block and releases it at once. Default: `use`, then `release`."""
        self.use(block)
        return self.release(block)

    def insert_idle(self, block):
        """A request inserts a block and releases it at once. Default: `insert`, then `release`."""
        self.insert(block)
        return self.release(block)

    def likely_victim(self):
        """Prefetch hint: a likely next victim, or NONE. Has no side effects. Default: NONE."""
        return NONE

    def prefetch(self, far, near):
        """Prefetch hint: requests will soon use block `near`, and later block `far`. Default: nothing."""
        return 0
