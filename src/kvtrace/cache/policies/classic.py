"""Policies of fixed orders: LRU, MRU, FIFO, SIEVE, SLRU, LFU, a given time or priority, and the offline optimum.

Each class says whose policy it is, what it orders by, and what breaks ties.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.fetch import fetch
from cython.cimports.kvtrace.cache.structures.queues import Heaps, HierarchicalBitset, MaskedFifo, Queue, Recency, Slots
from cython.cimports.libc.math import ceil

from kvtrace._base.errors import InputError, UsageError
from kvtrace.cache.structures.queues import depths


class LRU(Policy):
    """LRU: evicts the block that was released first.

    A request releases its blocks tail first, so a plain queue gives the order of the heap of heaps in Lin's report
    (last use, then prefix length). A pinned block is not in the queue; `release` puts it at the end. Leaf-first and
    flat pools evict in the same order. Two blocks never tie.
    """

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.keeps_parents = True  # a request that uses a child uses its parent, and releases the parent later
        self.queue = Queue(Slots(context.blocks))

    def insert(self, block):
        return 0  # a pinned block is not in the queue

    def use(self, block):
        if self.queue.holds(block):
            self.queue.drop(block)
        return 0

    def release(self, block):
        return self.queue.push(block)

    def victim(self):
        return self.queue.first()

    def remove(self, block):
        return self.queue.drop(block)

    def hit_idle(self, block):
        return self.queue.move(block)

    def insert_idle(self, block):
        return self.queue.push(block)

    def likely_victim(self):
        return self.queue.ahead()

    def prefetch(self, far, near):
        fetch(cython.address(self.queue.slots.slot_of_block[far]))
        return 0


class MRU(Policy):
    """MRU: evicts the block that was released last.

    A request releases its blocks tail first, so a flat pool evicts its root first, and its other blocks can no longer
    hit. MRU suits cyclic access; LMCache and SGLang offer it. A pinned block is not in the list. Leaf-first, a parent
    is released when its last child is evicted, and is the next victim. Two blocks never tie.
    """

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.earlier, self.later = np.full((2, context.blocks), NONE, dtype=np.int32)
        self.listed = np.zeros(context.blocks, dtype=np.int8)
        self.last = NONE

    def insert(self, block):
        return 0  # a pinned block is not in the list

    def use(self, block):
        return self.remove(block) if self.listed[block] else 0

    def release(self, block):
        self.listed[block] = 1
        self.earlier[block], self.later[block] = self.last, NONE
        if self.last >= 0:
            self.later[self.last] = block
        self.last = block
        return 0

    def victim(self):
        return self.last

    def remove(self, block):
        before: cython.int = self.earlier[block]
        after: cython.int = self.later[block]
        if before >= 0:
            self.later[before] = after
        if after >= 0:
            self.earlier[after] = before
        else:
            self.last = before
        self.listed[block] = 0
        return 0


class FIFO(Policy):
    """FIFO: evicts the block that was allocated first. A request allocates its new blocks root first.

    A hit does not change the order. A block that is not evictable (pinned or, leaf-first, with resident children) is
    skipped and keeps its place. `release` makes it evictable in that place. Two blocks never tie.
    """

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.queue = MaskedFifo(Slots(context.blocks))

    def insert(self, block):
        return self.queue.push(block)

    def use(self, block):
        return self.queue.forbid(block)

    def release(self, block):
        return self.queue.allow(block)

    def victim(self):
        return self.queue.first()

    def remove(self, block):
        return self.queue.drop(block)

    def hit_idle(self, block):
        return 0  # the block keeps its place and stays evictable

    def insert_idle(self, block):
        return self.queue.join(block)

    def likely_victim(self):
        return self.queue.ahead(self.queue.front)

    def prefetch(self, far, near):
        fetch(cython.address(self.queue.slots.slot_of_block[far]))
        return 0


class Sieve(Policy):
    """SIEVE (Zhang and others, NSDI'24): a FIFO queue and a hand that moves from the oldest block to the newest.

    A hit marks a block as visited; the block keeps its place. The hand clears the marks on its way and evicts the first
    block without a mark. It continues from there next time, and returns to the oldest block after the newest.

    A hit marks a pinned block too. A block that is not evictable (pinned or, leaf-first, with resident children) is
    skipped and keeps its place and mark. `release` makes it evictable in that place and does not mark it. Two blocks
    never tie.
    """

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.queue = MaskedFifo(Slots(context.blocks))
        self.hand = NONE
        self.hand_place = self.hinted = 0

    def insert(self, block):
        return self.queue.push(block)

    def use(self, block):
        self.queue.marked[self.queue.place(block)] = 1
        return self.queue.forbid(block)

    def release(self, block):
        return self.queue.allow(block)

    def victim(self):
        place: cython.int = 0
        if self.hand != NONE:
            place = self.queue.place(self.hand)
        place = self.queue.allowed.after(place)
        if place < 0:
            place = self.queue.allowed.first()
        while place >= 0 and self.queue.marked[place]:  # a second round finds no marks
            self.queue.marked[place] = 0
            place = self.queue.allowed.after(place + 1)
            if place < 0:
                place = self.queue.allowed.first()
        if place < 0:
            return NONE
        self.hand_place = place
        self.hand = self.queue.order[place]
        return self.hand

    def remove(self, block):
        if block == self.hand:
            self.hand = self.queue.next(block)
        return self.queue.drop(block)

    def hit_idle(self, block):
        self.queue.marked[self.queue.place(block)] = 1
        return 0

    def insert_idle(self, block):
        return self.queue.join(block)

    def likely_victim(self):
        # the hand came close, or the queue was compacted
        if self.hinted < self.hand_place + NEAR or self.hinted > self.hand_place + FAR:
            self.hinted = self.hand_place + NEAR
        while self.hinted < self.queue.tail and self.hinted < self.hand_place + FAR:
            block: cython.int = self.queue.order[self.hinted]
            self.hinted += 1
            if block >= 0 and not self.queue.marked[self.hinted - 1]:
                fetch(cython.address(self.queue.slots.slot_of_block[block]))
                return block
        return NONE

    def prefetch(self, far, near):
        fetch(cython.address(self.queue.slots.slot_of_block[far]))
        return 0


class SLRU(Policy):
    """SLRU, segmented LRU: blocks that were hit are protected from blocks that were used once.

    Karedla, Love and Wherry, "Caching strategies to improve disk system performance", Computer 27(3), 1994. A new block
    is on probation; a hit, also on a pinned block, makes it protected. The victim is the least recent block on
    probation, or the least recent protected block if probation is empty. The protected segment has a share of the
    capacity. When it exceeds that share, its least recent block returns to probation, at the most recent end.

    A pinned block is in neither segment; `release` puts it at the most recent end of its segment. Leaf-first and flat
    pools evict in the same order. Two blocks never tie.
    """

    def __init__(self, context: Context, share=0.8):
        Policy.__init__(self, context)
        # a request that hits a child hits its parent too, so the parent is at least as recent and is demoted later
        self.keeps_parents = True
        if not 0 <= share <= 1:
            raise UsageError(f"a protected share of {share:g} is not between 0 and 1. Try slru:0.8.")
        slots = Slots(context.blocks)
        self.probation, self.protected = Queue(slots, 0), Queue(slots, 1)
        self.room = int(share * context.capacity)
        self.hit = np.zeros(context.blocks, dtype=np.int8)

    def insert(self, block):
        self.hit[block] = 0
        return 0

    def use(self, block):
        self.hit[block] = 1
        return self.remove(block)

    def release(self, block):
        if not self.hit[block]:
            return self.probation.push(block)
        self.protected.push(block)
        if self.protected.size > self.room:
            block = self.protected.first()
            self.protected.drop(block)
            self.hit[block] = 0
            self.probation.push(block)
        return 0

    def victim(self):
        block: cython.int = self.probation.first()
        return block if block >= 0 else self.protected.first()

    def remove(self, block):
        if self.probation.holds(block):
            self.probation.drop(block)
        elif self.protected.holds(block):
            self.protected.drop(block)
        return 0


class LFU(Policy):
    """LFU: evicts the least frequently used block. Ties: the block that was released first.

    An allocation counts as a use, and so does each request that uses the block, also while it is pinned. A count is
    kept while its block is resident and restarts after an eviction. Pinned blocks are in no list. There is one list per
    count and a bitset of non-empty lists, so each verb takes O(1). Leaf-first and flat pools evict in the same order.
    """

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        # a request that uses a child uses its parent, so the parent's count is at least as high; if both counts are
        # equal, the child was released first
        self.keeps_parents = True
        self.state = np.zeros((context.blocks, 4), dtype=np.int32)
        self.oldest, self.newest, self.counts = _table(64)

    def insert(self, block):
        self.state[block, COUNT] = 1
        return 0

    def use(self, block):
        if self.state[block, LISTED]:
            self.remove(block)
        if self.state[block, COUNT] < MAX_COUNT:
            self.state[block, COUNT] += 1
        return 0

    def release(self, block):
        count: cython.int = self.state[block, COUNT]
        if count >= self.newest.shape[0]:
            with cython.gil:
                self._grow(count)
        last: cython.int = self.newest[count]
        if last == NONE:
            self.oldest[count] = block
            self.counts.set(count)
        else:
            self.state[last, AFTER] = block
        self.newest[count] = block
        self.state[block, BEFORE] = last
        self.state[block, AFTER] = NONE
        self.state[block, LISTED] = 1
        return 0

    def victim(self):
        count: cython.int = self.counts.first()
        return NONE if count == NONE else self.oldest[count]

    def remove(self, block):
        count: cython.int = self.state[block, COUNT]
        before: cython.int = self.state[block, BEFORE]
        after: cython.int = self.state[block, AFTER]
        if before == NONE:
            self.oldest[count] = after
        else:
            self.state[before, AFTER] = after
        if after == NONE:
            self.newest[count] = before
        else:
            self.state[after, BEFORE] = before
        if before == after:  # both are NONE: the list is empty now
            self.counts.clear(count)
        self.state[block, LISTED] = 0
        return 0

    def likely_victim(self):
        steps: cython.int = STEPS
        block: cython.int = self.victim()
        while steps > 0 and block >= 0:
            block = self.state[block, AFTER]
            steps -= 1
        if block >= 0:
            fetch(cython.address(self.state[block, 0]))
        return block

    def prefetch(self, far, near):
        neighbour: cython.int
        fetch(cython.address(self.state[far, 0]))
        if self.state[near, LISTED]:  # `use` will unlink the block, which writes to its neighbours
            neighbour = self.state[near, BEFORE]
            if neighbour >= 0:
                fetch(cython.address(self.state[neighbour, 0]))
            neighbour = self.state[near, AFTER]
            if neighbour >= 0:
                fetch(cython.address(self.state[neighbour, 0]))
        return 0

    def _grow(self, count):
        oldest, newest, counts = _table(2 * count)
        size = len(self.oldest)
        oldest[:size], newest[:size] = self.oldest, self.newest
        filled: cython.Py_ssize_t
        for filled in np.flatnonzero(newest != NONE):
            cython.cast(HierarchicalBitset, counts).set(cython.cast(cython.int, filled))
        self.oldest, self.newest, self.counts = oldest, newest, counts


def _table(size):
    return np.full(size, NONE, dtype=np.int32), np.full(size, NONE, dtype=np.int32), HierarchicalBitset(size)


class TTL(Policy):
    """TTL: evicts blocks that were not used for a given time. Each use restarts the time.

    Public APIs offer such lifetimes for cached prompts (5 minutes, 1 hour). The time of a use is the arrival of its
    request. Before a request is matched, all evictable blocks whose last use is older than the limit are evicted: a gap
    equal to the limit still hits. A pinned block stays resident; it can expire after its release. If the cache is full,
    the block with the oldest last use is evicted.

    `release` is not a use. Ties: the block that was released first, so with one request at a time and no limit TTL is
    LRU. Leaf-first and flat pools evict in the same order.
    """

    def __init__(self, context: Context, limit_ms):
        Policy.__init__(self, context)
        if not limit_ms >= 0:
            raise UsageError(f"a time to live of {limit_ms} ms is not a duration. Try ttl:60s.")
        self.expires = True
        self.keeps_parents = True  # a request that uses a child uses its parent, and releases the parent later
        self.limit_ms = limit_ms
        self.heap = Heaps(context.blocks)
        self.last_use = np.zeros(context.blocks)
        self.releases = 0

    def insert(self, block):
        self.last_use[block] = self.context.now
        return 0

    def use(self, block):
        self.last_use[block] = self.context.now
        if self.heap.holds(block):
            self.heap.drop(block)
        return 0

    def release(self, block):
        self.releases += 1
        return self.heap.put(0, block, self.last_use[block], self.releases)

    def victim(self):
        return self.heap.first(0)

    def remove(self, block):
        return self.heap.drop(block)

    def expired(self):
        block: cython.int = self.heap.first(0)
        if block >= 0 and self.context.now - self.last_use[block] > self.limit_ms:
            return block
        return NONE


HIGH = cython.declare(cython.double, 0.9)  # mooncake_master's eviction_high_watermark_ratio
SHARE = cython.declare(cython.double, 0.05)  # and its eviction_ratio


class Mooncake(Policy):
    """Mooncake: passes that evict several blocks when a store is nearly full, as the master of Mooncake Store does.

    Follows mooncake_master 0.3.13. A block has a deadline: when it was stored, or a lease after the arrival of the last
    request that found it. If more than 90 % of the capacity is in use, a pass evicts max(5 %, use - 85 %) of its
    blocks, the first deadline first, and none with a deadline in the future. Of one request, the root is evicted first.
    Here passes run before a request; the master looks every 10 ms. A full store refuses new blocks until the next pass;
    here it evicts the block with the first deadline.
    """

    def __init__(self, context: Context, lease_ms=10_000.0):
        Policy.__init__(self, context)
        if not lease_ms >= 0:
            raise UsageError(f"a lease of {lease_ms} ms is not a duration. Try mooncake:10s.")
        self.expires = True
        self.lease_ms = lease_ms
        self.heap = Heaps(context.blocks)
        self.deadline = np.zeros(context.blocks)
        self.order = np.zeros(context.blocks, dtype=np.int64)
        self.uses = self.resident = self.due = 0

    def insert(self, block):
        self.resident += 1
        return self._note(block, self.context.now)

    def use(self, block):
        if self.heap.holds(block):
            self.heap.drop(block)
        return self._note(block, max(self.deadline[block], self.context.now + self.lease_ms))

    def _note(self, block, deadline):
        self.uses += 1
        self.deadline[block], self.order[block] = deadline, self.uses
        return 0

    def release(self, block):
        return self.heap.put(0, block, self.deadline[block], self.order[block])

    def victim(self):
        return self.heap.first(0)

    def remove(self, block):
        self.resident -= 1
        return self.heap.drop(block)

    def expired(self):
        block: cython.int = self.heap.first(0)
        used: cython.double = self.resident
        used /= max(1, self.context.capacity)
        if self.due == 0 and used > HIGH:
            self.due = cython.cast(cython.longlong, ceil(self.resident * max(SHARE, used - HIGH + SHARE)))
        if self.due == 0 or block < 0 or self.deadline[block] > self.context.now:
            self.due = 0
            return NONE
        self.due -= 1
        return block


DEFAULT = cython.declare(cython.double, 35.0)


class Priority(Policy):
    """Priority: evicts the block with the lowest request priority. Ties: the least recently used block.

    Follows TensorRT-LLM's retention priorities (LRUEvictionPolicy in its C++ batch manager): 0 to 100, default 35. A
    block has the priority of the last request that used it. With a duration, a priority other than 35 returns to 35, up
    or down, after that time. In TensorRT-LLM the time starts at the release, and the block then counts as the most
    recent of all blocks with priority 35. Here the time starts at the arrival of the last request, and the block keeps
    its recency.

    The trace's column `priority` holds the priorities; None and NaN mean missing. `insert` and `use` set a block's
    priority, also while it is pinned; `release` only makes it evictable, leaf-first or flat. Ties: the block whose last
    request is older, then the deeper block.
    """

    def __init__(self, context: Context, duration_ms=float("inf")):
        Policy.__init__(self, context)
        if not duration_ms >= 0:
            raise UsageError(f"{duration_ms} ms is not a duration. Try priority:10m.")
        self.recency, self.duration_ms = Recency(context), duration_ms
        self.request_priority = request_priorities(context.trace)
        self.priority, self.last_use = np.zeros(context.blocks), np.zeros(context.blocks)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.order, self.expiring = Heaps(context.blocks), Heaps(context.blocks)

    def insert(self, block):
        self.priority[block] = self.request_priority[self.context.request]
        self.last_use[block] = self.context.now
        self.stamp[block] = self.recency.stamp(block)
        return 0

    def use(self, block):
        self.remove(block)
        return self.insert(block)

    def release(self, block):
        if self.priority[block] != DEFAULT:
            self.expiring.put(0, block, self.last_use[block] + self.duration_ms, block)
        return self.order.put(0, block, self.priority[block], self.stamp[block])

    def victim(self):
        block: cython.int = self.expiring.first(0)
        while block >= 0 and self.expiring.key[block] <= self.context.now:
            self.remove(block)
            self.priority[block] = DEFAULT
            self.release(block)
            block = self.expiring.first(0)
        return self.order.first(0)

    def remove(self, block):
        if self.expiring.holds(block):
            self.expiring.drop(block)
        if self.order.holds(block):
            self.order.drop(block)
        return 0


def request_priorities(trace):
    """float64: request -> its priority."""
    if "priority" not in trace.extra:
        raise InputError("the policy priority needs a trace with the column priority. Try lru.")
    priorities = np.full(len(trace), DEFAULT)
    for row, value in enumerate(trace.extra["priority"].tolist()):
        if value is None or value != value:  # NaN
            continue
        if isinstance(value, (str, bytes)) or not 0 <= value <= 100:
            raise InputError(f"row {row}: the priority is not a number from 0 to 100.")
        priorities[row] = value
    return priorities


class Belady(Policy):
    """Belady's MIN: evicts the block with the farthest next use. It looks ahead, so it is an upper bound on hits.

    Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966. A
    block's next use is the next request whose path contains it. Among blocks with the same next use, the deepest is
    evicted first, because it can hit only if all blocks before it hit. This is optimal for prefixes too, if requests
    run one at a time and the capacity counts idle blocks only (`--capacity-counts idle`): then the last used blocks
    need not be kept.

    A pinned block is in no queue. `release` puts a block into the queue of its next use. Within a queue, deeper blocks
    are older, because a request that uses a block also uses its parent and releases it later. The victim is therefore
    the oldest block of the last non-empty queue, in O(1). Blocks without a next use are in the very last queue, oldest
    first. Leaf-first pools evict in the same order, because no parent is evicted before its child.
    """

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        # a parent's next use is no later than its child's; if both are equal, the parent joined the queue later
        self.keeps_parents = True
        self.depth = depths(context)
        demand, rows = context.demand, len(context.demand.full)
        self.start = np.array(demand.start, dtype=np.int64)
        self.ids = context.blocks - int(demand.grown.sum())
        self.next_use = next_uses(demand.ids, demand.start, demand.full, context.blocks)
        self.due = np.full(context.blocks, NONE, dtype=np.int32)
        self.oldest, self.newest = np.full(rows + 1, NONE, dtype=np.int32), np.full(rows + 1, NONE, dtype=np.int32)
        self.after, self.before = (np.full(context.blocks, NONE, dtype=np.int32) for _ in range(2))
        self.filled = HierarchicalBitset(rows + 1)

    def insert(self, block):
        if block < self.ids:
            self.due[block] = self.next_use[self.start[self.context.request] + self.depth[block]]
        else:
            self.due[block] = cython.cast(cython.int, self.oldest.shape[0] - 1)
        return 0

    def use(self, block):
        if self.before[block] >= 0 or self.oldest[self.due[block]] == block:  # the block is in a queue
            self.remove(block)
        return self.insert(block)

    def release(self, block):
        due: cython.int = self.due[block]
        last: cython.int = self.newest[due]
        self.before[block], self.after[block] = last, NONE
        self.newest[due] = block
        if last >= 0:
            self.after[last] = block
            return 0
        self.oldest[due] = block
        return self.filled.set(due)

    def victim(self):
        due: cython.int = self.filled.last()
        return self.oldest[due] if due >= 0 else NONE

    def remove(self, block):
        due: cython.int = self.due[block]
        before: cython.int = self.before[block]
        after: cython.int = self.after[block]
        self.before[block] = self.after[block] = NONE
        if before >= 0:
            self.after[before] = after
        else:
            self.oldest[due] = after
        if after >= 0:
            self.before[after] = before
        else:
            self.newest[due] = before
        if before < 0 and after < 0:
            self.filled.clear(due)
        return 0


def next_uses(ids: cython.const[cython.int][::1], start: cython.const[cython.longlong][::1],
              full: cython.const[cython.int][::1], blocks: cython.Py_ssize_t):  # fmt: skip
    """int32: position in `ids` -> the next request whose path contains that block, or the number of requests."""
    row: cython.Py_ssize_t
    position: cython.Py_ssize_t
    uses = np.full(len(ids), len(full), dtype=np.int32)
    first_use = np.full(blocks, len(full), dtype=np.int32)  # block -> its first use after the current row
    next_use: cython.int[::1] = uses
    next_row: cython.int[::1] = first_use
    with cython.nogil:
        for row in range(full.shape[0] - 1, -1, -1):
            for position in range(start[row], start[row] + full[row]):
                next_use[position] = next_row[ids[position]]
                next_row[ids[position]] = cython.cast(cython.int, row)
    return uses
