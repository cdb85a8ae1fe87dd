"""The interface of eviction policies: five required verbs over block numbers, and six optional ones.

The engine owns residency, pins and counts; a policy keeps an order of the evictable blocks and nothing else.
"""


class Context:
    """What a policy may know: how many blocks there are, the capacity, the trace, and the present moment.

    `request` is the row being served and `now` its arrival in milliseconds; the engine moves both on. `trace` and
    `demand` (the BlockDemand of cache/demand.py) are None in a live cache.

    >>> Context(blocks=4, capacity=2).request
    -1
    """

    def __init__(self, blocks, capacity, trace=None, demand=None):
        self.blocks, self.capacity = blocks, capacity
        self.trace, self.demand = trace, demand
        self.request, self.now = -1, 0.0


class Policy:
    """An eviction order over blocks 0 ... context.blocks - 1.

    A subclass defines five verbs: `insert`, `use`, `release`, `victim` and `remove`; the build checks that it does. The
    others are optional, and each says what its default does. Their C signatures are in base.pxd; an override takes them
    over. Verbs run without the interpreter lock. core/borrowed.py runs a policy that is written in Python.
    """

    def __init__(self, context: Context):
        self.context = context
        self.needs_lock = False
        self.expires = False  # whether the engine calls `expired` before each request
        self.misses = False  # whether the engine calls `miss` before it makes room for a block
        self.keeps_parents = False  # whether the order itself lets no block outlive its parent

    # ---- required

    def insert(self, block):
        """A block becomes resident and pinned."""
        return 0

    def use(self, block):
        """A request wants a resident block: it is pinned now, and may have been evictable before."""
        return 0

    def release(self, block):
        """A block becomes evictable; the blocks of a request come tail first."""
        return 0

    def victim(self):
        """The next evictable block to evict, or NONE. It stays in the order until `remove`."""
        return NONE

    def remove(self, block):
        """An evictable block is evicted."""
        return 0

    # ---- optional

    def expired(self):
        """An evictable block that is too old to keep, or NONE. Called where `expires` is true. Default: NONE."""
        return NONE

    def miss(self, block):
        """A request wants a block that is not resident; the engine makes room, then inserts it.

        Called where `misses` is true. Default: nothing.
        """
        return 0

    def hit_idle(self, block):
        """An evictable block is used and released at once. Default: `use`, then `release`."""
        self.use(block)
        return self.release(block)

    def insert_idle(self, block):
        """A block is inserted and released at once. Default: `insert`, then `release`."""
        self.insert(block)
        return self.release(block)

    def likely_victim(self):
        """Prefetch hint: a block that is likely to be evicted soon, or NONE. Has no side effects. Default: NONE."""
        return NONE

    def prefetch(self, far, near):
        """Prefetch hint: two blocks that requests will want soon, `near` before `far`. Default: nothing."""
        return 0
