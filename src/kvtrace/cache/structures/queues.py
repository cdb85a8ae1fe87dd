"""Queues and heaps of blocks with removal of any block, a set of small integers, and the recency of a block."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context
from cython.cimports.kvtrace.cache.structures.fetch import fetch

from kvtrace._base.errors import UsageError

TAGS = 4  # queues that can share one `Slots`


class Slots:
    """A queue of blocks with O(1) removal of any block: a log of arrivals with stale entries.

    A linked list would write to the neighbours of each block that moves: three places in memory. Here it is one, and
    the log is read and written in order. Up to four queues can share one `Slots`: a block is in at most one of them.
    """

    def __init__(self, blocks):
        self.slot_of_block = np.full(blocks, -1, dtype=np.int32)


class Queue:
    """Blocks in order of arrival; `tag` (0 to 3) identifies the queue among those that share `slots`."""

    def __init__(self, slots: Slots, tag=0):
        self.slots, self.tag = slots, tag
        self.order = np.empty(1024, dtype=np.int32)
        self.head = self.tail = self.size = self.hinted = 0

    def push(self, block):
        """Append a block that is in no queue."""
        self.size += 1
        return self.move(block)

    def move(self, block):
        """Move a block of this queue to the end."""
        if self.tail == self.order.shape[0]:
            self._compact()
        self.order[self.tail] = block
        self.slots.slot_of_block[block] = cython.cast(cython.int, self.tail * 4 + self.tag)
        self.tail += 1
        return 0

    def drop(self, block):
        """Remove a block of this queue."""
        self.slots.slot_of_block[block] = -1
        self.size -= 1
        return 0

    def holds(self, block):
        """Whether a block is in this queue."""
        slot: cython.int = self.slots.slot_of_block[block]
        return slot >= 0 and (slot & 3) == self.tag

    def first(self):
        """The oldest block, or NONE."""
        while self.head < self.tail:
            if self.slots.slot_of_block[self.order[self.head]] == self.head * 4 + self.tag:
                return self.order[self.head]
            self.head += 1
        return NONE

    def ahead(self):
        """Prefetch hint: a block that is likely to be first soon, or NONE; prefetches slots further on."""
        self.hinted = max(self.hinted, self.head + NEAR)
        while self.hinted + FAR + 1 < self.tail:
            self.hinted += 1
            fetch(cython.address(self.slots.slot_of_block[self.order[self.hinted + FAR]]))
            if self.slots.slot_of_block[self.order[self.hinted]] == self.hinted * 4 + self.tag:
                return self.order[self.hinted]
        return NONE

    def _compact(self):
        """Drop stale entries; double the log if more than a quarter of it is still in use."""
        i: cython.Py_ssize_t
        used: cython.Py_ssize_t = 0
        block: cython.int
        for i in range(self.head, self.tail):
            block = self.order[i]
            if self.slots.slot_of_block[block] == i * 4 + self.tag:
                self.order[used] = block
                self.slots.slot_of_block[block] = cython.cast(cython.int, used * 4 + self.tag)
                used += 1
        self.head, self.tail, self.hinted = 0, used, 0
        if used > self.order.shape[0] // 4:
            with cython.gil:
                grown = np.empty(2 * self.order.shape[0], dtype=np.int32)
                if 2 * self.order.shape[0] > (1 << 29):
                    raise MemoryError("the queue has more blocks than place numbers")
                grown[:used] = np.asarray(self.order)[:used]
                self.order = grown
        return 0


ONE = cython.declare(cython.ulonglong, 1)


class HierarchicalBitset:
    """A set of small integers with a fast first and last element: a bitset with summary levels.

    Level 0 has one bit per number. Each level above has one bit per non-empty word of the level below. The top level is
    one word. Six levels cover all values of an int, so each verb takes at most six steps.
    """

    def __init__(self, size):
        level: cython.int = 0
        self.size = size
        words = 0
        while True:
            size = (size + 63) // 64
            self.base[level] = words
            words += max(size, 1)
            level += 1
            if size <= 1:
                break
        self.levels = level
        self.base[level] = words
        self.words = np.zeros(words, dtype=np.uint64)

    def set(self, number):
        """Add a number. No effect if it is in the set already."""
        level: cython.int
        index: cython.Py_ssize_t
        before: cython.ulonglong
        for level in range(self.levels):
            index = self.base[level] + (number >> 6)
            before = self.words[index]
            self.words[index] = before | (ONE << (number & 63))
            if before:  # the levels above have this word's bit already
                break
            number >>= 6
        return 0

    def clear(self, number):
        """Remove a number. No effect if it is not in the set."""
        level: cython.int
        index: cython.Py_ssize_t
        for level in range(self.levels):
            index = self.base[level] + (number >> 6)
            self.words[index] &= ~(ONE << (number & 63))
            if self.words[index]:
                break
            number >>= 6
        return 0

    def holds(self, number):
        """Whether a number is in the set."""
        return (self.words[number >> 6] >> (number & 63)) & 1

    def first(self):
        """The least number of the set, or NONE."""
        level: cython.int
        index: cython.int = 0
        if self.words[self.base[self.levels - 1]] == 0:
            return NONE
        for level in range(self.levels - 1, -1, -1):
            index = index * 64 + lowest_bit(self.words[self.base[level] + index])
        return index

    def after(self, number):
        """The least number of the set that is >= `number`, or NONE; `number` may be equal to the size."""
        level: cython.int = 0
        index: cython.Py_ssize_t = number >> 6  # index of a word in its level
        rest: cython.ulonglong
        while True:
            if index >= self.base[level + 1] - self.base[level]:
                return NONE
            rest = (self.words[self.base[level] + index] >> (number & 63)) << (number & 63)
            if rest:
                break
            level += 1
            if level == self.levels:
                return NONE
            number = cython.cast(cython.int, index + 1)
            index = number >> 6
        index = index * 64 + lowest_bit(rest)
        while level > 0:
            level -= 1
            index = index * 64 + lowest_bit(self.words[self.base[level] + index])
        return cython.cast(cython.int, index)

    def last(self):
        """The greatest number of the set, or NONE."""
        level: cython.int
        index: cython.int = 0
        if self.words[self.base[self.levels - 1]] == 0:
            return NONE
        for level in range(self.levels - 1, -1, -1):
            index = index * 64 + highest_bit(self.words[self.base[level] + index])
        return index


class MaskedFifo:
    """A FIFO queue in which a block can be not evictable and keep its place.

    As in `Queue`, it is a log of arrivals. The places of removed blocks are empty. A bitset over the log marks
    the evictable blocks, so the first one is found in a few steps, however many pinned blocks are before it.
    MaskedFifos and Queues can share one `Slots`.
    """

    def __init__(self, slots: Slots, tag=0):
        self.slots, self.tag = slots, tag
        self.order = np.empty(1024, dtype=np.int32)  # place -> block, or NONE after a removal
        self.marked = np.zeros(1024, dtype=np.int8)  # place -> the policy's mark, initially 0
        self.allowed = HierarchicalBitset(1024)
        self.tail = self.size = self.front = 0

    def push(self, block):
        """Append a block that is in no queue. It is not evictable."""
        if self.tail == self.order.shape[0]:
            self._compact()
        self.order[self.tail] = block
        self.marked[self.tail] = 0
        self.slots.slot_of_block[block] = self.tail * 4 + self.tag
        self.tail += 1
        self.size += 1
        return 0

    def join(self, block):
        """Append a block that is in no queue. It is evictable."""
        self.push(block)
        return self.allowed.set(self.tail - 1)

    def drop(self, block):
        """Remove a block of this queue."""
        place: cython.int = self.place(block)
        self.allowed.clear(place)
        self.order[place] = NONE
        self.slots.slot_of_block[block] = -1
        self.size -= 1
        return 0

    def rejoin(self, block):
        """Move an evictable block of this queue to the end and reset its mark."""
        if self.tail == self.order.shape[0]:
            self._compact()
        place: cython.int = self.place(block)
        self.allowed.clear(place)
        self.order[place] = NONE
        self.size -= 1
        return self.join(block)

    def allow(self, block):
        """Make a block of this queue evictable."""
        return self.allowed.set(self.place(block))

    def forbid(self, block):
        """Make a block of this queue not evictable. No effect if it was not."""
        return self.allowed.clear(self.place(block))

    def place(self, block):
        """The place of a block of this queue. Valid until the next `push`, `join` or `rejoin`."""
        return self.slots.slot_of_block[block] >> 2

    def holds(self, block):
        """Whether a block is in this queue."""
        slot: cython.int = self.slots.slot_of_block[block]
        return slot >= 0 and (slot & 3) == self.tag

    def first(self):
        """The oldest evictable block, or NONE."""
        place: cython.int = self.allowed.first()
        if place < 0:
            return NONE
        self.front = place
        return self.order[place]

    def ahead(self, place):
        """Prefetch hint: the block AHEAD places after `place`, a likely next `first`, or NONE; prefetches its slot."""
        if place + AHEAD >= self.tail:
            return NONE
        block: cython.int = self.order[place + AHEAD]
        if block >= 0:
            fetch(cython.address(self.slots.slot_of_block[block]))
        return block

    def next(self, block):
        """The block after a block of this queue, evictable or not, or NONE."""
        place: cython.int = self.place(block) + 1
        while place < self.tail and self.order[place] == NONE:
            place += 1
        return NONE if place == self.tail else self.order[place]

    def _compact(self):
        """Close the gaps; double the log if more than a quarter of it is still in use."""
        place: cython.int
        used: cython.int = 0
        evictable: cython.bint
        for place in range(self.tail):
            if self.order[place] != NONE:
                evictable = self.allowed.holds(place)
                if evictable:
                    self.allowed.clear(place)
                    self.allowed.set(used)
                self.order[used] = self.order[place]
                self.marked[used] = self.marked[place]
                self.slots.slot_of_block[self.order[used]] = used * 4 + self.tag
                used += 1
        self.tail, self.front = used, 0
        if used > self.order.shape[0] // 4:
            with cython.gil:
                self._grow()
        return 0

    def _grow(self):
        room = 2 * self.order.shape[0]
        if room > MAX_PLACES:
            raise MemoryError("the queue has more blocks than place numbers")
        order, marked = np.empty(room, dtype=np.int32), np.zeros(room, dtype=np.int8)
        order[: self.tail] = np.asarray(self.order)[: self.tail]
        marked[: self.tail] = np.asarray(self.marked)[: self.tail]
        bits = HierarchicalBitset(room)
        place: cython.int
        for place in range(self.tail):
            if self.allowed.holds(place):
                bits.set(place)
        self.order, self.marked, self.allowed = order, marked, bits


class Heaps:
    """Pairing heaps of blocks with removal of any block, in shared arrays.

    A block is in at most one of the heaps. The order is by a key and then by an integer tie-break; no two blocks should
    have equal pairs. `put` and `first` take O(1), `drop` takes amortized O(log n) (Fredman and others, Algorithmica
    1986).
    """

    def __init__(self, blocks, heaps=1):
        self.key = np.zeros(blocks)
        self.tiebreak = np.zeros(blocks, dtype=np.int64)
        self.child = np.full(blocks, NONE, dtype=np.int32)  # block -> its newest child
        self.after = np.full(blocks, NONE, dtype=np.int32)  # block -> its next older sibling
        self.before = np.full(blocks, NONE, dtype=np.int32)  # block -> its next newer sibling; newest: its parent
        self.root = np.full(heaps, NONE, dtype=np.int32)
        self.heap_of = np.full(blocks, NONE, dtype=np.int32)  # block -> the heap that contains it

    def put(self, heap, block, key, tiebreak):
        """Add a block that is in no heap."""
        self.key[block], self.tiebreak[block] = key, tiebreak
        self.child[block] = self.after[block] = self.before[block] = NONE
        self.heap_of[block] = heap
        self.root[heap] = self._meld(self.root[heap], block)
        return 0

    def drop(self, block):
        """Remove a block from its heap, at any position."""
        heap: cython.int = self.heap_of[block]
        before: cython.int = self.before[block]
        after: cython.int = self.after[block]
        orphans: cython.int = self._gather(self.child[block])
        self.heap_of[block] = NONE
        if before < 0:
            self.root[heap] = orphans
            return 0
        if self.child[before] == block:
            self.child[before] = after
        else:
            self.after[before] = after
        if after >= 0:
            self.before[after] = before
        self.root[heap] = self._meld(self.root[heap], orphans)
        return 0

    def holds(self, block):
        """Whether a block is in any heap."""
        return self.heap_of[block] >= 0

    def first(self, heap):
        """The block with the least key, or NONE."""
        return self.root[heap]

    def _meld(self, root, other):
        """Make the greater of two roots the newest child of the lesser one; returns the lesser root."""
        swap: cython.int
        if root < 0 or other < 0:
            return other if root < 0 else root
        if self.key[other] < self.key[root] or (
            self.key[other] == self.key[root] and self.tiebreak[other] < self.tiebreak[root]
        ):
            swap, root = root, other
            other = swap
        self.after[other] = self.child[root]
        if self.child[root] >= 0:
            self.before[self.child[root]] = other
        self.before[other] = root
        self.child[root] = other
        return root

    def _gather(self, first):
        """Meld a list of siblings into one root: first in pairs from the newest, then the pairs from the last one."""
        root: cython.int
        other: cython.int
        pairs: cython.int = NONE  # the melded pairs, linked by `before`, the last pair first
        while first >= 0:
            root = first
            other = self.after[root]
            first = self.after[other] if other >= 0 else NONE
            self.before[root] = self.after[root] = NONE
            if other >= 0:
                self.before[other] = self.after[other] = NONE
                root = self._meld(root, other)
            self.before[root] = pairs
            pairs = root
        root = NONE
        while pairs >= 0:
            other = pairs
            pairs = self.before[other]
            self.before[other] = NONE
            root = self._meld(root, other)
        return root


ROW = cython.declare(cython.longlong, 1 << 32)  # weight of a request, above any depth
DEEPEST = cython.declare(cython.longlong, (1 << 31) - 1)


class Recency:
    """Recency of a block's last use, as one integer: later requests are greater; in one request, shallower blocks are.

    This is the order of LRU's releases, for policies that record it at `insert` and `use`: with a leaf-first pool a
    block may be released long after its last use. It needs the trace for the depth of each block.
    """

    def __init__(self, context: Context):
        self.context = context
        self.depth = depths(context)

    def stamp(self, block):
        """The stamp of a block that is used now. Stamps are distinct; the least recent block has the least stamp."""
        order: cython.longlong = self.context.order
        return order * ROW + (DEEPEST - self.depth[block])


def depths(context: Context):
    """int32: block -> number of blocks before it. Raises UsageError without a trace."""
    demand = context.demand
    if demand is None:
        raise UsageError("this policy needs a trace, which a live cache does not have. Try lru, lfu, slru or ttl:60s.")
    depth = np.zeros(context.blocks, dtype=np.int32)
    path = np.diff(np.append(demand.start, len(demand.ids)))
    depth[demand.ids] = np.arange(len(demand.ids)) - np.repeat(demand.start, path)
    rows = np.repeat(np.arange(len(demand.full)), demand.grown)  # grown block -> its request
    fresh = np.arange(context.blocks - len(rows), context.blocks)
    depth[fresh] = demand.full[rows] + fresh - demand.fresh[rows]  # outputs continue their prompts
    return depth
