"""Finds words in bytes. Twin: tests/reference/words.py."""

import cython
import numpy as np

USUAL = 1 << 10  # new words in a piece
SLOTS, WIDTH = 1 << 10, 32  # of the table of words that were found before; longer words are not in it
_HIGH_BITS = cython.declare(cython.ulonglong, 0xC0C0C0C0C0C0C0C0)  # no digit, comma, colon, quote or space has one


class WordFinder:
    """Finds the words in consecutive pieces of bytes, and leaves out most of those that were found before.

    `in_words` marks the bytes of words (256 bools); all of them are 64 or larger.

    >>> in_words = np.isin(np.arange(256), list(b"abcdefgh"))
    >>> finder = WordFinder(in_words)
    >>> [(spans.tolist(), end) for spans, end in map(finder.find, (b'1 abc, "de" 23 fg', b"h abc d head"))]
    [([[2, 5], [8, 10]], 15), ([[0, 1]], 8)]
    """

    def __init__(self, in_words):
        if in_words[:64].any():
            raise ValueError("bytes of words must be 64 or larger")
        self._in_words = np.ascontiguousarray(in_words, dtype=bool).view(np.uint8)
        self._known = np.zeros((SLOTS, WIDTH), dtype=np.uint8)  # slot -> length of a word, and its bytes

    def find(self, data):
        """The start and end of each word of two bytes or more, and the start of the one at the end of the data.

        A word at the start of the data, of any length, may belong to a word before it, and is always found. The word at
        the end may go on, and is not found.
        """
        data = np.frombuffer(data, dtype=np.uint8)
        room = USUAL
        while True:
            spans, ends = np.empty((room, 2), dtype=np.int64), np.array([0, len(data)], dtype=np.int64)
            _find(data, self._in_words, self._known, spans, ends)
            count, end = ends.tolist()
            if count <= room:
                return spans[:count], end
            self._known[:], room = 0, count + SLOTS  # find them all again


def _find(data, in_words, known, spans, ends):
    at: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t
    size: cython.Py_ssize_t = data.shape[0]
    count: cython.Py_ssize_t = 0
    with cython.nogil:
        while at < size:
            if at + 8 <= size and _eight_bytes(cython.address(data[at])) & _HIGH_BITS == 0:
                at += 8
                continue
            if not in_words[data[at]]:
                at += 1
                continue
            start = at
            while at < size and in_words[data[at]]:
                at += 1
            if at == size:
                ends[1] = start
            elif start == 0 or (at - start > 1 and not _is_known(data, start, at - start, known)):
                if count < spans.shape[0]:
                    spans[count, 0] = start
                    spans[count, 1] = at
                count += 1
    ends[0] = count


def _eight_bytes(data):
    """Eight bytes as one integer; compilers turn this into one load."""
    return (
        cython.cast(cython.ulonglong, data[0])
        | cython.cast(cython.ulonglong, data[1]) << 8
        | cython.cast(cython.ulonglong, data[2]) << 16
        | cython.cast(cython.ulonglong, data[3]) << 24
        | cython.cast(cython.ulonglong, data[4]) << 32
        | cython.cast(cython.ulonglong, data[5]) << 40
        | cython.cast(cython.ulonglong, data[6]) << 48
        | cython.cast(cython.ulonglong, data[7]) << 56
    )


def _is_known(data, start, length, known):
    """Whether a word's slot has it already; else it has it from now on."""
    i: cython.Py_ssize_t
    slot: cython.ulonglong = 0
    is_same: cython.bint
    if length >= known.shape[1]:
        return False
    for i in range(start, start + length):
        slot = slot * 31 + data[i]
    slot &= known.shape[0] - 1
    is_same = known[slot, 0] == length
    i = 0
    while is_same and i < length:
        is_same = known[slot, i + 1] == data[start + i]
        i += 1
    if is_same:
        return True
    known[slot, 0] = length
    for i in range(length):
        known[slot, i + 1] = data[start + i]
    return False
