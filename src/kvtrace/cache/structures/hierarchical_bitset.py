"""A set of small integers with a fast first and last element: a bitset with summary levels.

Level 0 has one bit per number. Each level above has one bit per non-empty word of the level below. The top level is one
word. Six levels cover all values of an int, so each verb takes at most six steps.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE

ONE = cython.declare(cython.ulonglong, 1)


class HierarchicalBitset:
    """A set of integers from 0 to size - 1."""

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
        """Add a number. No effect if it is in the set already."""
        level: cython.int
        index: cython.Py_ssize_t
        before: cython.ulonglong
        for level in range(self.levels):
            index = self.base[level] + (number >> 6)
            before = self.words[index]
            self.words[index] = before | (ONE << (number & 63))
            if before:  # the levels above have this word's bit already
                break
            number >>= 6
        return 0

    def clear(self, number):
        """Remove a number. No effect if it is not in the set."""
        level: cython.int
        index: cython.Py_ssize_t
        for level in range(self.levels):
            index = self.base[level] + (number >> 6)
            self.words[index] &= ~(ONE << (number & 63))
            if self.words[index]:
                break
            number >>= 6
        return 0

    def holds(self, number):
        """Whether a number is in the set."""
        return (self.words[number >> 6] >> (number & 63)) & 1

    def first(self):
        """The least number of the set, or NONE."""
        level: cython.int
        index: cython.int = 0
        if self.words[self.base[self.levels - 1]] == 0:
            return NONE
        for level in range(self.levels - 1, -1, -1):
            index = index * 64 + lowest_bit(self.words[self.base[level] + index])
        return index

    def after(self, number):
        """The least number of the set that is >= `number`, or NONE; `number` may be equal to the size."""
        level: cython.int = 0
        index: cython.Py_ssize_t = number >> 6  # index of a word in its level
        rest: cython.ulonglong
        while True:
            if index >= self.base[level + 1] - self.base[level]:
                return NONE
            rest = (self.words[self.base[level] + index] >> (number & 63)) << (number & 63)
            if rest:
                break
            level += 1
            if level == self.levels:
                return NONE
            number = cython.cast(cython.int, index + 1)
            index = number >> 6
        index = index * 64 + lowest_bit(rest)
        while level > 0:
            level -= 1
            index = index * 64 + lowest_bit(self.words[self.base[level] + index])
        return cython.cast(cython.int, index)

    def last(self):
        """The greatest number of the set, or NONE."""
        level: cython.int
        index: cython.int = 0
        if self.words[self.base[self.levels - 1]] == 0:
            return NONE
        for level in range(self.levels - 1, -1, -1):
            index = index * 64 + highest_bit(self.words[self.base[level] + index])
        return index
