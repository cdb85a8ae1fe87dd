"""Paths in a forest: a preorder of its blocks, and the longest beginning that a path shares with earlier paths.

Sorted in preorder, paths with long common beginnings are neighbours, and what two paths share is the least that two
neighbours between them share. So only neighbours are compared, block by block. Twin: tests/reference/tour.py.
"""

import cython
import numpy as np


def preorder(parent):
    """The place of each block in a walk from the roots that takes a block before its children (int32).

    Parents come before their children, -1 = root. Children are taken in the order of their numbers.

    >>> preorder(np.array([-1, 0, 0, 1, -1]))
    array([0, 1, 3, 2, 4], dtype=int32)
    """
    parent = _checked(parent)
    place, below = np.empty(len(parent), dtype=np.int32), np.ones(len(parent), dtype=np.int32)
    _preorder(parent, place, below)
    return place


def shared_with_earlier(parent, tip, depth, group):
    """The blocks that each path shares with one of the paths before it in its group (int64), from the root.

    A path ends at the block `tip`, which has `depth` blocks from the root to itself. `group` is -1 for a path that is
    compared with none, and `tip` is -1 for an empty path.

    >>> shared_with_earlier(np.array([-1, 0, 0, 1]), np.array([3, 2, 3]), np.array([3, 2, 3]), np.array([0, 0, 0]))
    array([0, 1, 3])
    """
    parent = _checked(parent)
    tip, depth, group = (np.ascontiguousarray(values, dtype=np.int64) for values in (tip, depth, group))
    if not len(tip) == len(depth) == len(group):
        raise ValueError("tip, depth and group have different lengths")
    if len(tip) and not (-1 <= tip.min() and tip.max() < len(parent)):
        raise ValueError("a tip is not a block")
    shared, compared = np.zeros(len(tip), dtype=np.int64), np.flatnonzero((tip >= 0) & (group >= 0))
    if not len(compared):
        return shared
    order = compared[np.lexsort((preorder(parent)[tip[compared]], group[compared]))]
    gap = np.zeros(len(order), dtype=np.int64)  # place -> blocks shared with the next place, -1 = another group
    _neighbours(parent, tip[order], depth[order], group[order], gap)
    place = np.argsort(order)  # of the paths in their own order
    before, after = np.arange(-1, len(order) - 1), np.arange(1, len(order) + 1)
    found = np.zeros(len(order), dtype=np.int64)
    _remove_latest(place, before, after, gap, found)
    shared[order] = found
    return shared


def _checked(parent):
    parent = np.ascontiguousarray(parent, dtype=np.int32)
    if len(parent) and (parent.min() < -1 or (parent >= np.arange(len(parent), dtype=np.int32)).any()):
        raise ValueError("parent: a block does not come after its parent")
    return parent


def _preorder(parent, place, below):
    block: cython.Py_ssize_t
    roots: cython.int = 0
    with cython.nogil:
        for block in range(parent.shape[0] - 1, -1, -1):  # blocks below each one, and itself
            if parent[block] >= 0:
                below[parent[block]] += below[block]
        for block in range(parent.shape[0]):  # from here on, `below` is the place of the next child
            if parent[block] >= 0:
                place[block] = below[parent[block]]
                below[parent[block]] += below[block]
            else:
                place[block] = roots
                roots += below[block]
            below[block] = place[block] + 1


def _neighbours(parent, tip, depth, group, gap):
    i: cython.Py_ssize_t
    one: cython.longlong
    other: cython.longlong
    shared: cython.longlong
    with cython.nogil:
        for i in range(tip.shape[0]):
            if i + 1 == tip.shape[0] or group[i] != group[i + 1]:
                gap[i] = -1
                continue
            one = tip[i]
            other = tip[i + 1]
            shared = depth[i]
            while one != other:  # the later block is not above the other one
                if one > other:
                    one = parent[one]
                    shared -= 1
                else:
                    other = parent[other]
            gap[i] = shared


def _remove_latest(place, before, after, gap, found):
    """From the last path to the first: its neighbours are earlier paths; then it leaves the list."""
    i: cython.Py_ssize_t
    at: cython.longlong
    left: cython.longlong
    right: cython.longlong
    most: cython.longlong
    with cython.nogil:
        for i in range(place.shape[0] - 1, -1, -1):
            at = place[i]
            left = before[at]
            right = after[at]
            most = max(gap[at], 0)
            if left >= 0:
                most = max(most, gap[left])
                gap[left] = min(gap[left], gap[at])
                after[left] = right
            if right < before.shape[0]:
                before[right] = left
            found[at] = most
