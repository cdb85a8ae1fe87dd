"""SGLang's trees for models of two kinds of layers: states or sliding windows beside full attention."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM
from cython.cimports.kvtrace.cache.core.radix import ROOT, Radix
from cython.cimports.kvtrace.cache.policies.base import Context

NODES = 12  # that a request can add: splits where it matches, where its windows begin and where its lock ends


class HybridRadix(Radix):
    """SGLang's tree for models of two kinds of layers: each has a pool of its own, and nodes can lose their second
    part.

    The first pool has the blocks of the layers of full attention, as in Radix. The second one has blocks of sliding
    windows (WindowRadix) or states (StateRadix). A full second pool takes from the node that was used least recently:
    all of a leaf, or the second part of another node, where no request can resume from then on.
    """

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

    def _next(self, start, depth, blocks):
        """The node that continues a path of `blocks` blocks after its first `depth`, or -1."""
        return self.head[self.ids[start + depth]] if depth < blocks else -1

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
        depth: cython.longlong = self.published[row]
        node: cython.int = self.held[row]
        child: cython.int = node
        same: cython.int
        self.clock += depth
        now: cython.longlong = self.clock
        while child != ROOT:
            self.used[child] = now  # a locked node has no place in the heap that could change
            self.rank[child] = max(self.rank[child], self.priority[row])
            self.requests[child] += depth > counted
            child = self.parent[child]
            now -= 1
        child = self._next(start, depth, blocks)
        while child >= 0:
            same = self._common(child, start + depth, blocks - depth)
            self.used[child] = self._tick()
            node = self._enter(child, same)
            self.rank[node] = max(self.rank[node], self.priority[row])
            depth += same
            self._overlap(row, node, depth - same, depth)
            self.requests[node] += depth > counted
            self._settle(node)
            child = self._next(start, depth, blocks)
        self.matched = depth
        self.counted[row] = blocks
        return self._add_rest(row, node, blocks) if depth < blocks else node

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


OWN = cython.declare(cython.longlong, 3)  # states of a live request: its own, and two that steps record in turns
RESERVED = cython.declare(cython.longlong, 5)  # states for each request that SGLang lets run


class StateRadix(HybridRadix):
    """SGLang's tree for models with states (Mamba, linear attention): a request can resume where a node ends with a
    state.

    A live request holds states of its own. Its prefill records one more: where the resident path ends, if that lies
    deeper than the last state; else at the last possible place of the prompt. The tree gets the prompt up to there,
    with that state; the blocks after it are freed when the request ends. Twin: tests/reference/sglang_hybrid.py.
    """

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
        depth: cython.longlong = 0
        hit: cython.longlong = 0
        child = self._next(start, depth, blocks)
        while child >= 0 and self._common(child, start + depth, blocks - depth) == self.length[child]:
            depth += self.length[child]
            if self.kept[child]:
                hit = depth
            child = self._next(start, depth, blocks)
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


class WindowRadix(HybridRadix):
    """SGLang's tree for models with sliding windows: a request can resume where the last window is resident too.

    A request takes blocks of both pools for all of its prompt. When the prompt is computed it frees the windows' blocks
    that no later token sees, so the tree gets those of the last window alone. A prompt that leaves a resident path
    where no request could resume is published up to there first, with its window: the next request can resume there.
    Twin: tests/reference/sglang_hybrid.py.
    """

    def __init__(self, context: Context, demand, second, window, step=0, policy="lru", priority=None):
        HybridRadix.__init__(self, context, demand, second, step, policy, priority)
        self.window = window
        self.freed, self.locked_from = np.zeros((2, len(demand.full)), dtype=np.int64)
        size, self.ahead = demand.trace.block_size, demand.drafting is not None  # the last token has no pair
        tokens = demand.trace.prompt_blocks * size if demand.mode == "block" else demand.trace.input_length
        self.partial = np.array((tokens - self.ahead) % size > 0, dtype=np.int8)
        self.partial_step = self.ahead and size > 1

    def peek(self, row):
        """Number of blocks that a request would hit now: a walk that refreshes and splits no node."""
        child: cython.int
        same: cython.int
        start: cython.longlong = self.start[row]
        blocks: cython.longlong = self.limit[row]
        depth: cython.longlong = 0
        hit: cython.longlong = 0
        behind: cython.longlong = self.window
        child = self._next(start, depth, blocks)
        while child >= 0:
            same = self._common(child, start + depth, blocks - depth)
            depth += same
            behind = behind + same if self.kept[child] else 0
            if behind >= self.window:
                hit = depth
            child = self._next(start, depth, blocks) if same == self.length[child] else -1
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
        blocks: cython.longlong = min(end - self.ahead, cython.cast(cython.longlong, self.full[row]))
        shared: cython.longlong = self.shared[row]
        partial: cython.bint = self.partial[row] if end == self.full[row] + self.tail[row] else self.partial_step
        if self.published[row] < shared <= blocks:
            self._free_outside(row, shared, False)
            self._publish(row, shared)
            return self._free_outside(row, blocks, partial)
        self._free_outside(row, blocks, partial)
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
