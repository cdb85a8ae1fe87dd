"""The live prefix cache: the table, reference counts and pool of Lin's report, token by token, for an engine."""

from operator import index
from time import monotonic

import cython
from cython.cimports.kvtrace.cache.live.slots import NONE, SPARE, BlockTable, SlotPool, Tokens, resized, token_in, zeros
from cython.cimports.kvtrace.cache.policies.base import Context
from cython.cimports.libc.stdlib import free as give_back
from cython.cimports.libc.string import memcpy

from kvtrace._base.errors import KvtraceError, UsageError
from kvtrace.cache.live import self_check
from kvtrace.cache.policies import live_policy

# The slots of one live request in the live cache.


class Sequence:
    """The blocks that one live request holds in a PrefixCache: `allocate` makes it, `append` grows it, `free` ends it.

    `length` is in tokens; `hit_blocks` and `hit_tokens` count the prefix that was cached when it was allocated.
    """

    def __dealloc__(self):
        give_back(self.slots)

    @property
    def blocks(self):
        """The slot of each block, in order: an engine's block table. Copy-on-write may change the last one."""
        return [self.slots[i] for i in range(self.count)]

    def reserve(self, count):
        """Make room for `count` blocks in total."""
        if count > self.room:
            room: cython.Py_ssize_t = max(count, 2 * self.room)
            self.slots = cython.cast(cython.p_int, resized(self.slots, room * cython.sizeof(cython.int)))
            self.room = room
        return 0


class Listener:
    """The callbacks of the live cache. They run after each change, evictions first."""

    def __cinit__(self, block_size, on_read, on_write, on_evict, on_copy):
        self.block_size = block_size
        self.on_read, self.on_write = checked_callback("on_read", on_read), checked_callback("on_write", on_write)
        self.on_evict, self.on_copy = checked_callback("on_evict", on_evict), checked_callback("on_copy", on_copy)
        self.reports_growth = on_evict is not None or on_write is not None or on_copy is not None

    def evicted(self, pool):
        """Report the slots that the pool evicted since the last report."""
        if pool.evicted:
            evicted, pool.evicted, self.in_callback = pool.evicted, [], True
            try:
                for slot in evicted:
                    self.on_evict(slot)
            finally:
                self.in_callback = False
        return 0

    def allocated(self, pool, sequence):
        """Report the blocks that a new sequence reuses, and the tokens to compute for it."""
        i: cython.Py_ssize_t
        self.evicted(pool)
        if self.on_read is None and self.on_write is None:
            return 0
        self.in_callback = True
        try:
            if self.on_read is not None:
                for i in range(sequence.hit_blocks):
                    self.on_read(sequence.slots[i], i * self.block_size)
            self._report_writes(sequence, sequence.hit_tokens)
        finally:
            self.in_callback = False
        return 0

    def extended(self, pool, sequence, first, shared):
        """Report new tokens from position `first` on. Their partial block may be a copy of slot `shared`."""
        self.evicted(pool)
        filled: cython.Py_ssize_t = first % self.block_size
        self.in_callback = True
        try:
            if shared != NONE and self.on_copy is None:
                first -= filled
            elif shared != NONE:
                self.on_copy(shared, sequence.slots[first // self.block_size], filled)
            self._report_writes(sequence, first)
        finally:
            self.in_callback = False
        return 0

    def _report_writes(self, sequence, first):
        stop: cython.Py_ssize_t
        while self.on_write is not None and first < sequence.length:
            stop = min(sequence.length, first - first % self.block_size + self.block_size)
            self.on_write(sequence.slots[first // self.block_size], first, stop - first)
            first = stop
        return 0


def checked_callback(name, call):
    """Check a callback: a callable or None; else UsageError."""
    if call is not None and not callable(call):
        raise UsageError(f"{name} must be callable, not {type(call).__name__}.")
    return call


HASHINGS = ("hierarchical", "direct")


class OutOfBlocks(KvtraceError):
    """The live prefix cache: the table, reference counts and pool of Lin's report, token by token, for an engine.

    A slot is a place for a block's KV. A block is its content: its own tokens after the block before it. This file has
    the verbs; `BlockTable` finds blocks by tokens, `SlotPool` assigns and evicts slots, `Listener` calls the
    engine's callbacks, and self_check.py checks the counts.

    Twin: tests/reference/heap_of_heaps.py.
    """


class PrefixCache:
    """A prefix cache of `blocks` slots, 0 to blocks - 1, for blocks of live sequences and for idle blocks.

    A block that no live sequence holds is idle. At most `idle` blocks are idle (default: `blocks`). `policy` orders the
    idle blocks for eviction: a name of `kvtrace simulate --policy` that needs no trace, or a class with the five verbs,
    which is called with a context (blocks, capacity, now, request). `hashing` is "hierarchical", hash(hash of the block
    before, own tokens), or "direct", hash(all tokens before, own tokens). Both give the same results; the cost of
    "direct" is proportional to the prefix.

    The callbacks are optional. They run after each change, in this order:

    * on_evict(slot): the slot's block was evicted, and the slot may be written again;
    * on_read(slot, position): the slot's block is reused; its first token is at `position` of the sequence;
    * on_copy(source, target, count): copy the KV of the first `count` tokens (a shared partial block is extended);
      without this callback, on_write reports these tokens too;
    * on_write(slot, first, count): compute the KV of the sequence's tokens first ... first + count - 1.

    `clock` returns milliseconds for policies that use time. Lookups find blocks of the same tenant and `salt` (bytes)
    only; set a new salt when the model's weights change. Invalid arguments raise UsageError.

    Use a cache from one thread, or hold a lock around each call.

    >>> cache = PrefixCache(8, block_size=4)
    >>> first = cache.allocate([1, 2, 3, 4, 5, 6])
    >>> first.blocks, first.hit_tokens
    ([0, 1], 0)
    >>> cache.append(first, 7)
    >>> cache.free(first)
    >>> second = cache.allocate([1, 2, 3, 4, 5, 6, 7])
    >>> second.blocks, second.hit_tokens
    ([0, 1], 7)
    """

    def __cinit__(self, blocks, block_size=16, *, idle=None, policy="lru", hashing="hierarchical", salt=b"",
                  on_read=None, on_write=None, on_evict=None, on_copy=None, clock=None):  # fmt: skip
        self.slots = _whole("blocks", blocks, 1, 1 << 30)
        self.block_size = _whole("block_size", block_size, 1, 1 << 20)
        self.most_idle = self.slots if idle is None else min(_whole("idle", idle, 0, 1 << 62), self.slots)
        if hashing not in HASHINGS:
            raise UsageError(f"hashing must be {' or '.join(HASHINGS)}, not {hashing!r}.")
        self.hashing = hashing
        self.salt = salt
        self.listener = Listener(self.block_size, on_read, on_write, on_evict, on_copy)
        self.clock = checked_callback("clock", clock) or _milliseconds
        self.context = Context(self.slots, self.most_idle)
        self.context.now = self.clock()
        self.table = BlockTable(self.block_size, hashing == "direct")
        order, evicted = live_policy(policy, self.context), None if on_evict is None else []
        self.pool = SlotPool(self.slots, self.most_idle, self.table, order, evicted)
        self.tokens, self.sequences = Tokens(), set()
        self.draft = cython.cast(cython.p_uint, zeros(self.block_size * cython.sizeof(cython.uint)))

    def __dealloc__(self):
        give_back(self.draft)

    @property
    def salt(self):
        """A value that the KV depends on, such as the model's weights; lookups find blocks of the same salt only."""
        return self.current_salt

    @salt.setter
    def salt(self, value):
        if not isinstance(value, bytes):
            raise UsageError(f"salt must be bytes, not {type(value).__name__}.")
        self.current_salt = value

    def match(self, tokens, tenant=None):
        """Number of leading tokens that are cached, in full blocks and in an equal partial block. Changes no order.

        >>> cache = PrefixCache(8, block_size=4)
        >>> cache.free(cache.allocate([1, 2, 3, 4, 5, 6]))
        >>> [cache.match(tokens) for tokens in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5], [2])]
        [6, 4, 0]
        >>> cache.match([1, 2, 3, 4], tenant="another")
        0
        """
        if not self.listener.in_callback:  # a callback may call `match`
            self._tick()
        length: cython.Py_ssize_t = self.tokens.read(tokens)
        root: cython.int = self.table.root(self.current_salt, tenant)
        depth: cython.Py_ssize_t = self.table.walk(root, self.tokens.values, length)
        return min(self.table.resident(depth) * self.block_size, length)

    def allocate(self, tokens, tenant=None):
        """Create a live Sequence of the tokens: it shares the cached blocks and gets new slots for the others.

        Raises OutOfBlocks and changes nothing if it needs more slots than are free or idle.

        >>> cache = PrefixCache(2, block_size=4)
        >>> one = cache.allocate([1, 2, 3, 4, 5])
        >>> cache.allocate([6])
        Traceback (most recent call last):
        ...
        kvtrace.cache.live.prefix_cache.OutOfBlocks: 1 block is needed, 0 are free and 0 idle of 2. ...
        """
        self._tick()
        length: cython.Py_ssize_t = self.tokens.read(tokens)
        root: cython.int = self.table.root(self.current_salt, tenant)
        depth: cython.Py_ssize_t = self.table.walk(root, self.tokens.values, length)
        sequence: Sequence = self._sequence(length, self.table.resident(depth))
        self._make_sure_of_room(sequence.count, depth)

        self.busy = True
        sequence.root = self.table.new_root(self.current_salt, tenant) if root == NONE else root
        self._fill(sequence, depth)
        sequence.live = True
        self.sequences.add(sequence)
        self._count(sequence)
        self.busy = False
        try:
            self.listener.allocated(self.pool, sequence)
        except BaseException:  # the caller does not get the sequence, and its KV was not written
            self.free(sequence, written=sequence.hit_tokens)
            raise
        return sequence

    def append(self, sequence: Sequence, token):
        """Add one token to a live sequence: to its partial block, whose hash changes, or to a new block.

        A partial block that other live sequences hold too is copied first. If the longer block is already cached in
        another slot, the sequence keeps its own copy; lookups find the other slot as long as it has the block. Raises
        OutOfBlocks and changes nothing if it needs a slot and none is free or idle.

        >>> cache = PrefixCache(8, block_size=4)
        >>> one, two = cache.allocate([1, 2]), cache.allocate([1, 2])
        >>> one.blocks == two.blocks
        True
        >>> cache.append(two, 3)
        >>> one.blocks, two.blocks, cache.stats()["copies"]
        ([0], [1], 1)
        """
        value: cython.uint = token_in(token)
        self._check_live(sequence)
        self._extend(sequence, cython.address(value), 1)

    def append_many(self, sequence: Sequence, tokens):
        """Add tokens to a live sequence, like repeated `append`: all of them, or none with OutOfBlocks.

        >>> cache = PrefixCache(8, block_size=4)
        >>> sequence = cache.allocate([1, 2, 3])
        >>> cache.append_many(sequence, range(10))
        >>> sequence.length, sequence.blocks
        (13, [0, 1, 2, 3])
        """
        length: cython.Py_ssize_t = self.tokens.read(tokens)
        self._check_live(sequence)
        self._extend(sequence, self.tokens.values, length)

    def free(self, sequence: Sequence, written=None):
        """End a live sequence: its blocks that no other sequence holds become idle, tail first, and stay cached.

        `written` (default: all) is the number of leading tokens whose KV was computed. Blocks beyond it are dropped. An
        engine must set it if it stops a request before the prompt was computed.

        >>> cache = PrefixCache(8, block_size=4)
        >>> cache.free(cache.allocate([1, 2, 3, 4, 5, 6]), written=5)
        >>> cache.match([1, 2, 3, 4, 5, 6])
        4
        """
        i: cython.Py_ssize_t
        self._check_live(sequence)
        valid: cython.Py_ssize_t = (
            sequence.length if written is None else _whole("written", written, 0, sequence.length)
        )
        self.context.now = self.clock()
        self.busy = True
        for i in range(sequence.count - 1, -1, -1):  # tail first, so that a parent outlives its child
            self.pool.unpin(sequence.slots[i], min((i + 1) * self.block_size, sequence.length) <= valid)
        self.table.let_go(sequence.root)
        sequence.live = False
        self.sequences.discard(sequence)
        self.busy = False
        self.listener.evicted(self.pool)

    def stats(self):
        """Counts since the start, then current counts.

        Since the start: `requests`, their `blocks` and `tokens`, `hit_blocks` and `hit_tokens`; `appended` tokens,
        `copies` on write, `evictions`. Current: slots `resident` = `pinned` + `idle`, and `free`; live `sequences`; and
        `remembered`, blocks without a slot that are known as the prefix of other blocks.

        >>> cache = PrefixCache(8)
        >>> cache.free(cache.allocate(range(40)))
        >>> {name: count for name, count in cache.stats().items() if count}
        {'requests': 1, 'blocks': 3, 'tokens': 40, 'resident': 3, 'idle': 3, 'free': 5}
        """
        idle = self.pool.idle_count
        pinned = self.slots - self.pool.free_count - idle
        blocks = self.table.numbers - self.table.spare_count - len(self.table.roots)
        return {
            "requests": self.requests, "blocks": self.requested_blocks, "hit_blocks": self.hit_blocks,
            "tokens": self.requested_tokens, "hit_tokens": self.hit_tokens, "appended": self.appended,
            "copies": self.copies, "evictions": self.pool.evictions, "resident": pinned + idle,
            "pinned": pinned, "idle": idle, "free": self.pool.free_count, "sequences": len(self.sequences),
            "remembered": blocks - self.pool.found_count,
        }  # fmt: skip

    def check(self):
        """Compare pins, pool, slots and table with the live sequences; raise KvtraceError if they are inconsistent."""
        if self.busy:
            raise KvtraceError(
                "internal error in the prefix cache: "
                "a change was not completed, perhaps because of an earlier exception in its policy."
            )
        self_check.check(self.snapshot())

    def snapshot(self):
        """A copy of all counts, for `check`: a self_check.CacheSnapshot.

        >>> PrefixCache(2).snapshot().unused
        [1, 0]
        """
        i: cython.Py_ssize_t
        b: cython.int
        sequence: Sequence
        held = []
        for sequence in self.sequences:
            held.append(self_check.Held(sequence.live, sequence.length, sequence.blocks, sequence.root))
        table = {}
        for i in range(self.table.numbers):
            b = cython.cast(cython.int, i)
            if self.table.blocks[b].length != SPARE:
                table[b] = self_check.KnownBlock(
                    self.table.blocks[b].parent, self.table.blocks[b].slot, self.table.blocks[b].holders,
                    self.table.found_as(b),
                )  # fmt: skip
        return self_check.CacheSnapshot(
            block_size=self.block_size, most_idle=self.most_idle, sequences=held,
            pins=[self.pool.pins[i] for i in range(self.slots)],
            block=[self.pool.block[i] for i in range(self.slots)],
            unused=[self.pool.unused[i] for i in range(self.pool.free_count)],
            idle_count=self.pool.idle_count, table=table,
            roots=list(self.table.roots.values()), tenants=list(self.table.tenants),
            numbers=self.table.numbers, spare_count=self.table.spare_count, found_count=self.pool.found_count,
        )  # fmt: skip

    # ---- before a call

    def _tick(self):
        """Before a lookup: set the policy's time and evict the expired blocks."""
        self._ready()
        self.context.now = self.clock()
        self.context.request = self.context.order = self.requests
        if self.pool.policy.expires:
            self.busy = True
            self.pool.expire()
            self.busy = False
            self.listener.evicted(self.pool)
        return 0

    def _check_live(self, sequence):
        if sequence is None or sequence.cache is not self:
            raise UsageError("the sequence does not belong to this cache.")
        if not sequence.live:
            raise UsageError("the sequence is already freed. Allocate its tokens again.")
        return self._ready()

    def _ready(self):
        if self.listener.in_callback:
            raise UsageError("a callback must not change the prefix cache. Change it after the call returns.")
        if self.busy:
            raise KvtraceError(
                "the prefix cache is inconsistent: an earlier exception in its policy interrupted a change. "
                "Create a new cache."
            )
        return 0

    # ---- a sequence begins

    def _sequence(self, length, hits):
        """A new sequence of `length` tokens and `hits` hit blocks, without slots."""
        sequence: Sequence = Sequence.__new__(Sequence)
        sequence.cache = self
        sequence.length, sequence.count = length, (length + self.block_size - 1) // self.block_size
        sequence.hit_blocks, sequence.hit_tokens = hits, min(hits * self.block_size, length)
        sequence.reserve(sequence.count)
        return sequence

    def _make_sure_of_room(self, count, depth):
        """Raise OutOfBlocks if the free and idle slots, without the path's own, are too few for the missing blocks."""
        i: cython.Py_ssize_t
        slot: cython.int
        need: cython.Py_ssize_t = count
        idle: cython.Py_ssize_t = self.pool.idle_count
        for i in range(depth):
            slot = self.table.blocks[self.table.path[i]].slot
            if slot != NONE:
                need -= 1
                idle -= self.pool.pins[slot] == 0
        if need > self.pool.free_count + idle:
            raise self._no_room(need, idle)
        return self.table.reserve(need + 1)

    def _fill(self, sequence, depth):
        """Pin the resident blocks of `path`, then take slots for the others, root first."""
        i: cython.Py_ssize_t
        first: cython.Py_ssize_t = 0
        b: cython.int = sequence.root
        self.table.blocks[b].holders += 1
        for i in range(depth):  # including blocks resident below a gap, which are computed again in place
            self.table.blocks[self.table.path[i]].holders += 1  # keeps the block known during the evictions below
            if self.table.blocks[self.table.path[i]].slot != NONE:
                self.pool.pin(self.table.blocks[self.table.path[i]].slot)
        for i in range(sequence.count):
            if i < depth:
                b = self.table.path[i]
            else:
                b = self.table.new(b, self.tokens.values + first, min(self.block_size, sequence.length - first))
            if self.table.blocks[b].slot == NONE:
                self.pool.put(b, self.pool.take())
            sequence.slots[i] = self.table.blocks[b].slot
            first += self.block_size
        for i in range(depth):
            self.table.blocks[self.table.path[i]].holders -= 1
        return 0

    def _count(self, sequence):
        self.requests += 1
        self.requested_blocks += sequence.count
        self.hit_blocks += sequence.hit_blocks
        self.requested_tokens += sequence.length
        self.hit_tokens += sequence.hit_tokens

    # ---- a live sequence grows

    def _extend(self, sequence, tokens, length):
        """Append `length` tokens, a block at a time: to the partial block, then to new blocks."""
        i: cython.Py_ssize_t
        slot: cython.int
        first: cython.Py_ssize_t = sequence.length
        filled: cython.Py_ssize_t = first % self.block_size
        count: cython.Py_ssize_t = (first + length + self.block_size - 1) // self.block_size
        last: cython.int = sequence.slots[sequence.count - 1] if sequence.count else NONE
        shared: cython.int = last if filled and length and self.pool.pins[last] > 1 else NONE
        need: cython.Py_ssize_t = count - sequence.count + (shared != NONE)
        if need > self.pool.free_count + self.pool.idle_count:
            raise self._no_room(need, self.pool.idle_count)
        self.table.reserve(need + 1)
        sequence.reserve(count)
        self.busy = True
        i = min(self.block_size - filled, length) if filled else 0
        if i:
            last = self._lengthen(last, filled, tokens, i, shared != NONE)
            sequence.slots[sequence.count - 1] = last
        while i < length:
            slot = self.pool.take()
            before: cython.int = sequence.root if last == NONE else self.pool.block[last]
            self.pool.put(self.table.named(before, tokens + i, min(self.block_size, length - i)), slot)
            sequence.slots[sequence.count] = last = slot
            sequence.count += 1
            i += self.block_size
        sequence.length += length
        self.appended += length
        self.busy = False
        if self.listener.reports_growth:
            self.listener.extended(self.pool, sequence, first, shared)
        return 0

    def _lengthen(self, slot, filled, tokens, more, shared):
        """Add tokens to a partial block, copied to a new slot if it is shared; returns its slot."""
        old: cython.int = self.pool.block[slot]
        memcpy(self.draft, self.table.tokens_of(old), filled * cython.sizeof(cython.uint))
        memcpy(self.draft + filled, tokens, more * cython.sizeof(cython.uint))
        if shared:
            self.pool.pins[slot] -= 1
            self.copies += 1
            slot = self.pool.take()
            self.pool.put(self.table.named(self.table.blocks[old].parent, self.draft, filled + more), slot)
        else:
            new: cython.int = self.table.named(self.table.blocks[old].parent, self.draft, filled + more)
            self.pool.take_out(slot)
            self.pool.put(new, slot)
            self.table.let_go(old)
        return slot

    def _no_room(self, need, idle):
        subject = "1 block is" if need == 1 else f"{need:,} blocks are"
        free = self.pool.free_count
        return OutOfBlocks(
            f"{subject} needed, {free:,} are free and {idle:,} idle of {self.slots:,}. Free a sequence first."
        )


# ---- helpers


def _whole(name, value, low, high):
    """Check a whole number and its bounds; else UsageError."""
    try:
        value = index(value)
    except TypeError:
        raise UsageError(f"{name} must be a whole number, not {type(value).__name__}.") from None
    if not low <= value <= high:
        raise UsageError(f"{name} must be from {low:,} to {high:,}, not {value:,}.")
    return value


def _milliseconds():
    return 1000 * monotonic()
