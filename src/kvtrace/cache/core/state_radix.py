"""SGLang's tree for models with states (Mamba, linear attention): a request can resume where a node ends with a state.

A live request holds states of its own. Its prefill records one more: where the resident path ends, if that lies deeper
than the last state; else at the last possible place of the prompt. The tree gets the prompt up to there, with that
state; the blocks after it are freed when the request ends. Twin: tests/reference/sglang_hybrid.py.
"""

import cython
from cython.cimports.kvtrace.cache.core.hybrid_radix import HybridRadix
from cython.cimports.kvtrace.cache.core.locked_tree import ROOT
from cython.cimports.kvtrace.cache.core.radix import Radix
from cython.cimports.kvtrace.cache.policies.base import Context

OWN = cython.declare(cython.longlong, 3)  # states of a live request: its own, and two that steps record in turns
RESERVED = cython.declare(cython.longlong, 5)  # states for each request that SGLang lets run


class StateRadix(HybridRadix):
    """A tree of `context.capacity` blocks, and `second` states, which a prefill can record every `every` blocks."""

    def __init__(self, context: Context, demand, second, every, step=0, policy="lru", priority=None):
        HybridRadix.__init__(self, context, demand, second, step, policy, priority)
        self.every, self.seats = every, second // RESERVED

    def _size(self, node):
        return 1

    def peek(self, row):
        """Number of blocks that a request would hit now: a walk that refreshes and splits no node."""
        child: cython.int
        start: cython.longlong = self.start[row]
        blocks: cython.longlong = self.limit[row]
        done: cython.longlong = 0
        hit: cython.longlong = 0
        child = self._next(start, done, blocks)
        while child >= 0 and self._common(child, start + done, blocks - done) == self.length[child]:
            done += self.length[child]
            if self.kept[child]:
                hit = done
            child = self._next(start, done, blocks)
        return cython.cast(cython.int, hit)

    def finish(self, row):
        """Unlock the path; free the request's states, and the blocks that the tree does not have."""
        self.free_second += OWN
        self.free += self.full[row] + self.tail[row] - self.published[row]
        return self._unlock_both(self.held[row])

    def _hold(self, row):
        self._lock_both(self.held[row])
        if self.resumed[row] > 0:
            self._take_second(1)  # for a copy of the state
        return 0

    def _drop(self, row):
        self.free_second += self.resumed[row] > 0
        return self._unlock_both(self.held[row])

    def _room(self, row, blocks, first):
        if blocks > self.free + self.evictable:
            return False
        if first:
            self._take_second(OWN - (self.resumed[row] > 0))
        return self._take(blocks)

    def _publish_step(self, row, begin, end):
        """Publish up to the one state that a step records: where the shared path ends, else at the last place."""
        blocks: cython.longlong = min(end, cython.cast(cython.longlong, self.full[row]))
        place: cython.longlong = self.shared[row] - self.shared[row] % self.every
        if place <= begin or place > end or (place - begin) % self.every:
            place = blocks - (blocks - begin) % self.every
        return self._publish(row, place) if place > begin else 0

    def _match(self, start, blocks):
        """The last node with a state; `matched` blocks end there, and the tree has `resident` of the path."""
        child: cython.int
        same: cython.int
        best: cython.int = ROOT
        child = self._next(start, 0, blocks)
        while child >= 0:
            same = self._common(child, start + self.resident, blocks - self.resident)
            self.resident += same
            child = self._enter(child, same)
            if self.kept[child]:
                best = child
                self.matched = self.resident
            child = self._next(start, self.resident, blocks)
        if best != ROOT:
            self._use(best, ROOT)
        self._use_path(best, self.matched)
        return best

    def _publish(self, row, blocks):
        """Insert a request's first `blocks` blocks, with the state at their end, and lock them."""
        self._take_second(1)
        node: cython.int = self._insert(row, blocks)
        if self.matched == blocks:
            self.used[node] = self._tick()
            self._settle(node)
        if self.kept[node]:
            self._use(node, ROOT)
            self.free_second += 1
        else:
            self._keep(node)
        self._lock_both(node)
        self._unlock_both(self.held[row])
        self.held[row] = node
        self.published[row] = blocks
        return 0

    def _lock_both(self, node):
        if node != ROOT:
            self._lock_second(node)
        return self.lock(node, ROOT)

    def _unlock_both(self, node):
        if node != ROOT:
            self._unlock_second(node)
        return self.unlock(node)

    def _split(self, node, blocks):
        """Split a node; the state stays at its end."""
        upper: cython.int = Radix._split(self, node, blocks)
        self.kept[upper] = self.second_locks[upper] = 0
        return upper
