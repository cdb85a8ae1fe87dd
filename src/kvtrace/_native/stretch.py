"""Stretches or shrinks the core and the own blocks of paths, with several copies of the core.

A core block maps to a run of new numbers in each copy of the core. The only state is a hash table from (block, copy) to
the first of them, so memory grows with the core, not with the rows. Twin: tests/reference/stretch.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace._native.mixing import mix_once


def core_blocks(blocks, offsets, core):
    """Number of leading core blocks of each path: int64.

    >>> core_blocks(np.array([0, 1, 0, 2], dtype=np.int32), np.array([0, 2, 4]), np.array([True, False, False]))
    array([1, 1])
    """
    blocks, core = np.ascontiguousarray(blocks, dtype=np.int32), np.ascontiguousarray(core, dtype=np.uint8)
    if len(blocks) and not (0 <= blocks.min() and blocks.max() < len(core)):
        raise IndexError("blocks: a number is outside `core`")
    counts = np.zeros(len(offsets) - 1, dtype=np.int64)
    _core_blocks(blocks, np.ascontiguousarray(offsets, dtype=np.int64), core, counts)
    return counts


def stretch(blocks, offsets, kept, partial, copy, copies, end, new_offsets, keys, firsts, fresh):
    """The stretched paths (int32, end to end by new_offsets), the next new number, and the keys added to the table.

    kept: row -> number of its leading core blocks; partial: row -> 1 if the last of them is not full; copy: row -> its
    copy of the core. A core block at depth d (1, 2, ...) gets end[d] - end[d - 1] numbers, a partial one at least 1.
    keys and firsts are the hash table: a power of two of slots, at most half of them used; -1 is empty.

    >>> table = np.full(8, -1), np.full(8, -1, dtype=np.int32)
    >>> row = np.array([0, 1], dtype=np.int32), np.array([0, 2]), np.array([1]), np.array([0]), np.array([0])
    >>> stretch(*row, 1, np.array([0, 2, 4]), np.array([0, 3]), *table, 0)
    (array([0, 1, 2], dtype=int32), 3, 1)
    """
    blocks = np.ascontiguousarray(blocks, dtype=np.int32)
    if len(keys) != len(firsts) or len(keys) & (len(keys) - 1):
        raise ValueError("the number of the table's slots is not a power of two")
    longs = [np.ascontiguousarray(array, dtype=np.int64) for array in (offsets, kept, copy, end, new_offsets)]
    stretched = np.empty(longs[4].item(-1), dtype=np.int32)
    partial = np.ascontiguousarray(partial, dtype=np.uint8)
    fresh, added = _stretch(blocks, *longs, partial, copies, keys, firsts, fresh, stretched)
    return stretched, fresh, added


def moved(keys, firsts, slots):
    """The same table with `slots` slots.

    >>> keys, firsts = moved(np.array([7, -1]), np.array([3, -1], dtype=np.int32), 4)
    >>> sorted(zip(keys.tolist(), firsts.tolist()))
    [(-1, -1), (-1, -1), (-1, -1), (7, 3)]
    """
    new_keys, new_firsts = np.full(slots, -1, dtype=np.int64), np.full(slots, -1, dtype=np.int32)
    _move(keys, firsts, new_keys, new_firsts)
    return new_keys, new_firsts


def _slot(key, keys):
    """The slot of a key, or the empty slot to put it."""
    mask: cython.ulonglong = keys.shape[0] - 1
    slot: cython.ulonglong = mix_once(cython.cast(cython.ulonglong, key)) & mask
    while keys[slot] >= 0 and keys[slot] != key:
        slot = (slot + 1) & mask
    return slot


def _core_blocks(blocks, offsets, core, counts):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    with cython.nogil:
        for row in range(counts.shape[0]):
            i = offsets[row]
            while i < offsets[row + 1] and core[blocks[i]]:
                i += 1
            counts[row] = i - offsets[row]


def _stretch(blocks: cython.const[cython.int][::1], offsets: cython.const[cython.longlong][::1],
             kept: cython.const[cython.longlong][::1], copy: cython.const[cython.longlong][::1],
             end: cython.const[cython.longlong][::1], new_offsets: cython.const[cython.longlong][::1],
             partial: cython.const[cython.uchar][::1], copies: cython.longlong, keys: cython.longlong[::1],
             firsts: cython.int[::1], fresh: cython.longlong, stretched: cython.int[::1]):  # fmt: skip
    row: cython.Py_ssize_t
    d: cython.Py_ssize_t
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    width: cython.longlong
    key: cython.longlong
    added: cython.Py_ssize_t = 0
    with cython.nogil:
        for row in range(kept.shape[0]):
            at = new_offsets[row]
            for d in range(kept[row]):
                width = end[d + 1] - end[d]
                if width == 0 and partial[row] and d + 1 == kept[row]:
                    width = 1
                if width == 0:
                    continue
                key = cython.cast(cython.longlong, blocks[offsets[row] + d]) * copies + copy[row]
                slot = _slot(key, keys)
                if keys[slot] < 0:
                    keys[slot] = key
                    firsts[slot] = cython.cast(cython.int, fresh)
                    fresh += width
                    added += 1
                for i in range(width):
                    stretched[at + i] = cython.cast(cython.int, firsts[slot] + i)
                at += width
            while at < new_offsets[row + 1]:
                stretched[at] = cython.cast(cython.int, fresh)
                fresh += 1
                at += 1
    return fresh, added


def _move(keys, firsts, new_keys, new_firsts):
    old: cython.Py_ssize_t
    slot: cython.Py_ssize_t
    with cython.nogil:
        for old in range(keys.shape[0]):
            if keys[old] >= 0:
                slot = _slot(keys[old], new_keys)
                new_keys[slot] = keys[old]
                new_firsts[slot] = firsts[old]
