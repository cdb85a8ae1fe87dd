"""Arrays: rows of unequal length end to end (Arrow's list layout), one that grows at its end, digests, mixed bits.

The mix is SplitMix64 (Steele et al., 2014); `_native/mixing.pxd` has the same in C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np


def offsets_of(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """The offsets of rows of these lengths, with the end of the last row: row r is values[offsets[r]:offsets[r + 1]].

    >>> offsets_of([2, 0, 3])
    array([0, 2, 2, 5])
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    return offsets


def batches(offsets: np.ndarray, values: int) -> Iterator[slice]:
    """All rows in slices of about `values` values; a row with more is a slice of its own.

    >>> list(batches(np.array([0, 2, 3, 9, 9]), 4))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None)]
    """
    start, rows = 0, len(offsets) - 1
    while start < rows:
        stop = int(np.searchsorted(offsets, offsets[start] + values, side="right")) - 1
        yield slice(start, max(stop, start + 1))
        start = max(stop, start + 1)


def in_first(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether each value of rows in two segments is in the first one; a row has `first` values, then `second` ones.

    >>> in_first(np.array([2, 0]), np.array([0, 1]))
    array([ True,  True, False])
    """
    return np.repeat(np.tile([True, False], len(first)), np.stack([first, second], axis=1).ravel())


def joined(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The values of two segments, row by row; a segment has its values, and how many each row has.

    >>> joined((np.array([1, 2, 3]), np.array([2, 1])), (np.array([8, 9]), np.array([0, 2])))
    array([1, 2, 3, 8, 9])
    """
    is_first = in_first(first[1], second[1])
    whole = np.empty((len(is_first), *first[0].shape[1:]), dtype=first[0].dtype)
    whole[is_first], whole[~is_first] = first[0], second[0]
    return whole


class GrowingArray:
    """An array that grows at its end; untouched capacity needs no memory.

    >>> array = GrowingArray(np.int64)
    >>> array.extend(np.array([5, 6]))
    >>> array.extend(np.array([7]))
    >>> array.values()
    array([5, 6, 7])
    """

    def __init__(self, dtype: Any) -> None:
        self._array, self._length = np.empty(1 << 12, dtype=dtype), 0

    def extend(self, values: np.ndarray, growth: float = 1.0) -> None:
        """Append values; the array is expected to become `growth` times as long as it is then."""
        length = self._length + len(values)
        if length > len(self._array):
            room = max(int(length * growth * 1.05), len(self._array) * 3 // 2, length)
            larger = np.empty(room, dtype=self._array.dtype)
            larger[: self._length] = self._array[: self._length]
            self._array = larger
        self._array[self._length : length] = values
        self._length = length

    def values(self) -> np.ndarray:
        """The values so far."""
        return self._array[: self._length]


GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = (1 << 64) - 1


def numbers_of_digests(number: Callable[[np.ndarray], np.ndarray], digests: np.ndarray | None, rows: int) -> np.ndarray:
    """Row -> the number that `number` gives its digest (int64); -1 = none: zeros, or None for all rows.

    >>> numbers_of_digests(lambda digests: digests[:, 0], np.array([[5, 5], [0, 0]], dtype=np.uint64), 2)
    array([ 5, -1])
    """
    numbers = np.full(rows, -1, dtype=np.int64)
    if digests is not None:
        has_digest = digests.any(axis=1)
        numbers[has_digest] = number(digests[has_digest])
    return numbers


def split_mix(values: np.ndarray) -> np.ndarray:
    """The first number of a SplitMix64 generator seeded with each value.

    >>> split_mix(np.array([0]))
    array([16294208416658607535], dtype=uint64)
    """
    return mix(values.astype(np.uint64) + np.uint64(GAMMA))


def mix(values: np.ndarray) -> np.ndarray:
    """Each number (uint64) with its bits mixed over the word; different numbers stay different.

    >>> int(mix(np.array([1], dtype=np.uint64))[0]) >> 32 > 0
    True
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(SECOND)
    return values ^ (values >> np.uint64(31))


def mix_number(value: int) -> int:
    """Like `mix`, of the lowest 64 bits of one Python number, without the cost of an array.

    >>> mix_number(1) == int(mix(np.array([1], dtype=np.uint64))[0])
    True
    """
    value &= WORD
    value = (value ^ (value >> 30)) * FIRST & WORD
    value = (value ^ (value >> 27)) * SECOND & WORD
    return value ^ (value >> 31)
