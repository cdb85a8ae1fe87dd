"""SGLang's HiCache: its radix tree with a host tier, and a storage pool that instances share."""

from collections import OrderedDict, deque
from heapq import heappop, heappush

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM
from cython.cimports.kvtrace.cache.core.radix import ROOT, WRITE_BACK, PagedRadix, Radix
from cython.cimports.kvtrace.cache.policies.base import Context
from cython.cimports.kvtrace.cache.structures.queues import Queue, Slots
from cython.cimports.libc.math import nextafter

from kvtrace.cache.core.radix import doubled

# A node has its blocks on the device, on the host, or on both. Device nodes have device parents; a node on the host
# alone stays in the tree and is matched. Eviction is in two heaps: device nodes without children there, and host nodes
# without children. A transfer ends before the next request; until then it pins its node's copy on the host. Twin:
# tests/reference/sglang_hicache.py.

WRITE_POLICIES = {"write_through": 1, "write_through_selective": 2, "write_back": WRITE_BACK}
LOAD_BACK_TOKENS = cython.declare(cython.longlong, 10)  # fewer tokens of the host are computed anew
LOWEST = cython.declare(cython.longlong, -(1 << 63) + 1)  # the root's priority before the first request
NEVER = cython.declare(cython.double, 1e300)
UNCOUNTED = cython.declare(cython.longlong, 1 << 62)


class StoragePool:
    """SGLang's storage backend: an LRU of `capacity` blocks, of those with numbers below `blocks`.

    A block is used when it is written, also if it is there already, and when it is read.
    """

    def __init__(self, blocks, capacity):
        self.order, self.capacity = Queue(Slots(blocks)), capacity
        self.loaded = self.stored = self.evicted = 0

    @property
    def resident(self):
        """The number of blocks."""
        return self.order.size

    def residents(self):
        """The blocks, in ascending order."""
        return np.flatnonzero(np.asarray(self.order.slots.slot_of_block) >= 0)

    def leading(self, ids, start, blocks):
        """Number of leading blocks of ids[start : start + blocks] that are here."""
        here: cython.longlong = 0
        while here < blocks and self.order.holds(ids[start + here]):
            here += 1
        return here

    def read(self, ids, start, blocks):
        """Use blocks that are here, in their order."""
        i: cython.longlong
        for i in range(start, start + blocks):
            self.order.move(ids[i])
        self.loaded += blocks
        return 0

    def write(self, block):
        """Add a block, or use it; the least recently used one makes room."""
        if self.order.holds(block):
            return self.order.move(block)
        if self.order.size == self.capacity:
            self.order.drop(self.order.first())
            self.evicted += 1
        self.stored += 1
        return self.order.push(block)


class HiRadix(Radix):
    """The tree of `context.capacity` device blocks with `host` host blocks below them, and a pool below these or None.

    `write_policy` is SGLang's --hicache-write-policy. From the pool, `prefetch_tokens` tokens or more come to the host
    before a request is matched. `policy` and `priority` are as in Radix.
    """

    def __init__(
        self, context: Context, demand, host, policy="lru", priority=None, write_policy="write_through", pool=None,
        prefetch_tokens=256,
    ):  # fmt: skip
        Radix.__init__(self, context, demand, policy, priority, True, 6, host)
        nodes, rows, size = len(self.length), len(demand.full), demand.trace.block_size
        self.open_host(host, WRITE_POLICIES[write_policy])
        self.pinned, self.pinned_nodes = np.zeros(2 * nodes, dtype=np.int32), 0
        self.pool = pool
        self.load_blocks = -(-LOAD_BACK_TOKENS // size)
        self.prefetch_blocks = max(-(-prefetch_tokens // size), 1)
        self.restored = self.fetched = self.fetched_from = 0
        self.rank[ROOT] = LOWEST
        self.below = np.zeros((1 if pool is None else 2, rows), dtype=np.int32)
        self.watches = False

    def watch(self, engines):
        """Remember of each request how far tiers had its path that it could not reach; `engines` are all instances."""
        self.watches, self.others = True, [engine for engine in engines if engine is not self]
        self.elsewhere_hit = np.zeros(len(self.full), dtype=np.int32)

    @property
    def elsewhere(self):
        """Leading blocks of each request that tiers of other instances would have added, 0 = none. Needs `watch`."""
        return np.asarray(self.elsewhere_hit)

    @property
    def tier_hits(self):
        """Hit blocks of each request in each tier below the device: an array of shape (tiers, requests)."""
        return np.asarray(self.below)

    def residents(self):
        """The blocks on the device, in ascending order."""
        return self._blocks_of(np.asarray(self.device) != 0)

    def host_residents(self):
        """The blocks on the host, in ascending order."""
        return self._blocks_of(np.asarray(self.backed) != 0)

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        if self.free + self.evictable != self.capacity:
            return f"{self.free:,} blocks are free and {self.evictable:,} can be evicted of {self.capacity:,}"
        return self.check_tiers()

    def lower_tier_hits(self, row):
        hits: cython.int = self.below[0, row]
        return hits + self.below[1, row] if self.below.shape[0] > 1 else hits

    def before(self, row):
        if self.watches:
            with cython.gil:
                self.elsewhere_hit[row] = self._reach(row)
        return 0

    def _reach(self, row):
        """How far a request would hit if it could read the trees and pools of all instances; 0 if no farther."""
        tree: HiRadix
        pool: StoragePool
        own: cython.longlong = self.peek(row)
        at: cython.longlong = own
        run: cython.longlong
        best: cython.longlong = 0
        for tree in self.others:
            at = max(at, cython.cast(cython.longlong, tree.peek(row)))
        for tree in [self, *self.others]:
            pool = tree.pool
            if pool is not None and (at > own or pool is not self.pool):
                run = pool.leading(self.ids, self.start[row] + at, self.limit[row] - at)
                best = max(best, run)
        if best >= self.prefetch_blocks:  # as few blocks as the pool of its own would not bring
            at += best
        return 0 if at == own else cython.cast(cython.int, at)

    def admit(self, row):
        """Fetch, match, lock, load back, make room, insert."""
        self.fetched = self.fetched_from = 0
        if self.pool is not None:
            self._fetch(row)
        start: cython.longlong = self.start[row]
        node: cython.int = ROOT
        self.matched = 0
        if self.limit[row] > 0:
            node = self._match(start, self.limit[row])
        last: cython.int = self._last_on_device(node)
        more: cython.longlong = self._blocks_between(node, last)
        hit: cython.longlong = self.matched - more
        need: cython.longlong = self.full[row] + self.tail[row] - hit
        self.lock(last, ROOT)
        if need > self.free + self.evictable:
            self.unlock(last)
            return NO_ROOM
        loaded: cython.longlong = self._load_back(node, last, more)
        if loaded == 0:
            node = last
        self._take(need - loaded)
        self._end_transfers()
        if loaded > 0:
            self._list_path(node, last)
        self.restored = 0
        self.rank[ROOT] = max(self.rank[ROOT], self.priority[row])
        end: cython.int = self._walk(start, self.full[row], 0, self.priority[row])
        self.free += self.matched - self.restored - hit - loaded  # duplicates of device blocks, computed again
        if self.matched < self.full[row]:
            end = self._add(end, start + self.matched, self.full[row] - self.matched, self.priority[row])
            self.head[self.ids[start + self.matched]] = end
        self.lock(end, node)
        self.held[row] = end
        self._end_transfers()
        self._count_sources(row, hit, loaded)
        return cython.cast(cython.int, hit + loaded)

    def grow(self, row):
        done: cython.int = Radix.grow(self, row)
        self._end_transfers()
        return done

    def finish(self, row):
        Radix.finish(self, row)
        if self.grows and self.grown[row] and self.full[row] > 0:  # SGLang inserts the prompt once more
            self.rank[ROOT] = max(self.rank[ROOT], self.priority[row] + 1)
        return self._end_transfers()

    def _fetch(self, row):
        """Bring the blocks after a request's match from the pool to the host, as a node there."""
        start: cython.longlong = self.start[row]
        node: cython.int = ROOT
        self.matched = 0
        if self.limit[row] > 0:
            node = self._match(start, self.limit[row])
        first: cython.longlong = self.matched
        blocks: cython.longlong = self.limit[row] - first
        if (node != ROOT and not self.backed[node]) or blocks < self.prefetch_blocks:
            return 0
        blocks = self.pool.leading(self.ids, start + first, blocks)
        if blocks < self.prefetch_blocks:
            return 0
        if self.host_free < blocks:
            self.pins[node] += 1
            self._settle(node)
            self._evict_host(blocks)
            self.pins[node] -= 1
            self._settle(node)
            blocks = min(blocks, self.host_free)
            if blocks < self.prefetch_blocks:
                return 0
        self.pool.read(self.ids, start + first, blocks)
        self.host_free -= blocks
        self.stored += blocks
        self.used[node] = self._tick()
        self._settle(node)
        child: cython.int = self._number()
        self.run[child], self.length[child] = start + first, cython.cast(cython.int, blocks)
        self.parent[child], self.children[child], self.locks[child] = node, 0, 0
        self.requests[child], self.rank[child] = 0, self.rank[node]
        self.device[child], self.backed[child] = False, True
        self.used[child] = self.created[child] = self._tick()
        self.head[self.ids[start + first]] = child
        self.children[node] += 1
        self._settle(node)
        self._settle(child)
        self.fetched, self.fetched_from = blocks, first
        return 0

    def _last_on_device(self, node):
        """The deepest node of a path that is on the device; ROOT if there is none."""
        while node != ROOT and not self.device[node]:
            node = self.parent[node]
        return node

    def _blocks_between(self, node, above):
        blocks: cython.longlong = 0
        while node != above:
            blocks += self.length[node]
            node = self.parent[node]
        return blocks

    def _load_back(self, node, above, blocks):
        """Load the `blocks` blocks of a path that the host has below `above`, and lock them; returns `blocks` or 0."""
        if blocks < self.load_blocks:
            return 0
        self._shift_pins(node, above, 1)
        self._free_up(blocks)
        self._shift_pins(node, above, -1)
        if self.free < blocks:
            return 0
        self.loaded += blocks
        self.free -= blocks
        self.evictable += blocks
        each: cython.int = node
        while each != above:
            self._put_on_device(each)
            self._pin(each)
            each = self.parent[each]
        self.lock(node, above)
        return cython.cast(cython.int, blocks)

    def _shift_pins(self, node, above, by):
        while node != above:
            self.pins[node] += by
            self._settle(node)
            node = self.parent[node]
        return 0

    def _count_sources(self, row, hit, loaded):
        """Divide the blocks that were loaded into those that were on the host and those that came from the pool."""
        if self.pool is None:
            self.below[0, row] = cython.cast(cython.int, loaded)
            return 0
        fetched: cython.longlong = min(hit + loaded - self.fetched_from, self.fetched)
        fetched = max(fetched, 0)
        self.below[0, row] = cython.cast(cython.int, loaded - fetched)
        self.below[1, row] = cython.cast(cython.int, fetched)
        return 0

    def _pass(self, node, counts, priority):
        """Count a request that inserts its path, on a node that it has; what is only on the host is computed anew."""
        self.rank[node] = max(self.rank[node], priority)
        if not counts:
            return 0
        if not self.device[node]:
            self.restored += self.length[node]
            self.evictable += self.length[node]
            self._put_on_device(node)
            self._list_twice(node)
        return self._count(node)

    def _copy(self, node):
        """Copy a node to the host, and to the pool; False if the host has no room."""
        i: cython.longlong
        block: cython.longlong
        if not self._has_room_on_host(node):
            return False
        if self.pool is None:
            return True
        for i in range(self.length[node]):
            block = self.run[node] + i
            self.pool.write(self.ids[block] if self.run[node] >= 0 else cython.cast(cython.int, i - 1 - self.run[node]))
        self._pin(node)
        return True

    def _pin(self, node):
        """Keep a node's copy on the host until all transfers have ended."""
        self.pins[node] += 1
        self.pinned[self.pinned_nodes] = node
        self.pinned_nodes += 1
        return self._settle(node)

    def _end_transfers(self):
        while self.pinned_nodes > 0:
            self.pinned_nodes -= 1
            self.pins[self.pinned[self.pinned_nodes]] -= 1
            self._settle(self.pinned[self.pinned_nodes])
        return 0

    def _list_path(self, node, above):
        while node != above:
            self._list_twice(node)
            node = self.parent[node]
        return 0

    def _split(self, node, blocks):
        """As in Radix; both parts are where the node was."""
        upper: cython.int = Radix._split(self, node, blocks)
        pins: cython.int = self.pins[node]
        self._divide_tiers(upper, node)
        while self.pins[upper] < pins:
            self._pin(upper)
        self._list_twice(upper)
        return upper

    def _add(self, parent, run, blocks, priority):
        """Add a leaf on the device that one request has inserted."""
        self.device_children[parent] += 1
        node: cython.int = Radix._add(self, parent, run, blocks, priority)
        self.requests[node] = 0
        self._count(node)
        self._settle(node)
        return node

    def _take(self, blocks):
        """As in Radix. If copies that are being stored keep the host full, they end first."""
        if blocks > self.free + self.evictable:
            return False
        self._free_up(blocks)
        while self.free < blocks:
            self._end_transfers()
            self._free_up(blocks)
        self.free -= blocks
        return True

    def _settle(self, node):
        return self._settle_tiers(node)

    def _unname(self, node):
        if self.run[node] >= 0:
            self.head[self.ids[self.run[node]]] = -1
        return 0

    def _evict(self, node):
        """Evict a leaf from the device; without a copy on the host it leaves the tree."""
        if not self.backed[node]:
            self._leave_tree(node)
            return Radix._evict(self, node)
        self.evictions += self.length[node]
        return self._demote(node)


QUERY = cython.declare(cython.int, 0)  # what the threads of an instance do with a storage
READ = cython.declare(cython.int, 1)
WRITE = cython.declare(cython.int, 2)


class TimedStorage:
    """SGLang's storage backend in time: an LRU of pages that instances share, and a link in each direction.

    A link serves one transfer after another, in the order in which they are asked for; a page takes `fetch_s` or
    `store_s`, a transfer of at most `batch` pages `latency` more. Pages that are there are not written again.
    """

    def __init__(self, capacity, fetch_s, store_s, latency, batch):
        self.pages, self.events, self.number = OrderedDict(), [], 0
        self.capacity, self.fetch_s, self.store_s, self.latency = capacity, fetch_s, store_s, latency
        self.batch, self.in_free, self.out_free = batch, 0, 0
        self.loaded = self.stored = self.evicted = 0

    def reach(self, now):
        """Let end what ends up to a time."""
        while self.events and self.events[0][0] <= now:
            end, _, storage, kind, item, done = heappop(self.events)
            cython.cast(Storage, storage).ended(kind, item, done, end)
        return 0

    def wait(self, end, storage, kind, item, done):
        """Something of an instance ends at a time."""
        self.number += 1
        heappush(self.events, (end, self.number, storage, kind, item, done))
        return 0

    def leading(self, names):
        """The number of leading pages that are here."""
        here: cython.longlong = 0
        for name in names:
            if name not in self.pages:
                break
            here += 1
        return here

    def use(self, names):
        """Pages that are here are used."""
        for name in names:
            self.pages.move_to_end(name)
        self.loaded += len(names)
        return 0

    def add(self, names):
        """Pages are written, or used; the least recently used ones make room."""
        for name in names:
            if name not in self.pages:
                self.stored += 1
                if len(self.pages) == self.capacity:
                    self.pages.popitem(last=False)
                    self.evicted += 1
            self.pages[name] = None
            self.pages.move_to_end(name)
        return 0


class Fetch:
    """A prefetch of pages `first` to `first + requested` of a request, after a node that is kept on the host."""

    def __init__(self, row, anchor, mark, first, names, assumed):
        self.row, self.anchor, self.mark, self.first, self.names = row, anchor, mark, first, names
        self.assumed, self.requested = assumed, len(names)
        self.reserved = -1  # pages of the host that it has, -1 = not yet
        self.found = self.read = 0  # pages that the storage has, and that the scheduler knows to be read
        self.terminated = self.expired = False


class Storage:
    """What an instance of SGLang does with its storage backend: prefetches, time limits, retries, copies to it.

    `options` is a dict: policy, threshold (tokens), timeout_base and timeout_per_page (seconds), retry_interval and
    retry_attempts. Four threads ask, read and write, one operation after another; the scheduler sees their results when
    it plans. Twin: tests/reference/sglang_storage_scheduler.py.
    """

    def __init__(self, shared: TimedStorage, tree: HiPagedRadix, options):
        self.shared, self.tree = shared, tree
        self.by_time, self.at_once = options["policy"] == "timeout", options["policy"] == "best_effort"
        self.threshold, self.interval, self.most = (
            options[name] for name in ("threshold", "retry_interval", "retry_attempts")
        )
        self.timeout_base, self.timeout_per_page = options["timeout_base"], options["timeout_per_page"]
        self.queries, self.reads, self.writes = deque(), deque(), deque()
        self.asking = self.reading = self.saving = False
        self.hits, self.acks, self.written = deque(), deque(), deque()
        self.new_hits = self.new_acks = self.new_written = self.new_freed = 0
        self.fetching, self.waits, self.retries, self.came, self.span = {}, {}, {}, {}, {}
        self.attempts, self.last_match = {}, {}
        self.passes = self.occupied = self.freed = self.under_way = 0

    def is_active(self):
        """Whether something is under way, or waits to be seen."""
        return bool(
            self.fetching or self.under_way or self.asking or self.reading or self.saving or self.hits or self.acks
            or self.freed
        )  # fmt: skip

    def spins(self, waiting, now):
        """Whether an idle scheduler has something to do at once."""
        if self.is_active() and self.shared.events and self.shared.events[0][0] <= now:
            return True
        return self.freed > 0 or (waiting and bool(self.retries))

    def next_end(self, now):
        """When something ends next that the scheduler may wait for, NEVER = nothing."""
        end: cython.double
        begin: cython.double
        limit: cython.double
        first: cython.double = NEVER
        is_moving: cython.bint = self.under_way > 0 or self.asking or self.reading or self.saving
        if (is_moving or self.fetching) and self.shared.events and self.shared.events[0][0] > now:
            first = self.shared.events[0][0]
        for row in self.fetching:
            if row in self.waits and not self.waits[row][2]:
                begin, limit = self.waits[row][0], self.waits[row][1]
                end = begin + limit
                while not end - begin > limit:
                    end = nextafter(end, NEVER)
                if end > now:
                    first = min(first, end)
        return first

    def finish(self):
        """Let end all that is under way, of all instances."""
        return self.shared.reach(2 * NEVER)

    # ---- the threads

    def ended(self, kind, item, done, at):
        """What a thread does has ended."""
        fetch: Fetch
        read: cython.longlong
        if kind == WRITE:
            self.shared.add(item[1][done : done + self.shared.batch])
            return self._save(item, done + self.shared.batch, at)
        fetch = item
        if kind == QUERY:
            fetch.found = self.shared.leading(fetch.names)
            self.hits.append(fetch)
            return self._ask_next(at)
        batch = fetch.names[done : min(fetch.reserved, done + self.shared.batch)]
        read = self.shared.leading(batch)
        self.shared.use(batch[:read])
        read = 0 if fetch.terminated else read
        self.acks.append((fetch, done + read))
        if read < len(batch):
            self.acks.append((fetch, -1))
            return self._read_next(at)
        return self._read(fetch, done + read, at)

    def _ask_next(self, at):
        fetch: Fetch
        self.asking = False
        while self.queries:
            fetch = self.queries.popleft()
            if fetch.terminated or fetch.assumed:
                fetch.found = 0 if fetch.terminated else fetch.requested
                self.hits.append(fetch)
                continue
            self.asking = True
            return self.shared.wait(at + self.shared.latency, self, QUERY, fetch, 0)
        return 0

    def _read_next(self, at):
        self.reading = bool(self.reads)
        return self._read(self.reads.popleft(), 0, at) if self.reading else 0

    def _read(self, fetch: Fetch, done, at):
        """Read the next pages of a prefetch."""
        pages: cython.longlong = min(fetch.reserved - done, self.shared.batch)
        if fetch.terminated or pages <= 0:
            self.acks.append((fetch, -1))
            return self._read_next(at)
        self.shared.out_free = max(at, self.shared.out_free) + (self.shared.latency + pages * self.shared.fetch_s)
        return self.shared.wait(self.shared.out_free, self, READ, fetch, done)

    def _save_next(self, at):
        self.saving = bool(self.writes)
        return self._save(self.writes.popleft(), 0, at) if self.saving else 0

    def _save(self, item: tuple, done, at):
        """Write the next pages of a node."""
        new: cython.longlong = 0
        batch: list = item[1][done : done + self.shared.batch]
        if not batch:
            self.written.append(item)
            return self._save_next(at)
        for name in batch:
            new += name not in self.shared.pages
        if new == 0:
            return self.ended(WRITE, item, done, at)
        self.shared.in_free = max(at, self.shared.in_free) + (self.shared.latency + new * self.shared.store_s)
        return self.shared.wait(self.shared.in_free, self, WRITE, item, done)

    # ---- the scheduler

    def write(self, node):
        """A node has reached the host: it stays there until it is written to the storage."""
        tree: HiPagedRadix = self.tree
        page: cython.longlong
        names: list = []
        for page in range(tree.first[node], tree.first[node] + tree.length[node]):
            names.append(tree.page_key(tree.row_of[node], page))
        self.writes.append(((node, tree.keep(node)), names))
        self.under_way += 1
        return 0 if self.saving else self._save_next(tree.now)

    def count_news(self):
        """What the scheduler will see in this plan."""
        self.new_hits, self.new_acks, self.new_written = len(self.hits), len(self.acks), len(self.written)
        self.new_freed = self.freed

    def see_news(self):
        """The scheduler sees what the threads have done."""
        fetch: Fetch
        done: cython.longlong
        is_current: cython.bint
        for _ in range(self.new_hits):
            self._answered(self.hits.popleft())
        for _ in range(self.new_acks):
            fetch, done = self.acks.popleft()
            is_current = self.fetching.get(fetch.row) is fetch
            if done >= 0:
                if is_current:
                    fetch.read = done
                continue
            if is_current:
                self._insert(fetch)
            self.freed += fetch.reserved - fetch.read
        for _ in range(self.new_written):
            node, mark = self.written.popleft()[0]
            self.tree.let_go(node, mark)
            self.under_way -= 1
        self.tree.host_free += self.new_freed
        self.freed -= self.new_freed
        return 0

    def _answered(self, fetch: Fetch):
        """It is known what exists: the host makes room for it, or for a part of it."""
        tree: HiPagedRadix = self.tree
        pages: cython.longlong
        if fetch.row not in self.fetching:
            return 0
        if fetch.terminated or fetch.found * tree.page_size < self.threshold:
            if not (fetch.terminated and fetch.expired):
                self.retries[fetch.row] = [-1, -1]
            return self._revoke(fetch.row)
        if tree.host_free < fetch.found:
            tree._evict_host(fetch.found)
        pages = min(fetch.found, tree.host_free)
        if pages < fetch.found and pages * tree.page_size < self.threshold:
            self._revoke(fetch.row)
            self.retries[fetch.row] = [(fetch.first + fetch.found) * tree.page_size, -1]
            return 0
        tree.host_free -= pages
        fetch.reserved = pages
        self.reads.append(fetch)
        return 0 if self.reading else self._read_next(tree.now)

    def _revoke(self, row):
        """A prefetch ends before it has a place on the host."""
        fetch: Fetch = self.fetching.pop(row, None)
        if fetch is not None:
            self.tree.let_go(fetch.anchor, fetch.mark)
            self.occupied -= fetch.requested * self.tree.page_size
        return 0

    def _insert(self, fetch: Fetch):
        """What was read becomes findable on the host."""
        tree: HiPagedRadix = self.tree
        had: cython.longlong = 0
        if fetch.read > 0:
            had = tree.insert_fetched(fetch.anchor, fetch.row, fetch.first, fetch.read)
        elif fetch.anchor != ROOT:
            tree.used[fetch.anchor] = tree._tick()
            tree._settle(fetch.anchor)
        tree.host_free += had
        self._revoke(fetch.row)
        self.came[fetch.row] = ((fetch.read - had) * tree.page_size, (fetch.first + had) * tree.page_size)
        return 0

    def prefetch(self, row, first, anchor, known, hit_end):
        """Ask for the pages of a request's `known` tokens after a match of `first` pages, which ends at `anchor`.

        `hit_end` is where the pages end that are known to exist, in tokens; -1 = it is not known.
        """
        tree: HiPagedRadix = self.tree
        page: cython.longlong
        start: cython.longlong = first * tree.page_size
        names: list = []
        self.last_match[row] = start
        if anchor != ROOT and not tree.backed[anchor]:
            return 0
        self.retries.pop(row, None)
        if row in self.fetching or (row in self.waits and self.waits[row][2]):
            return 0
        assumed: cython.bint = start < hit_end and hit_end <= known
        end: cython.longlong = (hit_end if assumed else known) // tree.page_size
        if (end - first) * tree.page_size < self.threshold:
            return 0
        if self.occupied >= tree.host * tree.page_size // 2:
            self.retries[row] = [hit_end, -1]
            return 0
        for page in range(first, end):
            names.append(tree.page_key(row, page))
        fetch: Fetch = Fetch(row, anchor, tree.keep(anchor), first, names, assumed)
        self.fetching[row] = fetch
        self.occupied += fetch.requested * tree.page_size
        self.queries.append(fetch)
        return 0 if self.asking else self._ask_next(tree.now)

    def due(self, waiting: list):
        """The waiting requests that ask again now: (row, where the pages end that are known to exist)."""
        ready: list = []
        self.passes += 1
        if not waiting or not self.retries:
            return ready
        self.retries.pop(waiting[0], None)
        for row in waiting:
            retry = self.retries.get(row)
            if retry is None:
                continue
            if self.attempts.get(row, 0) >= self.most or self.interval <= 0:
                del self.retries[row]
                continue
            if retry[1] < 0:
                retry[1] = self.passes + self.interval
            if retry[1] <= self.passes:
                del self.retries[row]
                ready.append((row, retry[0]))
        return ready

    def ready(self, row, now):
        """Whether a request's prefetch is over, or is ended now."""
        fetch: Fetch = self.fetching.get(row)
        if fetch is not None:
            if not self._may_end(fetch, now):
                if self.by_time and row not in self.waits:
                    self.waits[row] = [now, self.timeout_base + fetch.requested * self.timeout_per_page, False]
                return False
            fetch.terminated = True
            if self.by_time:
                fetch.expired = self.waits[row][2] = True
                self.retries.pop(row, None)
            if fetch.reserved >= 0:
                self._insert(fetch)
            else:
                if not fetch.expired:
                    self.retries[row] = [-1, -1]
                self._revoke(row)
        came = self.came.pop(row, None)
        if came is not None and came[0] > 0:
            self.span[row] = (came[1], came[1] + came[0])
        return True

    def _may_end(self, fetch: Fetch, now):
        if not self.by_time:
            return self.at_once
        if fetch.reserved >= 0 and fetch.read >= fetch.reserved:
            return False
        wait = self.waits.get(fetch.row)
        return wait is not None and (wait[2] or now - cython.cast(cython.double, wait[0]) > wait[1])

    def lost(self, row, matched):
        """Whether a request asks again, since its match, of `matched` tokens now, became shorter."""
        before: cython.longlong = self.last_match.get(row, -1)
        if before <= 0 or matched >= before:
            return False
        if self.attempts.get(row, 0) >= self.most:
            self.last_match[row] = matched
            return False
        return True

    def count_attempt(self, row):
        """A request asks again."""
        self.attempts[row] = self.attempts.get(row, 0) + 1

    def restart(self, row):
        """A request was retracted: its attempts begin anew."""
        self.attempts.pop(row, None)
        self.last_match.pop(row, None)

    def admitted(self, row):
        """A request is in the next prefill."""
        self.retries.pop(row, None)
        self.waits.pop(row, None)


class HiPagedRadix(PagedRadix):
    """The tree of SGLang's scheduler with `host` pages below it, and copies that take `load_s` and `store_s` a token.

    `now` and `busy` (when the passes end that were launched) are the scheduler's clock: it sets them before it asks for
    room, and reads `now` after it, since with write_back it waits for copies. Twin:
    tests/reference/sglang_hicache_scheduler.py.
    """

    def __init__(self, context: Context, demand, page_size, tokens, host, write_policy, load_s, store_s):
        PagedRadix.__init__(self, context, demand, page_size, tokens)
        self.open_host(host, WRITE_POLICIES[write_policy])
        nodes = len(self.length)
        self.requests, self.loading = np.zeros((2, nodes), dtype=np.int32)
        self.marks, self.last_mark = np.zeros(nodes, dtype=np.int64), 0
        self.storage, self.fragments = None, {}
        self.below = np.zeros((1, len(demand.full)), dtype=np.int32)
        self.load_s, self.store_s = load_s, store_s
        self.load_link = self.store_link = self.now = self.busy = 0
        self.to_store, self.to_load, self.storing, self.loads = [], [], [], []
        self.store_pages = self.load_pages = self.inserted = self.owned = self.duplicates = self.host_hit = 0
        self.best = ROOT

    @property
    def tier_hits(self):
        """Hit blocks of each request on the host, and from the storage if there is one: shape (tiers, requests)."""
        return np.asarray(self.below)

    def attach(self, storage):
        """Put a Storage below the host."""
        self.storage = storage
        self.below = np.zeros((2, self.below.shape[1]), dtype=np.int32)

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        self.now = NEVER
        self.see_copies()
        while self.storage is not None and self.storage.is_active():
            self.storage.finish()
            self.see_copies()
        self.evictions = self.evicted * self.page_size // self.block_size
        if self.free + self.evictable != self.pages:
            return f"{self.free:,} pages are free and {self.evictable:,} can be evicted of {self.pages:,}"
        return self.check_tiers()

    def lower_tier_hits(self, row):
        hits: cython.int = self.below[0, row]
        return hits + self.below[1, row] if self.below.shape[0] > 1 else hits

    def match(self, row, pages):
        """As in PagedRadix, of the device; `best` is the last node also of the host, and `host_hit` has its pages."""
        node: cython.int = PagedRadix.match(self, row, pages)
        self.best, self.host_hit = node, 0
        while node != ROOT and not self.device[node]:
            self.host_hit += self.length[node]
            node = self.parent[node]
        self.matched -= self.host_hit
        return node

    def insert(self, row, pages):
        """As in PagedRadix; `duplicates` are the pages beyond `owned` that the device had.

        Nodes beyond `inserted` pages count the request, and may be copied.
        """
        node: cython.int = ROOT
        child: cython.int
        begin: cython.longlong
        self.matched = self.duplicates = 0
        while self.matched < pages:
            child = self._child(row, self.matched)
            if child < 0:
                break
            self.used[child] = self._tick()
            begin = self.matched
            self.matched += self._common(child, row, pages)
            node = child
            if self.matched - begin < self.length[child]:
                node = self._divide(child, cython.cast(cython.int, self.matched - begin))
            if self.device[node]:
                self.duplicates += max(0, self.matched - max(begin, self.owned))
            else:
                self.evictable += self.length[node]
                self._put_on_device(node)
                self._list_twice(node)
            if self.matched > self.inserted:
                self._count(node)
            self._settle(node)
        if self.matched < pages:
            node = self._add(node, row, self.matched, pages - self.matched)
            if pages > self.inserted:
                self._count(node)
        return node

    def make_room(self, pages):
        return self._free_up(pages)

    def see_copies(self):
        """At the beginning of a plan: submit copies, unlock the nodes of those that ended, see what was fetched."""
        if self.storage is not None:
            self.storage.count_news()
        self.flush()
        while self.storing and self.storing[0][0] <= self.now:
            for node in self.storing.pop(0)[1]:
                self.unlock(node)
                if self.storage is not None:
                    self._pass_on(node)
        while self.loads and self.loads[0][0] <= self.now:
            for node in self.loads.pop(0)[1]:
                self._end_load(node)
        return self.storage.see_news() if self.storage is not None else 0

    def _pass_on(self, node):
        """A node, or the parts that it was divided into, have reached the host: write them to the storage."""
        part: cython.int
        for item in self.fragments.get(node, (node,)):
            part = item
            self.fragments.pop(part, None)
            if self.backed[part]:
                self.storage.write(part)
        return 0

    def keep(self, node):
        """Keep a node's copy on the host; `let_go` wants the returned mark."""
        if node == ROOT:
            return 0
        if self.marks[node] == 0:
            self.last_mark += 1
            self.marks[node] = self.last_mark
        self.pins[node] += 1
        self._settle(node)
        return self.marks[node]

    def let_go(self, node, mark):
        """Undo `keep`, also of the parts that the node was divided into."""
        while node != ROOT and mark > 0:
            self.pins[node] -= 1
            self._settle(node)
            if self.marks[node] == mark:
                return 0
            node = self.parent[node]
        return 0

    def page_key(self, row, page):
        """The name of a page of a request: equal for equal pages after equal ones."""
        return (self._name(row, page) << 32) + page

    def insert_fetched(self, anchor, row, first, pages):
        """Pages that were read become findable on the host after a node; returns those of them that it had."""
        node: cython.int = anchor
        child: cython.int
        same: cython.longlong
        had: cython.longlong = 0
        place: cython.longlong = first
        if node != ROOT:
            self.used[node] = self._tick()
            self._settle(node)
        else:
            self._tick()
        while place < first + pages:
            child = self._child(row, place)
            if child < 0:
                break
            self.used[child] = self._tick()
            same = self._common(child, row, first + pages)
            node = child
            if same < self.length[child]:
                node = self._divide(child, cython.cast(cython.int, same))
            if self.threshold == WRITE_BACK or self.backed[node]:
                had += same
            else:
                self.backed[node] = True
                self.stored += same
            self._settle(node)
            place += same
        if place < first + pages:
            self.stored += first + pages - place
            child = PagedRadix._add(self, node, row, place, first + pages - place)
            self.evictable -= self.length[child]
            self.requests[child], self.marks[child] = 0, 0
            self.device[child], self.backed[child] = False, True
            self._settle(child)
        return had

    def flush(self):
        """Submit the copies to the host that were decided."""
        if self.store_pages:
            self.storing.append((self._store(self.store_pages), self.to_store))
            self.to_store, self.store_pages = [], 0
        return 0

    def start_loading(self):
        """Submit the loads of a batch; when they end, 0 = there are none."""
        if not self.load_pages:
            return 0
        self.load_link = max(self.now, self.busy, self.load_link) + self.load_pages * self.page_size * self.load_s
        self.loads.append((self.load_link, self.to_load))
        self.to_load, self.load_pages = [], 0
        return self.load_link

    def next_copy(self):
        """When the next copy ends that has not ended, NEVER = none is under way."""
        first: cython.double = NEVER
        for copies in (self.storing, self.loads):
            for end, _nodes in copies:
                if end > self.now:
                    first = min(first, end)
        return first

    def has_copies(self):
        """Whether copies are under way, or decided."""
        return self.store_pages > 0 or self.load_pages > 0 or bool(self.storing) or bool(self.loads)

    def load_back(self, best, pages):
        """Load the match that ends in `best`, of so many host pages; the pages loaded, all or 0."""
        node: cython.int = best
        if pages * self.page_size < LOAD_BACK_TOKENS:
            return 0
        self.pins[best] += 1
        self._settle(best)
        self._free_up(pages)
        self.pins[best] -= 1
        self._settle(best)
        if self.free < pages:
            return 0
        self.free -= pages
        self.evictable += pages
        self.loaded += pages
        while not self.device[node]:
            self._put_on_device(node)
            if self.threshold == WRITE_BACK:
                self.pins[node] += 1
                self.loading[node] = best
            node = self.parent[node]
        self.to_load.append(best)
        self.load_pages += pages
        self.lock(best, ROOT)
        return cython.cast(cython.int, pages)

    def _end_load(self, best):
        """A load has ended."""
        node: cython.int = best
        self.unlock(best)
        while node != ROOT:
            if self.loading[node] == best:
                self.pins[node] -= 1
                self.loading[node] = 0
                self._list_twice(node)
            node = self.parent[node]
        return 0

    def _store(self, pages):
        """When a copy of so many pages to the host ends."""
        self.store_link = max(self.now, self.busy, self.store_link) + pages * self.page_size * self.store_s
        return self.store_link

    def _copy(self, node):
        """Copy a node to the host, if it has room: at once with write_back, else with the next flush."""
        if not self._has_room_on_host(node):
            return False
        if self.threshold == WRITE_BACK:
            self.now = max(self.now, self._store(self.length[node]))
            with cython.gil:
                if self.storage is not None:
                    self.storage.write(node)
            return True
        self.store_pages += self.length[node]
        with cython.gil:
            self.to_store.append(node)
            if self.storage is not None:
                self.fragments[node] = [node]
        self.lock(node, ROOT)
        return True

    def _divide(self, node, pages):
        """As in PagedRadix; both parts are where the node was, and loaded with it."""
        upper: cython.int = PagedRadix._divide(self, node, pages)
        self._divide_tiers(upper, node)
        self.requests[upper] = self.requests[node]
        self.pins[upper], self.loading[upper] = self.pins[node], self.loading[node]
        self.marks[upper], self.marks[node] = self.marks[node], 0
        if self.loading[upper] == 0:
            self._list_twice(upper)
        if self.storage is not None:
            with cython.gil:
                parts = self.fragments.get(node)
                if parts is not None:
                    parts.insert(parts.index(node), upper)
                    self.fragments[upper] = parts
        return upper

    def _add(self, parent, row, page, pages):
        self.device_children[parent] += 1
        node: cython.int = PagedRadix._add(self, parent, row, page, pages)
        self.requests[node], self.marks[node] = 0, 0
        return node

    def _settle(self, node):
        return self._settle_tiers(node)

    def _unname(self, node):
        return self._unlist(node)

    def _evict(self, node):
        if not self.backed[node]:
            self._leave_tree(node)
            return PagedRadix._evict(self, node)
        self.evicted += self.length[node]
        return self._demote(node)

    def _enlarge(self):
        PagedRadix._enlarge(self)
        nodes = len(self.length)
        self.device = np.concatenate([np.asarray(self.device), np.ones(nodes - len(self.device), dtype=np.int8)])
        self.backed, self.declined = doubled(self.backed), doubled(self.declined)
        self.device_children, self.pins, self.after = map(doubled, (self.device_children, self.pins, self.after))
        self.requests, self.loading, self.marks = map(doubled, (self.requests, self.loading, self.marks))
        self.host_leaves.enlarge(nodes)
        slots = np.asarray(self.twice.slots.slot_of_block)
        self.twice.slots.slot_of_block = np.pad(slots, (0, nodes - len(slots)), constant_values=-1)
