"""Belady's MIN over runs of blocks: the hits of the policy `belady`, one request at a time, without a state per block.

Blocks with the same next use are one queue, and the deepest leaves first (policies/belady.py). So a queue is a number,
and a request hits as many blocks as its queue still holds. Blocks that are never used again leave before all others,
and need no queue. The capacity counts idle blocks.

Twin: the policy `belady` itself, in cache/policies/belady.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.structures.hierarchical_bitset import HierarchicalBitset


def retained(next_row, blocks, first, capacity):
    """The blocks that each request hits in a cache of a capacity (int32).

    Runs of blocks are sorted by the request that used them last: `first` is request -> its first run, and has one more
    value, the number of runs. `next_row` and `blocks` (int32) are each run's next use and its number of blocks.

    >>> retained(np.array([2], np.int32), np.array([2], np.int32), np.array([0, 1, 1, 1]), 1)  # "0 1", "2", "0 1"
    array([0, 0, 1], dtype=int32)
    """
    rows = len(first) - 1
    if not len(next_row) == len(blocks) == first[rows]:
        raise ValueError("next_row and blocks need one value for each run")
    if len(next_row) and not (0 <= next_row.min() and next_row.max() < rows):
        raise ValueError("next_row: a value is negative, or not below the number of requests")
    held = np.zeros(rows, dtype=np.int32)
    _retain(next_row, blocks, np.ascontiguousarray(first, np.int64), capacity, held, HierarchicalBitset(rows))
    return held


def _retain(next_row, blocks, first, capacity, held, due):
    """Fill `held`: request -> blocks in the queue of those that it uses next. `due` has the queues that hold any."""
    row: cython.int
    run: cython.Py_ssize_t
    queue: cython.int
    idle: cython.longlong = 0  # blocks in all queues
    with cython.nogil:
        for row in range(held.shape[0]):
            if held[row] > 0:  # they hit: the request pins them
                idle -= held[row]
                due.clear(row)
            for run in range(first[row], first[row + 1]):
                queue = next_row[run]
                if held[queue] == 0:
                    due.set(queue)
                held[queue] += blocks[run]
                idle += blocks[run]
            while idle > capacity:
                queue = due.last()
                if held[queue] > idle - capacity:
                    held[queue] -= cython.cast(cython.int, idle - capacity)
                    idle = capacity
                else:
                    idle -= held[queue]
                    held[queue] = 0
                    due.clear(queue)
