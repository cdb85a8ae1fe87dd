"""The positions of each request's blocks in one recency list: exact reuse distances for all capacities in one pass.

A request's path moves to the front of the list, its root first. A later path takes a leading run of it away, so the
list is a sequence of runs, one per request, each the deeper end of its path; ancestors are never less recent than their
descendants. A Fenwick tree over requests counts the blocks of more recent runs, and the blocks of a run have
consecutive ranks: one lookup per run instead of one per block.

Twin: tests/reference/reuse.py.
"""

import cython
import numpy as np


def segments(hash_ids, offsets, distinct):
    """The hit blocks of each request, in runs with the same last use; ids must form a forest.

    Returns four arrays with one value per run: the request's row, the row of the blocks' last use, the number of
    blocks, and the rank of the first block: its position in the recency list, 1 = most recent. The others follow it.

    >>> [part.tolist() for part in segments(np.array([0, 1, 2, 0, 1]), np.array([0, 2, 3, 5]), 3)]
    [[2], [0], [2], [2]]
    """
    return Recency(len(offsets) - 1, distinct).found(hash_ids, offsets)


class Recency:
    """The recency list of a trace of `rows` rows and `distinct` blocks, which can come in pieces.

    >>> recency = Recency(3, 3)
    >>> [part.tolist() for part in recency.found(np.array([0, 1, 2]), np.array([0, 2, 3]))]
    [[], [], [], []]
    >>> [part.tolist() for part in recency.found(np.array([0, 1]), np.array([0, 2]))]
    [[2], [0], [2], [2]]
    """

    def __init__(self, rows, distinct):
        self._rows, self._distinct = rows, distinct
        self._last_use = np.full(distinct, -1, dtype=np.int32)  # block -> row
        self._weight = np.zeros(rows + 1, dtype=np.int64)  # Fenwick tree: row -> blocks last used by it
        self._first = self._active = 0  # the first row of the next piece; number of blocks in the list

    def found(self, hash_ids, offsets):
        """The runs of the next rows, as in `segments`. Raises ValueError if the trace has more than `rows` rows."""
        hash_ids, offsets = np.ascontiguousarray(hash_ids, np.int64), np.ascontiguousarray(offsets, np.int64)
        rows = len(offsets) - 1
        if len(hash_ids) and not (0 <= hash_ids.min() and hash_ids.max() < self._distinct):
            raise ValueError("hash_ids: an id is negative, or not below the number of distinct ids")
        if self._first + rows > self._rows:
            raise ValueError(f"the trace has more than {self._rows:,} rows")
        longest = int(np.diff(offsets).max()) if rows else 0
        found = np.empty((4, max(2 * rows, longest, 1)), dtype=np.int64)
        row, count = 0, 0
        while True:
            row, self._active, count = _segments(
                hash_ids, offsets, row, self._first, self._active, count, self._last_use, self._weight, found
            )
            if row == rows:
                self._first += rows
                return tuple(found[:, :count])
            grown = np.empty((4, 2 * found.shape[1]), dtype=np.int64)
            grown[:, :count] = found[:, :count]
            found = grown


def _segments(hash_ids, offsets, row, first, active, count, last_use, weight, found):
    """Walk rows to the end, or until `found` may be too small; returns (row, active blocks, count).

    The first row is row `first` of the trace.
    """
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    start: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    run: cython.int
    taken: cython.longlong
    before: cython.longlong
    trace_row: cython.int  # the row's number in the trace
    rows: cython.Py_ssize_t = offsets.shape[0] - 1
    all_rows: cython.Py_ssize_t = weight.shape[0] - 1  # rows of the trace
    with cython.nogil:
        while row < rows:
            trace_row = cython.cast(cython.int, first + row)
            start = offsets[row]
            stop = offsets[row + 1]
            if count + (stop - start) > found.shape[1]:
                break
            i = start
            taken = 0
            while i < stop and last_use[hash_ids[i]] >= 0:
                run = last_use[hash_ids[i]]
                begin = i
                while i < stop and last_use[hash_ids[i]] == run:
                    last_use[hash_ids[i]] = trace_row
                    i += 1
                before = active + taken  # number of more recent blocks, in the list as it was before this request
                k = run + 1
                while k > 0:
                    before -= weight[k]
                    k -= k & -k
                found[0, count] = trace_row
                found[1, count] = run
                found[2, count] = i - begin
                found[3, count] = before + 1  # a path takes a run from its first block on
                count += 1
                taken += i - begin
                active -= i - begin
                k = run + 1
                while k <= all_rows:
                    weight[k] -= i - begin
                    k += k & -k
            while i < stop:
                last_use[hash_ids[i]] = trace_row
                i += 1
            active += stop - start
            k = trace_row + 1
            while k <= all_rows:
                weight[k] += stop - start
                k += k & -k
            row += 1
    return row, active, count
