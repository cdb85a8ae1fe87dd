"""A quantile of the values so far, exactly: the k-th least of n values, with k = ceil(share x n).

Two heaps, one with the k least values and one with the others; a value costs O(log n).
"""

import cython
from cython.cimports.kvtrace.cache.structures.heap import Heaps
from cython.cimports.libc.math import INFINITY, ceil


class RunningQuantile:
    """The quantile of up to `most` values; `share` is above 0 and at most 1."""

    def __init__(self, most, share):
        self.heaps, self.share = Heaps(max(most, 1), 2), share
        self.count = self.lowest = 0

    def add(self, value):
        """Add a value."""
        number: cython.int = self.count
        is_low: cython.bint = value < self.value() and self.count > 0
        self.count += 1
        self.heaps.put(0 if is_low else 1, number, -value if is_low else value, number)
        self.lowest += is_low
        while self.lowest < ceil(self.share * self.count):
            self._shift(1, 0)
            self.lowest += 1
        while self.lowest > ceil(self.share * self.count):
            self._shift(0, 1)
            self.lowest -= 1
        return 0

    def value(self):
        """The quantile, or infinity if there are no values."""
        return -self.heaps.key[self.heaps.first(0)] if self.count else INFINITY

    def _shift(self, source, target):
        """Move the first value of a heap to the other one."""
        number: cython.int = self.heaps.first(source)
        self.heaps.drop(number)
        return self.heaps.put(target, number, -self.heaps.key[number], number)
