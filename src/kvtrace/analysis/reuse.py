"""Reuse: distances and times in one pass over the blocks; uses of each block, sharing by depth, and popularity.

With LRU and one request at a time, a prefix cache is a stack algorithm (Mattson 1970): a block hits at every capacity
from its rank in the recency list on. The kernel finds the ranks (`find_segments`); every figure is a sum over them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .._base.results import Described, DescribedResult, column
from ..trace.trace import Trace
from .distribution import Distribution, distribution_of_sorted

CHUNK = 1 << 16  # values of a distribution read at a time


@dataclass(frozen=True, eq=False)
class Segments:
    """Hits in the recency list, in segments: neighbouring blocks of one request that one earlier request used last."""

    row: np.ndarray  # segment -> the request that hits it
    last_row: np.ndarray  # segment -> the request that used its blocks last
    blocks: np.ndarray  # segment -> number of blocks
    # segment -> rank of its first block in the recency list, 1 = most recent; the other blocks follow it
    rank: np.ndarray


def find_segments(trace: Trace) -> Segments:
    """Find the segments that each request hits in the recency list.

    Raises:
        InputError: The ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> find_segments(toy("0 1", "2", "0 1")).rank
    array([2])
    """
    from .._native.recency import RecencyList

    recency = RecencyList(len(trace.require_chained()), trace.distinct)
    pieces = [recency.runs(piece.hash_ids, piece.offsets) for _, piece in trace.pieces()]
    return Segments(*(pieces[0] if len(pieces) == 1 else map(np.concatenate, zip(*pieces, strict=True))))


def reuse_times(trace: Trace, segments: Segments | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Milliseconds from a use of a block to its next use: (values, block references with that value).

    >>> from kvtrace.trace.building import toy
    >>> [part.tolist() for part in reuse_times(toy("0 1", "2", "0 1", gap_ms=10))]
    [[20.0], [2]]
    """
    segments = segments or find_segments(trace)
    return trace.timestamp[segments.row] - trace.timestamp[segments.last_row], segments.blocks


def reuse_distances(trace: Trace, segments: Segments | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Distinct blocks used between a use of a block and its next use: (values, block references with that value).

    A block at rank r of the recency list has reuse distance r - 1.

    >>> from kvtrace.trace.building import toy
    >>> [part.tolist() for part in reuse_distances(toy("0 1", "2", "0 1"))]
    [[1, 2], [1, 1]]
    """
    segments = segments or find_segments(trace)
    furthest = int((segments.rank + segments.blocks).max(initial=1))
    rises = (
        np.bincount(segments.rank - 1, minlength=furthest)
        - np.bincount(segments.rank + segments.blocks - 1, minlength=furthest + 1)[:furthest]
    )
    counts = np.cumsum(rises)
    distances = np.flatnonzero(counts)
    return distances, counts[distances]


class ReuseAccumulator:
    """The distributions of reuse times and reuse distances, accumulated piece by piece.

    Memory: 16 bytes for each segment and 4 for each distinct block. `add` takes the rows of the trace in order.

    >>> from kvtrace.trace.building import toy
    >>> trace = toy("0 1", "2", "0 1", gap_ms=10)
    >>> reuse = ReuseAccumulator(trace)
    >>> reuse.add(trace)
    >>> reuse.times().mean, reuse.distances().mean
    (20.0, 1.5)
    """

    def __init__(self, trace: Trace):
        from .._native.recency import RecencyList

        references, self._timestamp = int(trace.offsets[-1]), trace.timestamp
        self._recency = RecencyList(len(trace.require_chained()), trace.distinct)
        max_segments = (
            references - trace.working_set
        )  # all but first uses; the system allocates pages when they are written
        self._segments, self._count = (
            np.empty(max_segments, dtype=np.complex128),
            0,
        )  # ms since the last use + blocks * i
        kind = np.int32 if references < 1 << 31 else np.int64
        self._rises = np.zeros(
            trace.distinct + 1, dtype=kind
        )  # distance -> references at it, less those at the distance before

    def add(self, columns) -> None:
        """Add the next rows."""
        row, last_row, blocks, rank = self._recency.runs(columns.hash_ids, columns.offsets)
        segments = self._segments[self._count : self._count + len(row)]
        segments.real = self._timestamp[row] - self._timestamp[last_row]
        segments.imag = blocks
        self._count += len(row)
        np.add.at(self._rises, rank - 1, 1)
        np.subtract.at(self._rises, rank + blocks - 1, 1)

    def times(self, quantiles=()) -> Distribution:
        """Milliseconds from a use of a block to its next use."""
        segments = self._segments[: self._count]
        segments.sort()  # by time, then blocks; in place

        def counted_values():
            for start in range(0, len(segments), CHUNK):
                yield segments.real[start : start + CHUNK], segments.imag[start : start + CHUNK]

        return distribution_of_sorted(counted_values, quantiles)

    def distances(self, quantiles=()) -> Distribution:
        """Distinct blocks used between a use of a block and its next use."""

        def counted_values():
            total = 0
            for start in range(0, len(self._rises), CHUNK):
                counts = total + np.cumsum(self._rises[start : start + CHUNK], dtype=np.int64)
                total, used = int(counts[-1]), counts > 0
                if used.any():
                    yield (start + np.flatnonzero(used)).astype(np.float64), counts[used]

        return distribution_of_sorted(counted_values, quantiles)


def partial_block_hits(
    trace: Trace, segments: Segments, sampled: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each partial block that is hit, and its missing tokens to a full block.

    `sampled` are the places of the block references that `segments` are of; None = all.
    """
    row, places, missing = partial_blocks(trace)
    offsets = trace.offsets
    if sampled is not None:
        offsets = np.searchsorted(sampled, offsets)
        at = np.searchsorted(sampled, places)
        is_sampled = at < len(sampled)
        is_sampled[is_sampled] = sampled[at[is_sampled]] == places[is_sampled]
        row, places, missing = row[is_sampled], at[is_sampled], missing[is_sampled]
    index = places - offsets[row]  # of the block in its prompt, or among the sampled blocks of it
    hit_blocks = np.bincount(segments.row, weights=segments.blocks, minlength=len(trace)).astype(np.int64)
    is_hit = index < hit_blocks[row]
    ends = np.cumsum(segments.blocks)  # segments are in the order of rows, and within a row in that of its blocks
    number = (np.cumsum(hit_blocks) - hit_blocks)[row[is_hit]] + index[is_hit]  # of the block among all that are hit
    segment = np.searchsorted(ends, number, side="right")
    return segments.rank[segment] + number - (ends - segments.blocks)[segment], missing[is_hit]


def partial_blocks(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The block references that stand for fewer tokens than a block: rows, places in `hash_ids`, and missing tokens.

    >>> from kvtrace.trace.columns import Columns
    >>> [values.tolist() for values in partial_blocks(Trace([0.0], [6], [1], [0, 1], [0, 2], block_size=4))]
    [[0], [1], [2]]
    """
    from .._native import numbering

    blocks, size, tokens = trace.prompt_blocks, trace.block_size, trace.input_length
    rows = np.flatnonzero(blocks * size > tokens)  # mostly prompts with a tail; stated blocks may be beyond the tokens
    counts = blocks[rows] - tokens[rows] // size
    row = np.repeat(rows, counts)
    places = numbering.ranges(trace.offsets[rows] + tokens[rows] // size, counts)
    covered = np.clip(tokens[row] - (places - trace.offsets[row]) * size, 0, size)
    return row, places, size - covered


@dataclass(frozen=True, eq=False)
class BlockUses:
    """The uses of blocks. Blocks of outputs are not counted."""

    uses: np.ndarray  # block -> number of prompts that contain it, int32
    hit_blocks: np.ndarray  # request -> leading blocks that an earlier request contains
    repeated_blocks: np.ndarray  # request -> number of its blocks that the whole trace uses more than once
    by_depth: np.ndarray  # (distinct blocks, references, blocks used more than once) x depth band


def count_uses(trace: Trace) -> BlockUses:
    """Count the uses of each block.

    Raises:
        InputError: The ids do not form a forest.


    >>> from kvtrace.trace.building import toy
    >>> counts = count_uses(toy("0 1 2", "0 1 3"))
    >>> counts.uses, counts.hit_blocks, counts.repeated_blocks
    (array([2, 2, 1, 1], dtype=int32), array([0, 2]), array([2, 2]))
    """
    from .._native import forest as kernel

    trace.require_chained()
    uses, by_depth = np.zeros(trace.distinct, dtype=np.int32), np.zeros((3, kernel.BANDS), dtype=np.int64)
    hit_blocks, repeated = (np.empty(len(trace), dtype=np.int64) for _ in range(2))
    for rows, piece in trace.pieces():
        hit_blocks[rows] = kernel.walk_on(piece.hash_ids, piece.offsets, uses, by_depth)
    for rows, piece in trace.pieces():
        repeated[rows] = kernel.repeated(piece.hash_ids, piece.offsets, uses)
    return BlockUses(uses, hit_blocks, repeated, by_depth)


TOP_SHARES = (0.01, 0.1)
COUNTED = 1 << 20  # blocks counted at a time, which bounds memory


@dataclass(frozen=True, repr=False)
class Popularity(DescribedResult):
    """The distribution of reuse over blocks. A block with n uses has n - 1 reuses."""

    reuses: int
    reused_blocks: int  # blocks used more than once
    most_used: int  # uses of the most used block
    top_share: dict[float, float] = field(  # share of the blocks, most used first -> their share of all reuse
        metadata=column(value=lambda shares: {f"{share:g}": value for share, value in shares.items()})
    )

    def _headline(self) -> str:
        return f"{self.reuses:,} reuses, {self.reused_blocks:,} blocks reused, most_used={self.most_used:,}"


def block_popularity(trace: Trace, uses: BlockUses | None = None) -> Popularity:
    """The distribution of the reuse of a trace over its blocks.

    >>> from kvtrace.trace.building import toy
    >>> block_popularity(toy("0 1", "0 2", "0 3")).top_share[0.1]
    1.0
    """
    blocks = histogram((uses or count_uses(trace)).uses)  # number of uses -> blocks
    blocks[0] = 0  # blocks of outputs only
    use_counts = np.flatnonzero(blocks)[::-1]  # most used first
    blocks = blocks[use_counts]
    reuses = int((blocks * (use_counts - 1)).sum())
    return Popularity(
        reuses=reuses,
        reused_blocks=int(blocks[use_counts > 1].sum()),
        most_used=int(use_counts.max(initial=0)),
        top_share={share: _reuse_share(use_counts - 1, blocks, share, reuses) for share in TOP_SHARES},
    )


def histogram(values: np.ndarray) -> np.ndarray:
    """Count each integer from 0 up: np.bincount in little memory.

    >>> histogram(np.array([0, 2, 2], dtype=np.int32))
    array([1, 0, 2])
    """
    counts = np.zeros(int(values.max(initial=0)) + 1, dtype=np.int64)
    for start in range(0, len(values), COUNTED):
        chunk_counts = np.bincount(values[start : start + COUNTED])
        counts[: len(chunk_counts)] += chunk_counts
    return counts


def _reuse_share(reuses_each, blocks, share, reuses):
    """The share of all reuse that the most used blocks have. `blocks[i]` blocks have `reuses_each[i]`, which falls."""
    top_blocks = max(1, round(share * int(blocks.sum())))
    before = np.cumsum(blocks) - blocks
    return float((reuses_each * np.clip(top_blocks - before, 0, blocks)).sum() / reuses) if reuses else 0.0


@dataclass(frozen=True)
class DepthBand(Described):
    """The blocks at depths from `low` to `high`, in blocks from the root."""

    low: int
    high: int
    blocks: int = field(metadata=column("distinct", ","))  # at these depths
    references: int  # uses of them
    shared_blocks: int = field(metadata=column("shared", ","))  # used by more than one request


def sharing_by_depth(trace: Trace, uses: BlockUses | None = None) -> list[DepthBand]:
    """Sharing of blocks by depth, in bands of doubling width: 1, 2, 3-4, 5-8, ...

    >>> from kvtrace.trace.building import toy
    >>> [(band.low, band.high, band.blocks, band.shared_blocks) for band in sharing_by_depth(toy("0 1", "0 2 3"))]
    [(1, 1, 1, 1), (2, 2, 2, 0), (3, 4, 1, 0)]
    """
    by_depth = (uses or count_uses(trace)).by_depth.T.tolist()
    return [
        DepthBand(2 ** (band - 1) + 1 if band else 1, 2**band, blocks, references, shared)
        for band, (blocks, references, shared) in enumerate(by_depth)
        if blocks
    ]
