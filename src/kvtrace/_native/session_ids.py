"""The block ids of session files: found in the JSON text, and numbered for a trace of many sessions.

Almost all of the text of a session are its `hash_ids`. `find_lists` scans them without a Python object per number; a
JSON library decodes the rest. Twin: tests/reference/session_ids.py.
"""

import cython
import numpy as np
from cython.cimports.kvtrace._native.rows import Scanner

from .ids import renumber
from .rows import PAD

SHORTEST = 13  # bytes of a key with an empty list
_W_HASH_ID = cython.declare(cython.ulonglong, int.from_bytes(b'"hash_id', "little"))
_W_ASH_IDS = cython.declare(cython.ulonglong, int.from_bytes(b'ash_ids"', "little"))
_KEY = cython.declare(cython.int, len('"hash_ids"'))


def find_lists(data, size, room=None):
    """The lists of unsigned 64-bit integers under the key `hash_ids` in a JSON text: (spans, offsets, ids).

    `data` holds `size` bytes of text and PAD more. Span k is where list k begins and ends in the text, brackets
    included; its ids are ids[offsets[k]:offsets[k + 1]], and those from 2^63 keep their bits. A list with anything else
    is not found, nor is a key inside of a string. The text need not be valid JSON. `room` may hold the ids: at least
    size // 2 + 1 values of int64.

    >>> text = b'{"hash_ids": [7, 8], "other": [1], "more": {"hash_ids": [1.5]}}'
    >>> find_lists(text + bytes(PAD), len(text))
    (array([[13, 19]]), array([0, 2]), array([7, 8]))
    """
    if not 0 <= size <= len(data) - PAD:
        raise ValueError("data must have PAD bytes after the text")
    spans = np.empty((size // SHORTEST + 1, 2), dtype=np.int64)
    offsets = np.zeros(len(spans) + 1, dtype=np.int64)
    ids = np.empty(size // 2 + 1, dtype=np.int64) if room is None else room  # untouched room takes no memory
    if len(ids) < size // 2 + 1:
        raise ValueError("the room is too small for the ids of the text")
    lists = _find_lists(Scanner(0), data, size, spans, offsets, ids)
    return spans[:lists].copy(), offsets[: lists + 1].copy(), ids[: offsets[lists]]


def _find_lists(scanner: Scanner, data: cython.const[cython.uchar][::1], size: cython.Py_ssize_t,
                spans: cython.longlong[:, ::1], offsets: cython.longlong[::1], ids: cython.longlong[::1]):  # fmt: skip
    at: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    taken: cython.Py_ssize_t
    scanner._data = data
    with cython.nogil:
        while at < size:
            if data[at] != 34:  # a quote
                at += 1
                continue
            start = at
            at += 1
            while at < size and data[at] != 34:
                at += 2 if data[at] == 92 else 1  # a backslash
            at += 1
            if at - start != _KEY or at > size or scanner._word(start) != _W_HASH_ID:
                continue
            if scanner._word(start + 2) != _W_ASH_IDS:
                continue
            start = _blanks(data, at)
            if data[start] != 58:  # a colon
                continue
            start = _blanks(data, start + 1)
            if data[start] != 91:  # [
                continue
            taken = offsets[count]
            end = _take_list(scanner, data, start + 1, ids, cython.address(taken))
            if end < 0 or end > size:
                continue
            spans[count, 0] = start
            spans[count, 1] = end
            count += 1
            offsets[count] = taken
            at = end
    return count


def _blanks(data, at):
    """The position after white space; the PAD after the text ends it."""
    while data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9:
        at += 1
    return at


def _take_list(scanner, data, at, ids, taken):
    """Scan a list from after its bracket into ids[taken:]; returns the position after it, or -1 for other content."""
    k: cython.Py_ssize_t = taken[0]
    first: cython.Py_ssize_t
    value: cython.ulonglong
    at = _blanks(data, at)
    if data[at] == 93:  # ]
        return at + 1
    while True:
        first = at
        value = 0
        while 48 <= data[at] <= 57:
            value = value * 10 + (data[at] - 48)
            at += 1
        if at == first or at - first > 18 or (data[first] == 48 and at - first > 1):
            if at == first:
                return -1
            at = scanner._long_id_end(first)  # rare: at least 19 digits
            if at < 0:
                return -1
            ids[k] = scanner._long_id(first, at)
        else:
            ids[k] = cython.cast(cython.longlong, value)
        k += 1
        at = _blanks(data, at)
        if data[at] == 93:
            taken[0] = k
            return at + 1
        if data[at] != 44:  # a comma
            return -1
        at = _blanks(data, at + 1)


def number_ids(ids):
    """The ids numbered 0, 1, 2, ... by first appearance (int32), and the distinct ids in that order (int64).

    >>> number_ids(np.array([7, 9, 7]))
    (array([0, 1, 0], dtype=int32), array([7, 9]))
    """
    ids = np.ascontiguousarray(ids, dtype=np.int64)
    if len(ids) and not (0 <= ids.min() and ids.max() < 4 * len(ids) + 1024):  # not dense enough for a table
        numbers, distinct = renumber(ids)
        values = np.empty(distinct, dtype=np.int64)
        values[numbers] = ids
        return numbers.astype(np.int32), values
    number_of = np.full(int(ids.max(initial=-1)) + 1, -1, dtype=np.int32)
    numbers, values = np.empty(len(ids), dtype=np.int32), np.empty(len(number_of), dtype=np.int64)
    distinct = _number_ids(ids, number_of, numbers, values)
    return numbers, values[:distinct].copy()


def _number_ids(ids, number_of, numbers, values):
    i: cython.Py_ssize_t
    fresh: cython.int = 0
    with cython.nogil:
        for i in range(ids.shape[0]):
            if number_of[ids[i]] < 0:
                number_of[ids[i]] = fresh
                values[fresh] = ids[i]
                fresh += 1
            numbers[i] = number_of[ids[i]]
    return fresh


def number_rows(numbers, starts, lengths, first_keys, keys, distinct):
    """The ids of some rows by first appearance: each reference is a number in its session's table of keys.

    Row r is numbers[starts[r]:starts[r] + lengths[r]] (int32), and number i of it stands for the key
    keys[first_keys[r] + i], from 0 to `distinct`. Rows end to end, in order; int64.

    >>> number_rows(np.array([0, 1, 0], dtype=np.int32), np.array([2, 0]), np.array([1, 2]), np.array([2, 0]),
    ...             np.array([5, 7, 7]), 8)
    array([0, 1, 0])
    """
    numbers = np.ascontiguousarray(numbers, dtype=np.int32)
    starts, lengths = np.ascontiguousarray(starts, dtype=np.int64), np.ascontiguousarray(lengths, dtype=np.int64)
    first_keys, keys = np.ascontiguousarray(first_keys, dtype=np.int64), np.ascontiguousarray(keys, dtype=np.int64)
    if len(keys) and not 0 <= keys.min() <= keys.max() < distinct:
        raise ValueError("a key is outside of its range")
    if len(starts) and not (starts.min() >= 0 and lengths.min() >= 0 and (starts + lengths).max() <= len(numbers)):
        raise ValueError("a row is outside of the numbers")
    ids, number_of = np.empty(int(lengths.sum()), dtype=np.int64), np.full(distinct, -1, dtype=np.int64)
    if _number_rows(numbers, starts, lengths, first_keys, keys, number_of, ids) < 0:
        raise ValueError("a number is outside of the keys")
    return ids


def _number_rows(numbers, starts, lengths, first_keys, keys, number_of, ids):
    row: cython.Py_ssize_t
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t = 0
    place: cython.longlong
    key: cython.longlong
    fresh: cython.longlong = 0
    with cython.nogil:
        for row in range(starts.shape[0]):
            for i in range(starts[row], starts[row] + lengths[row]):
                place = first_keys[row] + numbers[i]
                if place < 0 or place >= keys.shape[0]:
                    fresh = -1
                    break
                key = keys[place]
                if number_of[key] < 0:
                    number_of[key] = fresh
                    fresh += 1
                ids[at] = number_of[key]
                at += 1
            if fresh < 0:
                break
    return fresh
