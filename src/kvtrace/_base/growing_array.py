"""An array that grows at its end."""

from __future__ import annotations

from typing import Any

import numpy as np


class GrowingArray:
    """An array that grows at its end; untouched capacity needs no memory.

    >>> array = GrowingArray(np.int64)
    >>> array.extend(np.array([5, 6]))
    >>> array.extend(np.array([7]))
    >>> array.done()
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

    def done(self) -> np.ndarray:
        """The values so far."""
        return self._array[: self._length]
