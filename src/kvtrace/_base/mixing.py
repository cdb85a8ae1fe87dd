"""SplitMix64 (Steele et al., 2014): mixes the bits of numbers. `_native/mixing.pxd` has the same in C."""

from __future__ import annotations

import numpy as np

GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = (1 << 64) - 1


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
