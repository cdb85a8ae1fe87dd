"""Block ids of several streams in one order of rows, numbered by first appearance. Twin: tests/reference/ids.py."""

import cython
import numpy as np
from cython.cimports.libc.stdlib import free, malloc

from .._base.offsets import offsets_of


def merge_ids(parts, counts, offsets, order):
    """The ids of the rows of all streams in a new order, numbered 0, 1, 2, ... by first appearance; and their offsets.

    Args:
        parts: Stream -> its ids (int32), row by row, from 0 to its count - 1. Streams share no id.
        counts: Stream -> number of its ids.
        offsets: Stream -> offsets that divide its ids into rows.
        order: Numbers of the rows in their new order; rows are counted through all streams.

    Raises:
        ValueError: An id or an offset is out of range.
        IndexError: A row number is out of range.

    >>> first, second = np.array([0, 1], dtype=np.int32), np.array([0, 0, 1], dtype=np.int32)
    >>> merge_ids([first, second], [2, 2], [np.array([0, 2]), np.array([0, 1, 3])], np.array([1, 0, 2]))
    (array([0, 1, 2, 0, 3]), array([0, 1, 3, 5]))
    """
    parts = [np.ascontiguousarray(part, dtype=np.int32) for part in parts]
    offsets = [np.asarray(bounds, dtype=np.int64) for bounds in offsets]
    order = np.ascontiguousarray(order, dtype=np.int64)
    for part, count, bounds in zip(parts, counts, offsets, strict=True):
        if len(part) and not 0 <= part.min() <= part.max() < count:
            raise ValueError("an id is outside its stream's ids")
        if bounds[0] != 0 or bounds.item(-1) != len(part) or (np.diff(bounds) < 0).any():
            raise ValueError("the offsets do not match the ids")
    stream = np.repeat(np.arange(len(parts)), [len(bounds) - 1 for bounds in offsets])
    if len(order) and not 0 <= order.min() <= order.max() < len(stream):
        raise IndexError("a row is outside the rows of the streams")
    starts = np.concatenate([bounds[: len(bounds) - 1] for bounds in offsets])[order]
    lengths = np.concatenate([np.diff(bounds) for bounds in offsets])[order]
    merged_offsets, first = offsets_of(lengths), offsets_of(counts)
    merged = np.empty(merged_offsets.item(-1), dtype=np.int64)
    number = np.zeros(first.item(-1), dtype=np.int32)  # id, counted through all streams -> its number + 1; 0 = none
    _merge(parts, first, number, stream[order], starts, merged_offsets, merged)
    return merged, merged_offsets


def _merge(parts, first, number, stream, starts, offsets, out):
    ids: cython.const[cython.int][::1]
    streams: cython.Py_ssize_t = len(parts)
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    row: cython.pointer[cython.const[cython.int]]
    numbers: cython.pointer[cython.int]
    distinct: cython.int = 0
    ids_of: cython.pointer[cython.pointer[cython.const[cython.int]]] = cython.cast(
        cython.pointer[cython.pointer[cython.const[cython.int]]], malloc((streams + 1) * cython.sizeof(cython.p_void))
    )
    if ids_of == cython.NULL:
        raise MemoryError
    for i in range(streams):
        ids = parts[i]
        ids_of[i] = cython.address(ids[0]) if ids.shape[0] else cython.NULL
    with cython.nogil:
        for i in range(stream.shape[0]):
            if offsets[i] == offsets[i + 1]:
                continue
            row = ids_of[stream[i]] + starts[i] - offsets[i]
            numbers = cython.address(number[first[stream[i]]])
            for j in range(offsets[i], offsets[i + 1]):
                if numbers[row[j]] == 0:
                    distinct += 1
                    numbers[row[j]] = distinct
                out[j] = numbers[row[j]] - 1
    free(ids_of)
