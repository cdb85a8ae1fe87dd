"""Bins of integers: a model holds bins in place of values, and draws values from them.

Small values and common values have a bin of their own. Other bins are about 6 % wide. In a bin with enough rows, draws
have the mean of the rows. In other bins, draws are uniform, so that a model does not reveal the value of a single row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

EXACT = 16  # smaller values have bins of width 1
RATIO = 1.06  # width of the bins above
FEW = 8  # the mean of fewer rows would reveal single values
COMMON = 200  # a value of one row in COMMON belongs to the workload (a default, a limit)


class InvalidModelError(ValueError):
    """The values of a model file are not those of a model. Its message has words of ours only."""


@dataclass(frozen=True, eq=False)
class Bins:
    """Bins of integers in rising order, each with its distribution."""

    low: np.ndarray  # bin -> smallest value
    high: np.ndarray  # bin -> largest value
    power: np.ndarray  # bin -> p: a draw is low + width * u ** p for a uniform u; 1 = uniform

    def __len__(self) -> int:
        return len(self.low)

    @classmethod
    def of(cls, values: np.ndarray, width: int | None = None, apart: tuple[int, ...] = ()) -> Bins:
        """The non-empty bins of non-negative values, of one `width` if given; values in `apart` get their own bins.

        >>> Bins.of(np.array([3, 5, 100, 102])).high.tolist()
        [3, 5, 103]
        """
        values = np.asarray(values, dtype=np.int64)
        distinct, counts = np.unique(values, return_counts=True)
        starts = _starts(int(values.max(initial=0)), width)
        common = np.append(distinct[counts >= max(FEW, len(values) / COMMON)], np.array(apart, dtype=np.int64))
        low = np.unique(np.concatenate([starts, common, common + 1]))
        high = np.append(low[1:] - 1, low[-1])
        used = np.bincount(np.searchsorted(low, distinct, side="right") - 1, minlength=len(low)) > 0
        low, high = low[used], high[used]
        return cls(low, high, _powers(low, high, values))

    def codes(self, values: np.ndarray) -> np.ndarray:
        """The bin of each value. The values must be among those passed to `of`."""
        return np.searchsorted(self.low, values, side="right") - 1

    def draw(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw a value from each of the given bins.

        >>> Bins.of(np.array([3, 3, 100])).draw(np.array([0, 0]), np.random.default_rng(1)).tolist()
        [3, 3]
        """
        return self._at(codes, rng.random(len(codes)))

    def spread(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Like `draw`, but the values drawn from one bin are spread over it: one in each of as many equal shares.

        >>> bins = Bins.of(np.array([1000]))
        >>> drawn = bins.spread(np.zeros(3, dtype=int), np.random.default_rng(1))
        >>> (np.sort(drawn) - bins.low[0]) * 3 // (bins.high[0] - bins.low[0] + 1)
        array([0, 1, 2])
        """
        place, count = self._places(codes, rng)
        return self._at(codes, (place + rng.random(len(codes))) / count)

    def spread_to(self, codes: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
        """Values spread evenly over their bins, with the given sum where the bins allow it.

        All values move up or down in their bins by the same share, and stay in them.

        >>> bins = Bins.of(np.array([1000, 2000]))
        >>> int(bins.spread_to(np.array([0, 0, 1]), 4000, np.random.default_rng(1)).sum())
        4000
        """
        place, count = self._places(codes, rng)
        share = (place + rng.random(len(codes))) / count

        def moved(by):
            return self._at(codes, np.clip(share + by, 0, 1))

        least, largest = -1.0, 1.0
        if not moved(least).sum() <= total <= moved(largest).sum():
            return moved(0)
        for _ in range(40):
            middle = (least + largest) / 2
            least, largest = (middle, largest) if moved(middle).sum() <= total else (least, middle)
        values = moved(least)
        below = rng.permutation(np.flatnonzero(moved(largest) > values))
        values[below[: total - int(values.sum())]] += 1
        return values

    def _places(self, codes, rng):
        """A random place of each value among those of its bin, from 0, and how many these are."""
        order = np.lexsort((rng.random(len(codes)), codes))
        count = np.bincount(codes, minlength=len(self))
        place = np.empty(len(codes))
        place[order] = np.arange(len(codes)) - (np.cumsum(count) - count)[codes[order]]
        return place, count[codes]

    def _at(self, codes, share):
        """The value at a share (0 to 1) of each of the given bins."""
        low, width = self.low[codes], (self.high - self.low + 1)[codes]
        return low + np.minimum((width * share ** self.power[codes]).astype(np.int64), width - 1)

    def to_dict(self) -> dict[str, Any]:
        """Lists by name."""
        return {"low": self.low.tolist(), "high": self.high.tolist(), "power": self.power.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Bins:
        """The bins of `to_dict`; InvalidModelError if they are not in rising order."""
        bins = cls(integers(values["low"]), integers(values["high"]), np.asarray(values["power"], dtype=np.float64))
        in_order = (bins.low >= 0).all() and (bins.high >= bins.low).all() and (bins.low[1:] > bins.high[:-1]).all()
        positive = np.isfinite(bins.power).all() and (bins.power > 0).all()
        if not (bins.low.shape == bins.high.shape == bins.power.shape and in_order and positive):
            raise InvalidModelError("bins not in rising order")
        return bins


def _starts(largest, width):
    """The smallest value of each bin, from 0 to beyond the largest value, and one more."""
    if width is not None:
        return np.arange(0, largest + 2 * width, width)
    starts = list(range(EXACT + 1))
    while starts[-1] <= largest:
        starts.append(max(starts[-1] + 1, int(starts[-1] * RATIO)))
    return np.array(starts, dtype=np.int64)


def _powers(low, high, values):
    """The power for which draws have the mean of the rows; the mean of u ** p is 1 / (1 + p)."""
    code = np.searchsorted(low, values, side="right") - 1
    rows = np.bincount(code, minlength=len(low))
    mean = np.bincount(code, weights=values - low[code], minlength=len(low)) / rows
    share = (mean + 0.5) / (high - low + 1)
    return np.where((rows < FEW) | (low == high), 1.0, np.round(1 / share - 1, 3).clip(0.001))


def integers(values: list[Any], dimensions: int = 1) -> np.ndarray:
    """A list of a model file as int64; InvalidModelError if it holds anything but 64-bit integers."""
    array = np.asarray(values)
    if array.ndim != dimensions or (array.size and array.dtype.kind != "i"):
        raise InvalidModelError("not a list of integers")
    return array.astype(np.int64)
