"""SplitMix64's finaliser: equal numbers stay equal, others hardly ever meet in a part of their bits."""

from __future__ import annotations

import numpy as np


def mix(values: np.ndarray) -> np.ndarray:
    """Each number (uint64) with its bits spread over the word; no two numbers become one.

    >>> int(mix(np.array([1], dtype=np.uint64))[0]) >> 32 > 0
    True
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def of_rows(numbers: np.ndarray, offsets: np.ndarray, skip: np.ndarray | None = None) -> np.ndarray:
    """A number (uint64) for each row's list of numbers, each with its place; those that `skip` marks count as none.

    >>> a, b, c = of_rows(np.array([5, 6, 6, 5, 5, 6]), np.array([0, 2, 4, 6])).tolist()
    >>> a == c, a == b
    (True, False)
    """
    place = (np.arange(len(numbers)) - np.repeat(offsets[:-1], np.diff(offsets))).astype(np.uint64)
    mixed = mix(mix(place + np.uint64(1)) + numbers.astype(np.uint64))
    if skip is not None:
        mixed[skip] = 0
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])  # wraps, as differences do
    return sums[offsets[1:]] - sums[offsets[:-1]]
