"""Offsets of rows of unequal length that lie end to end in one array (Arrow's list layout)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def offsets_of(lengths: np.ndarray | Sequence[int]) -> np.ndarray:
    """Where rows of these lengths begin, and where the last one ends: row r is values[offsets[r]:offsets[r + 1]].

    >>> offsets_of([2, 0, 3])
    array([0, 2, 2, 5])
    """
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    return offsets
