"""A set of small numbers that knows its least and its greatest at once: bits, and above them a bit for each 64.

Level 0 has a bit for each number, each level above a bit for each word below that is not empty; the top is one word.
Six levels hold more numbers than an int has, so each verb takes six steps at most.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE

ONE = cython.declare(cython.ulonglong, 1)


class HierarchicalBitset:
    """A set of numbers from 0 to size - 1."""

    def __init__(self, size):
        level: cython.int = 0
        self.size = size
        words = 0
        while True:
            size = (size + 63) // 64
            self.base[level] = words
            words += max(size, 1)
            level += 1
            if size <= 1:
                break
        self.levels = level
        self.base[level] = words
        self.words = np.zeros(words, dtype=np.uint64)

    def set(self, number):
        """Put a number in; it may be there already."""
        level: cython.int
        at: cython.Py_ssize_t
        before: cython.ulonglong
        for level in range(self.levels):
            at = self.base[level] + (number >> 6)
            before = self.words[at]
            self.words[at] = before | (ONE << (number & 63))
            if before:  # the levels above know of this word
                break
            number >>= 6
        return 0

    def clear(self, number):
        """Take a number out; it may not be there."""
        level: cython.int
        at: cython.Py_ssize_t
        for level in range(self.levels):
            at = self.base[level] + (number >> 6)
            self.words[at] &= ~(ONE << (number & 63))
            if self.words[at]:
                break
            number >>= 6
        return 0

    def holds(self, number):
        """Whether a number is in the set."""
        return (self.words[number >> 6] >> (number & 63)) & 1

    def least(self):
        """The least number of the set, or NONE."""
        level: cython.int
        at: cython.int = 0
        if self.words[self.base[self.levels - 1]] == 0:
            return NONE
        for level in range(self.levels - 1, -1, -1):
            at = at * 64 + __builtin_ctzll(self.words[self.base[level] + at])
        return at

    def after(self, number):
        """The least of the set that is not below a number, or NONE; the number may be one too great for the set."""
        level: cython.int = 0
        at: cython.Py_ssize_t = number >> 6  # the word of a level that is looked at
        rest: cython.ulonglong
        while True:
            if at >= self.base[level + 1] - self.base[level]:
                return NONE
            rest = (self.words[self.base[level] + at] >> (number & 63)) << (number & 63)
            if rest:
                break
            level += 1
            if level == self.levels:
                return NONE
            number = cython.cast(cython.int, at + 1)
            at = number >> 6
        at = at * 64 + __builtin_ctzll(rest)
        while level > 0:
            level -= 1
            at = at * 64 + __builtin_ctzll(self.words[self.base[level] + at])
        return cython.cast(cython.int, at)

    def greatest(self):
        """The greatest number of the set, or NONE."""
        level: cython.int
        at: cython.int = 0
        if self.words[self.base[self.levels - 1]] == 0:
            return NONE
        for level in range(self.levels - 1, -1, -1):
            at = at * 64 + 63 - __builtin_clzll(self.words[self.base[level] + at])
        return at
