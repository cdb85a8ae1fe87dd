"""For each request of an agent: which earlier request, completed by its start, shares the longest prefix with it.

Twin: tests/reference/recorded.py.
"""

import cython
import numpy as np


def longest_prefixes(order, bounds, start, end, hash_ids, offsets):
    """The request that each request continues, and whether that had completed by its start.

    `order` lists requests agent by agent, each in the order of their starts; agent g is order[bounds[g]:bounds[g + 1]].
    Of the requests of its agent that end by its start, a request continues the one that shares the most leading blocks
    with it, and of several the one that ended last. If none had ended, it is the one before it; -1 for the first.
    Ids must be numbers from 0 of a forest, so that two prompts with a common block share all blocks before it.

    >>> longest_prefixes(np.array([0, 1, 2]), np.array([0, 3]), np.array([0.0, 5.0, 9.0]), np.array([4.0, 8.0, 9.0]),
    ...                  np.array([0, 1, 2, 0, 1, 3]), np.array([0, 2, 3, 6]))
    (array([-1,  0,  0]), array([False,  True,  True]))
    """
    order = np.ascontiguousarray(order, dtype=np.int64)
    bounds = np.ascontiguousarray(bounds, dtype=np.int64)
    hash_ids, offsets = np.ascontiguousarray(hash_ids, np.int64), np.ascontiguousarray(offsets, np.int64)
    place = np.arange(len(order))
    group = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    start, end = np.ascontiguousarray(start[order], np.float64), np.ascontiguousarray(end[order], np.float64)
    ended = np.ascontiguousarray(np.lexsort((place, end, group)))  # places, agent by agent in the order of their ends
    if len(hash_ids) and hash_ids.min() < 0:
        raise ValueError("hash_ids: an id is negative")
    holder = np.full(int(hash_ids.max(initial=-1)) + 1, -1, dtype=np.int64)  # block -> place of the last that ended
    found = np.full(len(order), -1, dtype=np.int64)
    completed = np.zeros(len(order), dtype=np.uint8)
    _longest_prefixes(order, bounds, start, end, ended, hash_ids, offsets, holder, found, completed)
    return np.where(found >= 0, order[found], -1), completed.astype(bool)


def _longest_prefixes(order, bounds, start, end, ended, hash_ids, offsets, holder, found, completed):
    group: cython.Py_ssize_t
    k: cython.Py_ssize_t
    i: cython.Py_ssize_t
    next_end: cython.Py_ssize_t
    j: cython.Py_ssize_t
    last: cython.longlong
    low: cython.longlong
    high: cython.longlong
    middle: cython.longlong
    first: cython.longlong
    with cython.nogil:
        for group in range(bounds.shape[0] - 1):
            next_end = bounds[group]
            last = -1
            for k in range(bounds[group], bounds[group + 1]):
                while next_end < bounds[group + 1] and ended[next_end] < k and end[ended[next_end]] <= start[k]:
                    j = ended[next_end]
                    for i in range(offsets[order[j]], offsets[order[j] + 1]):
                        holder[hash_ids[i]] = j
                    last = j
                    next_end += 1
                if last < 0:
                    found[k] = k - 1 if k > bounds[group] else -1
                    continue
                first = low = offsets[order[k]]  # blocks before `low` are held, the one at `high` is not
                high = offsets[order[k] + 1]
                while low < high:
                    middle = (low + high) // 2
                    if holder[hash_ids[middle]] >= bounds[group]:
                        low = middle + 1
                    else:
                        high = middle
                found[k] = holder[hash_ids[low - 1]] if low > first else last
                completed[k] = 1
