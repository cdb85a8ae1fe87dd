"""Reuse distances and reuse times, in one pass over the blocks.

With one request at a time and LRU, a prefix cache is a stack algorithm (Mattson 1970): a block hits at every capacity
that reaches its place in the recency list. The kernel finds those places (`segments`); all else is sums over them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace.trace import Trace
from .distribution import Distribution
from .weighted_quantiles import of_sorted

CHUNK = 1 << 16  # values of a distribution that are looked at together


@dataclass(frozen=True, eq=False)
class Segments:
    """What requests found in the recency list: runs of blocks that one earlier request left side by side."""

    row: np.ndarray  # run -> the request that found it
    last_row: np.ndarray  # run -> the request that used its blocks last
    blocks: np.ndarray  # run -> blocks in it
    rank: np.ndarray  # run -> place of its first block in the recency list, 1 = most recent; the others follow


def segments(trace: Trace) -> Segments:
    """The runs of blocks that each request found in the recency list; InputError where ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> segments(toy("0 1", "2", "0 1")).rank
    array([2])
    """
    from .._native import reuse

    recency = reuse.Recency(len(trace.require_chained()), trace.distinct)
    found = [recency.found(piece.hash_ids, piece.offsets) for _, piece in trace.pieces()]
    return Segments(*(found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))))


def reuse_times(trace: Trace, found: Segments | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Milliseconds from a block's last use to its next, and how many block references each value stands for.

    >>> from kvtrace.trace.building import toy
    >>> [part.tolist() for part in reuse_times(toy("0 1", "2", "0 1", gap_ms=10))]
    [[20.0], [2]]
    """
    found = found or segments(trace)
    return trace.timestamp[found.row] - trace.timestamp[found.last_row], found.blocks


def reuse_distances(trace: Trace, found: Segments | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Distinct blocks used between a block's last use and its next, and how many references each value stands for.

    A block found at rank r of the recency list has distance r - 1.

    >>> from kvtrace.trace.building import toy
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

    >>> from kvtrace.trace.building import toy
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
