"""vLLM's physical blocks, in a queue or a pool, and the caches whose requests hold a list of them."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import FITS, NO_BLOCKS, NO_ROOM, Engine, StepCache
from cython.cimports.kvtrace.cache.policies.base import Context

# vLLM's queue of physical blocks: free ones in the order in which they are taken, and the hashes that they keep.
#
# A free cached block keeps its hash until it is taken. A block that is computed twice becomes a second copy under the
# same hash. Two options choose which copy a later request finds, and where a freed block without a hash goes.


class BlockQueue:
    """`capacity` physical blocks, all free at first; each holds a block of the trace, or one without a hash.

    `blocks` is the number of blocks of the trace. With `unhashed_first`, a freed block without a hash goes to the head
    of the queue, else to its end like the others. With `newest_copy`, only the last registered copy is found; otherwise
    the first copy that is still cached.
    """

    def __init__(self, capacity: cython.int, blocks, unhashed_first=True, newest_copy=False):
        self.capacity = self.free = capacity
        self.unhashed_first, self.newest_copy = unhashed_first, newest_copy
        self.evictions = 0
        self.next = np.arange(1, capacity + 2, dtype=np.int32)
        self.previous = np.arange(-1, capacity, dtype=np.int32)
        self.next[capacity], self.previous[0] = 0, capacity
        self.pins = np.zeros(capacity, dtype=np.int32)
        self.holds = np.full(capacity, NOTHING, dtype=np.int32)
        self.copy = np.full(blocks, NOTHING, dtype=np.int32)
        self.later, self.earlier = np.empty((2, capacity), dtype=np.int32)
        self.step, self.changed = 1, np.empty(0, dtype=np.int32)

    def watch(self):
        """Remember from now on which blocks were cached before the present step."""
        self.changed = np.zeros(len(self.copy), dtype=np.int32)

    def was_cached(self, block):
        """Whether a block of the trace was cached before the present step. Needs `watch`."""
        if self.changed[block] == self.step:
            return True
        return self.changed[block] != -self.step and self.copy[block] != NOTHING

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        pins, holds, copy = np.asarray(self.pins), np.asarray(self.holds), np.asarray(self.copy)
        if pins.any():
            return f"{int((pins != 0).sum()):,} blocks are still pinned"
        queued = self._queued()
        if not queued == self.free == self.capacity:
            return f"{queued:,} of {self.capacity:,} blocks are free, {self.free:,} are counted as free"
        cached = np.flatnonzero(copy != NOTHING)
        if (holds[copy[cached]] != cached).any():
            return "a hash maps to a block that does not have it"
        held = np.zeros(len(copy), dtype=bool)
        held[holds[holds != NOTHING]] = True
        if not self.newest_copy and len(cached) != np.count_nonzero(held):
            return "a cached block is missing from the hash table"
        return None

    def take(self):
        """Take the block at the queue's head, pinned, and drop its cached content."""
        physical: cython.int = self.next[self.capacity]
        self._leave(physical)
        if self.holds[physical] != NOTHING:
            self._forget(physical)
            self.evictions += 1
        self.pins[physical] = 1
        return physical

    def pin(self, physical):
        """Pin a cached block for one more request."""
        if self.pins[physical] == 0:
            self._leave(physical)
        self.pins[physical] += 1
        return 0

    def unpin(self, physical):
        """Unpin a block; it joins the queue if no request holds it."""
        self.pins[physical] -= 1
        if self.pins[physical] == 0:
            if self.unhashed_first and self.holds[physical] == NOTHING:
                self._join(physical, self.next[self.capacity])
            else:
                self._join(physical, self.capacity)
        return 0

    def register(self, physical, block):
        """Register a physical block under the hash of a block of the trace, as its last copy."""
        first: cython.int = self.copy[block]
        self.holds[physical] = block
        if first == NOTHING:
            self._note(block, False)
        if first == NOTHING or self.newest_copy:
            self.copy[block] = self.later[physical] = self.earlier[physical] = physical
        else:
            self.later[physical], self.earlier[physical] = first, self.earlier[first]
            self.later[self.earlier[first]] = physical
            self.earlier[first] = physical
        return 0

    def _leave(self, physical):
        self.next[self.previous[physical]] = self.next[physical]
        self.previous[self.next[physical]] = self.previous[physical]
        self.free -= 1
        return 0

    def _join(self, physical, follower):
        """Insert a block into the queue before `follower`, which may be the end of the queue."""
        self.next[physical] = follower
        self.previous[physical] = self.previous[follower]
        self.next[self.previous[follower]] = physical
        self.previous[follower] = physical
        self.free += 1
        return 0

    def _forget(self, physical):
        """Remove a physical block's hash. If lookups found this copy, they now find the copy registered next."""
        block: cython.int = self.holds[physical]
        self.holds[physical] = NOTHING
        if self.copy[block] == physical:
            self.copy[block] = NOTHING if self.later[physical] == physical else self.later[physical]
            if self.copy[block] == NOTHING:
                self._note(block, True)
        self.later[self.earlier[physical]] = self.later[physical]
        self.earlier[self.later[physical]] = self.earlier[physical]
        return 0

    def _note(self, block, was_cached):
        """Note the first change of a block in a step."""
        if self.changed.shape[0] and abs(self.changed[block]) != self.step:
            self.changed[block] = self.step if was_cached else -self.step
        return 0

    def _queued(self):
        """Number of blocks in the queue, by walking it and checking the links in both directions."""
        count: cython.int = 0
        physical: cython.int = self.next[self.capacity]
        while physical != self.capacity and self.previous[self.next[physical]] == physical and count <= self.capacity:
            physical = self.next[physical]
            count += 1
        return count


class BlockPool:
    """The pool of blocks under several cache groups: blocks without content are counted, cached ones stand in a list.

    vLLM's queue of free blocks holds those without a hash first, then cached ones by their last use. Which block
    without a hash is taken changes nothing, so a number is enough for them; only cached blocks have a place in the
    list.
    """

    def __init__(self, capacity, keys):
        self.capacity = self.free = self.blank = capacity
        self.end = capacity
        self.evictions = 0
        self.next, self.previous = np.full((2, capacity + 1), capacity, dtype=np.int32)
        self.pins = np.zeros(capacity, dtype=np.int32)
        self.key, self.later, self.earlier = np.full((3, capacity), NO_COPY, dtype=np.int32)
        self.copy = np.full(keys, NO_COPY, dtype=np.int32)
        self.spare = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self.spares = capacity

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        idle, cached = 0, self.next[self.end]
        while cached != self.end and self.previous[self.next[cached]] == cached and idle <= self.capacity:
            idle += 1
            cached = self.next[cached]
        if np.asarray(self.pins).any():
            return f"{int((np.asarray(self.pins) != 0).sum()):,} blocks are still pinned"
        if not idle + self.blank == self.free == self.capacity or idle + self.spares != self.capacity:
            return f"{idle:,} blocks are cached and {self.blank:,} blank, {self.free:,} of {self.capacity:,} are free"
        return None

    def take(self, count):
        """Take free blocks, the blank ones first; cached ones lose their content, the least recently used first."""
        blank: cython.longlong = min(count, self.blank)
        cached: cython.int
        self.free -= count
        self.blank -= blank
        count -= blank
        while count > 0:
            cached = self.next[self.end]
            self._leave(cached)
            self._forget(cached)
            self.spare[self.spares] = cached
            self.spares += 1
            self.evictions += 1
            count -= 1
        return 0

    def put_back(self, count):
        """Free blocks whose content cannot be found."""
        self.free += count
        self.blank += count
        return 0

    def register(self, key):
        """Make the content of a taken block known under a key; returns the cached block, which stays pinned."""
        first: cython.int = self.copy[key]
        cached: cython.int
        self.spares -= 1
        cached = self.spare[self.spares]
        self.pins[cached] = 1
        self.key[cached] = key
        if first == NO_COPY:
            self.copy[key] = self.later[cached] = self.earlier[cached] = cached
        else:
            self.later[cached], self.earlier[cached] = first, self.earlier[first]
            self.later[self.earlier[first]] = cached
            self.earlier[first] = cached
        return cached

    def pin(self, cached):
        """Pin a cached block for one more request."""
        if self.pins[cached] == 0:
            self._leave(cached)
            self.free -= 1
        self.pins[cached] += 1
        return 0

    def unpin(self, cached):
        """Unpin a cached block; it becomes the last to evict if no request holds it."""
        self.pins[cached] -= 1
        if self.pins[cached] == 0:
            self.free += 1
            self.next[cached] = self.end
            self.previous[cached] = self.previous[self.end]
            self.next[self.previous[self.end]] = cached
            self.previous[self.end] = cached
        return 0

    def _leave(self, cached):
        self.next[self.previous[cached]] = self.next[cached]
        self.previous[self.next[cached]] = self.previous[cached]
        return 0

    def _forget(self, cached):
        """Remove the key of a cached block. If lookups found this copy, they now find the copy registered next."""
        key: cython.int = self.key[cached]
        if self.copy[key] == cached:
            self.copy[key] = NO_COPY if self.later[cached] == cached else self.later[cached]
        self.later[self.earlier[cached]] = self.later[cached]
        self.earlier[self.later[cached]] = self.earlier[cached]
        return 0


def drops_last(demand):
    """1 if a hit loses its last block, since a drafter needs the token after each block; 0 otherwise."""
    return int(demand.drafting is not None and not demand.drafting.needs_next)


class FreeQueue(Engine):
    """vLLM's block pool: one queue of free physical blocks, cached or not; allocation takes the block at its head.

    The queue and the hashes are those of `BlockQueue`. Twin: tests/reference/free_queue.py.
    """

    def __init__(self, context: Context, demand, unhashed_first=True, newest_copy=False):
        Engine.__init__(self, context, demand)
        blocks: cython.int = min(context.capacity, int(demand.max_blocks.sum()))  # more are never taken
        self.queue = BlockQueue(blocks, context.blocks, unhashed_first, newest_copy)
        self.held = np.empty(int(demand.max_blocks.sum()), dtype=np.int32)
        self.begin = np.empty(len(demand.full), dtype=np.int64)
        self.top = 0
        self.dropped = drops_last(demand)

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        return self.queue.self_check()

    def peek(self, row):
        hit: cython.int = 0
        start: cython.Py_ssize_t = self.start[row]
        while hit < self.limit[row] and self.queue.copy[self.ids[start + hit]] != NOTHING:
            hit += 1
        return max(hit - self.dropped, 0)

    def admit(self, row):
        i: cython.int
        physical: cython.int
        hit: cython.int = 0
        idle: cython.int = 0
        start: cython.Py_ssize_t = self.start[row]
        blocks: cython.int = self.full[row] + self.tail[row]
        while hit < self.limit[row]:  # match
            physical = self.queue.copy[self.ids[start + hit]]
            if physical == NOTHING:
                break
            idle += self.queue.pins[physical] == 0
            hit += 1
        if self.dropped and hit:
            hit -= 1
            idle -= self.queue.pins[self.queue.copy[self.ids[start + hit]]] == 0
        if blocks - hit + idle > self.queue.free:  # idle hit blocks leave the queue too
            return NO_ROOM
        if self.live == 0:
            self.top = 0
        self.begin[row] = self.top
        for i in range(hit):  # pin
            physical = self.queue.copy[self.ids[start + i]]
            self.queue.pin(physical)
            self.held[self.top + i] = physical
        self.top += hit
        for i in range(hit, self.full[row]):  # allocate
            self.queue.register(self._take(), self.ids[start + i])
        while self.top < self.begin[row] + blocks:
            self._take()
        return hit

    def grow(self, row):
        k: cython.int
        blocks: cython.int = self.grown[row] + self.grown_tail[row]
        if blocks - self.tail[row] > self.queue.free:
            return NO_ROOM
        for k in range(blocks):
            if k >= self.tail[row]:
                self._take()
            if k < self.grown[row]:  # the first one may be the prompt's tail, which is full now
                self.queue.register(self.held[self.begin[row] + self.full[row] + k], self.fresh[row] + k)
        return 0

    def finish(self, row):
        k: cython.longlong
        blocks: cython.longlong = self.full[row]
        blocks += self.grown[row] + self.grown_tail[row] if self.grows else self.tail[row]
        for k in range(self.begin[row] + blocks - 1, self.begin[row] - 1, -1):  # tail first
            self.queue.unpin(self.held[k])
        self.evictions = self.queue.evictions
        return 0

    def _take(self):
        """Take a block for the current request."""
        physical: cython.int = self.queue.take()
        self.held[self.top] = physical
        self.top += 1
        return physical


# vLLM's prefix cache for a scheduler: a request gets blocks when its tokens need them, and publishes full ones.
#
# The verbs are those of `StepCache`. Blocks, hashes and the order of eviction are those of `BlockQueue`. Twin:
# Blocks in tests/reference/vllm_scheduler.py.


class PagedCache(StepCache):
    """A cache of `context.capacity` physical blocks, which requests take as their tokens are computed.

    `demand` is the BlockDemand in mode grow.
    """

    def __init__(self, context: Context, demand, unhashed_first=True):
        StepCache.__init__(self, context, demand)
        rows = len(demand.full)
        max_blocks = np.maximum(demand.max_blocks, 1)  # an empty prompt counts as one token
        blocks: cython.int = min(context.capacity, int(max_blocks.sum()))  # more are never taken
        self.queue = BlockQueue(blocks, context.blocks, unhashed_first)
        self.size = blocks
        self.block_size = demand.trace.block_size
        self.tokens = np.ascontiguousarray(demand.trace.input_length, dtype=np.int64)
        self.held = np.empty(1 << 12, dtype=np.int32)
        self.begin = np.zeros(rows, dtype=np.int64)
        self.count, self.published, self.room = np.zeros((3, rows), dtype=np.int32)
        self.vacant = [[] for _ in range(int(max_blocks.max(initial=1)).bit_length() + 1)]
        self.top = 0
        self.idle_hits = 0
        self.step_ends = 0
        self.dropped, self.drafts = drops_last(demand), demand.drafting.tokens if demand.drafting else 0

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        self.evictions = self.queue.evictions
        return self.queue.self_check() or (self.lower.self_check() if self.lower else None)

    @property
    def tier_hits(self):
        """Hit blocks of each request in the tier below: an array of shape (1, requests)."""
        return self.lower.tier_hits

    def peek(self, row):
        return self.look_up(row, self.tokens[row])

    def peek_ended(self, row, now):
        hit: cython.int = 0
        if now >= self.step_ends or not self.queue.changed.shape[0]:
            return self.look_up(row, self.tokens[row] + 1)  # with the block of the last token
        while hit < self.full[row] and self.queue.was_cached(self.block_at(row, hit)):
            hit += 1
        return max(hit - self.dropped, 0)

    def table(self, row: cython.Py_ssize_t):
        """The physical blocks that a request holds, in the order of its tokens."""
        return np.asarray(self.held)[self.begin[row] :][: self.count[row]].copy()

    def watch(self):
        """Keep what `peek_ended` needs."""
        self.queue.watch()

    def free(self):
        return self.queue.free

    def begin_step(self):
        self.queue.step += 1
        return 0

    def blocks_of(self, tokens):
        """The blocks that so many tokens need."""
        return (tokens + self.block_size - 1) // self.block_size

    def block_at(self, row, place):
        """The number of a full block of a request's prompt and output."""
        if place < self.full[row]:
            return self.ids[self.start[row] + place]
        return self.fresh[row] + place - self.full[row]

    def look_up(self, row, tokens):
        """The leading blocks that hit, with `tokens` tokens of prompt and output known; the last one is computed."""
        limit: cython.longlong = min((tokens - 1) // self.block_size, self.full[row] + self.grown[row])
        physical: cython.int
        hit: cython.int = 0
        self.idle_hits = 0
        while hit < limit:
            physical = self.queue.copy[self.block_at(row, hit)]
            if physical == NOTHING:
                break
            self.idle_hits += self.queue.pins[physical] == 0
            hit += 1
        if self.dropped and hit:
            hit -= 1
            self.idle_hits -= self.queue.pins[self.queue.copy[self.block_at(row, hit)]] == 0
        return hit

    def find(self, row, tokens):
        return self.look_up(row, tokens) * self.block_size

    def admission(self, row, hit, end, whole, spare):
        held: cython.longlong = max(whole, end + self.drafts)
        need: cython.longlong = self.blocks_of(held) - hit // self.block_size + self.idle_hits
        return NO_BLOCKS if need + spare > self.queue.free else FITS

    def open(self, row, hit):
        return self.start_with(row, cython.cast(cython.int, hit // self.block_size))

    def missing(self, row, start, end):
        return self.blocks_of(end + self.drafts) - self.count[row]

    def start_with(self, row, hits):
        """Pin the hits of a request that holds nothing."""
        k: cython.int
        physical: cython.int
        part: cython.longlong = self._part(row)
        for k in range(hits):
            physical = self.queue.copy[self.block_at(row, k)]
            self.queue.pin(physical)
            self.held[part + k] = physical
        self.count[row] = self.published[row] = hits
        return 0

    def fits(self, row, start, end):
        return self.missing(row, start, end) <= self.queue.free

    def extend(self, row, start, end):
        blocks: cython.longlong = self.blocks_of(end + self.drafts)
        while self.count[row] < blocks:
            self.held[self.begin[row] + self.count[row]] = self.queue.take()
            self.count[row] += 1
        return 0

    def publish(self, row, tokens):
        full: cython.longlong = min(tokens // self.block_size, self.full[row] + self.grown[row])
        while self.published[row] < full:
            self.queue.register(
                self.held[self.begin[row] + self.published[row]], self.block_at(row, self.published[row])
            )
            self.published[row] += 1
        return 0

    def release(self, row):
        k: cython.longlong
        part: cython.longlong = self.begin[row]
        for k in range(part + self.count[row] - 1, part - 1, -1):
            self.queue.unpin(self.held[k])
        self.count[row] = self.published[row] = 0
        self.vacant[self.room[row]].append(part)
        return 0

    def quiet(self, row, computed, lag, ahead):
        return (self.block_size - (computed + self.drafts) % self.block_size) % self.block_size

    def _part(self, row):
        """A part of `held` with room for all blocks that a request can come to hold."""
        blocks: cython.longlong = self.full[row] + self.grown[row] + self.grown_tail[row]
        power: cython.int = 0
        while (cython.cast(cython.longlong, 1) << power) < blocks:  # at least one, also for an empty prompt
            power += 1
        self.room[row] = power
        vacant: list = self.vacant[power]
        if vacant:
            self.begin[row] = vacant.pop()
            return self.begin[row]
        self.begin[row] = self.top
        self.top += cython.cast(cython.longlong, 1) << power
        if self.top > self.held.shape[0]:
            grown = np.empty(2 * self.top, dtype=np.int32)
            grown[: self.held.shape[0]] = self.held
            self.held = grown
        return self.begin[row]
