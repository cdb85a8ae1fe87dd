"""Hit counts, and the three hit rates derived from them; names and tables always say which rate.

A hit is the leading run of a prompt's blocks that are resident. Counts can be added over requests, parts and days.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TypedDict

import numpy as np

from .columns import Columns
from .trace import Trace

REFERENCES = 1 << 20  # block references in a batch


class HitsDict(TypedDict):
    """What `Hits.to_dict` returns."""

    requests: int
    hit_blocks: int
    blocks: int
    hit_tokens: int
    tokens: int
    request_hits: float
    requests_with_blocks: int
    block_hit_rate: float
    token_hit_rate: float
    request_hit_rate: float


@dataclass(frozen=True)
class Hits:
    """Counts of requests, blocks and tokens, and of the hits among them."""

    requests: int
    hit_blocks: int
    blocks: int
    hit_tokens: int
    tokens: int
    request_hits: float  # sum over requests of hit blocks / blocks
    requests_with_blocks: int  # a request without blocks has no rate

    @property
    def block_hit_rate(self) -> float:
        """Hit blocks / blocks, over all requests."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0

    @property
    def token_hit_rate(self) -> float:
        """Hit tokens / prompt tokens, over all requests."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0

    @property
    def request_hit_rate(self) -> float:
        """Mean over requests of hit blocks / blocks: what `datagen analyze` and `aiperf analyze-trace` print."""
        return self.request_hits / self.requests_with_blocks if self.requests_with_blocks else 0.0

    def __add__(self, other: Hits) -> Hits:
        return Hits(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    def to_dict(self) -> HitsDict:
        """Counts and rates by name."""
        return {
            "requests": self.requests, "hit_blocks": self.hit_blocks, "blocks": self.blocks,
            "hit_tokens": self.hit_tokens, "tokens": self.tokens, "request_hits": self.request_hits,
            "requests_with_blocks": self.requests_with_blocks, "block_hit_rate": self.block_hit_rate,
            "token_hit_rate": self.token_hit_rate, "request_hit_rate": self.request_hit_rate,
        }  # fmt: skip


def count_hits(trace: Trace, hit_blocks: np.ndarray, rows: np.ndarray | slice = slice(None)) -> Hits:
    """Count the hits of all requests, or of some.

    Args:
        trace: The trace.
        hit_blocks: Request -> leading blocks of its prompt that were resident, int64.
        rows: The requests to count: row numbers, a boolean mask or a slice.

    Returns:
        The counts, and the three hit rates derived from them.

    >>> from kvtrace.trace.building import toy
    >>> count_hits(toy("0 1", "0 2"), np.array([0, 1])).block_hit_rate
    0.25
    """
    return sum_hits([(hit_blocks[rows], trace.prompt_blocks[rows], trace.input_length[rows])], trace.block_size)


def sum_hits(chunks: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], block_size: int) -> Hits:
    """The counts over requests in chunks; a chunk has hit blocks, blocks and prompt tokens of each request.

    The result is the same for any division into chunks: shares of requests are added exactly, and rounded once.

    >>> chunk = np.array([1]), np.array([3]), np.array([5])  # one request: 1 of 3 blocks, 5 tokens
    >>> sum_hits([chunk, chunk], 2).blocks
    6
    """
    counts = dict.fromkeys(("requests", "hit_blocks", "blocks", "hit_tokens", "tokens", "requests_with_blocks"), 0)

    def shares():
        for hits, blocks, tokens in chunks:
            has_blocks = blocks > 0
            counts["requests"] += len(blocks)
            counts["hit_blocks"] += int(hits.sum())
            counts["blocks"] += int(blocks.sum())
            counts["hit_tokens"] += int(np.minimum(hits * block_size, tokens).sum())
            counts["tokens"] += int(tokens.sum())
            counts["requests_with_blocks"] += int(has_blocks.sum())
            yield from (hits[has_blocks] / blocks[has_blocks]).tolist()

    request_hits = math.fsum(shares())
    return Hits(**counts, request_hits=request_hits)


def unlimited_hits(trace: Columns, *, outputs: bool = False, seen: int = 0) -> np.ndarray:
    """Hit blocks of each request without eviction: the leading run of blocks seen in earlier requests.

    Args:
        trace: The trace, or the next piece of one.
        outputs: Blocks of earlier outputs are resident too, as they are in an engine.
        seen: For a piece of a trace: ids below this one were in earlier pieces.

    Returns:
        Request -> hit blocks, int64.

    >>> from kvtrace.trace.building import toy
    >>> unlimited_hits(toy("0 1 2", "0 1 3", "0 1 3 4"))
    array([0, 2, 3])
    """
    reached, hits = _greatest_before(trace, seen), np.empty(len(trace), dtype=np.int64)
    by_prompts = trace.output_ids is not None and not outputs  # an output may have had a block before any prompt
    first_row = _first_rows(trace) if by_prompts else None
    for rows in _batches(trace.offsets):
        ids, row = _references(trace, rows)
        seen = ids <= reached[row] if first_row is None else first_row[ids] < row
        hits[rows] = _leading_run(seen, trace.offsets[rows.start : rows.stop + 1] - trace.offsets[rows.start])
    return hits


def _batches(offsets) -> Iterator[slice]:
    """All rows in batches of about REFERENCES block references, to bound the memory."""
    start, rows = 0, len(offsets) - 1
    while start < rows:
        stop = int(np.searchsorted(offsets, offsets[start] + REFERENCES, side="right")) - 1
        yield slice(start, max(stop, start + 1))
        start = max(stop, start + 1)


def _references(trace, rows):
    """The ids in the prompts of some rows, and the row of each."""
    ids = trace.hash_ids[trace.offsets[rows.start] : trace.offsets[rows.stop]]
    return ids, np.repeat(np.arange(rows.start, rows.stop), np.diff(trace.offsets[rows.start : rows.stop + 1]))


def _first_rows(trace):
    """The first row whose prompt has each block."""
    first_row = np.full(trace.distinct, len(trace), dtype=np.int64)
    for rows in reversed(list(_batches(trace.offsets))):
        ids, row = _references(trace, rows)
        first_row[ids[::-1]] = row[::-1]  # reversed, so that the earliest row is written last
    return first_row


def _greatest_before(trace, seen):
    """The greatest id in the prompts and outputs of all earlier rows: ids up to it have been seen."""
    greatest = _row_max(trace.hash_ids, trace.offsets)
    if trace.output_ids is not None:
        greatest = np.maximum(greatest, _row_max(trace.output_ids, trace.output_offsets))
    before = np.full(len(trace), seen - 1, dtype=np.int64)
    if len(trace) > 1:
        before[1:] = np.maximum(np.maximum.accumulate(greatest)[:-1], seen - 1)
    return before


def _row_max(ids, offsets):
    greatest = np.full(len(offsets) - 1, -1, dtype=np.int64)
    filled = np.diff(offsets) > 0
    if filled.any():
        greatest[filled] = np.maximum.reduceat(ids, offsets[:-1][filled])
    return greatest


def _leading_run(seen, offsets):
    """The number of leading True values of each row."""
    blocks = np.diff(offsets)
    misses = np.flatnonzero(~seen)
    if not misses.size:
        return blocks
    first = np.searchsorted(misses, offsets[:-1])  # the first miss at or after each row's start
    at = np.where(first < len(misses), misses[np.minimum(first, len(misses) - 1)], len(seen))
    return np.minimum(at - offsets[:-1], blocks)
