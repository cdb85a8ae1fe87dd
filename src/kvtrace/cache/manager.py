"""The live prefix cache: the founding document's table, reference counts and pool, token by token, for an engine.

A slot is a place for a block's KV; a block is what stands there: its own tokens, after the block before it. The table
finds a block by a keyed hash and then compares tokens and the number of the block before, which stands for one prefix
as long as any block after it is known. So a collision costs a comparison, and never gives another prompt's KV.

Twin: tests/reference/heap_of_heaps.py.
"""

import os
from collections.abc import Sequence as AnySequence
from operator import index
from time import monotonic

import cython
import numpy as np

from kvtrace.cache import policies
from kvtrace.cache.core.borrowed import Borrowed
from kvtrace.errors import KvtraceError, UsageError

if not cython.compiled:  # Python would run this file as it is
    raise ImportError(f"not compiled: {__name__}. Try `pip install .` with a C compiler at hand.")
else:
    from cython.cimports.kvtrace.cache.policies.base import Context, Policy
    from cython.cimports.libc.stdlib import calloc, realloc
    from cython.cimports.libc.stdlib import free as give_back
    from cython.cimports.libc.string import memcmp, memcpy

Block = cython.struct(
    digest=cython.ulonglong,
    parent=cython.int,  # the block before it; -1 for a root, which has no tokens and stands for a tenant
    next=cython.int,  # in its bucket, or among the spare
    slot=cython.int,  # where it is found; -1: nowhere, it is remembered for what follows it
    holders=cython.int,  # slots it stands in, blocks that follow it, and for a root its live sequences
    length=cython.int,  # tokens; SPARE when the number is not in use
)
NONE = cython.declare(cython.int, -1)
SPARE = cython.declare(cython.int, -1)
FREE = cython.declare(cython.int, -1)  # pins of a slot with nothing in it
READY = cython.declare(cython.int, 0)
TELLING = cython.declare(cython.int, 1)  # the change is done, and callbacks hear of it
BUSY = cython.declare(cython.int, 2)  # in the middle of a change; for good where a policy's exception ended it
HASHINGS = ("hierarchical", "direct")


class OutOfBlocks(KvtraceError):
    """More blocks are wanted than are free or idle; nothing was changed."""


@cython.final
@cython.cclass
class Sequence:
    """The blocks that one live request holds in a PrefixCache: `allocate` makes it, `append` grows it, `free` ends it.

    `length` is in tokens; `hit_blocks` and `hit_tokens` are the leading run that was found when it was allocated.
    """

    cache: object
    slots: cython.p_int
    count: cython.Py_ssize_t
    room: cython.Py_ssize_t
    root: cython.int
    length = cython.declare(cython.Py_ssize_t, visibility="readonly")
    hit_blocks = cython.declare(cython.Py_ssize_t, visibility="readonly")
    hit_tokens = cython.declare(cython.Py_ssize_t, visibility="readonly")
    live = cython.declare(cython.bint, visibility="readonly")

    def __dealloc__(self):
        give_back(self.slots)

    @property
    def blocks(self):
        """The slot of each block, in order: an engine's block table. Copy-on-write may change the last one."""
        return [self.slots[i] for i in range(self.count)]

    @cython.cfunc
    @cython.exceptval(-1)
    def _reserve(self, count: cython.Py_ssize_t) -> cython.int:
        """Make room for so many blocks in all."""
        if count > self.room:
            room: cython.Py_ssize_t = max(count, 2 * self.room)
            self.slots = cython.cast(cython.p_int, _resized(self.slots, room * cython.sizeof(cython.int)))
            self.room = room
        return 0


@cython.final
@cython.cclass
class PrefixCache:
    """A prefix cache of `blocks` slots, 0 to blocks - 1, that live sequences share and idle blocks wait in.

    A block that no live sequence holds is idle. At most `idle` blocks are (default: as many as there are slots), and
    `policy` says which goes when there are more, or when a slot is wanted: a name of `kvtrace simulate --policy` that
    needs no trace, or a class with the five verbs, which is called with a context (blocks, capacity, now, request).
    `hashing` is "hierarchical", hash(hash of the block before, own tokens), or "direct", hash(all tokens before, own
    tokens): the same answers, at a cost in proportion to the prefix.

    Where given, these are called after each change, in this order:

    * on_evict(slot): the block there is gone, and the slot may be written again;
    * on_read(slot, position): the block, whose first token is at `position` of the sequence, is reused;
    * on_copy(source, target, count): copy the KV of the first `count` tokens (a shared partial block is extended);
      without it, on_write is told to compute them;
    * on_write(slot, first, count): compute the KV of the sequence's tokens first ... first + count - 1.

    `clock` gives milliseconds for policies that look at time. Blocks are found by tenant and by `salt` (bytes); a new
    salt makes all older blocks unfindable, as new weights must. Arguments that do not fit raise UsageError.

    Use it from one thread, or hold a lock around each call.

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

    slots = cython.declare(cython.Py_ssize_t, visibility="readonly")
    block_size = cython.declare(cython.Py_ssize_t, visibility="readonly")
    most_idle = cython.declare(cython.Py_ssize_t, visibility="readonly")
    hashing = cython.declare(object, visibility="readonly")
    context: Context
    policy: Policy
    clock: object
    on_read: object
    on_write: object
    on_copy: object
    on_evict: object
    state: cython.int
    gone: list  # slots to tell on_evict

    # slots
    pins: cython.p_int  # slot -> live sequences that hold it, or FREE
    block: cython.p_int  # slot -> the block in it, or NONE
    unused: cython.p_int  # the free slots, next at the end
    free_count: cython.Py_ssize_t
    idle_count: cython.Py_ssize_t
    sequences: set  # the live ones

    # blocks
    blocks: cython.pointer(Block)
    own: cython.p_uint  # block -> its tokens, block_size places each
    room: cython.Py_ssize_t
    made: cython.Py_ssize_t
    spare: cython.int  # first of the numbers below `made` that are not in use
    spare_count: cython.Py_ssize_t
    found_count: cython.Py_ssize_t  # blocks with a slot
    buckets: cython.p_int
    mask: cython.ulonglong
    digest_mask: cython.ulonglong
    key0: cython.ulonglong
    key1: cython.ulonglong
    is_direct: cython.bint
    salted: object
    roots: dict  # (salt, tenant) -> root
    tenants: dict  # and back
    serial: cython.ulonglong

    # work space of a call
    tokens: cython.p_uint
    tokens_room: cython.Py_ssize_t
    path: cython.p_int
    path_room: cython.Py_ssize_t
    draft: cython.p_uint  # a partial block as it will be

    # counts
    requests: cython.longlong
    asked_blocks: cython.longlong
    hit_blocks: cython.longlong
    asked_tokens: cython.longlong
    hit_tokens: cython.longlong
    appended: cython.longlong
    evictions: cython.longlong
    copies: cython.longlong

    def __cinit__(self, blocks, block_size=16, *, idle=None, policy="lru", hashing="hierarchical", salt=b"",
                  on_read=None, on_write=None, on_evict=None, on_copy=None, clock=None):  # fmt: skip
        i: cython.Py_ssize_t
        self.slots = _whole("blocks", blocks, 1, 1 << 30)
        self.block_size = _whole("block_size", block_size, 1, 1 << 20)
        self.most_idle = self.slots if idle is None else min(_whole("idle", idle, 0, 1 << 62), self.slots)
        if hashing not in HASHINGS:
            raise UsageError(f"hashing is {' or '.join(HASHINGS)}, not {hashing!r}.")
        self.hashing, self.is_direct = hashing, hashing == "direct"
        self.salt = salt
        calls = {"on_read": on_read, "on_write": on_write, "on_evict": on_evict, "on_copy": on_copy, "clock": clock}
        for name, call in calls.items():
            if call is not None and not callable(call):
                raise UsageError(f"{name} is called, and {type(call).__name__} can't be.")
        self.on_read, self.on_write, self.on_evict, self.on_copy = on_read, on_write, on_evict, on_copy
        self.clock = _milliseconds if clock is None else clock
        self.context = Context(self.slots, self.most_idle)
        self.context.now = self.clock()
        self.policy = _policy(policy, self.context)

        self.gone, self.sequences, self.roots, self.tenants = [], set(), {}, {}
        self.pins = cython.cast(cython.p_int, _zeros(self.slots * cython.sizeof(cython.int)))
        self.block = cython.cast(cython.p_int, _zeros(self.slots * cython.sizeof(cython.int)))
        self.unused = cython.cast(cython.p_int, _zeros(self.slots * cython.sizeof(cython.int)))
        self.draft = cython.cast(cython.p_uint, _zeros(self.block_size * cython.sizeof(cython.uint)))
        self.free_count = self.slots
        for i in range(self.slots):
            self.pins[i] = FREE
            self.block[i] = NONE
            self.unused[self.slots - 1 - i] = cython.cast(cython.int, i)  # slot 0 is the first to go
        key = os.urandom(16)  # nobody outside can make prompts that collide
        self.key0, self.key1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
        self.digest_mask = ~cython.cast(cython.ulonglong, 0)
        self.spare = NONE
        self._reserve(1)

    def __dealloc__(self):
        give_back(self.pins)
        give_back(self.block)
        give_back(self.unused)
        give_back(self.blocks)
        give_back(self.own)
        give_back(self.buckets)
        give_back(self.tokens)
        give_back(self.path)
        give_back(self.draft)

    @property
    def salt(self):
        """What else the KV depends on, such as the model's weights; only blocks of the same salt are found."""
        return self.salted

    @salt.setter
    def salt(self, value):
        if not isinstance(value, bytes):
            raise UsageError(f"a salt is bytes, not {type(value).__name__}.")
        self.salted = value

    def match(self, tokens, tenant=None):
        """How many leading tokens are cached: those of full blocks, and of an equal partial block; changes no order.

        >>> cache = PrefixCache(8, block_size=4)
        >>> cache.free(cache.allocate([1, 2, 3, 4, 5, 6]))
        >>> [cache.match(tokens) for tokens in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5], [2])]
        [6, 4, 0]
        >>> cache.match([1, 2, 3, 4], tenant="another")
        0
        """
        i: cython.Py_ssize_t
        found: cython.Py_ssize_t = 0
        if self.state != TELLING:  # a callback may ask, too
            self._tick()
        length: cython.Py_ssize_t = self._read(tokens)
        root: cython.int = self._root(tenant)
        for i in range(self._walk(root, length)):
            if self.blocks[self.path[i]].slot == NONE:
                break
            found += self.blocks[self.path[i]].length
        return found

    def allocate(self, tokens, tenant=None):
        """A live Sequence of the tokens, which shares the blocks that are cached and has new slots for the others.

        Raises OutOfBlocks, and changes nothing, where fewer slots are free or idle than it needs.

        >>> cache = PrefixCache(2, block_size=4)
        >>> one = cache.allocate([1, 2, 3, 4, 5])
        >>> cache.allocate([6])
        Traceback (most recent call last):
        ...
        kvtrace.cache.manager.OutOfBlocks: 1 block is needed, 0 are free and 0 idle of 2. Free a sequence first.
        """
        self._tick()
        length: cython.Py_ssize_t = self._read(tokens)
        root: cython.int = self._root(tenant)
        known: cython.Py_ssize_t = self._walk(root, length)
        hits: cython.Py_ssize_t = 0
        while hits < known and self.blocks[self.path[hits]].slot != NONE:
            hits += 1
        sequence: Sequence = self._sequence(length, hits)
        self._make_sure_of_room(sequence.count, known)

        self.state = BUSY
        sequence.root = self._new_root(tenant) if root == NONE else root
        self._fill(sequence, known)
        sequence.live = True
        self.sequences.add(sequence)
        self._count(sequence)
        self.state = READY
        try:
            self._tell_allocated(sequence)
        except BaseException:  # nobody holds the sequence, and its KV was not written
            self.free(sequence, written=sequence.hit_tokens)
            raise
        return sequence

    def append(self, sequence: Sequence, token):
        """Add one token to a live sequence: to its partial block, whose hash changes, or to a new block.

        A partial block that other live sequences hold as well is copied first. Where the longer block is already
        cached in another slot, the sequence keeps its own copy, which is not found by others as long as that one is
        there. Raises OutOfBlocks, and changes nothing, where it needs a slot and none is free or idle.

        >>> cache = PrefixCache(8, block_size=4)
        >>> one, two = cache.allocate([1, 2]), cache.allocate([1, 2])
        >>> one.blocks == two.blocks
        True
        >>> cache.append(two, 3)
        >>> one.blocks, two.blocks, cache.stats()["copies"]
        ([0], [1], 1)
        """
        value: cython.uint = _token(token)
        self._check_live(sequence)
        self._extend(sequence, cython.address(value), 1)

    def append_many(self, sequence: Sequence, tokens):
        """Add tokens to a live sequence, as that many calls of `append` would; all of them, or none with OutOfBlocks.

        >>> cache = PrefixCache(8, block_size=4)
        >>> sequence = cache.allocate([1, 2, 3])
        >>> cache.append_many(sequence, range(10))
        >>> sequence.length, sequence.blocks
        (13, [0, 1, 2, 3])
        """
        length: cython.Py_ssize_t = self._read(tokens)
        self._check_live(sequence)
        self._extend(sequence, self.tokens, length)

    def free(self, sequence: Sequence, written=None):
        """End a live sequence: its blocks that no other one holds become idle, tail first; they can be found still.

        `written` (default: all) is how many of its leading tokens have their KV; blocks that reach beyond are dropped,
        as an engine must that stops a request before its prompt was computed.

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
        self.state = BUSY
        for i in range(sequence.count - 1, -1, -1):  # tail first, so that a parent outlives its child
            self._unpin(sequence.slots[i], min((i + 1) * self.block_size, sequence.length) <= valid)
        self._let_go(sequence.root)
        sequence.live = False
        self.sequences.discard(sequence)
        self.state = READY
        self._tell_evicted()

    def stats(self):
        """Counts since the start, then those of this moment.

        `requests`, their `blocks` and `tokens`, `hit_blocks` and `hit_tokens`; `appended` tokens, `copies` on write,
        `evictions`; then slots: `resident` = `pinned` + `idle`, and `free`; live `sequences`; and `remembered`, blocks
        that are found nowhere, and known for the sake of what follows them.

        >>> cache = PrefixCache(8)
        >>> cache.free(cache.allocate(range(40)))
        >>> {name: count for name, count in cache.stats().items() if count}
        {'requests': 1, 'blocks': 3, 'tokens': 40, 'resident': 3, 'idle': 3, 'free': 5}
        """
        pinned = self.slots - self.free_count - self.idle_count
        known = self.made - self.spare_count - len(self.roots)
        return {
            "requests": self.requests, "blocks": self.asked_blocks, "hit_blocks": self.hit_blocks,
            "tokens": self.asked_tokens, "hit_tokens": self.hit_tokens, "appended": self.appended,
            "copies": self.copies, "evictions": self.evictions, "resident": pinned + self.idle_count,
            "pinned": pinned, "idle": self.idle_count, "free": self.free_count, "sequences": len(self.sequences),
            "remembered": known - self.found_count,
        }  # fmt: skip

    def check(self):
        """Recount pins, pool, slots and table from the live sequences up; KvtraceError says what does not agree."""
        broken = self._broken_pins() or self._broken_slots() or self._broken_table()
        if self.state == BUSY:
            broken = "it is in the middle of a change, which an exception in its policy may have ended"
        if broken:
            raise KvtraceError(f"the prefix cache is at fault: {broken}.")

    # ---- a sequence begins

    @cython.cfunc
    def _sequence(self, length: cython.Py_ssize_t, hits: cython.Py_ssize_t) -> Sequence:
        """A sequence of so many tokens and hit blocks that holds nothing yet."""
        sequence: Sequence = Sequence.__new__(Sequence)
        sequence.cache = self
        sequence.length, sequence.count = length, (length + self.block_size - 1) // self.block_size
        sequence.hit_blocks, sequence.hit_tokens = hits, min(hits * self.block_size, length)
        sequence._reserve(sequence.count)
        return sequence

    @cython.cfunc
    @cython.exceptval(-1)
    def _make_sure_of_room(self, count: cython.Py_ssize_t, known: cython.Py_ssize_t) -> cython.int:
        """Raise OutOfBlocks where the slots that are free or idle, but for the path's own, are too few for its rest."""
        i: cython.Py_ssize_t
        slot: cython.int
        need: cython.Py_ssize_t = count
        idle: cython.Py_ssize_t = self.idle_count
        for i in range(known):
            slot = self.blocks[self.path[i]].slot
            if slot != NONE:
                need -= 1
                idle -= self.pins[slot] == 0
        if need > self.free_count + idle:
            raise self._no_room(need, idle)
        return self._reserve(need + 1)

    @cython.cfunc
    @cython.exceptval(-1)
    def _fill(self, sequence: Sequence, known: cython.Py_ssize_t) -> cython.int:
        """Pin the resident blocks of `path`, then find slots for the others, root first."""
        i: cython.Py_ssize_t
        here: cython.Py_ssize_t = 0
        b: cython.int = sequence.root
        self.blocks[b].holders += 1
        for i in range(known):  # also what is resident below a gap, and is computed again in its place
            self.blocks[self.path[i]].holders += 1  # until it has a slot: evictions must not forget it
            if self.blocks[self.path[i]].slot != NONE:
                self._pin(self.blocks[self.path[i]].slot)
        for i in range(sequence.count):
            if i < known:
                b = self.path[i]
            else:
                b = self._new(b, self.tokens + here, min(self.block_size, sequence.length - here))
            if self.blocks[b].slot == NONE:
                self._put(b, self._slot())
            sequence.slots[i] = self.blocks[b].slot
            here += self.block_size
        for i in range(known):
            self.blocks[self.path[i]].holders -= 1
        return 0

    # ---- a live sequence grows

    @cython.cfunc
    @cython.exceptval(-1)
    def _extend(self, sequence: Sequence, tokens: cython.p_uint, length: cython.Py_ssize_t) -> cython.int:
        """Append so many tokens, a block at a time: to the partial block, then to new ones."""
        i: cython.Py_ssize_t
        slot: cython.int
        first: cython.Py_ssize_t = sequence.length
        filled: cython.Py_ssize_t = first % self.block_size
        count: cython.Py_ssize_t = (first + length + self.block_size - 1) // self.block_size
        last: cython.int = sequence.slots[sequence.count - 1] if sequence.count else NONE
        shared: cython.int = last if filled and length and self.pins[last] > 1 else NONE
        need: cython.Py_ssize_t = count - sequence.count + (shared != NONE)
        if need > self.free_count + self.idle_count:
            raise self._no_room(need, self.idle_count)
        self._reserve(need + 1)
        sequence._reserve(count)
        self.state = BUSY
        i = min(self.block_size - filled, length) if filled else 0
        if i:
            last = self._lengthen(last, filled, tokens, i, shared != NONE)
            sequence.slots[sequence.count - 1] = last
        while i < length:
            slot = self._slot()
            self._put(self._named(sequence.root if last == NONE else self.block[last], tokens + i,
                                  min(self.block_size, length - i)), slot)  # fmt: skip
            sequence.slots[sequence.count] = last = slot
            sequence.count += 1
            i += self.block_size
        sequence.length += length
        self.appended += length
        self.state = READY
        if self.on_evict is not None or self.on_write is not None or self.on_copy is not None:
            self._tell_extended(sequence, first, shared)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _lengthen(self, slot: cython.int, filled: cython.Py_ssize_t, tokens: cython.p_uint,
                  more: cython.Py_ssize_t, shared: cython.bint) -> cython.int:  # fmt: skip
        """Give a partial block more tokens, in a slot of its own where it is shared; returns its slot."""
        old: cython.int = self.block[slot]
        memcpy(self.draft, self._own(old), filled * cython.sizeof(cython.uint))
        memcpy(self.draft + filled, tokens, more * cython.sizeof(cython.uint))
        if shared:
            self.pins[slot] -= 1
            self.copies += 1
            slot = self._slot()
            self._put(self._named(self.blocks[old].parent, self.draft, filled + more), slot)
        else:
            new: cython.int = self._named(self.blocks[old].parent, self.draft, filled + more)
            self._take_out(slot)
            self._put(new, slot)
            self._let_go(old)
        return slot

    # ---- slots: pins, the pool of idle blocks, eviction

    @cython.cfunc
    @cython.exceptval(-1)
    def _pin(self, slot: cython.int) -> cython.int:
        """One more sequence holds a slot; if it was idle, it leaves the pool."""
        if self.pins[slot] == 0:
            self.idle_count -= 1
        self.pins[slot] += 1
        return self.policy.use(slot)

    @cython.cfunc
    @cython.exceptval(-1)
    def _unpin(self, slot: cython.int, keep: cython.bint) -> cython.int:
        """One sequence less holds a slot; the last puts it into the pool, or frees it where nobody could find it."""
        b: cython.int = self.block[slot]
        self.pins[slot] -= 1
        if self.pins[slot] > 0:
            return 0
        self.idle_count += 1
        self.policy.release(slot)
        if keep and self.blocks[b].slot == NONE:
            self.blocks[b].slot = slot  # a copy whose better known twin is gone
            self.found_count += 1
        if keep and self.blocks[b].slot == slot:
            while self.idle_count > self.most_idle:
                self._evict(self._victim(self.policy.victim()))
            return 0
        return self._vacate(slot)

    @cython.cfunc
    @cython.exceptval(-1)
    def _slot(self) -> cython.int:
        """A free slot, now pinned; a victim's where there is none. Whoever calls made sure of room."""
        if self.free_count == 0:
            self._evict(self._victim(self.policy.victim()))
        self.free_count -= 1
        slot: cython.int = self.unused[self.free_count]
        self.pins[slot] = 1
        self.policy.insert(slot)
        return slot

    @cython.cfunc
    @cython.exceptval(-1)
    def _victim(self, slot: cython.int) -> cython.int:
        """A slot that the policy named, checked: a policy may be anybody's."""
        if not (0 <= slot < self.slots) or self.pins[slot] != 0:
            raise UsageError(
                f"the policy named {self._described(slot)} as its victim. Try one it was given by release."
            )
        return slot

    def _described(self, slot):
        if not 0 <= slot < self.slots:
            return "no slot" if slot < 0 else f"slot {slot:,}, which does not exist,"
        return f"slot {slot:,}, which {'has no block' if self.pins[slot] == FREE else 'is pinned'},"

    @cython.cfunc
    @cython.exceptval(-1)
    def _evict(self, slot: cython.int) -> cython.int:
        self.evictions += 1
        if self.on_evict is not None:
            self.gone.append(slot)
        return self._vacate(slot)

    @cython.cfunc
    @cython.exceptval(-1)
    def _vacate(self, slot: cython.int) -> cython.int:
        """Make an idle slot free."""
        b: cython.int = self.block[slot]
        self.policy.remove(slot)
        self.idle_count -= 1
        self._take_out(slot)
        self._let_go(b)
        self.pins[slot] = FREE
        self.unused[self.free_count] = slot
        self.free_count += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _tick(self) -> cython.int:
        """Tell the policy the time, and evict what it finds too old, before anything is looked up."""
        self._ready()
        self.context.now = self.clock()
        self.context.request = self.requests
        if self.policy.expires:
            self.state = BUSY
            slot: cython.int = self.policy.expired()
            while slot >= 0:
                self._evict(self._victim(slot))
                slot = self.policy.expired()
            self.state = READY
            self._tell_evicted()
        return 0

    # ---- the table: what is known of blocks

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _own(self, b: cython.int) -> cython.p_uint:
        return self.own + b * self.block_size

    @cython.cfunc
    @cython.exceptval(-1)
    def _walk(self, root: cython.int, length: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Put the leading blocks of `tokens` that are known into `path`; returns how many, resident or not."""
        known: cython.Py_ssize_t = 0
        here: cython.Py_ssize_t = 0
        if root == NONE:
            return 0
        count: cython.Py_ssize_t = (length + self.block_size - 1) // self.block_size
        if count > self.path_room:
            self.path = cython.cast(cython.p_int, _resized(self.path, 2 * count * cython.sizeof(cython.int)))
            self.path_room = 2 * count
        b: cython.int = root
        while known < count:
            b = self._find(b, self.tokens + here, min(self.block_size, length - here))
            if b == NONE:
                break
            self.path[known] = b
            known += 1
            here += self.block_size
        return known

    @cython.cfunc
    @cython.exceptval(check=False)
    def _find(self, parent: cython.int, tokens: cython.p_uint, length: cython.Py_ssize_t) -> cython.int:
        """The block of these tokens after `parent`, or NONE."""
        return self._find_by(self._digest(parent, tokens, length), parent, tokens, length)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _find_by(self, digest: cython.ulonglong, parent: cython.int, tokens: cython.p_uint,
                 length: cython.Py_ssize_t) -> cython.int:  # fmt: skip
        b: cython.int = self.buckets[digest & self.mask]
        while b != NONE:
            if (
                self.blocks[b].digest == digest
                and self.blocks[b].parent == parent
                and self.blocks[b].length == length
                and memcmp(self._own(b), tokens, length * cython.sizeof(cython.uint)) == 0
            ):
                return b
            b = self.blocks[b].next
        return NONE

    @cython.cfunc
    @cython.exceptval(check=False)
    def _named(self, parent: cython.int, tokens: cython.p_uint, length: cython.Py_ssize_t) -> cython.int:
        """The block of these tokens after `parent`, new where it was not known."""
        digest: cython.ulonglong = self._digest(parent, tokens, length)
        b: cython.int = self._find_by(digest, parent, tokens, length)
        return self._add(digest, parent, tokens, length) if b == NONE else b

    @cython.cfunc
    @cython.exceptval(check=False)
    def _new(self, parent: cython.int, tokens: cython.p_uint, length: cython.Py_ssize_t) -> cython.int:
        """As `_named`, where it is clear that the block is not known."""
        return self._add(self._digest(parent, tokens, length), parent, tokens, length)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _add(self, digest: cython.ulonglong, parent: cython.int, tokens: cython.p_uint,
             length: cython.Py_ssize_t) -> cython.int:  # fmt: skip
        """A new block in the table, held by nobody yet; `_reserve` made room for it."""
        b: cython.int = self._number()
        self.blocks[b].digest, self.blocks[b].parent, self.blocks[b].slot = digest, parent, NONE
        self.blocks[b].holders, self.blocks[b].length = 0, cython.cast(cython.int, length)
        memcpy(self._own(b), tokens, length * cython.sizeof(cython.uint))
        self._link(b)
        self.blocks[parent].holders += 1
        return b

    @cython.cfunc
    @cython.exceptval(check=False)
    def _number(self) -> cython.int:
        """A number for a new block or root."""
        b: cython.int = self.spare
        if b == NONE:
            b = cython.cast(cython.int, self.made)
            self.made += 1
        else:
            self.spare = self.blocks[b].next
            self.spare_count -= 1
        return b

    @cython.cfunc
    @cython.exceptval(check=False)
    def _link(self, b: cython.int) -> cython.void:
        self.blocks[b].next = self.buckets[self.blocks[b].digest & self.mask]
        self.buckets[self.blocks[b].digest & self.mask] = b

    @cython.cfunc
    @cython.exceptval(check=False)
    def _put(self, b: cython.int, slot: cython.int) -> cython.void:
        """A block stands in a slot, and is found there unless another slot has it as well."""
        self.block[slot] = b
        self.blocks[b].holders += 1
        if self.blocks[b].slot == NONE:
            self.blocks[b].slot = slot
            self.found_count += 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _take_out(self, slot: cython.int) -> cython.void:
        """A slot's block no longer stands there; `_let_go` is to follow."""
        if self.blocks[self.block[slot]].slot == slot:
            self.blocks[self.block[slot]].slot = NONE
            self.found_count -= 1
        self.block[slot] = NONE

    @cython.cfunc
    @cython.exceptval(-1)
    def _let_go(self, b: cython.int) -> cython.int:
        """One holder less; what nobody holds is forgotten, and its parent has one less in turn."""
        at: cython.p_int
        parent: cython.int
        while b != NONE:
            self.blocks[b].holders -= 1
            if self.blocks[b].holders > 0:
                return 0
            parent = self.blocks[b].parent
            if parent == NONE:
                del self.roots[self.tenants.pop(b)]
            else:
                at = cython.address(self.buckets[self.blocks[b].digest & self.mask])
                while at[0] != b:
                    at = cython.address(self.blocks[at[0]].next)
                at[0] = self.blocks[b].next
            self.blocks[b].length, self.blocks[b].next = SPARE, self.spare
            self.spare = b
            self.spare_count += 1
            b = parent
        return 0

    @cython.cfunc
    @cython.exceptval(-2)
    def _root(self, tenant: object) -> cython.int:
        """The root of a tenant's blocks, or NONE where there are none."""
        try:
            return self.roots.get((self.salted, tenant), NONE)
        except TypeError:
            raise UsageError(f"a tenant is a name or a number, not {type(tenant).__name__}.") from None

    @cython.cfunc
    @cython.exceptval(-2)
    def _new_root(self, tenant: object) -> cython.int:
        b: cython.int = self._number()
        self.serial += 1
        self.blocks[b].digest, self.blocks[b].parent, self.blocks[b].slot = self.serial, NONE, NONE
        self.blocks[b].holders = self.blocks[b].length = 0
        self.roots[(self.salted, tenant)] = b
        self.tenants[b] = (self.salted, tenant)
        return b

    @cython.cfunc
    @cython.exceptval(-1)
    def _reserve(self, more: cython.Py_ssize_t) -> cython.int:
        """Make room for so many more blocks; numbers stay as they are."""
        b: cython.int
        i: cython.Py_ssize_t
        if self.spare_count + self.room - self.made >= more:
            return 0
        room: cython.Py_ssize_t = max(256, 2 * self.room, self.made + more)
        if room > (1 << 31) - 1:
            raise MemoryError("more blocks are remembered than can be numbered")
        size: cython.Py_ssize_t = 2
        while size < 2 * room:
            size *= 2
        self.blocks = cython.cast(cython.pointer(Block), _resized(self.blocks, room * cython.sizeof(Block)))
        self.own = cython.cast(cython.p_uint, _resized(self.own, room * self.block_size * cython.sizeof(cython.uint)))
        self.buckets = cython.cast(cython.p_int, _resized(self.buckets, size * cython.sizeof(cython.int)))
        self.room = room
        self.mask = cython.cast(cython.ulonglong, size - 1)
        for i in range(size):
            self.buckets[i] = NONE
        for i in range(self.made):
            b = cython.cast(cython.int, i)
            if self.blocks[b].length != SPARE and self.blocks[b].parent != NONE:
                self._link(b)
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _digest(self, parent: cython.int, tokens: cython.p_uint, length: cython.Py_ssize_t) -> cython.ulonglong:
        """SipHash-1-3 of a block: of its tokens and its parent's digest, or (direct) those of all before it."""
        v: cython.ulonglong[4]
        total: cython.ulonglong = length
        v[0] = self.key0 ^ cython.cast(cython.ulonglong, 0x736F6D6570736575)
        v[1] = self.key1 ^ cython.cast(cython.ulonglong, 0x646F72616E646F6D)
        v[2] = self.key0 ^ cython.cast(cython.ulonglong, 0x6C7967656E657261)
        v[3] = self.key1 ^ cython.cast(cython.ulonglong, 0x7465646279746573)
        _take(v, tokens, length)
        if self.is_direct:
            while self.blocks[parent].parent != NONE:
                _take(v, self._own(parent), self.blocks[parent].length)
                total += self.blocks[parent].length
                parent = self.blocks[parent].parent
        _take_word(v, self.blocks[parent].digest)
        _take_word(v, total)
        v[2] ^= 0xFF
        _round(v)
        _round(v)
        _round(v)
        return (v[0] ^ v[1] ^ v[2] ^ v[3]) & self.digest_mask

    # ---- arguments

    @cython.cfunc
    @cython.exceptval(-1)
    def _ready(self) -> cython.int:
        if self.state == TELLING:
            raise UsageError("a callback of the prefix cache can't change it. Try after the call that it hears of.")
        if self.state == BUSY:
            raise KvtraceError("the prefix cache is in the middle of a change, which an exception in its policy ended.")
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _check_live(self, sequence: Sequence) -> cython.int:
        if sequence is None or sequence.cache is not self:
            raise UsageError("the sequence is not one that this cache allocated.")
        if not sequence.live:
            raise UsageError("the sequence was freed before. Allocate its tokens again.")
        return self._ready()

    @cython.cfunc
    @cython.exceptval(-1)
    def _read(self, tokens: object) -> cython.Py_ssize_t:
        """Copy a caller's tokens to `self.tokens`; returns how many there are."""
        i: cython.Py_ssize_t = 0
        if not isinstance(tokens, (list, tuple)):
            if isinstance(tokens, AnySequence) and not isinstance(tokens, (str, bytes, bytearray, memoryview)):
                tokens = list(tokens)
            else:
                return self._read_array(tokens)
        length: cython.Py_ssize_t = len(tokens)
        self._reserve_tokens(length)
        for token in tokens:
            if i == length:
                raise UsageError("the list of tokens grew while it was read.")
            try:
                self.tokens[i] = _token(token)
            except UsageError:
                raise UsageError(f"token {i:,} is not a whole number from 0 to 4,294,967,295.") from None
            i += 1
        return i

    @cython.cfunc
    @cython.exceptval(-1)
    def _read_array(self, tokens: object) -> cython.Py_ssize_t:
        i: cython.Py_ssize_t
        ints: cython.const[cython.int][::1]
        longs: cython.const[cython.longlong][::1]
        bad: cython.Py_ssize_t = -1
        try:
            array = np.asarray(memoryview(tokens))
        except TypeError:
            raise UsageError(f"tokens are a list or an array of whole numbers, not {type(tokens).__name__}.") from None
        if array.ndim != 1 or array.dtype.kind not in "iu" or isinstance(tokens, (bytes, bytearray)):
            raise UsageError(f"tokens are a list or an array of whole numbers, not {type(tokens).__name__}.")
        length: cython.Py_ssize_t = array.shape[0]
        self._reserve_tokens(length)
        if array.dtype == np.int32:
            ints = np.ascontiguousarray(array)
            for i in range(length):
                if ints[i] < 0:
                    bad = i
                self.tokens[i] = cython.cast(cython.uint, ints[i])
        else:
            longs = np.ascontiguousarray(array, dtype=np.int64)
            for i in range(length):
                if longs[i] < 0 or longs[i] > 0xFFFFFFFF:
                    bad = i
                self.tokens[i] = cython.cast(cython.uint, longs[i])
        if bad >= 0:
            raise UsageError(f"token {bad:,} is not a whole number from 0 to 4,294,967,295.")
        return length

    @cython.cfunc
    @cython.exceptval(-1)
    def _reserve_tokens(self, length: cython.Py_ssize_t) -> cython.int:
        if length > self.tokens_room:
            self.tokens = cython.cast(cython.p_uint, _resized(self.tokens, 2 * length * cython.sizeof(cython.uint)))
            self.tokens_room = 2 * length
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _count(self, sequence: Sequence) -> cython.void:
        self.requests += 1
        self.asked_blocks += sequence.count
        self.hit_blocks += sequence.hit_blocks
        self.asked_tokens += sequence.length
        self.hit_tokens += sequence.hit_tokens

    def _no_room(self, need, idle):
        wanted = "1 block is" if need == 1 else f"{need:,} blocks are"
        return OutOfBlocks(
            f"{wanted} needed, {self.free_count:,} are free and {idle:,} idle of {self.slots:,}. Free a sequence first."
        )

    # ---- callbacks: the change is done before any is called

    @cython.cfunc
    @cython.exceptval(-1)
    def _tell_evicted(self) -> cython.int:
        if self.on_evict is not None and self.gone:
            gone, self.gone, before, self.state = self.gone, [], self.state, TELLING
            try:
                for slot in gone:
                    self.on_evict(slot)
            finally:
                self.state = before
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _tell_allocated(self, sequence: Sequence) -> cython.int:
        i: cython.Py_ssize_t
        self._tell_evicted()
        if self.on_read is None and self.on_write is None:
            return 0
        self.state = TELLING
        try:
            if self.on_read is not None:
                for i in range(sequence.hit_blocks):
                    self.on_read(sequence.slots[i], i * self.block_size)
            self._tell_writes(sequence, sequence.hit_tokens)
        finally:
            self.state = READY
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _tell_extended(self, sequence: Sequence, first: cython.Py_ssize_t, shared: cython.int) -> cython.int:
        """Tell of tokens from `first` on; the partial block they began in may have been copied from `shared`."""
        self._tell_evicted()
        filled: cython.Py_ssize_t = first % self.block_size
        self.state = TELLING
        try:
            if shared != NONE and self.on_copy is None:
                first -= filled
            elif shared != NONE:
                self.on_copy(shared, sequence.slots[first // self.block_size], filled)
            self._tell_writes(sequence, first)
        finally:
            self.state = READY
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def _tell_writes(self, sequence: Sequence, first: cython.Py_ssize_t) -> cython.int:
        stop: cython.Py_ssize_t
        while self.on_write is not None and first < sequence.length:
            stop = min(sequence.length, first - first % self.block_size + self.block_size)
            self.on_write(sequence.slots[first // self.block_size], first, stop - first)
            first = stop
        return 0

    # ---- the self-check

    def _broken_pins(self):
        """What is wrong with the pins, counted from the live sequences, or None."""
        i: cython.Py_ssize_t
        sequence: Sequence
        pins = dict.fromkeys(range(self.slots), 0)
        for sequence in self.sequences:
            if not sequence.live or sequence.count != (sequence.length + self.block_size - 1) // self.block_size:
                return "a live sequence has too few blocks or too many"
            for i in range(sequence.count):
                pins[sequence.slots[i]] += 1
        for i in range(self.slots):
            if max(self.pins[i], 0) != pins[i]:
                return f"slot {i:,} has {self.pins[i]:,} pins, and {pins[i]:,} live sequences hold it"
        return None

    def _broken_slots(self):
        """What is wrong with the slots: each is pinned, idle or free, and has a block unless it is free; or None."""
        unused = sorted([self.unused[i] for i in range(self.free_count)])
        if unused != [i for i in range(self.slots) if self.pins[i] == FREE]:
            return "the list of free slots is not that of the slots without pins"
        if unused != [i for i in range(self.slots) if self.block[i] == NONE]:
            return "a free slot has a block, or another has none"
        idle = [i for i in range(self.slots) if self.pins[i] == 0]
        if len(idle) != self.idle_count or len(idle) > self.most_idle:
            return f"{len(idle):,} blocks are idle, {self.idle_count:,} are counted, {self.most_idle:,} may be"
        if any(self.blocks[self.block[i]].slot != i for i in idle):
            return "an idle block is not found in its slot"
        return None

    def _broken_table(self):
        """What is wrong with the table: each block found by its tokens, held by as many as it counts; or None."""
        i: cython.Py_ssize_t
        b: cython.int
        sequence: Sequence
        used = [i for i in range(self.made) if self.blocks[i].length != SPARE]
        holders = dict.fromkeys(used, 0)
        for i in range(self.slots):
            if self.block[i] != NONE:
                holders[self.block[i]] += 1
        for sequence in self.sequences:
            holders[sequence.root] += 1
        for i in used:
            b = self.blocks[i].parent
            if b != NONE:
                holders[b] += 1
        if len(used) + self.spare_count != self.made or sorted(self.roots.values()) != sorted(self.tenants):
            return "the numbers of blocks do not add up"
        if self.found_count != len([i for i in used if self.blocks[i].slot != NONE]):
            return "the count of blocks that are found is wrong"
        for i in used:
            b = cython.cast(cython.int, i)
            if self.blocks[b].holders != holders[b] or not holders[b]:
                return f"a block counts {self.blocks[b].holders:,} holders and has {holders[b]:,}"
            if self.blocks[b].slot != NONE and self.block[self.blocks[b].slot] != b:
                return "a block is not in the slot where it is to be found"
            if self.blocks[b].parent == NONE:
                if b not in self.tenants:
                    return "a root belongs to no tenant"
            elif self._find(self.blocks[b].parent, self._own(b), self.blocks[b].length) != b:
                return "a block is not found by its tokens"
        return None

    # ---- for tests alone

    def _make_all_collide(self):
        """Give every new block the digest 0: answers must not hang on the hash."""
        self.digest_mask = 0

    def _spoil(self, book, i, value):
        """Write a wrong number into one of the books: `check` must notice."""
        if book == "pins":
            self.pins[i] = value
        elif book == "block":
            self.block[i] = value
        elif book == "unused":
            self.unused[i] = value
        elif book == "idle_count":
            self.idle_count = value
        elif book == "holders":
            self.blocks[i].holders = value
        elif book == "slot":
            self.blocks[i].slot = value
        elif book == "own":
            self.own[i] = value
        elif book == "spare_count":
            self.spare_count = value
        elif book == "found_count":
            self.found_count = value
        else:
            raise KeyError(book)


# ---- helpers


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _round(v: cython.p_ulonglong) -> cython.void:
    """A round of SipHash (Aumasson and Bernstein, 2012)."""
    v[0] += v[1]
    v[2] += v[3]
    v[1] = ((v[1] << 13) | (v[1] >> 51)) ^ v[0]
    v[3] = ((v[3] << 16) | (v[3] >> 48)) ^ v[2]
    v[0] = (v[0] << 32) | (v[0] >> 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = ((v[1] << 17) | (v[1] >> 47)) ^ v[2]
    v[3] = ((v[3] << 21) | (v[3] >> 43)) ^ v[0]
    v[2] = (v[2] << 32) | (v[2] >> 32)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _take_word(v: cython.p_ulonglong, word: cython.ulonglong) -> cython.void:
    v[3] ^= word
    _round(v)
    v[0] ^= word


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _take(v: cython.p_ulonglong, tokens: cython.p_uint, length: cython.Py_ssize_t) -> cython.void:
    """Take tokens in pairs; a last one alone."""
    i: cython.Py_ssize_t = 0
    while i + 1 < length:
        _take_word(v, tokens[i] | (cython.cast(cython.ulonglong, tokens[i + 1]) << 32))
        i += 2
    if i < length:
        _take_word(v, tokens[i])


@cython.cfunc
@cython.exceptval(0xFFFFFFFF, check=True)
def _token(token: object) -> cython.uint:
    """A token as a number of 32 bits."""
    value: cython.longlong
    try:
        value = token if type(token) is int else index(token)
    except (TypeError, OverflowError):
        value = -1
    if value < 0 or value > 0xFFFFFFFF:
        raise UsageError("a token is a whole number from 0 to 4,294,967,295.")
    return cython.cast(cython.uint, value)


@cython.cfunc
@cython.exceptval(check=True)
def _zeros(size: cython.size_t) -> cython.p_void:
    memory: cython.p_void = calloc(1, size)
    if memory == cython.NULL:
        raise MemoryError
    return memory


@cython.cfunc
@cython.exceptval(check=True)
def _resized(memory: cython.p_void, size: cython.size_t) -> cython.p_void:
    grown: cython.p_void = realloc(memory, max(size, 1))
    if grown == cython.NULL:
        raise MemoryError
    return grown


def _whole(name, value, least, most):
    """A whole number within its bounds, or UsageError."""
    try:
        value = index(value)
    except TypeError:
        raise UsageError(f"{name} is a whole number, not {type(value).__name__}.") from None
    if not least <= value <= most:
        raise UsageError(f"{name} is from {least:,} to {most:,}, not {value:,}.")
    return value


def _milliseconds():
    return 1000 * monotonic()


def _policy(policy, context):
    """The policy that a name or a user's class stands for; UsageError where a live cache can't have it."""
    if isinstance(policy, str):
        row = policies.POLICIES.get(policy.partition(":")[0])
        if row is not None and row.ceiling:
            raise UsageError(f"{policy} is a bound, not a policy that a live cache could have. Try lru.")
        if row is not None and row.ghosts:
            raise UsageError(
                f"{policy} remembers blocks that are gone, and a live cache uses their slots again. Try lru."
            )
        return policies.make(policy, context)
    missing = [verb for verb in policies.VERBS if not callable(getattr(policy, verb, None))]
    if missing or not callable(policy):
        raise UsageError(f"a policy is a name or a class with the verbs {', '.join(policies.VERBS)}; see the docs.")
    return Borrowed(context, policy(context))
