"""The leaves of a tree that can be evicted, the next victim first."""

import cython
import numpy as np


class Leaves:
    """A heap of nodes, the next victim first: by key, then by last use."""

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
