"""Numbering by first appearance, for 64-bit ids and for batches of 128-bit digests.

Twin: tests/reference/ids.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace._native.mixing import mix

MAX_DISTINCT = 2**31 - 2  # provisional ids are int32


def renumber(ids):
    """Renumber ids 0, 1, 2, ... by first appearance (int64); also returns the number of distinct ids.

    >>> renumber(np.array([7, -3, 7, 9]))
    (array([0, 1, 0, 2]), 3)
    """
    ids = np.ascontiguousarray(ids, dtype=np.int64)
    numbered = np.empty_like(ids)
    if len(ids) == 0:
        return numbered, 0
    low, high = int(ids.min()), int(ids.max())
    if 0 <= low and high < 4 * len(ids) + 1024:  # dense enough for an array: id -> number
        distinct = _renumber_dense[cython.longlong](ids, np.full(high + 1, -1, dtype=np.int64), numbered)
        return numbered, distinct
    slots = 1024
    keys, numbers = np.empty(slots, dtype=np.int64), np.full(slots, -1, dtype=np.int64)
    done, distinct = 0, 0
    while True:
        done, distinct = _renumber_sparse(ids, done, distinct, keys, numbers, numbered)
        if done == len(ids):
            return numbered, distinct
        keys, numbers = _larger(keys, numbers)


def is_numbered(ids):
    """Whether ids are already numbered 0, 1, 2, ... by first appearance.

    >>> is_numbered(np.array([0, 1, 0, 2])), is_numbered(np.array([0, 2]))
    (True, False)
    """
    return bool(_is_numbered(np.ascontiguousarray(ids, dtype=np.int64)))


def _is_numbered(ids):
    i: cython.Py_ssize_t
    fresh: cython.longlong = 0
    sound: cython.bint = True
    with cython.nogil:
        for i in range(ids.shape[0]):
            if ids[i] < 0 or ids[i] > fresh:
                sound = False
                break
            fresh += ids[i] == fresh
    return sound


def count_on(ids, first, distinct):
    """The number of distinct ids after these, if they count up by first appearance from `first`; else -1.

    `distinct` counts the ids before them.

    >>> count_on(np.array([7, 8, 7]), 7, 0), count_on(np.array([8, 9]), 7, 2), count_on(np.array([9]), 7, 1)
    (2, 3, -1)
    """
    return _count_on(np.ascontiguousarray(ids, dtype=np.int64), first, distinct)


def _count_on(ids, first, distinct):
    i: cython.Py_ssize_t
    number: cython.ulonglong
    with cython.nogil:
        for i in range(ids.shape[0]):
            number = cython.cast(cython.ulonglong, ids[i]) - cython.cast(cython.ulonglong, first)
            if number > cython.cast(cython.ulonglong, distinct):
                distinct = -1
                break
            distinct += number == cython.cast(cython.ulonglong, distinct)
    return distinct


def _larger(keys, numbers):
    """The same table with four times the slots."""
    used = numbers >= 0
    slots = len(keys) * 4
    larger_keys, larger_numbers = np.empty(slots, dtype=np.int64), np.full(slots, -1, dtype=np.int64)
    _place(keys[used], numbers[used], larger_keys, larger_numbers)
    return larger_keys, larger_numbers


def _renumber_dense(ids, number, out):
    i: cython.Py_ssize_t
    distinct: cython.longlong = 0
    with cython.nogil:
        for i in range(ids.shape[0]):
            if number[ids[i]] < 0:
                number[ids[i]] = distinct
                distinct += 1
            out[i] = number[ids[i]]
    return distinct


def _renumber_sparse(ids, done, distinct, keys, numbers, out):
    """Number ids from `done` on, until the end or until the table is half full; returns (done, distinct)."""
    i: cython.Py_ssize_t = done
    slot: cython.ulonglong
    mask: cython.ulonglong = keys.shape[0] - 1
    room: cython.longlong = keys.shape[0] // 2
    with cython.nogil:
        while i < ids.shape[0]:
            slot = mix(cython.cast(cython.ulonglong, ids[i])) & mask
            while numbers[slot] >= 0 and keys[slot] != ids[i]:
                slot = (slot + 1) & mask
            if numbers[slot] < 0:
                if distinct >= room:
                    break
                keys[slot] = ids[i]
                numbers[slot] = distinct
                distinct += 1
            out[i] = numbers[slot]
            i += 1
    return i, distinct


def _place(keys, numbers, into_keys, into_numbers):
    i: cython.Py_ssize_t
    slot: cython.ulonglong
    mask: cython.ulonglong = into_keys.shape[0] - 1
    with cython.nogil:
        for i in range(keys.shape[0]):
            slot = mix(cython.cast(cython.ulonglong, keys[i])) & mask
            while into_numbers[slot] >= 0:
                slot = (slot + 1) & mask
            into_keys[slot] = keys[i]
            into_numbers[slot] = numbers[i]


def by_first_appearance(blocks, distinct):
    """Renumber int32 blocks 0, 1, 2, ... by first appearance, in place; returns the former number of each (int32).

    >>> blocks = np.array([2, 0, 2], dtype=np.int32)
    >>> by_first_appearance(blocks, 3), blocks
    (array([2, 0], dtype=int32), array([0, 1, 0], dtype=int32))
    """
    number = np.full(distinct, -1, dtype=np.int32)
    former = np.empty(_renumber_dense[cython.int](blocks, number, blocks), dtype=np.int32)
    appear = np.flatnonzero(number >= 0)
    former[number[appear]] = appear
    return former


class DigestIndex:
    """Numbers 128-bit digests 0, 1, 2, ... by first appearance, across batches.

    Uses 16 bytes per distinct digest, and at most 16 more for the hash table and for growth. The digests are keyed
    hashes, so their own bits are the hash-table index.

    >>> index = DigestIndex()
    >>> index.add(np.array([[1, 2], [3, 4], [1, 2]], dtype=np.uint64))
    array([0, 1, 0], dtype=int32)
    >>> index.add(np.array([[5, 6], [3, 4]], dtype=np.uint64))
    array([2, 1], dtype=int32)
    """

    def __init__(self):
        self.distinct = 0
        self._digests = np.empty((512, 2), dtype=np.uint64)  # number -> digest
        self._table = np.full(1024, -1, dtype=np.int32)  # slot -> number, -1 = free

    def add(self, digests) -> np.ndarray:
        """The number of each digest, int32; new digests get the next numbers."""
        digests = np.ascontiguousarray(digests, dtype=np.uint64).reshape(-1, 2)
        numbers = np.empty(len(digests), dtype=np.int32)
        done = 0
        while True:
            done, self.distinct = _number(digests, done, self.distinct, self._digests, self._table, numbers)
            if done == len(digests):
                return numbers
            self._grow()

    def find(self, digests) -> np.ndarray:
        """The number of each digest, int32; -1 for digests that were not added.

        >>> index = DigestIndex()
        >>> numbers = index.add(np.array([[1, 2]], dtype=np.uint64))
        >>> index.find(np.array([[1, 2], [3, 4]], dtype=np.uint64)), index.distinct
        (array([ 0, -1], dtype=int32), 1)
        """
        digests = np.ascontiguousarray(digests, dtype=np.uint64).reshape(-1, 2)
        numbers = np.empty(len(digests), dtype=np.int32)
        _find(digests, self._digests, self._table, numbers)
        return numbers

    def digests(self) -> np.ndarray:
        """Number -> digest, two uint64; zeros for numbers of `fresh`."""
        return self._digests[: self.distinct]

    def fresh(self, count: int) -> np.ndarray:
        """The next `count` numbers, for blocks that no other row shares; they have no digest and no slot."""
        start = self.distinct
        if start + count > MAX_DISTINCT:
            raise OverflowError("more than 2^31 distinct blocks")
        while start + count > len(self._digests):
            self._grow()
        self._digests[start : start + count] = 0
        self.distinct += count
        return np.arange(start, start + count, dtype=np.int32)

    def _grow(self):
        if len(self._digests) > MAX_DISTINCT:
            raise OverflowError("more than 2^31 distinct blocks")
        digests = np.empty((len(self._digests) * 2, 2), dtype=np.uint64)
        digests[: self.distinct] = self._digests[: self.distinct]
        self._digests = digests
        self._table = np.full(len(digests) * 2, -1, dtype=np.int32)
        _index(self._digests, self.distinct, self._table)


def _number(digests, done, distinct, store, table, out):
    i: cython.Py_ssize_t = done
    slot: cython.ulonglong
    mask: cython.ulonglong = table.shape[0] - 1
    number: cython.int
    with cython.nogil:
        while i < digests.shape[0]:
            slot = digests[i, 0] & mask
            number = table[slot]
            while number >= 0 and not (store[number, 0] == digests[i, 0] and store[number, 1] == digests[i, 1]):
                slot = (slot + 1) & mask
                number = table[slot]
            if number < 0:
                if distinct >= store.shape[0]:
                    break
                number = distinct
                table[slot] = number
                store[number, 0] = digests[i, 0]
                store[number, 1] = digests[i, 1]
                distinct += 1
            out[i] = number
            i += 1
    return i, distinct


def _find(digests, store, table, out):
    i: cython.Py_ssize_t
    slot: cython.ulonglong
    mask: cython.ulonglong = table.shape[0] - 1
    number: cython.int
    with cython.nogil:
        for i in range(digests.shape[0]):
            slot = digests[i, 0] & mask
            number = table[slot]
            while number >= 0 and not (store[number, 0] == digests[i, 0] and store[number, 1] == digests[i, 1]):
                slot = (slot + 1) & mask
                number = table[slot]
            out[i] = number


def _index(store, distinct, table):
    i: cython.Py_ssize_t
    slot: cython.ulonglong
    mask: cython.ulonglong = table.shape[0] - 1
    with cython.nogil:
        for i in range(distinct):
            if store[i, 0] == 0 and store[i, 1] == 0:
                continue  # a number of `fresh`, without a digest
            slot = store[i, 0] & mask
            while table[slot] >= 0:
                slot = (slot + 1) & mask
            table[slot] = cython.cast(cython.int, i)
