"""Whole numbers in bins: what a model keeps instead of values, and how values are drawn from them again.

Small values, and values that very many rows share, have a bin of their own; all others share bins about 6 % wide.
Within a bin that enough rows fill, draws have the rows' mean; in emptier ones they are even, so that no single
row's value can be told.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

EXACT = 16  # values below are kept as they are
RATIO = 1.06  # width of the bins above
FEW = 8  # a mean of fewer rows says too much of each
COMMON = 200  # a value that one row in so many has is a fact of the workload (a default, a limit)


@dataclass(frozen=True, eq=False)
class Bins:
    """Bins of whole numbers, in rising order, and the law within each."""

    low: np.ndarray  # bin -> least value
    high: np.ndarray  # bin -> greatest value
    power: np.ndarray  # bin -> p: values are drawn as low + width * u ** p for an even u; 1 = evenly

    def __len__(self) -> int:
        return len(self.low)

    @classmethod
    def of(cls, values: np.ndarray, width: int | None = None, apart: tuple[int, ...] = ()) -> Bins:
        """The bins that some values (0 or more) fill; all of one width where it is given, `apart` in bins of their own.

        >>> Bins.of(np.array([3, 5, 100, 102])).high.tolist()
        [3, 5, 103]
        """
        values = np.asarray(values, dtype=np.int64)
        found, counts = np.unique(values, return_counts=True)
        starts = _starts(int(values.max(initial=0)), width)
        common = np.append(found[counts >= max(FEW, len(values) / COMMON)], np.array(apart, dtype=np.int64))
        low = np.unique(np.concatenate([starts, common, common + 1]))
        high = np.append(low[1:] - 1, low[-1])
        used = np.bincount(np.searchsorted(low, found, side="right") - 1, minlength=len(low)) > 0
        low, high = low[used], high[used]
        return cls(low, high, _powers(low, high, values))

    def codes(self, values: np.ndarray) -> np.ndarray:
        """The bin of each value, which must be one of those that the bins were made of."""
        return np.searchsorted(self.low, values, side="right") - 1

    def draw(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A value from each of the given bins.

        >>> Bins.of(np.array([3, 3, 100])).draw(np.array([0, 0]), np.random.default_rng(1)).tolist()
        [3, 3]
        """
        width = self.high - self.low + 1
        low, width = self.low[codes], width[codes]
        part = rng.random(len(codes)) ** self.power[codes]
        return low + np.minimum((width * part).astype(np.int64), width - 1)

    def to_dict(self) -> dict:
        """Lists by name."""
        return {"low": self.low.tolist(), "high": self.high.tolist(), "power": self.power.tolist()}

    @classmethod
    def from_dict(cls, found: dict) -> Bins:
        """The bins of to_dict; ValueError where they do not rise."""
        bins = cls(_whole(found["low"]), _whole(found["high"]), np.asarray(found["power"], dtype=np.float64))
        in_order = (bins.low >= 0).all() and (bins.high >= bins.low).all() and (bins.low[1:] > bins.high[:-1]).all()
        positive = np.isfinite(bins.power).all() and (bins.power > 0).all()
        if not (len(bins.low) == len(bins.high) == len(bins.power) and in_order and positive):
            raise ValueError("bins that do not rise")
        return bins


def _starts(greatest, width):
    """The least value of each bin, from 0 to beyond the greatest value, and one more."""
    if width is not None:
        return np.arange(0, greatest + 2 * width, width)
    starts = list(range(EXACT + 1))
    while starts[-1] <= greatest:
        starts.append(max(starts[-1] + 1, int(starts[-1] * RATIO)))
    return np.array(starts, dtype=np.int64)


def _powers(low, high, values):
    """The power for which each bin's draws have its rows' mean: that of u ** p is 1 / (1 + p)."""
    code = np.searchsorted(low, values, side="right") - 1
    rows = np.bincount(code, minlength=len(low))
    mean = np.bincount(code, weights=values - low[code], minlength=len(low)) / rows
    share = (mean + 0.5) / (high - low + 1)
    return np.where((rows < FEW) | (low == high), 1.0, np.round(1 / share - 1, 3).clip(0.001))


def _whole(values):
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind != "i"):
        raise ValueError("a list of whole numbers was expected")
    return array.astype(np.int64)
