"""Gathers rows of unequal length from one array. Twin: tests/reference/ragged.py."""

import cython
import numpy as np
from cython.cimports.kvtrace._native.mixing import mix


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


def ranges(first, lengths):
    """The numbers that count up from each first one, `lengths` of them, end to end (int64).

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    first = np.ascontiguousarray(first, dtype=np.int64)
    lengths = np.ascontiguousarray(lengths, dtype=np.int64)
    if len(first) != len(lengths) or (len(lengths) and lengths.min() < 0):
        raise ValueError("each first number needs a length of at least 0")
    numbers = np.empty(int(lengths.sum()), dtype=np.int64)
    _ranges(first, lengths, numbers)
    return numbers


def hash_rows(values, offsets, skip=None):
    """A hash (uint64) of each row's values and their places in it; values marked by `skip` are left out.

    >>> a, b, c = hash_rows(np.array([5, 6, 6, 5, 5, 6]), np.array([0, 2, 4, 6])).tolist()
    >>> a == c, a == b
    (True, False)
    """
    values = np.asarray(values)
    values = np.ascontiguousarray(values, dtype=np.int32 if values.dtype == np.int32 else np.int64)
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    skip = np.zeros(len(values), dtype=bool) if skip is None else np.ascontiguousarray(skip, dtype=bool)
    if not len(skip) == len(values) >= offsets.item(-1) or offsets[0] < 0 or (np.diff(offsets) < 0).any():
        raise ValueError("the offsets or the marks do not match the values")
    hashes = np.empty(len(offsets) - 1, dtype=np.uint64)
    if values.dtype == np.int32:
        _hash_rows[cython.int](values, offsets, skip.view(np.uint8), hashes)
    else:
        _hash_rows[cython.longlong](values, offsets, skip.view(np.uint8), hashes)
    return hashes


def _take(values, offsets, rows, out):
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    with cython.nogil:
        for i in range(rows.shape[0]):
            for j in range(offsets[rows[i]], offsets[rows[i] + 1]):
                out[at] = values[j]
                at += 1


def _ranges(first, lengths, out):
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    with cython.nogil:
        for i in range(first.shape[0]):
            for j in range(lengths[i]):
                out[at + j] = first[i] + j
            at += lengths[i]


def _hash_rows(values, offsets, skip, hashes):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    place: cython.ulonglong  # from 1
    with cython.nogil:
        for row in range(hashes.shape[0]):
            hashes[row] = 0
            for i in range(offsets[row], offsets[row + 1]):
                if not skip[i]:
                    place = i - offsets[row] + 1
                    hashes[row] += mix(mix(place) + cython.cast(cython.ulonglong, values[i]))
