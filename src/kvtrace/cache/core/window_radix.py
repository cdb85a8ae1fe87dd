"""SGLang's tree for models with sliding windows: a request can resume where the last window is resident too.

A request takes blocks of both pools for all of its prompt. When the prompt is computed it frees the windows' blocks
that no later token sees, so the tree gets those of the last window alone. A prompt that leaves a resident path where no
request could resume is published up to there first, with its window: the next request can resume there.
Twin: tests/reference/sglang_hybrid.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.hybrid_radix import HybridRadix
from cython.cimports.kvtrace.cache.core.locked_tree import ROOT
from cython.cimports.kvtrace.cache.core.radix import Radix
from cython.cimports.kvtrace.cache.policies.base import Context


class WindowRadix(HybridRadix):
    """A tree of `context.capacity` blocks, and `second` blocks of windows that reach `window` blocks back."""

    def __init__(self, context: Context, demand, second, window, step=0, policy="lru", priority=None):
        HybridRadix.__init__(self, context, demand, second, step, policy, priority)
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

    def finish(self, row):
        """Publish the whole prompt and unlock it."""
        self._publish(row, self.full[row])
        self.free += self.tail[row]
        self.free_second += self.tail[row]
        return self._drop(row)

    def _hold(self, row):
        self.freed[row] = self.published[row]
        self.lock(self.held[row], ROOT)
        return self._lock_window(row)

    def _drop(self, row):
        self._unlock_window(row)
        return self.unlock(self.held[row])

    def _room(self, row, blocks, first):
        if blocks > self.free_second + self.evictable_second or not self._take(blocks):
            return False
        self._take_second(blocks)
        return True

    def _publish_step(self, row, begin, end):
        """Free the windows that no later token sees, and publish what the step has computed.

        Where the request shares more than it hit, publish up to there first, so that the next request can resume there.
        """
        blocks: cython.longlong = min(end, cython.cast(cython.longlong, self.full[row]))
        shared: cython.longlong = self.shared[row]
        if self.published[row] < shared <= blocks:
            self._free_outside(row, shared, False)
            self._publish(row, shared)
            return self._free_outside(row, blocks, end > blocks)
        self._free_outside(row, blocks, end > blocks)
        return self._publish(row, blocks)

    def _match(self, start, blocks):
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

    def _lock_window(self, row):
        """Lock the nodes with the last window before the end of what is published."""
        node: cython.int = self.held[row]
        covered: cython.longlong = 0
        while node != ROOT and covered < self.window:
            self._lock_second(node)
            covered += self.length[node]
            node = self.parent[node]
        self.locked_from[row] = self.published[row] - covered
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

    def _publish(self, row, blocks):
        """Insert a request's first `blocks` blocks and lock them."""
        node: cython.int = self._insert(row, blocks)
        self._refresh(node)
        self.lock(node, self.held[row])
        self._unlock_window(row)
        self.held[row] = node
        self.published[row] = blocks
        self.freed[row] = max(blocks, self.freed[row])
        return self._lock_window(row)

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
