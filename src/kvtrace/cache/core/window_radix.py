"""SGLang's tree for models with sliding windows: a request can resume where the last window is resident too.

A request takes blocks of both pools for all of its prompt. When the prompt is computed it frees the windows' blocks
that no later token sees, so the tree gets those of the last window alone. A prompt that leaves a resident path where no
request could resume is published up to there first, with its window: the next request can resume there.
Twin: tests/reference/sglang_hybrid.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM
from cython.cimports.kvtrace.cache.core.hybrid_radix import HybridRadix
from cython.cimports.kvtrace.cache.core.locked_tree import ROOT
from cython.cimports.kvtrace.cache.core.radix import Radix
from cython.cimports.kvtrace.cache.policies.base import Context


class WindowRadix(HybridRadix):
    """A tree of `context.capacity` blocks, and `second` blocks of windows that reach `window` blocks back."""

    def __init__(self, context: Context, demand, second, window, policy="lru", priority=None):
        HybridRadix.__init__(self, context, demand, second, policy, priority)
        self.window = window
        self.freed, self.locked_from = np.zeros((2, len(demand.full)), dtype=np.int64)

    def peek(self, row):
        """Number of blocks that a request would hit now: a walk that refreshes and splits no node."""
        child: cython.int
        same: cython.int
        start: cython.longlong = self.start[row]
        blocks: cython.longlong = self.limit[row]
        done: cython.longlong = 0
        hit: cython.longlong = 0
        behind: cython.longlong = self.window
        child = self._next(start, done, blocks)
        while child >= 0:
            same = self._common(child, start + done, blocks - done)
            done += same
            behind = behind + same if self.kept[child] else 0
            if behind >= self.window:
                hit = done
            child = self._next(start, done, blocks) if same == self.length[child] else -1
        return cython.cast(cython.int, hit)

    def admit(self, row):
        """Match, lock, make room in both pools, publish. Without room, the match still refreshes and splits nodes."""
        start: cython.longlong = self.start[row]
        need: cython.longlong
        hit: cython.longlong
        node: cython.int = ROOT
        self.matched = self.resident = 0
        if self.limit[row] > 0:
            node = self._match_window(start, self.limit[row])
        hit = self.matched
        resident: cython.longlong = self.resident
        self.lock(node, ROOT)
        self._lock_window(row, node, hit)
        self.held[row] = node
        self.published[row] = hit
        need = self.full[row] + self.tail[row] - hit
        if need > self.free_second + self.evictable_second or not self._take(need):
            self._unlock_window(row)
            self.unlock(node)
            return NO_ROOM
        self._take_second(need)
        self.freed[row] = hit
        if resident > hit:
            self._free_outside(row, resident, False)
            self._publish(row, resident, 0)
            self._free_outside(row, self.full[row], self.tail[row])
        else:
            self._free_outside(row, self.full[row], self.tail[row])
            self._publish(row, self.full[row], 0)
        return cython.cast(cython.int, hit)

    def grow(self, row):
        return 0

    def finish(self, row):
        """Publish the whole prompt and unlock it."""
        self._publish(row, self.full[row], self.published[row])
        self._unlock_window(row)
        self.free += self.tail[row]
        self.free_second += self.tail[row]
        return self.unlock(self.held[row])

    def _match_window(self, start, blocks):
        """The last node at which a path can resume; `matched` blocks end there, and the tree has `resident` of it."""
        child: cython.int
        same: cython.int
        best: cython.int = ROOT
        behind: cython.longlong = self.window
        child = self._next(start, 0, blocks)
        while child >= 0:
            same = self._common(child, start + self.resident, blocks - self.resident)
            self.resident += same
            child = self._enter(child, same)
            behind = behind + same if self.kept[child] else 0
            if behind >= self.window:
                best = child
                self.matched = self.resident
            child = self._next(start, self.resident, blocks)
        self._refresh(best)
        self._use_path(best, self.matched)
        return best

    def _refresh(self, node):
        """Use the windows' blocks of the last window and a block before it, the deepest last."""
        passed: cython.longlong = 0
        after: cython.int = ROOT
        while node != ROOT and passed < self.window + 1:
            if self.kept[node]:
                self._use(node, after)
                after = node
            passed += self.length[node]
            node = self.parent[node]
        return 0

    def _lock_window(self, row, node, end):
        """Lock the nodes with the last window before a node's end, at block `end` of the request."""
        covered: cython.longlong = 0
        while node != ROOT and covered < self.window:
            self._lock_second(node)
            covered += self.length[node]
            node = self.parent[node]
        self.locked_from[row] = end - covered
        return 0

    def _unlock_window(self, row):
        """Unlock what the request locks, in which nodes may have been split since."""
        node: cython.int = self.held[row]
        place: cython.longlong = self.published[row]
        while place > self.locked_from[row]:
            self._unlock_second(node)
            place -= self.length[node]
            node = self.parent[node]
        return 0

    def _free_outside(self, row, blocks, partial):
        """Free the windows' blocks that the token after `blocks` blocks, and a partial one, does not see."""
        seen_from: cython.longlong = blocks - (not partial) - self.window
        if seen_from > self.freed[row]:
            self.free_second += seen_from - self.freed[row]
            self.freed[row] = seen_from
        return 0

    def _publish(self, row, blocks, counted):
        """Insert a request's first `blocks` blocks and lock them. Nodes that reach deeper than `counted` count it."""
        node: cython.int = self._insert(row, blocks, counted)
        self._refresh(node)
        self.lock(node, self.held[row])
        self._unlock_window(row)
        self._lock_window(row, node, blocks)
        self.held[row] = node
        self.published[row] = blocks
        self.freed[row] = max(blocks, self.freed[row])
        return 0

    def _overlap(self, row, node, begin, end):
        """Copies are freed, but windows that the node has lost are replaced by those of the request."""
        first: cython.longlong = max(begin, self.freed[row])
        self.free += end - begin
        if self.kept[node]:
            self.free_second += max(end - first, 0)
        elif first < end:
            if first > begin:
                self._enter(node, cython.cast(cython.int, first - begin))
            self._keep(node)
        return 0

    def _add_rest(self, row, parent, blocks):
        """Add a leaf; the windows that the request still has go to a node of one window, and one before it."""
        first: cython.longlong = max(self.matched, self.freed[row])
        node: cython.int = HybridRadix._add_rest(self, row, parent, blocks)
        self.requests[node] = 0  # the parts that are split off count no request
        if first < blocks:
            if first > self.matched:
                self._split(node, cython.cast(cython.int, first - self.matched))
            if self.length[node] > self.window:  # a lock shall hold one window only
                self._keep(self._split(node, cython.cast(cython.int, self.length[node] - self.window)))
            self._keep(node)
        self.requests[node] = 1
        self._settle(node)
        return node

    def _split(self, node, blocks):
        """Split a node; both parts have, lock and use windows as it did."""
        upper: cython.int = Radix._split(self, node, blocks)
        self.kept[upper], self.second_locks[upper] = self.kept[node], self.second_locks[node]
        if self.kept[upper]:
            self._link(upper, node)
        return upper
