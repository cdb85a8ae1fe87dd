"""Numbers for ids and digests, hashes of tokens, and rows of unequal length gathered from one array."""

import cython
import numpy as np
from cython.cimports.kvtrace._native.mixing import mix
from cython.cimports.libc.stdlib import free, malloc

from .._base.arrays import offsets_of

# Numbering by first appearance, for 64-bit ids and for batches of 128-bit digests.
#
# Twin: tests/reference/ids.py.


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
    position, distinct = 0, 0
    while True:
        position, distinct = _renumber_sparse(ids, position, distinct, keys, numbers, numbered)
        if position == len(ids):
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


def _renumber_sparse(ids, position, distinct, keys, numbers, out):
    """Number ids from `position` on, until the end or until the table is half full; returns (position, distinct)."""
    i: cython.Py_ssize_t = position
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
        count = 0  # digests that have their number
        while True:
            count, self.distinct = _number(digests, count, self.distinct, self._digests, self._table, numbers)
            if count == len(digests):
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


def _number(digests, count, distinct, store, table, out):
    i: cython.Py_ssize_t = count
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


# Block ids of several streams in one order of rows, numbered by first appearance. Twin: tests/reference/ids.py.


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


# SipHash-2-4 with 128-bit output (Aumasson and Bernstein, 2012), and chains of it over blocks of tokens.
#
# Byte order is explicit little-endian, so all machines give the same digests. Twin: tests/reference/siphash.py.


def siphash128(key: bytes, message: bytes) -> bytes:
    """The 16-byte SipHash-2-4-128 of a message under a 16-byte key.

    >>> siphash128(bytes(range(16)), b"").hex()
    'a3817f04ba25a8e66df67214c7550293'
    """
    if len(key) != 16:
        raise ValueError("a SipHash key has 16 bytes")
    words = np.frombuffer(message[: len(message) // 8 * 8], dtype="<u8").astype(np.uint64)
    rest = message[len(words) * 8 :].ljust(7, b"\0") + bytes([len(message) & 0xFF])  # the last word ends in the length
    digest = np.empty(2, dtype=np.uint64)
    _hash_words(*_halves(key), words, int.from_bytes(rest, "little"), digest)
    return digest.astype("<u8").tobytes()


def chain(key: bytes, tokens, offsets, roots, block_size: int, tail: bool):
    """Chained digests of the blocks of all rows, and their offsets.

    Row r is tokens[offsets[r]:offsets[r + 1]] (uint32); its first block follows roots[r] (two uint64 each). With
    `tail`, a partial last block gets a digest too. The digests are an array of (low, high) uint64 pairs.
    """
    tokens = np.ascontiguousarray(tokens, dtype=np.uint32)
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    roots = np.ascontiguousarray(roots, dtype=np.uint64).reshape(-1, 2)
    if len(roots) != len(offsets) - 1 or offsets[0] != 0 or offsets.item(-1) != len(tokens) or block_size < 1:
        raise ValueError("roots, offsets and tokens have inconsistent sizes, or block_size is below 1")
    lengths = np.diff(offsets)
    blocks = -(-lengths // block_size) if tail else lengths // block_size
    block_offsets = np.zeros(len(offsets), dtype=np.int64)
    np.cumsum(blocks, out=block_offsets[1:])
    digests = np.empty((block_offsets.item(-1), 2), dtype=np.uint64)
    _chain(*_halves(key), tokens, offsets, roots, block_size, block_offsets, digests)
    return digests, block_offsets


def _halves(key):
    return int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")


def _round(v):
    v[0] += v[1]
    v[1] = (v[1] << 13) | (v[1] >> 51)
    v[1] ^= v[0]
    v[0] = (v[0] << 32) | (v[0] >> 32)
    v[2] += v[3]
    v[3] = (v[3] << 16) | (v[3] >> 48)
    v[3] ^= v[2]
    v[0] += v[3]
    v[3] = (v[3] << 21) | (v[3] >> 43)
    v[3] ^= v[0]
    v[2] += v[1]
    v[1] = (v[1] << 17) | (v[1] >> 47)
    v[1] ^= v[2]
    v[2] = (v[2] << 32) | (v[2] >> 32)


def _start(v, k0, k1):
    v[0] = k0 ^ cython.cast(cython.ulonglong, 0x736F6D6570736575)
    v[1] = k1 ^ cython.cast(cython.ulonglong, 0x646F72616E646F6D) ^ 0xEE
    v[2] = k0 ^ cython.cast(cython.ulonglong, 0x6C7967656E657261)
    v[3] = k1 ^ cython.cast(cython.ulonglong, 0x7465646279746573)


def _absorb(v, word):
    v[3] ^= word
    _round(v)
    _round(v)
    v[0] ^= word


def _finish(v, low, high):
    v[2] ^= 0xEE
    _round(v)
    _round(v)
    _round(v)
    _round(v)
    low[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    _round(v)
    _round(v)
    _round(v)
    _round(v)
    high[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


def _hash_words(k0: cython.ulonglong, k1: cython.ulonglong, words: cython.const[cython.ulonglong][::1],
                rest: cython.ulonglong, digest: cython.ulonglong[::1]):  # fmt: skip
    v: cython.ulonglong[4]
    i: cython.Py_ssize_t
    _start(v, k0, k1)
    for i in range(words.shape[0]):
        _absorb(v, words[i])
    _absorb(v, rest)
    _finish(v, cython.address(digest[0]), cython.address(digest[1]))


def _chain(k0: cython.ulonglong, k1: cython.ulonglong, tokens: cython.const[cython.uint][::1],
           offsets: cython.const[cython.longlong][::1], roots: cython.const[cython.ulonglong][:, ::1],
           block_size: cython.Py_ssize_t, block_offsets: cython.const[cython.longlong][::1],
           digests: cython.ulonglong[:, ::1]):  # fmt: skip
    v: cython.ulonglong[4]
    row: cython.Py_ssize_t
    block: cython.Py_ssize_t
    i: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    size: cython.Py_ssize_t
    rest: cython.ulonglong
    low: cython.ulonglong
    high: cython.ulonglong
    with cython.nogil:
        for row in range(roots.shape[0]):
            low = roots[row, 0]
            high = roots[row, 1]
            i = offsets[row]
            for block in range(block_offsets[row], block_offsets[row + 1]):
                stop = i + block_size
                if stop > offsets[row + 1]:
                    stop = offsets[row + 1]
                size = 16 + 4 * (stop - i)  # bytes of the message: the previous digest, then u32 tokens
                _start(v, k0, k1)
                _absorb(v, low)
                _absorb(v, high)
                while i + 1 < stop:
                    _absorb(v, cython.cast(cython.ulonglong, tokens[i])
                          | (cython.cast(cython.ulonglong, tokens[i + 1]) << 32))  # fmt: skip
                    i += 2
                rest = cython.cast(cython.ulonglong, size & 0xFF) << 56
                if i < stop:
                    rest |= cython.cast(cython.ulonglong, tokens[i])
                    i += 1
                _absorb(v, rest)
                _finish(v, cython.address(low), cython.address(high))
                digests[block, 0] = low
                digests[block, 1] = high


# Gathers rows of unequal length from one array. Twin: tests/reference/ragged.py.


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
