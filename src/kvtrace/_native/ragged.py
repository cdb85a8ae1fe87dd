"""Gathers rows of unequal length from one array. Twin: tests/reference/ragged.py."""

import cython
import numpy as np


def take(values, offsets, rows):
    """The given rows of `values`, which `offsets` divides into rows, end to end; and their offsets.

    Values of int32 stay so; all others become int64.

    >>> take(np.array([1, 2, 3, 4]), np.array([0, 1, 3, 4]), np.array([2, 1]))
    (array([4, 2, 3]), array([0, 1, 3]))
    """
    values = np.asarray(values)
    values = np.ascontiguousarray(values, dtype=np.int32 if values.dtype == np.int32 else np.int64)
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    if len(rows) and not (0 <= rows.min() and rows.max() < len(offsets) - 1):
        raise IndexError("rows: an index is outside the rows of offsets")
    taken_offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(offsets[rows + 1] - offsets[rows], out=taken_offsets[1:])
    taken = np.empty(taken_offsets.item(-1), dtype=values.dtype)
    if values.dtype == np.int32:
        _take[cython.int](values, offsets, rows, taken)
    else:
        _take[cython.longlong](values, offsets, rows, taken)
    return taken, taken_offsets


def _take(values, offsets, rows, out):
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    with cython.nogil:
        for i in range(rows.shape[0]):
            for j in range(offsets[rows[i]], offsets[rows[i] + 1]):
                out[at] = values[j]
                at += 1
