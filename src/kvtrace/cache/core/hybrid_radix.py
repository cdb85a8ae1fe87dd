"""SGLang's tree for models of two kinds of layers: each has a pool of its own, and nodes can lose their second part.

The first pool has the blocks of the layers of full attention, as in Radix. The second one has blocks of sliding windows
(WindowRadix) or states (StateRadix). A full second pool takes from the node that was used least recently: all of a
leaf, or the second part of another node, where no request can resume from then on.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM
from cython.cimports.kvtrace.cache.core.locked_tree import ROOT
from cython.cimports.kvtrace.cache.core.radix import Radix
from cython.cimports.kvtrace.cache.policies.base import Context

NODES = 12  # that a request can add: splits where it matches, where its windows begin and where its lock ends


class HybridRadix(Radix):
    """A radix tree of `context.capacity` blocks, and a pool of `second` blocks or states."""

    def __init__(self, context: Context, demand, second, step=0, policy="lru", priority=None):
        longest = int(demand.max_blocks.max()) if len(demand) else 0
        self.step = min(step or longest, longest) or 1
        Radix.__init__(self, context, demand, policy, priority, True, NODES * max(-(-longest // self.step), 1))
        nodes, rows = len(self.length), len(demand.full)
        self.kept = np.zeros(nodes, dtype=np.int8)
        self.second_locks, self.newer, self.older = np.zeros((3, nodes), dtype=np.int32)
        self.resumed, self.shared, self.published, self.counted = np.zeros((4, rows), dtype=np.int64)
        self.computed = np.full(rows, -1, dtype=np.int64)
        self.second = self.free_second = second
        self.evictable_second = self.resident = 0
        self.seats = rows

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        kept, length = np.asarray(self.kept) > 0, np.asarray(self.length)
        if np.asarray(self.second_locks)[length > 0].any():
            return "a part of the second pool is still locked"
        total = sum(self._size(int(node)) for node in np.flatnonzero(kept))
        if total + self.free_second != self.second or total != self.evictable_second or kept[length == 0].any():
            return f"{total:,} are kept and {self.free_second:,} free in a second pool of {self.second:,}"
        return Radix.self_check(self)

    def admit(self, row):
        """Match and lock; take what each step needs and publish what it computes. Returns the hit, or NO_ROOM.

        Without room the match still refreshes and splits nodes. A later step waits: the next call goes on with it.
        """
        total: cython.longlong = self.full[row] + self.tail[row]
        first: cython.bint = self.computed[row] < 0
        begin: cython.longlong
        if first:
            if self.live >= self.seats:
                return NO_ROOM
            self._begin(row)
        begin = self.computed[row]
        while first or begin < total:
            if not self._room(row, min(self.step, total - begin), first):
                if first:
                    self._drop(row)
                    self.computed[row] = -1
                return NO_ROOM
            self.computed[row] = begin + min(self.step, total - begin)
            self._publish_step(row, begin, self.computed[row])
            begin = self.computed[row]
            first = False
        return cython.cast(cython.int, self.resumed[row])

    def grow(self, row):
        return 0

    def _begin(self, row):
        """Match a request, and lock what it hits."""
        self.matched = self.resident = 0
        self.held[row] = self._match(self.start[row], self.limit[row]) if self.limit[row] > 0 else ROOT
        self.resumed[row] = self.computed[row] = self.published[row] = self.matched
        self.shared[row] = self.resident
        return self._hold(row)

    def _hold(self, row):
        """Lock the node that a request holds, and its path."""
        return 0

    def _drop(self, row):
        """Undo `_hold`."""
        return 0

    def _room(self, row, blocks, first):
        """Take both pools' room for a step of so many blocks; False, and nothing evicted, if there is too little."""
        return True

    def _publish_step(self, row, begin, end):
        """Publish what a step has computed, from block `begin` on to `end`."""
        return 0

    def _size(self, node):
        """What a node's part of the second pool takes there."""
        return self.length[node]

    def _keep(self, node):
        """Give a node its part of the second pool, which was counted as taken; it is used now."""
        self.kept[node] = 1
        if self.second_locks[node] == 0:
            self.evictable_second += self._size(node)
        return self._link(node, ROOT)

    def _lose(self, node):
        """Free a node's part of the second pool."""
        self.kept[node] = 0
        self.free_second += self._size(node)
        self.evictable_second -= self._size(node)
        return self._unlink(node)

    def _lock_second(self, node):
        if self.second_locks[node] == 0 and self.kept[node]:
            self.evictable_second -= self._size(node)
        self.second_locks[node] += 1
        return 0

    def _unlock_second(self, node):
        self.second_locks[node] -= 1
        if self.second_locks[node] == 0 and self.kept[node]:
            self.evictable_second += self._size(node)
        return 0

    def _use(self, node, after):
        """Move a node in the ring: used less recently than `after`, where ROOT is used last."""
        self._unlink(node)
        return self._link(node, after)

    def _link(self, node, after):
        self.newer[node], self.older[node] = after, self.older[after]
        self.newer[self.older[after]] = node
        self.older[after] = node
        return 0

    def _unlink(self, node):
        self.older[self.newer[node]] = self.older[node]
        self.newer[self.older[node]] = self.newer[node]
        return 0

    def _take_second(self, number):
        """Take from the second pool, which must have enough, evicting what was used least recently."""
        victim: cython.int
        while self.free_second < number:
            victim = self.newer[ROOT]
            while self.second_locks[victim]:
                victim = self.newer[victim]
            if self.locks[victim] == 0 and self.children[victim] == 0:
                self._evict(victim)
            else:
                self._lose(victim)
        self.free_second -= number
        return 0

    def _evict(self, node):
        """Evict a whole leaf, with its part of the second pool."""
        if self.kept[node]:
            self._lose(node)
        return Radix._evict(self, node)

    def _next(self, start, done, blocks):
        """The node that continues a path of `blocks` blocks after its first `done`, or -1."""
        return self.head[self.ids[start + done]] if done < blocks else -1

    def _enter(self, child, blocks):
        """The node of a child's first `blocks` blocks: the child, or a new parent of the rest."""
        if blocks == self.length[child]:
            return child
        upper: cython.int = self._split(child, blocks)
        self._settle(child)  # a split uses both parts
        return upper

    def _insert(self, row, blocks):
        """Use the path that a request locks, walk what else is resident of its first `blocks` blocks, add the rest.

        Returns the last node; `matched` is what was resident. The nodes count a request when it first publishes them;
        on the locked path that is all of them or none.
        """
        counted: cython.longlong = self.counted[row]
        start: cython.longlong = self.start[row]
        done: cython.longlong = self.published[row]
        node: cython.int = self.held[row]
        child: cython.int = node
        same: cython.int
        self.clock += done
        now: cython.longlong = self.clock
        while child != ROOT:
            self.used[child] = now  # a locked node has no place in the heap that could change
            self.rank[child] = max(self.rank[child], self.priority[row])
            self.requests[child] += done > counted
            child = self.parent[child]
            now -= 1
        child = self._next(start, done, blocks)
        while child >= 0:
            same = self._common(child, start + done, blocks - done)
            self.used[child] = self._tick()
            node = self._enter(child, same)
            self.rank[node] = max(self.rank[node], self.priority[row])
            done += same
            self._overlap(row, node, done - same, done)
            self.requests[node] += done > counted
            self._settle(node)
            child = self._next(start, done, blocks)
        self.matched = done
        self.counted[row] = blocks
        return self._add_rest(row, node, blocks) if done < blocks else node

    def _overlap(self, row, node, begin, end):
        """A node has blocks that the request has computed too: the copies are freed."""
        self.free += end - begin
        return 0

    def _add_rest(self, row, parent, blocks):
        """Add a leaf with what follows the `matched` blocks."""
        run: cython.longlong = self.start[row] + self.matched
        node: cython.int = self._add(parent, run, blocks - self.matched, self.priority[row])
        self.head[self.ids[run]] = node
        return node
