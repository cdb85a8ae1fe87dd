"""Hit counts, the three hit rates derived from them, and the groups of requests that they are counted for.

Names and tables always say which rate. A hit is the leading run of a prompt's blocks that are resident. Counts can be
added over requests, parts and days. Groups are windows of time, or sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from .._base.arrays import batches, joined
from .._base.errors import UsageError
from .._base.results import DescribedResult, column, columns_in
from .._native import sharing
from .columns import Columns, require_trace
from .trace import Trace
from .unknown import PREFIXES, require_known


class RequestGroups(NamedTuple):
    """Rows in groups; the rows of a group stand side by side in `order`."""

    order: np.ndarray  # the rows, int64
    starts: np.ndarray  # group -> the place of its first row in `order`
    labels: np.ndarray  # group -> the start of its window in ms, or its session


def time_windows(timestamp: np.ndarray, window_ms: float, example: str = "--over-time 60s") -> RequestGroups:
    """The windows of `window_ms` milliseconds that have requests.

    Args:
        timestamp: Request -> ms, never falling.
        window_ms: Length of a window.
        example: A valid window, for the error.

    Raises:
        UsageError: The window is not longer than 0 ms.

    >>> windows = time_windows(np.array([0.0, 60.0, 120.0]), 100)
    >>> windows.starts.tolist(), windows.labels.tolist()
    ([0, 2], [0.0, 100.0])
    """
    if not window_ms > 0:
        raise UsageError(f"A window must be longer than 0 ms. Try {example}.")
    number = timestamp // window_ms  # of the window, as a float: short windows exceed int64
    starts = np.flatnonzero(np.diff(number, prepend=-1))
    return RequestGroups(np.arange(len(timestamp)), starts, number[starts] * window_ms)


def session_groups(session: np.ndarray | None, requests: int) -> RequestGroups:
    """The requests of each session, in order of its number; all requests are session -1 if a trace has no sessions.

    >>> groups = session_groups(np.array([1, -1, 1]), 3)
    >>> groups.order.tolist(), groups.starts.tolist(), groups.labels.tolist()
    ([1, 0, 2], [0, 1], [-1, 1])
    """
    numbers = np.full(requests, -1) if session is None else session
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-2))
    return RequestGroups(order, starts, numbers[order][starts])


REFERENCES = 1 << 20  # block references in a batch
DIGITS = 26  # so that 2^37 requests add up in 64 bits


@dataclass(frozen=True, repr=False)
class Hits(DescribedResult):
    """Counts of requests, blocks and tokens, and of the hits among them."""

    requests: int
    hit_blocks: int = field(metadata=column("hit blocks", ",", rank=4, place=11))
    blocks: int
    hit_tokens: int
    tokens: int
    request_hits: float  # sum over requests of hit blocks / blocks
    requests_with_blocks: int  # a request without blocks has no rate

    @property
    @column("block hit rate", ".4f", place=13)
    def block_hit_rate(self) -> float:
        """Hit blocks / blocks, over all requests."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0

    @property
    @column("token hit rate", ".4f", rank=3, place=13)
    def token_hit_rate(self) -> float:
        """Hit tokens / prompt tokens, over all requests."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0

    @property
    @column("request hit rate", ".4f", rank=3, place=13)
    def request_hit_rate(self) -> float:
        """Mean over requests of hit blocks / blocks: what `datagen analyze` and `aiperf analyze-trace` print."""
        return self.request_hits / self.requests_with_blocks if self.requests_with_blocks else 0.0

    def _headline(self) -> str:
        rates = (f"{name}={getattr(self, name):.4f}" for name in HIT_KEYS if name.endswith("_rate"))
        return ", ".join([f"{self.requests:,} requests", *rates])

    def __add__(self, other: Hits) -> Hits:
        return Hits(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))


HIT_KEYS = tuple(columns_in(Hits))  # of the JSON object
RATES = {  # the three rates, as columns of a table that has no others of equal weight
    key: replace(each, rank=1, place=100) for key, each in columns_in(Hits).items() if key.endswith("_rate")
}


def count_hits(trace: Trace, hit_blocks: np.ndarray, rows: np.ndarray | slice = slice(None)) -> Hits:
    """Count the hits of all requests, or of some.

    Args:
        trace: The trace.
        hit_blocks: Request -> leading blocks of its prompt that were resident, int64.
        rows: The requests to count: row numbers, a boolean mask or a slice.

    Returns:
        The counts, and the three hit rates derived from them.

    Raises:
        UnknownError: Shared prefixes are unknown.

    >>> from kvtrace.trace.building import toy
    >>> count_hits(toy("0 1", "0 2"), np.array([0, 1])).block_hit_rate
    0.25
    """
    require_trace(trace)
    require_known(trace, trace.meta, "the hit rate", PREFIXES)
    return sum_hits([(hit_blocks[rows], trace.prompt_blocks[rows], trace.input_length[rows])], trace.block_size)


def leading_tokens(trace: Trace, blocks: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    """The prompt tokens in so many leading blocks of requests; `rows` are their row numbers, if not all.

    >>> from kvtrace.trace.trace import Trace
    >>> leading_tokens(Trace([0.0], [6], [1], [0, 1], [0, 2], block_size=4), np.array([2]))
    array([6])
    """
    return np.minimum(blocks * trace.block_size, trace.input_length[rows])


def sum_hits(chunks: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], block_size: int) -> Hits:
    """The counts over requests in chunks; a chunk has hit blocks, blocks and prompt tokens of each request.

    The result is the same for any division into chunks: shares of requests are added exactly, and rounded once.

    >>> chunk = np.array([1]), np.array([3]), np.array([5])  # one request: 1 of 3 blocks, 5 tokens
    >>> sum_hits([chunk, chunk], 2).blocks
    6
    """
    counts = dict.fromkeys(("requests", "hit_blocks", "blocks", "hit_tokens", "tokens", "requests_with_blocks"), 0)
    request_hits = Fraction(0)
    for hits, blocks, tokens in chunks:
        counts["requests"] += len(blocks)
        counts["hit_blocks"] += int(hits.sum())
        counts["blocks"] += int(blocks.sum())
        counts["hit_tokens"] += int(np.minimum(hits * block_size, tokens).sum())
        counts["tokens"] += int(tokens.sum())
        counts["requests_with_blocks"] += int((blocks > 0).sum())
        request_hits += exact_sum(np.divide(hits, blocks, out=np.zeros(len(hits)), where=blocks > 0))
    return Hits(**counts, request_hits=float(request_hits))


def exact_sum(shares: np.ndarray) -> Fraction:
    """The sum of numbers from 0 to 1 without rounding; its float is that of `math.fsum`.

    Each round adds the next DIGITS binary digits of all numbers as integers.

    >>> float(exact_sum(np.array([0.1] * 10)))
    1.0
    """
    total, scale, rest = Fraction(0), 1, np.array(shares, dtype=np.float64)
    while rest.any():
        rest *= 1 << DIGITS
        whole = np.floor(rest)
        rest -= whole
        scale <<= DIGITS
        total += Fraction(int(whole.astype(np.int64).sum()), scale)
    return total


def unlimited_hits(trace: Columns, *, outputs: bool = False, seen: int = 0) -> np.ndarray:
    """Hit blocks of each request without eviction: the leading run of blocks seen in earlier requests.

    Args:
        trace: The trace, in memory or streamed, or the columns of its next piece.
        outputs: Blocks of earlier outputs are resident too, as they are in an engine.
        seen: For a piece of a trace: ids below this one were in earlier pieces.

    Returns:
        Request -> hit blocks, int64.

    Raises:
        UnknownError: Shared prefixes are unknown.

    >>> from kvtrace.trace.building import toy
    >>> unlimited_hits(toy("0 1 2", "0 1 3", "0 1 3 4"))
    array([0, 2, 3])
    """
    require_trace(trace)
    require_known(trace, getattr(trace, "meta", {}), "the hit rate without eviction", PREFIXES)
    hits, unseen = np.empty(len(trace), dtype=np.int64), np.ones(max(_reach(trace), seen), dtype=bool)
    unseen[:seen] = False
    for where, piece in trace.pieces():
        for rows in batches(piece.offsets, REFERENCES):
            hits[where][rows] = _batch_hits(piece, rows, unseen, outputs)
    return hits


def _reach(trace: Columns) -> int:
    """The ids of a trace are below this number."""
    if isinstance(trace, Trace):
        return trace.distinct
    return 1 + max(int(ids.max(initial=-1)) for ids in (trace.hash_ids, trace.output_ids) if ids is not None)


def _batch_hits(trace: Columns, rows: slice, unseen: np.ndarray, outputs: bool) -> np.ndarray:
    blocks, offsets = _rows_of(trace.hash_ids, trace.offsets, rows)
    prompts = np.diff(offsets)
    if outputs and trace.output_ids is not None and trace.output_offsets is not None:
        output_blocks, output_offsets = _rows_of(trace.output_ids, trace.output_offsets, rows)
        blocks = joined((blocks, prompts), (output_blocks, np.diff(output_offsets)))
        offsets = offsets + output_offsets
    return sharing.leading_hits(blocks, offsets, prompts, unseen, outputs)


def _rows_of(ids: np.ndarray, offsets: np.ndarray, rows: slice) -> tuple[np.ndarray, np.ndarray]:
    start, stop = offsets[rows.start], offsets[rows.stop]
    return ids[start:stop], offsets[rows.start : rows.stop + 1] - start
