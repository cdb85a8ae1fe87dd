"""SGLang's radix trees: nodes are runs of blocks or pages, and unlocked leaves are evicted whole."""

from collections import namedtuple

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import NO_ROOM, Engine
from cython.cimports.kvtrace.cache.policies.base import Context
from cython.cimports.kvtrace.cache.structures.queues import Queue, Slots

from kvtrace._base.errors import UsageError


class Leaves:
    """The leaves of a tree that can be evicted, the next victim first."""

    def __init__(self, nodes):
        self.key, self.used = np.zeros((2, nodes), dtype=np.int64)
        self.heap, self.place = np.zeros(nodes, dtype=np.int32), np.full(nodes, -1, dtype=np.int32)
        self.count = 0

    def enlarge(self, nodes):
        """Make place for `nodes` nodes in all."""
        more = (0, nodes - len(self.key))
        self.key, self.used = np.pad(np.asarray(self.key), more), np.pad(np.asarray(self.used), more)
        self.heap = np.pad(np.asarray(self.heap), more)
        self.place = np.pad(np.asarray(self.place), more, constant_values=-1)

    def nodes(self):
        """The nodes in the heap, in ascending order."""
        return np.sort(np.asarray(self.heap)[: self.count])

    def put(self, node, key, used):
        """Add a node, or move it to the position of its new key."""
        self.key[node], self.used[node] = key, used
        if self.place[node] < 0:
            self._set(self.count, node)
            self.count += 1
        self._rise(self.place[node])
        return self._sink(self.place[node])

    def drop(self, node):
        """Remove a node if it is in the heap; the last node fills its place."""
        place: cython.int = self.place[node]
        if place < 0:
            return 0
        self.place[node] = -1
        self.count -= 1
        if place < self.count:
            node = self.heap[self.count]
            self._set(place, node)
            self._rise(place)
            self._sink(self.place[node])
        return 0

    def _before(self, node, other):
        if self.key[node] != self.key[other]:
            return self.key[node] < self.key[other]
        return self.used[node] < self.used[other]

    def _set(self, place, node):
        self.heap[place] = node
        self.place[node] = place
        return 0

    def _rise(self, place):
        node: cython.int = self.heap[place]
        while place > 0 and self._before(node, self.heap[(place - 1) // 2]):
            self._set(place, self.heap[(place - 1) // 2])
            place = (place - 1) // 2
        return self._set(place, node)

    def _sink(self, place):
        node: cython.int = self.heap[place]
        child: cython.int = 2 * place + 1
        while child < self.count:
            if child + 1 < self.count and self._before(self.heap[child + 1], self.heap[child]):
                child += 1
            if not self._before(self.heap[child], node):
                break
            self._set(place, self.heap[child])
            place, child = child, 2 * child + 1
        return self._set(place, node)


class LockedTree(Engine):
    """A tree of runs of blocks or pages: a request locks a path, and unlocked leaves can be evicted whole.

    Radix (SGLang's cache) and PagedRadix (the cache of SGLang's scheduler) name and divide the runs.
    """

    def __init__(self, context: Context, demand, nodes, size):
        Engine.__init__(self, context, demand)
        self.length, self.parent, self.children, self.locks, self.unused = np.zeros((5, nodes), dtype=np.int32)
        self.used = np.zeros(nodes, dtype=np.int64)
        self.leaves = Leaves(nodes)
        self.free = size
        self.unused_nodes = self.evictable = self.clock = self.matched = 0

    def lock(self, node, above):
        """Lock a node and its ancestors, up to but not including `above`."""
        while node != above:
            if self.locks[node] == 0:
                self.evictable -= self.length[node]
            self.locks[node] += 1
            self._settle(node)
            node = self.parent[node]
        return 0

    def unlock(self, node):
        """Unlock a node and its ancestors."""
        while node != ROOT:
            self.locks[node] -= 1
            if self.locks[node] == 0:
                self.evictable += self.length[node]
            self._settle(node)
            node = self.parent[node]
        return 0

    def _tick(self):
        self.clock += 1
        return self.clock

    def _settle(self, node):
        """Update a node's position in the heap of evictable leaves, or remove it if it is not one."""
        if self.locks[node] == 0 and self.children[node] == 0 and node != ROOT:
            return self.leaves.put(node, self._key(node), self.used[node])
        return self.leaves.drop(node)

    def _key(self, node):
        """The node's key in the eviction order; the smallest key is evicted first, then the least recently used."""
        return 0

    def _remove(self, node):
        """Free a leaf and its number; its parent may become a leaf."""
        parent: cython.int = self.parent[node]
        self.leaves.drop(node)
        self.free += self.length[node]
        self.evictable -= self.length[node]
        self.length[node] = 0
        self.unused[self.unused_nodes] = node
        self.unused_nodes += 1
        self.children[parent] -= 1
        return self._settle(parent)


HostTraffic = namedtuple("HostTraffic", "loaded stored evicted resident")


class HostedTree(LockedTree):
    """What a tree with a host tier below the device has (SGLang's HiCache); without one, none of it is used.

    A node has its blocks, or pages, on the device, on the host, or on both. Device nodes have device parents; a node on
    the host alone stays in the tree and is matched. Eviction is in two heaps: device nodes without children there, and
    host nodes without children.
    """

    def open_host(self, host, threshold):
        """Begin with an empty host tier of `host` blocks; `threshold` is the write policy."""
        nodes = len(self.length)
        self.device = np.ones(nodes, dtype=np.int8)
        self.backed, self.declined = np.zeros((2, nodes), dtype=np.int8)
        self.device_children, self.pins, self.after = np.zeros((3, nodes), dtype=np.int32)
        self.host_leaves, self.twice = Leaves(nodes), Queue(Slots(nodes))
        self.host = self.host_free = host
        self.threshold, self.loaded, self.stored, self.freed, self.dropped = threshold, 0, 0, 0, 0

    @property
    def host_traffic(self):
        """What moved to and from the host, in blocks; `stored` = `evicted` + `resident`."""
        return HostTraffic(self.loaded, self.stored, self.freed, self.host - self.host_free)

    def check_tiers(self):
        """A message about an inconsistency after all requests have ended, or None."""
        length, device, backed = np.asarray(self.length), np.asarray(self.device) != 0, np.asarray(self.backed) != 0
        exists, parent = length > 0, np.asarray(self.parent)
        on_device, on_host, count = exists & device, exists & backed, len(length)
        if np.asarray(self.locks)[exists].any() or np.asarray(self.pins)[exists].any():
            return "nodes are still locked or pinned"
        if length[on_device].sum() != self.evictable:
            return f"{int(length[on_device].sum()):,} blocks are on the device, and {self.evictable:,} can be evicted"
        if length[on_host].sum() + self.host_free != self.host:
            return f"{int(length[on_host].sum()):,} blocks are on the host, and {self.host_free:,} of it are free"
        children = np.bincount(parent[exists], minlength=count)
        device_children = np.bincount(parent[on_device], minlength=count)
        if (children != np.asarray(self.children)).any() or (device_children != np.asarray(self.device_children)).any():
            return "a node's count of children is wrong"
        leaves, host_leaves = on_device & (device_children == 0), on_host & ~device & (children == 0)
        if not np.array_equal(self.leaves.nodes(), np.flatnonzero(leaves)):
            return "a leaf is missing in the eviction heap of the device"
        if not np.array_equal(self.host_leaves.nodes(), np.flatnonzero(host_leaves)):
            return "a leaf is missing in the eviction heap of the host"
        return None

    def _settle_tiers(self, node):
        """Update a node's positions in the heaps of both tiers."""
        if node == ROOT:
            return 0
        if self._is_device_leaf(node) and not self.declined[node]:
            self.leaves.put(node, self._key(node), self.used[node])
        else:
            self.leaves.drop(node)
        if self.backed[node] and not self.device[node] and self.pins[node] == 0 and self.children[node] == 0:
            return self.host_leaves.put(node, self._key(node), self.used[node])
        return self.host_leaves.drop(node)

    def _is_device_leaf(self, node):
        return self.device[node] and self.locks[node] == 0 and self.device_children[node] == 0

    def _put_on_device(self, node):
        self.device[node] = True
        self.device_children[self.parent[node]] += 1
        self._settle(self.parent[node])
        return self._settle(node)

    def _count(self, node):
        """Count a request of a node; at the threshold it is copied to the host."""
        if self.threshold == WRITE_BACK:
            return 0
        self.requests[node] += 1
        if not self.backed[node] and self.requests[node] >= self.threshold:
            self._copy_path(node)
        return 0

    def _copy_path(self, node):
        """Copy a node to the host, after its ancestors; whether all found room."""
        above: cython.int = self.parent[node]
        if above != ROOT and not self.backed[above] and not self._copy_path(above):
            return False
        return self._copy(node)

    def _demote(self, node):
        """Take a leaf with a copy on the host off the device."""
        self.free += self.length[node]
        self.evictable -= self.length[node]
        self.device[node] = False
        self.device_children[self.parent[node]] -= 1
        self._settle(node)
        return self._settle(self.parent[node])

    def _leave_tree(self, node):
        """What a leaf without a copy leaves behind when it is evicted from the device."""
        self.device_children[self.parent[node]] -= 1
        self.dropped += self.length[node]
        return self._forget_twice(node)

    def _divide_tiers(self, upper, node):
        """The new upper part of a divided node is where the node is."""
        self.device[upper], self.backed[upper] = self.device[node], self.backed[node]
        self.device_children[upper] = self.device[node]
        return 0

    def _copy(self, node):
        """Copy a node to the host; False if it has no room."""
        return False

    def _unname(self, node):
        """No request finds a node any more."""
        return 0

    def _evict(self, node):
        """Evict a leaf from the device."""
        return 0

    def _has_room_on_host(self, node):
        """Whether the host has room for a node, after eviction; it is then taken."""
        need: cython.longlong = self.length[node] - self.host_free
        if need > 0 and self._evict_host(need) < need:
            return False
        self.host_free -= self.length[node]
        self.stored += self.length[node]
        self.backed[node] = True
        return True

    def _free_up(self, blocks):
        """Evict device leaves until `blocks` are free, or no leaf can go."""
        node: cython.int
        declined: cython.int = ROOT  # the last of a chain of leaves that cannot go now
        while self.free < blocks and self.leaves.count > 0:
            node = self.leaves.heap[0]
            if self.threshold == WRITE_BACK and not self.backed[node]:
                if self._copy(node):
                    self._list_twice(node)
                elif self.children[node] > 0:  # what is left below is pinned: the host has evicted all else
                    self.declined[node] = True
                    self.leaves.drop(node)
                    self.after[node], declined = declined, node
                    continue
            self._evict(node)
        while declined != ROOT:
            self.declined[declined] = False
            self._settle(declined)
            declined = self.after[declined]
        return 0

    def _list_twice(self, node):
        """With write_back, list a node that is on both tiers: its copy is freed before the host evicts."""
        if self.threshold == WRITE_BACK and self.device[node] and self.backed[node] and not self.twice.holds(node):
            self.twice.push(node)
        return 0

    def _forget_twice(self, node):
        if self.twice.holds(node):
            self.twice.drop(node)
        return 0

    def _evict_host(self, blocks):
        """Free `blocks` blocks of the host or more, or all that can go; returns how many."""
        freed: cython.int = 0
        node: cython.int
        if self.threshold == WRITE_BACK:
            freed = self._free_copies(blocks)
        while freed < blocks and self.host_leaves.count > 0:
            node = self.host_leaves.heap[0]
            freed += self.length[node]
            self._forget(node)
        return freed

    def _forget(self, node):
        """Evict a leaf that is on the host alone."""
        parent: cython.int = self.parent[node]
        self.host_leaves.drop(node)
        self._forget_twice(node)
        self.dropped += self.length[node]
        self.host_free += self.length[node]
        self.freed += self.length[node]
        self._unname(node)
        self.length[node] = 0
        self.device[node], self.backed[node] = True, False  # as a new leaf has it
        self.unused[self.unused_nodes] = node
        self.unused_nodes += 1
        self.children[parent] -= 1
        return self._settle(parent)

    def _free_copies(self, blocks):
        """Free host copies of nodes that are on the device too; those of its leaves, which it evicts next, are last."""
        freed: cython.int = 0
        place: cython.Py_ssize_t
        node: cython.int
        spares: cython.int
        for spares in range(1, -1, -1):
            place = self.twice.head
            while place < self.twice.tail and freed < blocks:
                node = self.twice.order[place]
                if self.twice.slots.slot_of_block[node] == place * 4:  # else it was removed
                    if not (self.device[node] and self.backed[node]):
                        self.twice.drop(node)
                    elif self.pins[node] == 0 and not (spares and self._is_device_leaf(node)):
                        self.twice.drop(node)
                        self.backed[node] = False
                        self.host_free += self.length[node]
                        self.freed += self.length[node]
                        freed += self.length[node]
                place += 1
        return freed


# SGLang's radix cache: a tree whose nodes are runs of blocks; eviction removes whole unlocked leaves.
#
# Block ids form a forest, so two paths with the same id at a depth are equal up to that depth. A match therefore
# compares a node's last block, or finds the end of the common part by bisection. It needs no hashes, and a run is a
# position in the trace's own ids. A request costs time per node on its path, not per block. Twin:
# tests/reference/radix.py.
#
# Two trees of SGLang differ in times alone. `unified` (UnifiedRadixCache): the nodes of a path are used one after the
# other, the deepest last; what a match leaves of a node is used before its path; a part keeps the node's time of
# creation. RadixCache: a path is used at one time, and the upper part of a node is new.


ORDERS = {"lru": LRU, "mru": MRU, "fifo": FIFO, "filo": FILO, "lfu": LFU, "slru": SLRU, "priority": PRIORITY}
PROTECTED = cython.declare(cython.longlong, 2)  # slru: nodes with at least this many requests are evicted last
UNCOUNTED = cython.declare(cython.longlong, 1 << 62)  # longer than any path: the walk counts no request
HIGHEST = cython.declare(cython.longlong, (1 << 63) - 1)
LOWEST = cython.declare(cython.longlong, -HIGHEST - 1)  # the walk raises no priority


class Radix(HostedTree):
    """A radix tree of `context.capacity` blocks, including those of live requests: nodes, locks, heap of leaves.

    `policy` is one of SGLang's seven eviction policies. `priority` (int64, one per request) is used by the policy of
    that name, and can be None for the others. Raises UsageError for a policy that SGLang does not have.
    """

    def __init__(self, context: Context, demand, policy="lru", priority=None, unified=True, added=4, below=0):
        if policy not in ORDERS:
            raise UsageError(f"SGLang has no eviction policy {policy!r}. Try {', '.join(ORDERS)}.")
        rows, capacity = len(demand.full), context.capacity
        # a request adds at most `added` nodes; here four: two splits, the rest of its prompt, and its output
        nodes = 1 + min(capacity + below, context.blocks, added * rows)
        LockedTree.__init__(self, context, demand, nodes, capacity)
        self.run, self.created, self.rank = np.zeros((3, nodes), dtype=np.int64)
        self.requests = np.zeros(nodes, dtype=np.int32)
        self.unused, self.unused_nodes = np.arange(nodes - 1, -1, -1, dtype=np.int32), nodes - 1  # never the root's
        self.head, self.held = np.full(context.blocks, -1, dtype=np.int32), np.zeros(rows, dtype=np.int32)
        self.priority = np.zeros(rows, dtype=np.int64) if priority is None else np.ascontiguousarray(priority, np.int64)
        self.order, self.unified, self.capacity = ORDERS[policy], unified, capacity

    def residents(self):
        """The resident blocks, in ascending order."""
        return self._blocks_of(True)

    def _blocks_of(self, which):
        """The blocks of some nodes (a mask, or True), in ascending order."""
        ids, run, length = np.asarray(self.ids), np.asarray(self.run), np.asarray(self.length)
        runs = [
            ids[run[node] : run[node] + length[node]] if run[node] >= 0 else np.arange(length[node]) - 1 - run[node]
            for node in np.flatnonzero((length > 0) & which)
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
        depth: cython.longlong = 0
        start: cython.longlong = self.start[row]
        while depth < self.limit[row]:
            child = self.head[self.ids[start + depth]]
            if child < 0:
                break
            same = self._common(child, start + depth, self.limit[row] - depth)
            depth += same
            if same < self.length[child]:
                break
        return cython.cast(cython.int, depth)

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
        depth: cython.longlong = 0
        now: cython.longlong = self._tick()
        while depth < blocks:
            child = self.head[self.ids[start + depth]]
            if child < 0:
                break
            same = self._common(child, start + depth, blocks - depth)
            self.used[child] = self._tick() if self.unified else now
            depth += same
            node = child
            if same < self.length[child]:
                node = self._split(child, same)
                self._settle(child)  # the part that did not match is refreshed too
            self._pass(node, depth > counted, priority)
            self._settle(node)
            if node != child:
                break
        self.matched = depth
        return node

    def _pass(self, node, counts, priority):
        """A request passes through a node, and is counted or not."""
        self.rank[node] = max(self.rank[node], priority)
        self.requests[node] += counts
        return 0

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


NOBODY = cython.declare(cython.int, -1)
NODES = 1024  # at first; the arrays double when the tree has more


def doubled(array):
    """An array of twice the length, with zeros at its end."""
    return np.pad(np.asarray(array), (0, len(array)))


class PagedRadix(HostedTree):
    """SGLang's radix tree for a scheduler: requests take pages as their tokens are computed, nodes share them.

    The tree has what tests/reference/sglang_scheduler.py's Tree has: `match`, `insert`, `lock`, `make_room` (evict
    whole leaves, least recently used first) and `take`. A scheduler owns the other pages and counts them in `free`.

    A page is named by the block of its last token, or by its request where that token has no block of the trace (an
    output, or a prompt's last tokens without an id). Block ids form a forest, so pages at the same place with the same
    name are equal, and so is all before them; pages and blocks may differ in size.
    """

    def __init__(self, context: Context, demand, page_size, tokens):
        trace, rows, pages = demand.trace, len(demand.full), tokens // page_size
        nodes = 2 + min(pages, NODES)
        LockedTree.__init__(self, context, demand, nodes, pages)
        self.page_size, self.block_size, self.own, self.pages = page_size, trace.block_size, trace.distinct, pages
        self.tokens = np.ascontiguousarray(trace.input_length, dtype=np.int64)
        self.named = np.minimum(self.tokens, trace.prompt_blocks * self.block_size)
        self.first = np.zeros(nodes, dtype=np.int64)
        self.row_of, self.following = np.zeros((2, nodes), dtype=np.int32)
        self.head = np.full(trace.distinct + rows, NOBODY, dtype=np.int32)
        self.created, self.evicted = 1, 0
        self.ahead = demand.drafting is not None
        if self.ahead:  # a page is named by the token after it, not by the block that a Demand names it by
            self.ids = trace.hash_ids.astype(np.int32, copy=False)
            self.start = np.ascontiguousarray(trace.offsets[:rows], dtype=np.int64)

    def self_check(self):
        """A message about an inconsistency after all requests have ended, or None."""
        self.evictions = self.evicted * self.page_size // self.block_size
        length, locks = np.asarray(self.length), np.asarray(self.locks)
        if locks[length > 0].any():
            return f"{int((locks[length > 0] > 0).sum()):,} nodes are still locked"
        if length.sum() + self.free != self.pages or length.sum() != self.evictable:
            return f"{int(length.sum()):,} pages are resident and {self.free:,} free in a cache of {self.pages:,}"
        if not np.array_equal(self.leaves.nodes(), np.flatnonzero((length > 0) & (np.asarray(self.children) == 0))):
            return "a leaf is missing in the eviction heap"
        return None

    def peek(self, row):
        """Number of blocks that a request would hit now: a walk that refreshes and divides no node."""
        child: cython.int
        same: cython.int
        depth: cython.longlong = 0
        pages: cython.longlong = self.pages_of(max(self.tokens[row], 1) - 1)
        while depth < pages:
            child = self._child(row, depth)
            if child == NOBODY:
                break
            same = self._common(child, row, pages)
            depth += same
            if same < self.length[child]:
                break
        return cython.cast(cython.int, depth * self.page_size // self.block_size)

    def token_name(self, row, token):
        """The block of a token, or the name of its request; two requests with the same one share all up to it."""
        if token < self.named[row]:
            return self.ids[self.start[row] + token // self.block_size]
        return self.own + row

    def match(self, row, pages):
        """The last node of the resident pages among the first `pages`; its path is used now, the deepest node last.

        `matched` is their number.
        """
        node: cython.int = ROOT
        path: cython.int
        child: cython.int
        same: cython.int
        nodes: cython.longlong = 0
        self.matched = 0
        while self.matched < pages:
            child = self._child(row, self.matched)
            if child == NOBODY:
                break
            same = self._common(child, row, pages)
            self.matched += same
            node = child
            nodes += 1
            if same < self.length[child]:
                node = self._divide(child, same)
                break
        path = node
        self.clock += nodes
        nodes = self.clock
        while path != ROOT:
            self.used[path] = nodes
            nodes -= 1
            self._settle(path)
            path = self.parent[path]
        return node

    def insert(self, row, pages):
        """Make the first `pages` pages of a request resident; returns their last node, which is used last.

        `matched` is the number of pages that were resident.
        """
        node: cython.int = ROOT
        child: cython.int
        same: cython.int
        self.matched = 0
        while self.matched < pages:
            child = self._child(row, self.matched)
            if child == NOBODY:
                break
            self.used[child] = self._tick()
            same = self._common(child, row, pages)
            self.matched += same
            node = child
            if same < self.length[child]:
                node = self._divide(child, same)
            self._settle(node)
        if self.matched < pages:
            node = self._add(node, row, self.matched, pages - self.matched)
        return node

    def make_room(self, pages):
        """Evict leaves until `pages` are free, or no leaf is left."""
        while self.free < pages and self.leaves.count > 0:
            self._evict(self.leaves.heap[0])
        return 0

    def _child(self, row, page):
        """The node that begins with a page of a request, or NOBODY."""
        node: cython.int = self.head[self._name(row, page)]
        while node != NOBODY and self.first[node] != page:
            node = self.following[node]
        return node

    def pages_of(self, tokens):
        """The pages that can be found of so many tokens: with a drafter the keys are pairs, so the last has none."""
        return max(tokens - self.ahead, 0) // self.page_size

    def _name(self, row, page):
        return self.token_name(row, (page + 1) * self.page_size - 1 + self.ahead)

    def _common(self, node, row, pages):
        """Number of leading pages of a node that are those of a request of `pages` pages; at least 1."""
        first: cython.longlong = self.first[node]
        other: cython.Py_ssize_t = self.row_of[node]
        same: cython.longlong = 1
        middle: cython.longlong
        beyond: cython.longlong = min(pages - first, cython.cast(cython.longlong, self.length[node])) + 1
        if other == row or self._name(other, first + beyond - 2) == self._name(row, first + beyond - 2):
            return cython.cast(cython.int, beyond - 1)
        while beyond - same > 1:  # the first `same` pages are equal, the first `beyond` pages are not
            middle = (same + beyond) // 2
            if self._name(other, first + middle - 1) == self._name(row, first + middle - 1):
                same = middle
            else:
                beyond = middle
        return cython.cast(cython.int, same)

    def _divide(self, node, pages):
        """Move a node's first pages to a new parent node with the same locks; returns it. Both parts are used now."""
        upper: cython.int = self._number()
        self._unlist(node)
        self.row_of[upper], self.first[upper], self.length[upper] = self.row_of[node], self.first[node], pages
        self.parent[upper], self.children[upper], self.locks[upper] = self.parent[node], 1, self.locks[node]
        self.used[upper] = self._tick()
        self.used[node] = self._tick()
        self.first[node] += pages
        self.length[node] -= pages
        self.parent[node] = upper
        self._list(upper)
        self._list(node)
        self._settle(node)
        return upper

    def _add(self, parent, row, page, pages):
        """Add a leaf."""
        node: cython.int = self._number()
        self.row_of[node], self.first[node] = cython.cast(cython.int, row), page
        self.length[node] = cython.cast(cython.int, pages)
        self.parent[node], self.children[node], self.locks[node] = parent, 0, 0
        self.used[node] = self._tick()
        self.evictable += pages
        self.children[parent] += 1
        self._list(node)
        self._settle(parent)
        self._settle(node)
        return node

    def _evict(self, node):
        """Evict a whole leaf; its parent may become a leaf."""
        self._unlist(node)
        self.evicted += self.length[node]
        return self._remove(node)

    def _list(self, node):
        """Let requests find a node by its first page."""
        name: cython.longlong = self._name(self.row_of[node], self.first[node])
        self.following[node] = self.head[name]
        self.head[name] = node
        return 0

    def _unlist(self, node):
        name: cython.longlong = self._name(self.row_of[node], self.first[node])
        before: cython.int = self.head[name]
        if before == node:
            self.head[name] = self.following[node]
            return 0
        while self.following[before] != node:
            before = self.following[before]
        self.following[before] = self.following[node]
        return 0

    def _number(self):
        """The number of a new node; those of evicted ones come first."""
        if self.unused_nodes > 0:
            self.unused_nodes -= 1
            return self.unused[self.unused_nodes]
        if self.created == self.length.shape[0]:
            with cython.gil:
                self._enlarge()
        self.created += 1
        return self.created - 1

    def _enlarge(self):
        """Double the arrays of nodes; zeros follow the values."""
        self.first, self.used = doubled(self.first), doubled(self.used)
        self.row_of, self.length, self.following = doubled(self.row_of), doubled(self.length), doubled(self.following)
        self.parent, self.children = doubled(self.parent), doubled(self.children)
        self.locks, self.unused = doubled(self.locks), doubled(self.unused)
        self.leaves.enlarge(len(self.length))
