"""Reuse distances, reuse times, and the exact hit curve of an LRU cache for every capacity, in one pass.

With one request at a time and LRU, a prefix cache is a stack algorithm (Mattson 1970): a block hits at every capacity
that reaches its place in the recency list. The kernel finds those places (`segments`); all else is sums over them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.errors import InputError
from ..formats.lazy import pieces
from ..trace.hits import Hits
from ..trace.trace import Trace
from .capacities import spread
from .distribution import Distribution
from .piecewise_linear import Ramps, Steps
from .weighted_quantiles import of_sorted

SCHEMA = 1  # version of the keys of to_dict
CHUNK = 1 << 16  # values of a distribution that are looked at together
RATES = ("block_hit_rate", "token_hit_rate", "request_hit_rate")


@dataclass(frozen=True, eq=False)
class Segments:
    """What requests found in the recency list: runs of blocks that one earlier request left side by side."""

    row: np.ndarray  # run -> the request that found it
    last_row: np.ndarray  # run -> the request that used its blocks last
    blocks: np.ndarray  # run -> blocks in it
    rank: np.ndarray  # run -> place of its first block in the recency list, 1 = most recent; the others follow


def segments(trace: Trace) -> Segments:
    """The runs of blocks that each request found in the recency list; InputError where ids do not form a forest.

    >>> from kvtrace.trace.trace import toy
    >>> segments(toy("0 1", "2", "0 1")).rank
    array([2])
    """
    from .._native import reuse

    recency = reuse.Recency(len(trace.require_chained()), trace.distinct)
    found = [recency.found(piece.hash_ids, piece.offsets) for _, piece in pieces(trace)]
    return Segments(*(found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))))


def hit_curve(trace: Trace, *, sample: float | None = None, seed: int = 0, most: int | None = None) -> HitCurve:
    """The exact hit counts of an LRU cache at every capacity, one request at a time.

    With `sample`, an estimate from that share of the blocks and its error (`shards.SampledCurve`); UsageError where
    it holds more than `most` references. InputError where there are no blocks, or ids that form no forest.

    >>> from kvtrace.trace.trace import toy
    >>> curve = hit_curve(toy("0 1", "2", "0 1"))
    >>> [hits.hit_blocks for hits in curve.hits([1, 2, 3])]
    [0, 1, 2]
    """
    if not trace.offsets[-1]:
        raise InputError("the trace has no hash_ids, so nothing can be said of its reuse.")
    if sample is not None:
        from .sampled_curve import SampledCurve

        return SampledCurve(trace.require_chained(), sample, seed, most)
    return HitCurve(trace, segments(trace))


class HitCurve:
    """Hit counts at any capacity in blocks, each in a few binary searches.

    Exact for capacities of at least `longest`, the blocks of the longest prompt: a smaller cache can't hold every
    request whole, and what it keeps of one then depends on the engine.
    """

    sample: float | None = None  # the share of the blocks that was looked at; None = all, exact

    def __init__(self, trace: Trace, found: Segments):
        self.found = found
        self._count(trace)
        self._unit = (1 << 62) // self.requests  # parts of a request, so small that they are counted in whole numbers
        shares = np.rint(self._unit / trace.prompt_blocks[found.row]).astype(np.int64)
        weights = np.array([np.ones_like(shares), shares])
        self._ramps = Ramps(found.rank, found.rank + found.blocks, weights)
        self._missing = Steps(*tails(trace, found, trace.prompt_blocks))

    def _count(self, trace):
        blocks = trace.prompt_blocks
        self.requests, self.blocks, self.tokens = len(trace), int(blocks.sum()), int(trace.input_length.sum())
        self.requests_with_blocks = int((blocks > 0).sum())
        self.block_size, self.longest = trace.block_size, int(blocks.max())
        self.working_set = trace.working_set

    def hits(self, capacities) -> list[Hits]:
        """The counts of caches of so many blocks each.

        >>> from kvtrace.trace.trace import toy
        >>> [hits.block_hit_rate for hits in hit_curve(toy("0", "1", "0")).hits([1, 2])]
        [0.0, 0.3333333333333333]
        """
        capacity = np.asarray(capacities, dtype=np.int64).reshape(-1)
        hit_blocks, shares = self._ramps.at(capacity)
        hit_tokens = hit_blocks * self.block_size - self._missing.at(capacity)
        return [
            self._hits_of(int(blocks), int(tokens), int(share) / self._unit)
            for blocks, tokens, share in zip(hit_blocks, hit_tokens, shares, strict=True)
        ]

    def at(self, capacity: int) -> Hits:
        """The counts of a cache of so many blocks."""
        return self.hits([capacity])[0]

    def _hits_of(self, hit_blocks, hit_tokens, request_hits):
        return Hits(
            requests=self.requests, hit_blocks=hit_blocks, blocks=self.blocks, hit_tokens=hit_tokens,
            tokens=self.tokens, request_hits=request_hits, requests_with_blocks=self.requests_with_blocks,
        )  # fmt: skip

    def capacities(self, points: int = 25) -> list[int]:
        """Capacities from the longest request to the working set, evenly on a log scale.

        >>> from kvtrace.trace.trace import toy
        >>> hit_curve(toy("0 1", "2 3", "4 5 6 7")).capacities(3)
        [4, 6, 8]
        """
        return spread(self.longest, self.working_set, points)

    def to_dict(self, capacities=None, *, kv_bytes_per_token: int | None = None) -> dict:
        """Keys as docs/analysis/curve.md lists them, a point for each capacity; `schema` is their version."""
        capacities = self.capacities() if capacities is None else capacities
        points = []
        for capacity, hits in zip(capacities, self.hits(capacities), strict=True):
            point = {"capacity": int(capacity), "capacity_tokens": int(capacity) * self.block_size}
            if kv_bytes_per_token is not None:
                point["capacity_bytes"] = point["capacity_tokens"] * kv_bytes_per_token
            share, exact = capacity / self.working_set, bool(capacity >= self.longest and self.sample is None)
            points.append(point | {"share": float(share), "exact": exact} | hits.to_dict())
        return {
            "schema": SCHEMA, "block_size": self.block_size, "longest": self.longest, "working_set": self.working_set,
            "kv_bytes_per_token": kv_bytes_per_token, "sample": self.sample, "points": points,
            "unlimited": self.at(self.working_set).to_dict(),
        }  # fmt: skip

    def hits_per_request(self, capacity: int) -> np.ndarray:
        """Hit blocks of each request in a cache of so many blocks."""
        found = self.found
        hits = np.zeros(self.requests, dtype=np.int64)
        np.add.at(hits, found.row, np.clip(capacity - found.rank + 1, 0, found.blocks))
        return hits


def reuse_times(trace: Trace, found: Segments | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Milliseconds from a block's last use to its next, and how many block references each value stands for.

    >>> from kvtrace.trace.trace import toy
    >>> [part.tolist() for part in reuse_times(toy("0 1", "2", "0 1", gap_ms=10))]
    [[20.0], [2]]
    """
    found = found or segments(trace)
    return trace.timestamp[found.row] - trace.timestamp[found.last_row], found.blocks


def reuse_distances(trace: Trace, found: Segments | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Distinct blocks used between a block's last use and its next, and how many references each value stands for.

    A block found at rank r of the recency list has distance r - 1.

    >>> from kvtrace.trace.trace import toy
    >>> [part.tolist() for part in reuse_distances(toy("0 1", "2", "0 1"))]
    [[1, 2], [1, 1]]
    """
    found = found or segments(trace)
    furthest = int((found.rank + found.blocks).max(initial=1))
    rises = (
        np.bincount(found.rank - 1, minlength=furthest)
        - np.bincount(found.rank + found.blocks - 1, minlength=furthest + 1)[:furthest]
    )
    counts = np.cumsum(rises)
    distances = np.flatnonzero(counts)
    return distances, counts[distances]


class Reuses:
    """The distributions of reuse times and distances, gathered piece by piece in little memory.

    16 bytes a run of blocks that was found, and 4 a distinct block; `add` takes the trace's rows in order.

    >>> from kvtrace.trace.trace import toy
    >>> trace = toy("0 1", "2", "0 1", gap_ms=10)
    >>> found = Reuses(trace)
    >>> found.add(trace)
    >>> found.times().mean, found.distances().mean
    (20.0, 1.5)
    """

    def __init__(self, trace: Trace):
        from .._native import reuse

        references, self._timestamp = int(trace.offsets[-1]), trace.timestamp
        self._recency = reuse.Recency(len(trace.require_chained()), trace.distinct)
        most = references - trace.working_set  # what is not used for the first time; memory is taken as it is filled
        self._runs, self._count = np.empty(most, dtype=np.complex128), 0  # ms since the last use + blocks * i
        kind = np.int32 if references < 1 << 31 else np.int64
        self._rises = np.zeros(trace.distinct + 1, dtype=kind)  # distance -> references more than at the one before

    def add(self, columns) -> None:
        """The next rows."""
        row, last_row, blocks, rank = self._recency.found(columns.hash_ids, columns.offsets)
        runs = self._runs[self._count : self._count + len(row)]
        runs.real = self._timestamp[row] - self._timestamp[last_row]
        runs.imag = blocks
        self._count += len(row)
        np.add.at(self._rises, rank - 1, 1)
        np.subtract.at(self._rises, rank + blocks - 1, 1)

    def times(self, quantiles=()) -> Distribution:
        """Milliseconds from a block's last use to its next."""
        runs = self._runs[: self._count]
        runs.sort()  # by time, then blocks; in place

        def counted():
            for start in range(0, len(runs), CHUNK):
                yield runs.real[start : start + CHUNK], runs.imag[start : start + CHUNK]

        return of_sorted(counted, quantiles)

    def distances(self, quantiles=()) -> Distribution:
        """Distinct blocks used between a block's last use and its next."""

        def counted():
            reached = 0
            for start in range(0, len(self._rises), CHUNK):
                counts = reached + np.cumsum(self._rises[start : start + CHUNK], dtype=np.int64)
                reached, some = int(counts[-1]), counts > 0
                if some.any():
                    yield (start + np.flatnonzero(some)).astype(np.float64), counts[some]

        return of_sorted(counted, quantiles)


def tails(trace: Trace, found: Segments, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each partial block that was found, and the tokens it lacks to a full one.

    `blocks` is how many blocks each request had to find, -1 where its last is not looked for.
    """
    rest = trace.input_length % trace.block_size
    last_of_row = np.ones(len(found.row), dtype=bool)
    last_of_row[:-1] = found.row[1:] != found.row[:-1]
    reached = np.bincount(found.row, weights=found.blocks, minlength=len(trace))
    whole = (reached == blocks) & (rest > 0) & (trace.tail != "dropped")
    ends = last_of_row & whole[found.row]
    return (found.rank + found.blocks - 1)[ends], (trace.block_size - rest)[found.row[ends]]
