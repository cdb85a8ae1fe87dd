"""Paths of requests through a core tree. A node gets its block numbers at its first use.

Twin: tests/reference/tree.py.
"""

import cython
import numpy as np


def paths(node, own, parent, length, first, fresh):
    """The paths of requests: each follows the core tree from the root to a node, then has blocks of its own.

    `node` is each request's last core node, and `own` its number of own blocks. `parent` and `length` (in blocks)
    describe the tree, parents before their children; node 0 is the root and has no blocks. `first` is the first block
    number of each node, -1 before its first use, and is filled in. `fresh` is the next new number.
    Returns the paths end to end (int32), their offsets, and the next new number.

    >>> first = np.full(3, -1, dtype=np.int32)
    >>> tree = np.array([-1, 0, 1], dtype=np.int32), np.array([0, 2, 1])
    >>> paths(np.array([1, 2]), np.array([1, 0]), *tree, first, 0)
    (array([0, 1, 2, 0, 1, 3], dtype=int32), array([0, 3, 6]), 4)
    """
    node = np.ascontiguousarray(node, dtype=np.int32)
    parent, length = np.ascontiguousarray(parent, dtype=np.int32), np.ascontiguousarray(length, dtype=np.int64)
    if not len(parent) == len(length) == len(first):
        raise ValueError("parent, length and first have different lengths")
    if len(node) and not (0 <= node.min() and node.max() < len(parent)):
        raise IndexError("node: a number is outside the tree")
    depth = np.empty_like(length)  # node -> blocks from the root to its end
    _depths(parent, length, depth)
    offsets = np.zeros(len(node) + 1, dtype=np.int64)
    np.cumsum(depth[node] + own, out=offsets[1:])
    blocks = np.empty(offsets.item(-1), dtype=np.int32)
    fresh = _paths(node, offsets, parent, length, depth, first, fresh, blocks)
    return blocks, offsets, fresh


def _depths(parent, length, depth):
    node: cython.Py_ssize_t
    with cython.nogil:
        for node in range(parent.shape[0]):
            depth[node] = length[node]
            if parent[node] >= 0:
                depth[node] += depth[parent[node]]


def _paths(node, offsets, parent, length, depth, first, fresh, blocks):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    step: cython.int
    top: cython.longlong
    with cython.nogil:
        for row in range(node.shape[0]):
            # new nodes are the deeper end of the path: number them from the last one upwards
            step = node[row]
            while step >= 0 and first[step] < 0:
                step = parent[step]
            top = 0 if step < 0 else depth[step]
            step = node[row]
            while step >= 0 and first[step] < 0:
                first[step] = cython.cast(cython.int, fresh + depth[step] - length[step] - top)
                step = parent[step]
            if depth[node[row]] > top:
                fresh += depth[node[row]] - top
            step = node[row]
            while step >= 0:
                at = offsets[row] + depth[step] - length[step]
                for i in range(length[step]):
                    blocks[at + i] = cython.cast(cython.int, first[step] + i)
                step = parent[step]
            for i in range(offsets[row] + depth[node[row]], offsets[row + 1]):
                blocks[i] = cython.cast(cython.int, fresh)
                fresh += 1
    return fresh
