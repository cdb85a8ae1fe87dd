"""SGLang's radix tree for a scheduler: requests take pages as their tokens are computed, nodes share them.

The tree has what tests/reference/sglang_scheduler.py's Tree has: `match`, `insert`, `lock`, `make_room` (evict whole
leaves, least recently used first) and `take`. A scheduler owns the other pages and counts them in `free`.

A page is named by the block of its last token, or by its request where that token has no block of the trace (an output,
or a prompt's last tokens without an id). Block ids form a forest, so pages at the same place with the same name are
equal, and so is all before them; pages and blocks may differ in size.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.core.locked_tree import ROOT, LockedTree
from cython.cimports.kvtrace.cache.policies.base import Context

NOBODY = cython.declare(cython.int, -1)
NODES = 1024  # at first; the arrays double when the tree has more


def doubled(array):
    """An array of twice the length, with zeros at its end."""
    return np.pad(np.asarray(array), (0, len(array)))


class PagedRadix(LockedTree):
    """A pool of `tokens` tokens in pages of `page_size`; `demand` is the BlockDemand in mode grow."""

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
        done: cython.longlong = 0
        pages: cython.longlong = (max(self.tokens[row], 1) - 1) // self.page_size
        while done < pages:
            child = self._child(row, done)
            if child == NOBODY:
                break
            same = self._common(child, row, pages)
            done += same
            if same < self.length[child]:
                break
        return cython.cast(cython.int, done * self.page_size // self.block_size)

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

    def _name(self, row, page):
        return self.token_name(row, (page + 1) * self.page_size - 1)

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
