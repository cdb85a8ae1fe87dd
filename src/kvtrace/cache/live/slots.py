"""The blocks of the live cache: C memory that grows, the table of blocks, a caller's tokens, and the slots."""

import os
from collections.abc import Sequence as AnySequence
from operator import index

import cython
import numpy as np
from cython.cimports.kvtrace.cache.live.block_hash import begin, end, take
from cython.cimports.kvtrace.cache.policies.base import Policy
from cython.cimports.libc.stdlib import calloc, realloc
from cython.cimports.libc.stdlib import free as give_back
from cython.cimports.libc.string import memcmp, memcpy

from kvtrace._base.errors import UsageError

# C memory that can grow. Raises MemoryError if there is none. The owner frees it with C's free.


def zeros(size):
    """Allocate `size` bytes set to 0."""
    memory: cython.p_void = calloc(1, size if size else 1)
    if memory == cython.NULL:
        raise MemoryError
    return memory


def resized(memory, size):
    """Resize a buffer to `size` bytes and keep its content; new bytes are not initialized."""
    grown: cython.p_void = realloc(memory, size if size else 1)
    if grown == cython.NULL:
        raise MemoryError
    return grown


# The block table of the live cache: finds blocks by their own tokens and the number of the block before them.
#
# A block's number stands for its whole prefix. It stays valid as long as a block after it is known, even if its own KV
# was evicted. A lookup compares tokens and one number, never digests alone: a collision costs a comparison and never
# returns another prompt's KV.


class BlockTable:
    """Numbered blocks, found by parent and tokens; roots, found by salt and tenant, have numbers too.

    With `is_direct`, a digest covers all tokens of the prefix instead of the parent's digest. `digest_mask` selects
    the digest bits in use: all, except in tests that make all blocks collide.
    """

    def __cinit__(self, block_size, is_direct):
        self.block_size, self.is_direct = block_size, is_direct
        self.roots = {}  # (salt, tenant) -> root
        self.tenants = {}  # root -> (salt, tenant)
        self.spare = NONE  # first of the unused numbers below `numbers`
        key = os.urandom(16)  # secret, so that no client can construct prompts that collide
        self.key0, self.key1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
        self.digest_mask = ~cython.cast(cython.ulonglong, 0)
        self.reserve(1)

    def __dealloc__(self):
        give_back(self.blocks)
        give_back(self.own)
        give_back(self.buckets)
        give_back(self.path)

    # ---- looking up

    def walk(self, root, tokens, length):
        """Put the known leading blocks of the tokens into `path`; returns their number, resident or not."""
        depth: cython.Py_ssize_t = 0
        first: cython.Py_ssize_t = 0
        if root == NONE:
            return 0
        count: cython.Py_ssize_t = (length + self.block_size - 1) // self.block_size
        if count > self.path_room:
            self.path = cython.cast(cython.p_int, resized(self.path, 2 * count * cython.sizeof(cython.int)))
            self.path_room = 2 * count
        b: cython.int = root
        while depth < count:
            b = self.find(b, tokens + first, min(self.block_size, length - first))
            if b == NONE:
                break
            self.path[depth] = b
            depth += 1
            first += self.block_size
        return depth

    def resident(self, depth):
        """Number of leading blocks of `path`, which has `depth` blocks, that have a slot: the hit."""
        hits: cython.Py_ssize_t = 0
        while hits < depth and self.blocks[self.path[hits]].slot != NONE:
            hits += 1
        return hits

    def find(self, parent, tokens, length):
        """The block of these tokens after `parent`, or NONE."""
        return self._find_by(self._digest(parent, tokens, length), parent, tokens, length)

    def root(self, salt, tenant):
        """The root of a tenant's blocks, or NONE."""
        try:
            return self.roots.get((salt, tenant), NONE)
        except TypeError:
            raise UsageError(
                f"a tenant must be hashable, such as a name or a number, not {type(tenant).__name__}."
            ) from None

    def tokens_of(self, b):
        return self.own + b * self.block_size

    # ---- coming and going

    def reserve(self, more):
        """Make room for `more` new blocks; numbers do not change."""
        b: cython.int
        i: cython.Py_ssize_t
        if self.spare_count + self.room - self.numbers >= more:
            return 0
        room: cython.Py_ssize_t = max(256, 2 * self.room, self.numbers + more)
        if room > (1 << 31) - 1:
            raise MemoryError("the block table has more blocks than block numbers")
        size: cython.Py_ssize_t = 2
        while size < 2 * room:
            size *= 2
        self.blocks = cython.cast(cython.pointer(Block), resized(self.blocks, room * cython.sizeof(Block)))
        self.own = cython.cast(cython.p_uint, resized(self.own, room * self.block_size * cython.sizeof(cython.uint)))
        self.buckets = cython.cast(cython.p_int, resized(self.buckets, size * cython.sizeof(cython.int)))
        self.room = room
        self.mask = cython.cast(cython.ulonglong, size - 1)
        for i in range(size):
            self.buckets[i] = NONE
        for i in range(self.numbers):
            b = cython.cast(cython.int, i)
            if self.blocks[b].length != SPARE and self.blocks[b].parent != NONE:
                self._link(b)
        return 0

    def named(self, parent, tokens, length):
        """The block of these tokens after `parent`, added if it is not known. Call `reserve` before."""
        digest: cython.ulonglong = self._digest(parent, tokens, length)
        b: cython.int = self._find_by(digest, parent, tokens, length)
        return self._add(digest, parent, tokens, length) if b == NONE else b

    def new(self, parent, tokens, length):
        """Like `named`, for a block that is not known."""
        return self._add(self._digest(parent, tokens, length), parent, tokens, length)

    def new_root(self, salt, tenant):
        """Add the root of a tenant that has none."""
        b: cython.int = self._number()
        self.serial += 1
        self.blocks[b].digest, self.blocks[b].parent, self.blocks[b].slot = self.serial, NONE, NONE
        self.blocks[b].holders = self.blocks[b].length = 0
        self.roots[(salt, tenant)] = b
        self.tenants[b] = (salt, tenant)
        return b

    def let_go(self, b):
        """Remove a holder of a block. A block without holders is deleted, and its parent loses a holder."""
        parent: cython.int
        while b != NONE:
            self.blocks[b].holders -= 1
            if self.blocks[b].holders > 0:
                return 0
            parent = self.blocks[b].parent
            if parent == NONE:
                del self.roots[self.tenants.pop(b)]
            else:
                self._unlink(b)
            self.blocks[b].length, self.blocks[b].next = SPARE, self.spare
            self.spare = b
            self.spare_count += 1
            b = parent
        return 0

    # ---- for the self-check

    def found_as(self, b):
        """The block that a lookup of block b's tokens finds: b itself, if the table is sound; NONE for a root."""
        if self.blocks[b].parent == NONE:
            return NONE
        return self.find(self.blocks[b].parent, self.tokens_of(b), self.blocks[b].length)

    # ---- helpers

    def _find_by(self, digest, parent, tokens, length):
        b: cython.int = self.buckets[digest & self.mask]
        while b != NONE:
            if (
                self.blocks[b].digest == digest
                and self.blocks[b].parent == parent
                and self.blocks[b].length == length
                and memcmp(self.tokens_of(b), tokens, length * cython.sizeof(cython.uint)) == 0
            ):
                return b
            b = self.blocks[b].next
        return NONE

    def _add(self, digest, parent, tokens, length):
        """Add a block without holders."""
        b: cython.int = self._number()
        self.blocks[b].digest, self.blocks[b].parent, self.blocks[b].slot = digest, parent, NONE
        self.blocks[b].holders, self.blocks[b].length = 0, cython.cast(cython.int, length)
        memcpy(self.tokens_of(b), tokens, length * cython.sizeof(cython.uint))
        self._link(b)
        self.blocks[parent].holders += 1
        return b

    def _number(self):
        """An unused number for a new block or root."""
        b: cython.int = self.spare
        if b == NONE:
            b = cython.cast(cython.int, self.numbers)
            self.numbers += 1
        else:
            self.spare = self.blocks[b].next
            self.spare_count -= 1
        return b

    def _link(self, b):
        """Put a block into its bucket."""
        self.blocks[b].next = self.buckets[self.blocks[b].digest & self.mask]
        self.buckets[self.blocks[b].digest & self.mask] = b

    def _unlink(self, b):
        link: cython.p_int = cython.address(self.buckets[self.blocks[b].digest & self.mask])
        while link[0] != b:
            link = cython.address(self.blocks[link[0]].next)
        link[0] = self.blocks[b].next

    def _digest(self, parent, tokens, length):
        """Digest of the block's tokens and its parent's digest or, if direct, of all tokens and the root's digest."""
        v: cython.ulonglong[4]
        total: cython.ulonglong = length
        begin(v, self.key0, self.key1)
        take(v, tokens, length)
        if self.is_direct:
            while self.blocks[parent].parent != NONE:
                take(v, self.tokens_of(parent), self.blocks[parent].length)
                total += self.blocks[parent].length
                parent = self.blocks[parent].parent
        return end(v, self.blocks[parent].digest, total) & self.digest_mask


class Tokens:
    """Reads a caller's tokens (lists, buffers or arrays) as 32-bit integers."""

    def __dealloc__(self):
        give_back(self.values)

    def read(self, tokens):
        """Copy a caller's tokens to `values`; returns their number."""
        i: cython.Py_ssize_t = 0
        if not isinstance(tokens, (list, tuple)):
            if isinstance(tokens, AnySequence) and not isinstance(tokens, (str, bytes, bytearray, memoryview)):
                tokens = list(tokens)
            else:
                return self._read_array(tokens)
        length: cython.Py_ssize_t = len(tokens)
        self._reserve(length)
        for token in tokens:
            if i == length:
                raise UsageError("the list of tokens changed while it was read.")
            try:
                self.values[i] = token_in(token)
            except UsageError:
                raise UsageError(f"token {i:,} is not a whole number from 0 to 4,294,967,295.") from None
            i += 1
        return i

    def _read_array(self, tokens):
        i: cython.Py_ssize_t
        ints: cython.const[cython.int][::1]
        longs: cython.const[cython.longlong][::1]
        bad: cython.Py_ssize_t = -1
        try:
            array = np.asarray(memoryview(tokens))
        except TypeError:
            raise UsageError(
                f"tokens must be a list or an array of whole numbers, not {type(tokens).__name__}."
            ) from None
        if array.ndim != 1 or array.dtype.kind not in "iu" or isinstance(tokens, (bytes, bytearray)):
            raise UsageError(f"tokens must be a list or an array of whole numbers, not {type(tokens).__name__}.")
        length: cython.Py_ssize_t = array.shape[0]
        self._reserve(length)
        if array.dtype == np.int32:
            ints = np.ascontiguousarray(array)
            for i in range(length):
                if ints[i] < 0:
                    bad = i
                self.values[i] = cython.cast(cython.uint, ints[i])
        else:
            longs = np.ascontiguousarray(array, dtype=np.int64)
            for i in range(length):
                if longs[i] < 0 or longs[i] > 0xFFFFFFFF:
                    bad = i
                self.values[i] = cython.cast(cython.uint, longs[i])
        if bad >= 0:
            raise UsageError(f"token {bad:,} is not a whole number from 0 to 4,294,967,295.")
        return length

    def _reserve(self, length):
        if length > self.room:
            self.values = cython.cast(cython.p_uint, resized(self.values, 2 * length * cython.sizeof(cython.uint)))
            self.room = 2 * length
        return 0


def token_in(token):
    """A token as a 32-bit integer; else UsageError."""
    value: cython.longlong
    try:
        value = token if type(token) is int else index(token)
    except (TypeError, OverflowError):
        value = -1
    if value < 0 or value > 0xFFFFFFFF:
        raise UsageError("a token must be a whole number from 0 to 4,294,967,295.")
    return cython.cast(cython.uint, value)


# The slots of the live cache: the block in each slot, its pins, and evictions.
#
# A slot is pinned by live sequences, idle (in the policy's order), or free. Several slots can contain the same block;
# lookups find it in one of them.


class SlotPool:
    """`count` slots for the blocks of `table`; at most `most_idle` of them are idle.

    `evicted` lists the slots that were evicted, or is None without an on_evict callback.
    """

    def __cinit__(self, count, most_idle, table: BlockTable, policy: Policy, evicted):
        i: cython.Py_ssize_t
        self.count, self.most_idle = count, most_idle
        self.table, self.policy, self.evicted = table, policy, evicted
        self.pins = cython.cast(cython.p_int, zeros(self.count * cython.sizeof(cython.int)))
        self.block = cython.cast(cython.p_int, zeros(self.count * cython.sizeof(cython.int)))
        self.unused = cython.cast(cython.p_int, zeros(self.count * cython.sizeof(cython.int)))
        self.free_count = self.count
        for i in range(self.count):
            self.pins[i] = FREE  # slot -> number of live sequences that hold it
            self.block[i] = NONE  # slot -> the block in it
            self.unused[self.count - 1 - i] = cython.cast(cython.int, i)  # a stack of free slots, slot 0 on top

    def __dealloc__(self):
        give_back(self.pins)
        give_back(self.block)
        give_back(self.unused)

    # ---- pins

    def pin(self, slot):
        """Add a pin to a slot. An idle slot leaves the policy's order."""
        if self.pins[slot] == 0:
            self.idle_count -= 1
        self.pins[slot] += 1
        return self.policy.use(slot)

    def unpin(self, slot, keep):
        """Remove a pin of a slot. Without pins the slot becomes idle, or free if no lookup can find its block."""
        b: cython.int = self.block[slot]
        self.pins[slot] -= 1
        if self.pins[slot] > 0:
            return 0
        self.idle_count += 1
        self.policy.release(slot)
        if keep and self.table.blocks[b].slot == NONE:
            self.table.blocks[b].slot = slot  # a copy; the slot where lookups found the block was evicted
            self.found_count += 1
        if keep and self.table.blocks[b].slot == slot:
            while self.idle_count > self.most_idle:
                self._evict(self._victim(self.policy.victim()))
            return 0
        return self._vacate(slot)

    def take(self):
        """Take and pin a free slot, or a victim's slot. The caller has checked that there is one."""
        if self.free_count == 0:
            self._evict(self._victim(self.policy.victim()))
        self.free_count -= 1
        slot: cython.int = self.unused[self.free_count]
        self.pins[slot] = 1
        self.policy.insert(slot)
        return slot

    # ---- contents

    def put(self, b, slot):
        """Put a block into a slot. Lookups find it there unless they find it in another slot already."""
        self.block[slot] = b
        self.table.blocks[b].holders += 1
        if self.table.blocks[b].slot == NONE:
            self.table.blocks[b].slot = slot
            self.found_count += 1

    def take_out(self, slot):
        """Remove the block from a slot. The caller then calls the table's `let_go`."""
        if self.table.blocks[self.block[slot]].slot == slot:
            self.table.blocks[self.block[slot]].slot = NONE
            self.found_count -= 1
        self.block[slot] = NONE

    # ---- eviction

    def expire(self):
        """Evict the slots that the policy reports as expired."""
        slot: cython.int = self.policy.expired()
        while slot >= 0:
            self._evict(self._victim(slot))
            slot = self.policy.expired()
        return 0

    def _victim(self, slot):
        """The policy's victim, checked because the policy may be a user's."""
        if not (0 <= slot < self.count) or self.pins[slot] != 0:
            raise UsageError(
                f"the policy's victim is {self._described(slot)}. Return a slot that was released and not used since."
            )
        return slot

    def _described(self, slot):
        if not 0 <= slot < self.count:
            return "no slot" if slot < 0 else f"slot {slot:,}, which does not exist"
        return f"slot {slot:,}, which {'has no block' if self.pins[slot] == FREE else 'is pinned'}"

    def _evict(self, slot):
        self.evictions += 1
        if self.evicted is not None:
            self.evicted.append(slot)
        return self._vacate(slot)

    def _vacate(self, slot):
        """Make an idle slot free."""
        b: cython.int = self.block[slot]
        self.policy.remove(slot)
        self.idle_count -= 1
        self.take_out(slot)
        self.table.let_go(b)
        self.pins[slot] = FREE
        self.unused[self.free_count] = slot
        self.free_count += 1
        return 0
