"""The rival of the hit curve: a plain compiled LRU list, for one capacity, one request at a time.

Cython in pure Python, compiled when the benchmark runs: a linked list over ids held in two arrays, which is about the
least that a simulation of one capacity can do.
"""

import cython
import numpy as np


def simulate(hash_ids, offsets, distinct, capacity):
    """Hit blocks of an LRU prefix cache of so many blocks: match, then move the path to the front, tail first."""
    before, after = np.full(distinct + 1, -1, dtype=np.int32), np.full(distinct + 1, -1, dtype=np.int32)
    return _simulate(np.asarray(hash_ids), np.asarray(offsets), before, after, capacity)


def _simulate(hash_ids: cython.const[cython.longlong][::1], offsets: cython.const[cython.longlong][::1],
              before: cython.int[::1], after: cython.int[::1], capacity: cython.Py_ssize_t):  # fmt: skip
    end: cython.int = cython.cast(cython.int, before.shape[0] - 1)  # the list's two ends meet here
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    block: cython.int
    matching: cython.bint
    held: cython.Py_ssize_t = 0
    hits: cython.longlong = 0
    with cython.nogil:
        before[end] = after[end] = end
        for row in range(offsets.shape[0] - 1):
            matching = True
            for i in range(offsets[row], offsets[row + 1]):
                matching = matching and before[hash_ids[i]] >= 0
                hits += matching
                if not matching:
                    break
            for i in range(offsets[row + 1] - 1, offsets[row] - 1, -1):
                block = cython.cast(cython.int, hash_ids[i])
                if before[block] >= 0:
                    after[before[block]] = after[block]
                    before[after[block]] = before[block]
                    held -= 1
                after[block] = after[end]
                before[block] = end
                before[after[end]] = block
                after[end] = block
                held += 1
            while held > capacity:
                block = before[end]
                before[end] = before[block]
                after[before[block]] = end
                before[block] = -1
                held -= 1
    return hits
