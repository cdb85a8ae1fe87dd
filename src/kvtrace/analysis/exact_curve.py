"""The exact hit curve of an LRU cache, one request at a time: sums over reuse distances.

The sums are linear ramps and steps over the capacity; one value takes a few binary searches. Integer weights give exact
sums: a moment that overflows 64 bits wraps around, and the difference wraps back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from .._base.errors import UsageError
from .._base.results import Described, PlottedResult, column, columns_of
from .._base.units import GIB
from ..trace.hits import RATES, Hits
from ..trace.trace import Trace
from .capacities import log_spaced, whole_blocks
from .reuse import Segments, partial_block_hits


class PiecewiseLinear:
    """Sums of functions that are 0 up to `start`, rise by `weight` for each block, and are constant from `end` on.

    >>> ramps = PiecewiseLinear(np.array([1, 4]), np.array([3, 5]), np.array([[1, 1], [10, 20]]))
    >>> ramps.at(np.array([0, 1, 2, 3, 4]))
    array([[ 0,  1,  2,  2,  3],
           [ 0, 10, 20, 20, 40]])
    """

    def __init__(self, start: np.ndarray, end: np.ndarray, weights: np.ndarray):
        self._rises, self._stops = _Rises(start, weights), _Rises(end, weights)

    def at(self, capacity: np.ndarray) -> np.ndarray:
        """(weighting, capacity) -> sum. Capacities need not be integers."""
        return self._rises.at(capacity) - self._stops.at(capacity)


class StepFunction:
    """The sum of the weights of all places up to a capacity.

    >>> StepFunction(np.array([5, 2]), np.array([1, 10])).at(np.array([1, 2, 5]))
    array([ 0, 10, 11])
    """

    def __init__(self, place: np.ndarray, weight: np.ndarray):
        self._place, weights = _by_place(place, weight.reshape(1, -1))
        self._weight = _cumulative(weights)[0]

    def at(self, capacity: np.ndarray) -> np.ndarray:
        """capacity -> sum."""
        return self._weight[np.searchsorted(self._place, capacity, side="right")]


class _Rises:
    """The sum of weight * max(0, capacity - start + 1)."""

    def __init__(self, start, weights):
        self._start, weights = _by_place(start, weights)
        self._weight, self._moment = _cumulative(weights), _cumulative(weights * self._start)

    def at(self, capacity):
        reached = np.searchsorted(self._start, capacity + 1, side="left")
        return (capacity + 1) * self._weight[:, reached] - self._moment[:, reached]


def _by_place(place, weights):
    """Places in order with their weights: summed into a table if the table stays small, else sorted."""
    size = int(place.max(initial=0)) + 1
    if size > 4 * len(place):
        order = np.argsort(place, kind="stable")
        return place[order], weights[:, order]
    sums = np.zeros((len(weights), size), dtype=weights.dtype)
    for total, weight in zip(sums, weights, strict=True):
        np.add.at(total, place, weight)
    return np.arange(size), sums


def _cumulative(values):
    """Sums of the first 0, 1, 2, ... values along the last axis."""
    sums = np.zeros((*values.shape[:-1], values.shape[-1] + 1), dtype=values.dtype)
    np.cumsum(values, axis=-1, out=sums[..., 1:])
    return sums


SCHEMA = 1  # version of the keys of to_dict
SHARES = (0.90, 0.95, 0.99)  # of the hits without eviction, which `least` of to_dict has


@dataclass(frozen=True)
class CurvePoint(Described):
    """The hits at one capacity."""

    capacity: int = field(metadata=column("capacity (blocks)", ",", rank=0))
    capacity_tokens: int = field(metadata=column("tokens", ",", rank=2))
    capacity_bytes: int | None = field(metadata=column("GiB", ",.2f", scale=1 / GIB, optional=True))
    share: float = field(metadata=column("of the working set", ".2%"))
    exact: bool
    hits: Hits = field(metadata=column(spread=RATES))
    error: dict[str, float] | None = field(  # rate -> half the width of its 95 % confidence interval
        default=None, metadata=column(optional=True)
    )


class HitCurve(PlottedResult):
    """Hit counts at any capacity in blocks. One look-up takes a few binary searches.

    The counts are exact from `longest` on, the number of blocks of the longest prompt. A smaller cache cannot hold
    every request whole, and the part that it holds depends on the engine.
    """

    requests: int
    blocks: int  # block references
    tokens: int
    requests_with_blocks: int
    block_size: int  # tokens
    longest: int  # blocks of the longest prompt
    working_set: int  # distinct blocks
    sample: float | None = None  # the sampled share of the blocks; None = all, exact

    def __init__(self, trace: Trace, segments: Segments):
        self.segments = segments
        self._count(trace)
        self._unit = (1 << 62) // self.requests  # fractions of a request as integers, so that sums are exact
        shares = np.rint(self._unit / trace.prompt_blocks[segments.row]).astype(np.int64)
        weights = np.array([np.ones_like(shares), shares])
        self._full_blocks = PiecewiseLinear(segments.rank, segments.rank + segments.blocks, weights)
        self._missing_tokens = StepFunction(*partial_block_hits(trace, segments))

    _shown = ("capacity", "share", *RATES)

    def _headline(self) -> str:
        size = f"{self.requests:,} requests, {self.blocks:,} blocks, working_set={self.working_set:,}"
        sample = "" if self.sample is None else f", sample={self.sample:.4g}"
        return f"{size}, block_hit_rate={self.at(self.working_set).block_hit_rate:.4f} without eviction{sample}"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of(self.to_dict()["points"])

    def _count(self, trace):
        blocks = trace.prompt_blocks
        self.requests, self.blocks, self.tokens = len(trace), int(blocks.sum()), int(trace.input_length.sum())
        self.requests_with_blocks = int((blocks > 0).sum())
        self.block_size, self.longest = trace.block_size, int(blocks.max())
        self.working_set = trace.working_set

    def hits(self, capacities: Iterable[int]) -> list[Hits]:
        """The hit counts at each capacity, in blocks.

        Raises:
            UsageError: A capacity is not a whole number of blocks.

        >>> from kvtrace import hit_curve, toy
        >>> [hits.block_hit_rate for hits in hit_curve(toy("0", "1", "0")).hits([1, 2])]
        [0.0, 0.3333333333333333]
        """
        capacity = whole_blocks(capacities)
        hit_blocks, shares = self._full_blocks.at(capacity)
        hit_tokens = hit_blocks * self.block_size - self._missing_tokens.at(capacity)
        return [
            self._hits_of(int(blocks), int(tokens), int(share) / self._unit)
            for blocks, tokens, share in zip(hit_blocks, hit_tokens, shares, strict=True)
        ]

    def at(self, capacity: int) -> Hits:
        """The hit counts at one capacity, in blocks; a UsageError if it is not a whole number."""
        return self.hits([capacity])[0]

    def least_capacity(self, share: float, counted: Literal["hit_blocks", "hit_tokens"] = "hit_blocks") -> int:
        """The smallest capacity, in blocks, with at least this share of the hits of a cache that never evicts.

        Args:
            share: Above 0, at most 1.
            counted: The hits that count.

        Raises:
            UsageError: The share is outside of this range.

        >>> from kvtrace import hit_curve, toy
        >>> curve = hit_curve(toy("0", "0", "0", "1", "0"))
        >>> curve.least_capacity(0.6), curve.least_capacity(1)
        (1, 2)
        """
        if not 0 < share <= 1:
            raise UsageError(f"the share is {share:g}; it must be above 0 and at most 1. Example: 0.95.")
        needed = share * getattr(self.at(self.working_set), counted)
        low, high = 1, self.working_set
        while low < high:  # hits never fall as the capacity grows
            middle = (low + high) // 2
            low, high = (low, middle) if getattr(self.at(middle), counted) >= needed else (middle + 1, high)
        return low

    def _hits_of(self, hit_blocks, hit_tokens, request_hits):
        return Hits(
            requests=self.requests, hit_blocks=hit_blocks, blocks=self.blocks, hit_tokens=hit_tokens,
            tokens=self.tokens, request_hits=request_hits, requests_with_blocks=self.requests_with_blocks,
        )  # fmt: skip

    def capacities(self, points: int = 25) -> list[int]:
        """Capacities from the longest request to the working set, evenly on a log scale.

        >>> from kvtrace import hit_curve, toy
        >>> hit_curve(toy("0 1", "2 3", "4 5 6 7")).capacities(3)
        [4, 6, 8]
        """
        return log_spaced(self.longest, self.working_set, points)

    def to_dict(
        self, capacities: Iterable[int] | None = None, *, kv_bytes_per_token: int | None = None
    ) -> dict[str, Any]:
        """The JSON object of docs/analysis/curve.md, with one point for each capacity; `schema` is its version."""
        capacities = self.capacities() if capacities is None else list(capacities)
        points = []
        for capacity, hits in zip(map(int, capacities), self.hits(capacities), strict=True):
            tokens, is_exact = capacity * self.block_size, capacity >= self.longest and self.sample is None
            size = None if kv_bytes_per_token is None else tokens * kv_bytes_per_token
            points.append(CurvePoint(capacity, tokens, size, capacity / self.working_set, is_exact, hits).to_dict())
        return {
            "schema": SCHEMA, "block_size": self.block_size, "longest": self.longest, "working_set": self.working_set,
            "kv_bytes_per_token": kv_bytes_per_token, "sample": self.sample, "points": points,
            "unlimited": self.at(self.working_set).to_dict(),
            "least": {f"{share:.0%}": self.least_capacity(share) for share in SHARES},
        }  # fmt: skip

    def hits_per_request(self, capacity: int) -> np.ndarray:
        """Hit blocks of each request at one capacity, in blocks."""
        whole_blocks([capacity])
        segments = self.segments
        hits = np.zeros(self.requests, dtype=np.int64)
        np.add.at(hits, segments.row, np.clip(capacity - segments.rank + 1, 0, segments.blocks))
        return hits
