"""Where requests attach to the forest of earlier requests, measured in a trace. `growth.py` generates such forests.

A request's attachment is the deepest block of its path that was seen before. Its kind combines the distance from the
end of the last path that used it (0, 1, 2-3, 4-10, more) and the number of paths that used it (1, 2, 3 or more): 15
kinds, and 3 for partial blocks, which only end paths.

Twin: tests/reference/attach.py.
"""

import cython
import numpy as np

KINDS = 18  # 5 distances * 3 use counts for full blocks, then 3 for partial ones
FULL_KINDS = 15


def _kind(distance, uses):
    """The kind of a full block, by its distance from the end of the last path that used it and its uses."""
    band: cython.int = 4
    if distance <= 1:
        band = cython.cast(cython.int, distance)
    elif distance <= 3:
        band = 2
    elif distance <= 10:
        band = 3
    return band * 3 + (uses if uses < 3 else 3) - 1


def walk(hash_ids, offsets, unseen, parent, distinct):
    """The attachment of each row; ids must form a forest.

    `unseen`: row -> 1 if its partial block is not among its ids (and so counts as new). `parent`: row -> previous turn,
    or None. With None, a request continues the session of the last request that used its attachment, unless it adds no
    block after it, or more than three different blocks follow it in the whole trace (a prompt that many requests
    share). Returns three arrays with one value per row: leading blocks seen before, kind of the attachment (kinds of
    full blocks; 0 without an attachment), and 1 if the row continues a session.

    >>> hits, kind, continues = walk(np.array([0, 1, 2, 0, 1]), np.array([0, 2, 3, 5]), np.zeros(3), None, 3)
    >>> hits.tolist(), kind.tolist(), continues.tolist()
    ([0, 0, 2], [0, 0, 0], [0, 0, 0])
    """
    hash_ids, offsets = np.ascontiguousarray(hash_ids, np.int64), np.ascontiguousarray(offsets, np.int64)
    if len(hash_ids) and not (0 <= hash_ids.min() and hash_ids.max() < distinct):
        raise ValueError("hash_ids: an id is negative, or not below the number of distinct ids")
    rows = len(offsets) - 1
    hits = np.zeros(rows, dtype=np.int64)
    kind, continues = np.zeros(rows, dtype=np.int32), np.zeros(rows, dtype=np.int32)
    last_row = np.full(distinct, -1, dtype=np.int32)  # block -> row that used it last
    uses = np.zeros(distinct, dtype=np.int8)  # block -> rows that used it, 3 = or more
    ways = np.zeros(distinct, dtype=np.int32)  # block -> different blocks that follow it
    given = parent is not None
    parent = np.ascontiguousarray(parent if given else np.zeros(1), np.int64)
    if not given:
        _count_ways(hash_ids, offsets, np.zeros(distinct, dtype=np.int8), ways)
    _walk(hash_ids, offsets, np.ascontiguousarray(unseen, np.int64), given, parent, ways, hits, kind, continues,
          last_row, uses)  # fmt: skip
    return hits, kind, continues


def _count_ways(hash_ids, offsets, seen, ways):
    """Block -> number of different blocks that follow it."""
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    with cython.nogil:
        for row in range(offsets.shape[0] - 1):
            for i in range(offsets[row], offsets[row + 1]):
                if not seen[hash_ids[i]]:
                    seen[hash_ids[i]] = 1
                    if i > offsets[row]:
                        ways[hash_ids[i - 1]] += 1


def _walk(hash_ids, offsets, unseen, given, parent, ways, hits, kind, continues, last_row, uses):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    block: cython.longlong
    last: cython.int
    with cython.nogil:
        for row in range(offsets.shape[0] - 1):
            start = offsets[row]
            stop = offsets[row + 1]
            i = start
            while i < stop and uses[hash_ids[i]]:
                i += 1
            hits[row] = i - start
            if i > start:
                block = hash_ids[i - 1]
                last = last_row[block]
                kind[row] = _kind(offsets[last + 1] - offsets[last] + unseen[last] - hits[row], uses[block])
                continues[row] = stop - i + unseen[row] > 0 and ways[block] <= MOST_WAYS
            if given:
                continues[row] = parent[row] >= 0
            for i in range(start, stop):
                last_row[hash_ids[i]] = cython.cast(cython.int, row)
                if uses[hash_ids[i]] < 3:
                    uses[hash_ids[i]] += 1
