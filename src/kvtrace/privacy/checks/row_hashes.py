"""Hash each row's list of numbers: equal lists have equal hashes, different lists almost never."""

from __future__ import annotations

import numpy as np

from ..._base.mixing import mix


def hash_rows(numbers: np.ndarray, offsets: np.ndarray, skip: np.ndarray | None = None) -> np.ndarray:
    """A hash (uint64) of each row's list of numbers and their places; numbers marked by `skip` are left out.

    >>> a, b, c = hash_rows(np.array([5, 6, 6, 5, 5, 6]), np.array([0, 2, 4, 6])).tolist()
    >>> a == c, a == b
    (True, False)
    """
    place = (np.arange(len(numbers)) - np.repeat(offsets[:-1], np.diff(offsets))).astype(np.uint64)
    mixed = mix(mix(place + np.uint64(1)) + numbers.astype(np.uint64))
    if skip is not None:
        mixed[skip] = 0
    sums = np.concatenate(
        [np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)]
    )  # wraps, and so do the differences
    return sums[offsets[1:]] - sums[offsets[:-1]]
