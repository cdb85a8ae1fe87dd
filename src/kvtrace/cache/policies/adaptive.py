"""Policies that adapt: ghosts of evicted blocks (ARC, 2Q, S3-FIFO), and a clock that ages counts (LFU-DA, PGDSF)."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.queues import Heaps, MaskedFifo, Queue, Recency, Slots

from kvtrace._base.errors import UsageError


class ARC(Policy):
    """ARC: adaptive replacement cache (Megiddo and Modha, FAST'03).

    T1 holds blocks requested once, T2 blocks requested again. B1 and B2 hold the ghosts of blocks evicted from T1 and
    T2. `target` is the size that T1 should have, a real number between 0 and the capacity. A miss with a ghost in B1
    raises the target by max(|B2| / |B1|, 1). A miss with a ghost in B2 lowers it by max(|B1| / |B2|, 1). Either block
    enters T2. The victim is the least recent block of T1 if |T1| > target, or if |T1| = target and the missed block was
    in B2. Otherwise it is the least recent block of T2. |T1| + |B1| is at most the capacity; all four hold at most
    twice as much.

    Pinned blocks count in |T1| and |T2| but are not evictable. A hit on a pinned block moves it to T2, as any hit does.
    Recency is the time of the last `insert` or `use`; `release` does not change it. Leaf-first, a block with resident
    children is treated as pinned. Among the blocks of one request, the deepest is the least recent.
    """

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.misses = True
        slots = Slots(context.blocks)
        self.once, self.again = MaskedFifo(slots, 0), MaskedFifo(slots, 1)
        self.once_ghosts, self.again_ghosts = Queue(slots, 2), Queue(slots, 3)
        self.noted = np.empty(64, dtype=np.int32)
        self.is_again = np.zeros(context.blocks, dtype=np.int8)
        self.noted_count, self.request = 0, -1
        self.in_once = self.in_again = 0
        self.target = 0.0
        self.returning = self.from_again = False

    def miss(self, block):
        b1: cython.double = cython.cast(cython.double, self.once_ghosts.size)
        b2: cython.double = cython.cast(cython.double, self.again_ghosts.size)
        capacity: cython.double = cython.cast(cython.double, self.context.capacity)
        self.from_again = False
        self.returning = True
        if self.once_ghosts.holds(block):
            self.target = min(self.target + max(b2 / b1, 1.0), capacity)
            self.once_ghosts.drop(block)
        elif self.again_ghosts.holds(block):
            self.target = max(self.target - max(b1 / b2, 1.0), 0.0)
            self.again_ghosts.drop(block)
            self.from_again = True
        else:
            self.returning = False
        return 0

    def insert(self, block):
        self._count(block)
        return self._note(block)

    def _count(self, block):
        """Add an inserted block to T2 if it had a ghost, else to T1; then trim the ghosts."""
        self.is_again[block] = self.returning
        if self.returning:
            self.in_again += 1
        else:
            self.in_once += 1
        self.returning = self.from_again = False
        return self._trim()

    def use(self, block):
        if self.context.request != self.request:
            self._settle()
        if self.is_again[block]:
            self.again.drop(block)
        else:
            self.once.drop(block)
            self.is_again[block] = 1
            self.in_once -= 1
            self.in_again += 1
        return self._note(block)

    def release(self, block):
        self._settle()
        return self.again.allow(block) if self.is_again[block] else self.once.allow(block)

    def victim(self):
        once: cython.int = self.once.first()
        again: cython.int = self.again.first()
        if again == NONE:
            return once
        if once != NONE and (self.in_once > self.target or (self.in_once == self.target and self.from_again)):
            return once
        return again

    def remove(self, block):
        if self.is_again[block]:
            self.in_again -= 1
            self.again.drop(block)
            return self.again_ghosts.push(block)
        self.in_once -= 1
        self.once.drop(block)
        return self.once_ghosts.push(block)

    def hit_idle(self, block):
        if self.noted_count:
            self._settle()
        if self.is_again[block]:
            return self.again.rejoin(block)
        self.once.drop(block)
        self.is_again[block] = 1
        self.in_once -= 1
        self.in_again += 1
        return self.again.join(block)

    def insert_idle(self, block):
        if self.noted_count:
            self._settle()
        self._count(block)
        return self.again.join(block) if self.is_again[block] else self.once.join(block)

    def likely_victim(self):
        if self.in_once > self.target:
            return self.once.ahead(self.once.front)
        return self.again.ahead(self.again.front)

    def prefetch(self, far, near):
        fetch(cython.address(self.is_again[far]))
        fetch(cython.address(self.once.slots.slot_of_block[far]))
        return 0

    def _trim(self):
        """Drop the oldest ghosts beyond the limits."""
        capacity: cython.longlong = self.context.capacity
        while self.once_ghosts.size and self.in_once + self.once_ghosts.size > capacity:
            self.once_ghosts.drop(self.once_ghosts.first())
            self.once_ghosts.ahead()
        while self.again_ghosts.size and (
            self.in_once + self.in_again + self.once_ghosts.size + self.again_ghosts.size > 2 * capacity
        ):
            self.again_ghosts.drop(self.again_ghosts.first())
            self.again_ghosts.ahead()
        return 0

    def _note(self, block):
        """Note a block of the current request; it is in neither queue until `_settle`."""
        if self.context.request != self.request:
            self._settle()
            self.request = self.context.request
        if self.noted_count == self.noted.shape[0]:
            with cython.gil:
                self.noted = np.resize(self.noted, 2 * self.noted_count)
        self.noted[self.noted_count] = block
        self.noted_count += 1
        return 0

    def _settle(self):
        """Queue the noted blocks in reverse order: the deepest block is evicted first, the root last."""
        block: cython.int
        while self.noted_count > 0:
            self.noted_count -= 1
            block = self.noted[self.noted_count]
            if self.is_again[block]:
                self.again.push(block)
            else:
                self.once.push(block)
        return 0


class TwoQ(Policy):
    """2Q, full version (Johnson and Shasha, VLDB'94): a FIFO queue of new blocks, their ghosts, and an LRU main queue.

    A new block joins A1in. A hit in A1in does not change the order, because uses close together are often correlated.
    If A1in holds more than Kin blocks, its oldest block is evicted and leaves a ghost in A1out, which keeps the latest
    Kout ghosts. A missed block with a ghost joins Am. If A1in holds at most Kin blocks, the least recent block of Am is
    evicted, without a ghost. Kin is a quarter of the capacity and Kout half of it, as in the paper; the parameter sets
    Kin.

    Pinned blocks count in A1in, and a hit on a pinned block of Am is a use. A block that is not evictable (pinned or,
    leaf-first, with resident children) is skipped and keeps its place. If the chosen queue has no evictable block, the
    other queue gives the victim. `release` does not change the order. Recency is the last use; among the blocks of one
    request, the deepest is the least recent. A missed block's own ghost takes no room in A1out, as in libCacheSim.
    There are no ties. A flat pool evicts the root of a prompt before its tail; compare a leaf-first pool.
    """

    def __init__(self, context: Context, arrivals_share=0.25):
        Policy.__init__(self, context)
        if not 0 <= arrivals_share <= 1:
            raise UsageError(f"2q:{arrivals_share:g} is not a share between 0 and 1. Try 2q:0.25.")
        slots = Slots(context.blocks)
        self.recency = Recency(context)
        self.arrivals, self.ghosts, self.main = MaskedFifo(slots, 0), Queue(slots, 1), Heaps(context.blocks)
        self.in_main = np.zeros(context.blocks, dtype=np.int8)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.arrivals_room = int(context.capacity * arrivals_share)
        self.ghost_room = int(context.capacity * 0.5)

    def insert(self, block):
        remembered: cython.bint = self.ghosts.holds(block)
        if remembered:
            self.ghosts.drop(block)
        while self.ghosts.size > self.ghost_room:
            self.ghosts.drop(self.ghosts.first())
        self.in_main[block] = remembered
        if not remembered:
            return self.arrivals.push(block)
        self.stamp[block] = self.recency.stamp(block)
        return 0

    def use(self, block):
        if not self.in_main[block]:
            return self.arrivals.forbid(block)
        self.stamp[block] = self.recency.stamp(block)
        if self.main.holds(block):
            self.main.drop(block)
        return 0

    def release(self, block):
        if self.in_main[block]:
            return self.main.put(0, block, 0.0, self.stamp[block])
        return self.arrivals.allow(block)

    def victim(self):
        arrival: cython.int = self.arrivals.first()
        least_recent: cython.int = self.main.first(0)
        if arrival != NONE and (least_recent == NONE or self.arrivals.size > self.arrivals_room):
            return arrival
        return least_recent

    def remove(self, block):
        if self.in_main[block]:
            return self.main.drop(block)
        self.arrivals.drop(block)
        return self.ghosts.push(block)


class S3FIFO(Policy):
    """S3-FIFO (Yang and others, SOSP'23): a small queue for new blocks, a main queue, and a ghost queue.

    A new block joins the small queue, or the main queue if it has a ghost. Until the first eviction, a new block joins
    the main queue if the small queue is full. Hits are counted up to 3. If main is larger than its share, or small has
    no evictable block, the oldest block of main is evicted if its count is 0; otherwise it moves to the end with a
    count lower by 1. Else the oldest block of small moves to main with a count of 0 if it was hit twice or more;
    otherwise it is evicted and leaves a ghost. The shares are libCacheSim's: small 10 % of the capacity (at least one
    block), main the rest, ghosts 90 %.

    A hit on a pinned block is counted. A block that is not evictable (pinned or, leaf-first, with resident children) is
    skipped and keeps its place and count. `release` makes it evictable in that place. Two blocks never tie.
    """

    def __init__(self, context: Context, small_share=0.1):
        Policy.__init__(self, context)
        self.slots = Slots(context.blocks)
        self.small, self.main = MaskedFifo(self.slots, SMALL), MaskedFifo(self.slots, MAIN)
        self.ghosts = Queue(self.slots, GHOST)
        self.small_room = max(int(context.capacity * small_share), 1)
        self.main_room = context.capacity - self.small_room
        self.ghost_room = int(context.capacity * 0.9)
        self.evicted = False

    def insert(self, block):
        remembered: cython.bint = self.ghosts.holds(block)
        if remembered:
            self.ghosts.drop(block)
        while self.ghosts.size > self.ghost_room:  # after the drop above: this block's own ghost takes no room
            self.ghosts.drop(self.ghosts.first())
            self.ghosts.ahead()
        if remembered or (not self.evicted and self.small.size >= self.small_room):
            return self.main.push(block)
        return self.small.push(block)

    def use(self, block):
        return _hit(self.small, block) if self.small.holds(block) else _hit(self.main, block)

    def release(self, block):
        return self.small.allow(block) if self.small.holds(block) else self.main.allow(block)

    def victim(self):
        block: cython.int
        hits: cython.schar
        while True:
            block = self.small.first()
            if block == NONE or self.main.size > self.main_room:
                if self.main.first() != NONE:
                    return self._main_victim()
                if block == NONE:
                    return NONE
            hits = self.small.marked[self.small.place(block)]
            if hits < PROMOTE_HITS:
                return block
            self.small.drop(block)
            self.main.join(block)

    def _main_victim(self):
        """The oldest evictable block of main with a count of 0; blocks before it move to the end."""
        block: cython.int = self.main.first()
        hits: cython.schar = self.main.marked[self.main.place(block)]
        while hits > 0:
            self.main.rejoin(block)
            self.main.marked[self.main.place(block)] = hits - 1
            self.main.ahead(self.main.front)
            block = self.main.first()
            hits = self.main.marked[self.main.place(block)]
        return block

    def remove(self, block):
        self.evicted = True
        if self.main.holds(block):
            return self.main.drop(block)
        self.small.drop(block)
        return self.ghosts.push(block)

    def hit_idle(self, block):
        return _count(self.small, block) if self.small.holds(block) else _count(self.main, block)

    def likely_victim(self):
        return self.small.ahead(self.small.front)

    def prefetch(self, far, near):
        fetch(cython.address(self.slots.slot_of_block[far]))
        return 0


def _hit(queue, block):
    """Count a hit on a block and make it not evictable."""
    _count(queue, block)
    return queue.forbid(block)


def _count(queue, block):
    """Count a hit on a block."""
    place: cython.int = queue.place(block)
    if queue.marked[place] < MAX_HITS:
        queue.marked[place] += 1
    return 0


ROW = cython.declare(cython.longlong, 1 << 32)  # weight of a request in the tie-break, above any number of releases


class LFUDA(Policy):
    """LFU with dynamic aging: LFU in which old counts lose weight over time.

    Arlitt and others, "Evaluating content management techniques for Web proxy caches", 1999. A block's key is its
    number of uses plus the current age. The age is the key of the last evicted block. The block with the least key is
    evicted. A count starts at 1 when its block becomes resident, rises by 1 with each use, pinned or not, and ends with
    an eviction.

    `release` sets the key, with the age at that time. With a leaf-first pool a parent is released when its last child
    is evicted, so its key includes the age of that eviction: leaf-first and flat pools evict in different orders. Ties:
    the block whose last request is older, then the block that was released first, which is the deeper one of a request.
    """

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.heap = Heaps(context.blocks)
        self.count = np.zeros(context.blocks, dtype=np.int32)
        self.last = np.zeros(context.blocks, dtype=np.int64)
        self.age, self.releases = 0.0, 0

    def insert(self, block):
        self.count[block] = 0
        return self.use(block)

    def use(self, block):
        self.count[block] += 1
        self.last[block] = self.context.order
        if self.heap.holds(block):
            self.heap.drop(block)
        return 0

    def release(self, block):
        self.releases += 1
        return self.heap.put(0, block, self.count[block] + self.age, self.last[block] * ROW + self.releases % ROW)

    def victim(self):
        return self.heap.first(0)

    def remove(self, block):
        self.age = self.heap.key[block]
        return self.heap.drop(block)


class PGDSF(Policy):
    """PGDSF, prefix-aware greedy dual size frequency: keeps blocks that are expensive to recompute and often used.

    Jin and others, "RAGCache", arXiv 2404.12457: priority = clock + frequency x cost / size, least first. The cost is
    the cost of computing the block when all blocks before it are cached. The size is the block size, equal for all
    blocks. The prefill of the tokens from p to n takes about 2 A (n - p) + 2 L W (n^2 - p^2) FLOPs (A active
    parameters, L layers of attention of width W = heads x head_dim), so a block of B tokens that begins at token p
    costs, per token,

        2 A (1 + (p + B / 2) / E),    E = A / (2 L W): the position where attention costs as much as all other layers.

    E is the parameter, in tokens; 30,000 fits an 8B model (8.03e9 / (2 x 32 x 4,096) = 30,632). Costs are in units of A
    / E, so all values are integers: cost = 2 E + 2 p + B. The clock is the greatest priority evicted so far. The
    frequency counts uses since the block became resident, including the first. RAGCache measures the time of whole
    documents, averages it over the requests that computed them, and counts frequency in a window. This formula needs no
    measurement and no window.

    `insert` and `use` set the priority, also of pinned blocks; `release` only makes a block evictable. Ties: the block
    whose last request is older, then the deeper block. A deep block costs more than its parent, so a flat pool may
    evict a parent first. A leaf-first pool, as in the paper, never does.
    """

    def __init__(self, context: Context, even_tokens=30_000):
        Policy.__init__(self, context)
        if not even_tokens >= 1:
            raise UsageError(f"the parameter of pgdsf must be at least 1, not {even_tokens}. Try pgdsf:30000.")
        self.recency, self.heap = Recency(context), Heaps(context.blocks)
        size = context.trace.block_size
        self.cost = 2.0 * int(even_tokens) + 2.0 * size * np.asarray(self.recency.depth) + size
        self.frequency = np.zeros(context.blocks, dtype=np.int32)
        self.priority = np.zeros(context.blocks)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.clock = 0.0

    def insert(self, block):
        self.frequency[block] = 0
        return self.use(block)

    def use(self, block):
        self.frequency[block] += 1
        self.priority[block] = self.clock + self.frequency[block] * self.cost[block]
        self.stamp[block] = self.recency.stamp(block)
        if self.heap.holds(block):
            self.heap.drop(block)
        return 0

    def release(self, block):
        return self.heap.put(0, block, self.priority[block], self.stamp[block])

    def victim(self):
        return self.heap.first(0)

    def remove(self, block):
        self.clock = max(self.clock, self.priority[block])
        return self.heap.drop(block)
