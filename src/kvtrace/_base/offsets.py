"""Offsets of rows of unequal length that lie end to end in one array (Arrow's list layout)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
