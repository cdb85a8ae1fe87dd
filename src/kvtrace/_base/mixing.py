"""SplitMix64 (Steele et al., 2014): deterministic mixing of the bits of numbers."""

from __future__ import annotations

import numpy as np


def split_mix(values: np.ndarray) -> np.ndarray:
    """The first number of a SplitMix64 generator seeded with each value.

    >>> split_mix(np.array([0]))
    array([16294208416658607535], dtype=uint64)
    """
    return mix(values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))


def mix(values: np.ndarray) -> np.ndarray:
    """Each number (uint64) with its bits mixed over the word; different numbers stay different.

    >>> int(mix(np.array([1], dtype=np.uint64))[0]) >> 32 > 0
    True
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
