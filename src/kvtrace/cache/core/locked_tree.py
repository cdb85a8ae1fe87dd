"""A tree of runs of blocks or pages: a request locks a path, and unlocked leaves can be evicted whole.

Radix (SGLang's cache) and PagedRadix (the cache of SGLang's scheduler) name and divide the runs.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.engine import Engine
from cython.cimports.kvtrace.cache.core.leaves import Leaves
from cython.cimports.kvtrace.cache.policies.base import Context


class LockedTree(Engine):
    """A tree with numbers for `nodes` nodes, and room for `size` blocks or pages."""

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
