"""SGLang's radix cache: a tree whose nodes are runs of blocks, and unlocked leaves that go as a whole.

Block ids are a forest, so two paths that hold the same id at a depth agree up to there: a match compares a node's last
block, or halves the run until it finds where the paths part; it needs no hash, and a run is a place in the trace's own
ids. A request costs what the nodes on its path cost, however many blocks they hold. Twin: tests/reference/radix.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM, Engine
from cython.cimports.kvtrace.cache.policies.base import Context

from kvtrace._base.errors import UsageError

ORDERS = {"lru": LRU, "mru": MRU, "fifo": FIFO, "filo": FILO, "lfu": LFU, "slru": SLRU, "priority": PRIORITY}
PROTECTED = cython.declare(cython.longlong, 2)  # slru: from so many requests on, a node goes after all others
UNCOUNTED = cython.declare(cython.longlong, 1 << 62)  # no path is as long: a walk that counts no request
HIGHEST = cython.declare(cython.longlong, (1 << 63) - 1)
LOWEST = cython.declare(cython.longlong, -HIGHEST - 1)  # a walk that raises no priority


class Leaves:
    """Nodes in a heap, the next victim first: by key, and among equals by last use."""

    def __init__(self, nodes):
        self.key, self.used = np.zeros((2, nodes), dtype=np.int64)
        self.heap, self.place = np.zeros(nodes, dtype=np.int32), np.full(nodes, -1, dtype=np.int32)
        self.count = 0

    def nodes(self):
        """Which there are, in order of their numbers."""
        return np.sort(np.asarray(self.heap)[: self.count])

    def put(self, node, key, used):
        """Add a node, or move it to where its key now belongs."""
        self.key[node], self.used[node] = key, used
        if self.place[node] < 0:
            self._set(self.count, node)
            self.count += 1
        self._rise(self.place[node])
        return self._sink(self.place[node])

    def drop(self, node):
        """Take a node away, if it is there; the last one fills its place."""
        at: cython.int = self.place[node]
        if at < 0:
            return 0
        self.place[node] = -1
        self.count -= 1
        if at < self.count:
            node = self.heap[self.count]
            self._set(at, node)
            self._rise(at)
            self._sink(self.place[node])
        return 0

    def _before(self, node, other):
        if self.key[node] != self.key[other]:
            return self.key[node] < self.key[other]
        return self.used[node] < self.used[other]

    def _set(self, at, node):
        self.heap[at] = node
        self.place[node] = at
        return 0

    def _rise(self, at):
        node: cython.int = self.heap[at]
        while at > 0 and self._before(node, self.heap[(at - 1) // 2]):
            self._set(at, self.heap[(at - 1) // 2])
            at = (at - 1) // 2
        return self._set(at, node)

    def _sink(self, at):
        node: cython.int = self.heap[at]
        child: cython.int = 2 * at + 1
        while child < self.count:
            if child + 1 < self.count and self._before(self.heap[child + 1], self.heap[child]):
                child += 1
            if not self._before(self.heap[child], node):
                break
            self._set(at, self.heap[child])
            at, child = child, 2 * child + 1
        return self._set(at, node)


class Radix(Engine):
    """Nodes, locks and the heap of leaves of a tree that holds `context.capacity` blocks, those of live requests too.

    `policy` is one of SGLang's seven eviction orders; `priority` (int64, one a request) is what requests ask for under
    the order of that name, and may be None under any other. UsageError for a policy that SGLang does not have.
    """

    def __init__(self, context: Context, demand, policy="lru", priority=None):
        Engine.__init__(self, context, demand)
        if policy not in ORDERS:
            raise UsageError(f"SGLang has no eviction order {policy!r}. Try {', '.join(ORDERS)}.")
        rows, capacity = len(demand.full), context.capacity
        # a request adds four nodes at most: two splits, its prompt's rest and its output
        nodes = 1 + min(capacity, context.blocks, 4 * rows)
        self.run, self.used, self.created, self.rank = np.zeros((4, nodes), dtype=np.int64)
        self.length, self.parent, self.children, self.locks, self.requests = np.zeros((5, nodes), dtype=np.int32)
        self.unused, self.unused_nodes = np.arange(nodes - 1, -1, -1, dtype=np.int32), nodes - 1  # never the root's
        self.head, self.held = np.full(context.blocks, -1, dtype=np.int32), np.zeros(rows, dtype=np.int32)
        self.priority = np.zeros(rows, dtype=np.int64) if priority is None else np.ascontiguousarray(priority, np.int64)
        self.order, self.leaves = ORDERS[policy], Leaves(nodes)
        self.capacity = self.free = capacity
        self.idle = self.clock = self.matched = 0

    def residents(self):
        """The blocks that are resident, in order of their numbers."""
        ids, run, length = np.asarray(self.ids), np.asarray(self.run), np.asarray(self.length)
        runs = [
            ids[run[node] : run[node] + length[node]] if run[node] >= 0 else np.arange(length[node]) - 1 - run[node]
            for node in np.flatnonzero(length)
        ]
        return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *runs]))

    def nodes(self):
        """How many nodes the tree has, the root aside."""
        return int(np.count_nonzero(np.asarray(self.length)))

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        length, locks, children = np.asarray(self.length), np.asarray(self.locks), np.asarray(self.children)
        there = length > 0
        if locks[there].any():
            return f"{int((locks[there] > 0).sum()):,} nodes are locked by no request"
        if length.sum() + self.free != self.capacity or length.sum() != self.idle:
            return f"{int(length.sum()):,} blocks are resident and {self.free:,} free in a cache of {self.capacity:,}"
        if (np.bincount(np.asarray(self.parent)[there], minlength=len(there)) != children).any():
            return "a node's children are miscounted"
        if not np.array_equal(self.leaves.nodes(), np.flatnonzero(there & (children == 0))):
            return "a leaf is missing among those to evict"
        return None

    def peek(self, row):
        """As a walk does, but nothing is refreshed or split."""
        child: cython.int
        same: cython.int
        done: cython.longlong = 0
        start: cython.longlong = self.start[row]
        while done < self.limit[row]:
            child = self.head[self.ids[start + done]]
            if child < 0:
                break
            same = self._common(child, start + done, self.limit[row] - done)
            done += same
            if same < self.length[child]:
                break
        return cython.cast(cython.int, done)

    def admit(self, row):
        """Match, lock, make room, insert; a match without room still refreshes and splits nodes, as SGLang's does."""
        start: cython.longlong = self.start[row]
        node: cython.int = ROOT
        self.matched = 0
        if self.limit[row] > 0:
            node = self._walk(start, self.limit[row], UNCOUNTED, LOWEST)
        hit: cython.longlong = self.matched
        self._lock(node, ROOT)
        if not self._take(self.full[row] + self.tail[row] - hit):
            self._unlock(node)
            return NO_ROOM
        end: cython.int = self._walk(start, self.full[row], 0, self.priority[row])
        self.free += self.matched - hit  # a block that was computed again though it was there: its copy goes at once
        if self.matched < self.full[row]:
            end = self._add(end, start + self.matched, self.full[row] - self.matched, self.priority[row])
            self.head[self.ids[start + self.matched]] = end
        self._lock(end, node)
        self.held[row] = end
        return cython.cast(cython.int, hit)

    def grow(self, row):
        return 0 if self._take(self.grown[row] + self.grown_tail[row] - self.tail[row]) else NO_ROOM

    def finish(self, row):
        """Insert once more, with the output, and unlock; what has no hash is freed."""
        self._walk(self.start[row], self.full[row], UNCOUNTED, self.priority[row])
        if self.grows and self.grown[row]:
            priority: cython.longlong = self.priority[row]
            self._add(self.held[row], -1 - cython.cast(cython.longlong, self.fresh[row]), self.grown[row], priority)
            # the prompt is worth one more than its output
            self._walk(self.start[row], self.full[row], UNCOUNTED, priority + (priority < HIGHEST))
        self.free += self.grown_tail[row] if self.grows else self.tail[row]
        return self._unlock(self.held[row])

    def _walk(self, start, blocks, counted, priority):
        """The last node of a path's resident prefix, of `matched` blocks; refreshes those nodes, splits the last.

        Nodes that reach deeper than `counted` blocks count the request, and all on the path get its priority at least.
        """
        node: cython.int = ROOT
        child: cython.int
        same: cython.int
        done: cython.longlong = 0
        now: cython.longlong = self._tick()
        while done < blocks:
            child = self.head[self.ids[start + done]]
            if child < 0:
                break
            same = self._common(child, start + done, blocks - done)
            self.used[child] = now
            done += same
            node = child
            if same < self.length[child]:
                node = self._split(child, same)
                self._settle(child)  # the part that did not match is refreshed as well
            self.rank[node] = max(self.rank[node], priority)
            self.requests[node] += done > counted
            self._settle(node)
            if node != child:
                break
        self.matched = done
        return node

    def _common(self, node, at, most):
        """How many blocks a node's run shares with the `most` ones from `at` on; the first is the same."""
        run: cython.longlong = self.run[node]
        alike: cython.int = 1
        middle: cython.int
        beyond: cython.int = cython.cast(cython.int, min(most, cython.cast(cython.longlong, self.length[node]))) + 1
        if self.ids[run + beyond - 2] == self.ids[at + beyond - 2]:
            return beyond - 1
        while beyond - alike > 1:  # the first `alike` blocks are the same, the first `beyond` are not
            middle = (alike + beyond) // 2
            if self.ids[run + middle - 1] == self.ids[at + middle - 1]:
                alike = middle
            else:
                beyond = middle
        return alike

    def _split(self, node, blocks):
        """A new node above, for a node's first blocks; it has the node's locks, requests and priority, but is new."""
        upper: cython.int = self._number()
        self.run[upper], self.length[upper] = self.run[node], blocks
        self.parent[upper], self.children[upper] = self.parent[node], 1
        self.locks[upper], self.requests[upper] = self.locks[node], self.requests[node]
        self.rank[upper] = self.rank[node]
        self.used[upper] = self.created[upper] = self._tick()
        self.head[self.ids[self.run[node]]] = upper
        self.run[node] += blocks
        self.length[node] -= blocks
        self.parent[node] = upper
        self.head[self.ids[self.run[node]]] = node
        return upper

    def _add(self, parent, run, blocks, priority):
        """A new leaf, which one request has inserted."""
        node: cython.int = self._number()
        self.run[node], self.length[node] = run, cython.cast(cython.int, blocks)
        self.parent[node], self.children[node], self.locks[node] = parent, 0, 0
        self.requests[node], self.rank[node] = 1, priority
        self.used[node] = self.created[node] = self._tick()
        self.idle += blocks
        self.children[parent] += 1
        self._settle(parent)
        self._settle(node)
        return node

    def _number(self):
        self.unused_nodes -= 1
        return self.unused[self.unused_nodes]

    def _tick(self):
        self.clock += 1
        return self.clock

    def _lock(self, node, above):
        """Hold a node and its ancestors below the one `above`."""
        while node != above:
            if self.locks[node] == 0:
                self.idle -= self.length[node]
            self.locks[node] += 1
            self._settle(node)
            node = self.parent[node]
        return 0

    def _unlock(self, node):
        while node != ROOT:
            self.locks[node] -= 1
            if self.locks[node] == 0:
                self.idle += self.length[node]
            self._settle(node)
            node = self.parent[node]
        return 0

    def _take(self, blocks):
        """Make so many blocks the caller's, evicting leaves for them; False, with none evicted, if they are too few."""
        if blocks > self.free + self.idle:
            return False
        while self.free < blocks:
            self._evict(self.leaves.heap[0])
        self.free -= blocks
        return True

    def _evict(self, node):
        """Free a whole leaf; its parent may be one now."""
        parent: cython.int = self.parent[node]
        self.leaves.drop(node)
        self.free += self.length[node]
        self.idle -= self.length[node]
        self.evictions += self.length[node]
        if self.run[node] >= 0:
            self.head[self.ids[self.run[node]]] = -1
        self.length[node] = 0
        self.unused[self.unused_nodes] = node
        self.unused_nodes += 1
        self.children[parent] -= 1
        return self._settle(parent)

    def _settle(self, node):
        """Put a node where its key belongs among the leaves that may go, or take it away when it is none."""
        if self.locks[node] == 0 and self.children[node] == 0 and node != ROOT:
            return self.leaves.put(node, self._key(node), self.used[node])
        return self.leaves.drop(node)

    def _key(self, node):
        """What the order goes by, the smallest first."""
        if self.order == LRU:
            return 0
        if self.order == MRU:
            return -self.used[node]
        if self.order == FIFO:
            return self.created[node]
        if self.order == FILO:
            return -self.created[node]
        if self.order == LFU:
            return self.requests[node]
        if self.order == SLRU:
            return self.requests[node] >= PROTECTED
        return self.rank[node]
