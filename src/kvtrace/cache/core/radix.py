"""SGLang's radix cache: a tree whose nodes are runs of blocks; eviction removes whole unlocked leaves.

Block ids form a forest, so two paths with the same id at a depth are equal up to that depth. A match therefore compares
a node's last block, or finds the end of the common part by bisection. It needs no hashes, and a run is a position in
the trace's own ids. A request costs time per node on its path, not per block. Twin: tests/reference/radix.py.

Two trees of SGLang differ in times alone. `unified` (UnifiedRadixCache): the nodes of a path are used one after the
other, the deepest last; what a match leaves of a node is used before its path; a part keeps the node's time of
creation. RadixCache: a path is used at one time, and the upper part of a node is new.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM
from cython.cimports.kvtrace.cache.core.locked_tree import ROOT, LockedTree
from cython.cimports.kvtrace.cache.policies.base import Context

from kvtrace._base.errors import UsageError

ORDERS = {"lru": LRU, "mru": MRU, "fifo": FIFO, "filo": FILO, "lfu": LFU, "slru": SLRU, "priority": PRIORITY}
PROTECTED = cython.declare(cython.longlong, 2)  # slru: nodes with at least this many requests are evicted last
UNCOUNTED = cython.declare(cython.longlong, 1 << 62)  # longer than any path: the walk counts no request
HIGHEST = cython.declare(cython.longlong, (1 << 63) - 1)
LOWEST = cython.declare(cython.longlong, -HIGHEST - 1)  # the walk raises no priority


class Radix(LockedTree):
    """A radix tree of `context.capacity` blocks, including those of live requests: nodes, locks, heap of leaves.

    `policy` is one of SGLang's seven eviction policies. `priority` (int64, one per request) is used by the policy of
    that name, and can be None for the others. Raises UsageError for a policy that SGLang does not have.
    """

    def __init__(self, context: Context, demand, policy="lru", priority=None, unified=True, added=4):
        if policy not in ORDERS:
            raise UsageError(f"SGLang has no eviction policy {policy!r}. Try {', '.join(ORDERS)}.")
        rows, capacity = len(demand.full), context.capacity
        # a request adds at most `added` nodes; here four: two splits, the rest of its prompt, and its output
        nodes = 1 + min(capacity, context.blocks, added * rows)
        LockedTree.__init__(self, context, demand, nodes, capacity)
        self.run, self.created, self.rank = np.zeros((3, nodes), dtype=np.int64)
        self.requests = np.zeros(nodes, dtype=np.int32)
        self.unused, self.unused_nodes = np.arange(nodes - 1, -1, -1, dtype=np.int32), nodes - 1  # never the root's
        self.head, self.held = np.full(context.blocks, -1, dtype=np.int32), np.zeros(rows, dtype=np.int32)
        self.priority = np.zeros(rows, dtype=np.int64) if priority is None else np.ascontiguousarray(priority, np.int64)
        self.order, self.unified, self.capacity = ORDERS[policy], unified, capacity

    def residents(self):
        """The resident blocks, in ascending order."""
        ids, run, length = np.asarray(self.ids), np.asarray(self.run), np.asarray(self.length)
        runs = [
            ids[run[node] : run[node] + length[node]] if run[node] >= 0 else np.arange(length[node]) - 1 - run[node]
            for node in np.flatnonzero(length)
        ]
        return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *runs]))

    def nodes(self):
        """Number of nodes in the tree, without the root."""
        return int(np.count_nonzero(np.asarray(self.length)))

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        length, locks, children = np.asarray(self.length), np.asarray(self.locks), np.asarray(self.children)
        exists = length > 0
        if locks[exists].any():
            return f"{int((locks[exists] > 0).sum()):,} nodes are still locked"
        if length.sum() + self.free != self.capacity or length.sum() != self.evictable:
            return f"{int(length.sum()):,} blocks are resident and {self.free:,} free in a cache of {self.capacity:,}"
        if (np.bincount(np.asarray(self.parent)[exists], minlength=len(exists)) != children).any():
            return "a node's count of children is wrong"
        if not np.array_equal(self.leaves.nodes(), np.flatnonzero(exists & (children == 0))):
            return "a leaf is missing in the eviction heap"
        return None

    def peek(self, row):
        """Number of blocks that a request would hit now: a walk that refreshes and splits no node."""
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
        """Match, lock, make room, insert. Without room, the match still refreshes and splits nodes, as in SGLang."""
        start: cython.longlong = self.start[row]
        node: cython.int = ROOT
        self.matched = 0
        if self.limit[row] > 0:
            node = self._match(start, self.limit[row])
        hit: cython.longlong = self.matched
        self.lock(node, ROOT)
        if not self._take(self.full[row] + self.tail[row] - hit):
            self.unlock(node)
            return NO_ROOM
        end: cython.int = self._walk(start, self.full[row], 0, self.priority[row])
        self.free += self.matched - hit  # duplicates of resident blocks, computed again, are freed at once
        if self.matched < self.full[row]:
            end = self._add(end, start + self.matched, self.full[row] - self.matched, self.priority[row])
            self.head[self.ids[start + self.matched]] = end
        self.lock(end, node)
        self.held[row] = end
        return cython.cast(cython.int, hit)

    def grow(self, row):
        return 0 if self._take(self.grown[row] + self.grown_tail[row] - self.tail[row]) else NO_ROOM

    def finish(self, row):
        """Insert the path again, with the output, and unlock it. Blocks without a hash are freed."""
        self._walk(self.start[row], self.full[row], UNCOUNTED, self.priority[row])
        if self.grows and self.grown[row]:
            priority: cython.longlong = self.priority[row]
            self._add(self.held[row], -1 - cython.cast(cython.longlong, self.fresh[row]), self.grown[row], priority)
            # the prompt's priority is one above its output's
            self._walk(self.start[row], self.full[row], UNCOUNTED, priority + (priority < HIGHEST))
        self.free += self.grown_tail[row] if self.grows else self.tail[row]
        return self.unlock(self.held[row])

    def _match(self, start, blocks):
        """The walk of a look-up, which counts no request."""
        last: cython.int = self._walk(start, blocks, UNCOUNTED, LOWEST)
        if self.unified:
            self._use_path(last, self.matched)  # a node has a block or more
        return last

    def _use_path(self, node, nodes):
        """Use the nodes of a path, of which there are at most `nodes`, the deepest last."""
        self.clock += nodes
        now: cython.longlong = self.clock
        while node != ROOT:
            self.used[node] = now
            self._settle(node)
            node = self.parent[node]
            now -= 1
        return 0

    def _walk(self, start, blocks, counted, priority):
        """Walk a path's resident prefix: refresh its nodes, split the last one, set `matched`; returns the last node.

        Nodes that reach deeper than `counted` blocks count the request. All nodes of the prefix get at least its
        priority.
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
            self.used[child] = self._tick() if self.unified else now
            done += same
            node = child
            if same < self.length[child]:
                node = self._split(child, same)
                self._settle(child)  # the part that did not match is refreshed too
            self.rank[node] = max(self.rank[node], priority)
            self.requests[node] += done > counted
            self._settle(node)
            if node != child:
                break
        self.matched = done
        return node

    def _common(self, node, start, blocks):
        """Number of leading blocks that a node's run shares with ids[start : start + blocks]; at least 1."""
        run: cython.longlong = self.run[node]
        same: cython.int = 1
        middle: cython.int
        beyond: cython.int = cython.cast(cython.int, min(blocks, cython.cast(cython.longlong, self.length[node]))) + 1
        if self.ids[run + beyond - 2] == self.ids[start + beyond - 2]:
            return beyond - 1
        while beyond - same > 1:  # the first `same` blocks are equal, the first `beyond` blocks are not
            middle = (same + beyond) // 2
            if self.ids[run + middle - 1] == self.ids[start + middle - 1]:
                same = middle
            else:
                beyond = middle
        return same

    def _split(self, node, blocks):
        """Move a node's first blocks to a new parent node with the same locks, requests and priority; returns it."""
        upper: cython.int = self._number()
        self.run[upper], self.length[upper] = self.run[node], blocks
        self.parent[upper], self.children[upper] = self.parent[node], 1
        self.locks[upper], self.requests[upper] = self.locks[node], self.requests[node]
        self.rank[upper] = self.rank[node]
        self.used[upper] = self.created[upper] = self._tick()
        if self.unified:
            self.created[upper] = self.created[node]
            self.used[node] = self._tick()
        self.head[self.ids[self.run[node]]] = upper
        self.run[node] += blocks
        self.length[node] -= blocks
        self.parent[node] = upper
        self.head[self.ids[self.run[node]]] = node
        return upper

    def _add(self, parent, run, blocks, priority):
        """Add a leaf that one request has inserted."""
        node: cython.int = self._number()
        self.run[node], self.length[node] = run, cython.cast(cython.int, blocks)
        self.parent[node], self.children[node], self.locks[node] = parent, 0, 0
        self.requests[node], self.rank[node] = 1, priority
        self.used[node] = self.created[node] = self._tick()
        self.evictable += blocks
        self.children[parent] += 1
        self._settle(parent)
        self._settle(node)
        return node

    def _number(self):
        self.unused_nodes -= 1
        return self.unused[self.unused_nodes]

    def _take(self, blocks):
        """Take `blocks` blocks, evicting leaves if needed. Returns False and evicts nothing if there are too few."""
        if blocks > self.free + self.evictable:
            return False
        while self.free < blocks:
            self._evict(self.leaves.heap[0])
        self.free -= blocks
        return True

    def _evict(self, node):
        """Evict a whole leaf; its parent may become a leaf."""
        self.evictions += self.length[node]
        if self.run[node] >= 0:
            self.head[self.ids[self.run[node]]] = -1
        return self._remove(node)

    def _key(self, node):
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
