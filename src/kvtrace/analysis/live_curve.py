"""The hit curve of a stream of requests in fixed memory: since the start, in a moving window, and decayed.

Two recency lists work together (`_native/recency.py`). The near one has the most recently used blocks, a million
by default: hits of caches up to this size are exact. The far one has a sample of the blocks, chosen by their hash
(SHARDS, Waldspurger et al., FAST'15), and only gives the hits that the near one does not have. Each of these stands
for 1 / sample blocks. Two numbers that the near list knows exactly reduce the sampling error:

* How many blocks it has, and how many of these are in the sample. Ranks in the sample are counted from the end of the
  near list, so the error of a rank grows with the distance from there, not from the front.
* How many blocks of the requests were not in it. The sampled ones among these are scaled to this number, not by
  1 / sample: a ratio estimate. Without a near list, the difference is corrected at rank 1 instead (SHARDS-adj).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .._base.errors import UsageError
from .capacities import MAX_BLOCKS


@dataclass(frozen=True, eq=False)
class SpanCurve:
    """Counts of the requests of a span, weighted sums where they decay, and hits of LRU caches of any capacity."""

    requests: float
    requests_with_blocks: float
    blocks: float
    tokens: float  # of prompts
    known_requests: float  # requests that state their cached tokens
    known_tokens: float  # prompt tokens of these
    known_cached: float  # ... that the service took from its cache
    known_possible: float  # ... that a cache that never evicts would hit
    steps: np.ndarray  # capacities, from 0
    sums: np.ndarray  # (3, step): hit blocks, hit tokens, sum over requests of hit blocks / blocks

    @property
    def wholes(self) -> np.ndarray:
        """Blocks, tokens and requests with blocks: what the three hit rates are shares of."""
        return np.array([self.blocks, self.tokens, self.requests_with_blocks])

    @property
    def possible(self) -> np.ndarray:
        """The hits of a cache that never evicts: blocks, tokens, and shares of requests."""
        return self.sums[:, -1]

    def hits(self, capacities: Iterable[int]) -> np.ndarray:
        """(3, capacity) float64: hit blocks, hit tokens, and the sum over requests of hit blocks / blocks.

        Between two steps, hits rise evenly.
        """
        capacity = np.asarray(list(capacities), np.float64)
        return np.array([np.interp(capacity, self.steps, sums) for sums in self.sums])

    def least_capacity(self, share: float) -> int | None:
        """The smallest capacity in blocks with this share of the possible hit tokens; None if there are no hits."""
        tokens, needed = self.sums[1], share * self.sums[1, -1] * (1 - 1e-12)  # a sum of floats may be lower
        if not needed:
            return None
        low, high = 1, int(self.steps[-1])
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if np.interp(middle, self.steps, tokens) >= needed else (middle + 1, high)
        return low


Span = Literal["since_start", "window", "decayed"]
NEAR_BLOCKS = 1_000_000
FAR_BLOCKS = 262_144
SAMPLE = 0.01
SLICES = 60  # of a window: its length is exact to this part of it
BINS = 32  # an octave of ranks; up to this rank each has its own
SINCE_START, DECAYED, FIRST_SLICE = 0, 1, 2  # columns
MAX_EXPONENT = 64.0  # of a decayed weight, before all are scaled down

# what is counted of requests, beside the sums over ranks
TOTALS = (
    "requests", "requests_with_blocks", "blocks", "tokens",
    "near_blocks", "near_tokens", "near_requests",  # hits in the near list
    "missed_blocks", "missed_tokens", "missed_requests",  # sampled blocks that are not in it, each 1 / sample times
    "known_requests", "known_tokens", "known_cached", "known_near", "known_far",  # of requests with cached tokens
)  # fmt: skip
NEAR, MISSED, KNOWN = slice(4, 7), slice(7, 10), slice(10, 15)


class LiveCurve:
    """Hits of LRU caches of any capacity, over a stream of requests.

    Memory is fixed: 29 MB for a near list of a million blocks, 5 MB for the far list, 4 MB for the sums.

    Args:
        block_size: Tokens of a block.
        near_blocks: Hits of caches up to this capacity are exact; 0 = no near list.
        sample: Share of the blocks in the far list; 0 = no far list.
        far_blocks: Blocks of the far list.
        window_s: Length of the moving window in seconds.
        half_life_s: Seconds in which the weight of a decaying request halves.
        capacities: Capacities in blocks whose hits are not interpolated. Others are, between bins of 2 to 3 %.
        seed: Of the sample.

    Raises:
        UsageError: An option is not valid.

    >>> curve = LiveCurve(4)
    >>> digests = np.array([[1, 0], [2, 0], [3, 0], [1, 0], [2, 0]], dtype=np.uint64)
    >>> curve.add(digests, np.array([0, 2, 3, 5]), np.array([8, 4, 7]), now_s=0.0)
    >>> curve.over("window").hits([1, 2, 3]).tolist()  # blocks, tokens, shares of requests
    [[0.0, 1.0, 2.0], [0.0, 4.0, 7.0], [0.0, 0.5, 1.0]]
    """

    def __init__(
        self,
        block_size: int,
        *,
        near_blocks: int = NEAR_BLOCKS,
        sample: float = SAMPLE,
        far_blocks: int = FAR_BLOCKS,
        window_s: float = 600.0,
        half_life_s: float = 3600.0,
        capacities: Iterable[int] = (),
        seed: int = 0,
    ):
        from .._native.recency import LiveRecency

        if block_size < 1 or near_blocks < 0 or far_blocks < 1 or not 0 <= sample <= 1 or not near_blocks + sample:
            raise UsageError("block_size, near_blocks, far_blocks or sample is not valid.")
        if not (window_s > 0 and half_life_s > 0):
            raise UsageError("the window and the half-life must be above 0 seconds.")
        self.block_size, self.sample, self.window_s, self.half_life_s = block_size, sample, window_s, half_life_s
        self.near = LiveRecency(near_blocks, sample=sample, seed=seed) if near_blocks else None
        self.far = LiveRecency(far_blocks) if sample else None
        self._seed = seed
        self._edges = _edges(capacities)
        self._steps = np.concatenate([[0], self._edges])
        # (column, measure of near and then of far, bin); the columns are since the start, decayed, and the slices
        self._sums = np.zeros((2, FIRST_SLICE + SLICES, 3, len(self._edges)))
        self._totals = np.zeros((FIRST_SLICE + SLICES, len(TOTALS)))
        self._slice: int | None = None  # number of the present slice, from 0
        self.started_s = self._now_s = self._landmark_s = 0.0  # decayed weights are 1 at the landmark

    @property
    def memory_bytes(self) -> int:
        """The bytes of the tables and sums."""
        tables = sum(table.memory_bytes for table in (self.near, self.far) if table is not None)
        return tables + self._sums.nbytes + self._totals.nbytes + self._edges.nbytes

    def add(
        self,
        digests: np.ndarray,
        offsets: np.ndarray,
        input_length: np.ndarray,
        now_s: float,
        cached_tokens: np.ndarray | None = None,
    ) -> None:
        """Add requests, in the order of their arrival.

        Args:
            digests: (block, 2) uint64: keyed digests of the blocks, prompts end to end.
            offsets: Request + 1: where its blocks begin, int64.
            input_length: Request -> prompt tokens, int64.
            now_s: The time of these requests in seconds. It does not fall: an earlier one counts as the last one.
            cached_tokens: Request -> prompt tokens that the service took from its cache, int64, -1 = unknown.
        """
        self.advance(now_s)
        offsets, tokens = np.ascontiguousarray(offsets, np.int64), np.ascontiguousarray(input_length, np.int64)
        blocks = np.diff(offsets)
        weight = 2.0 ** ((self._now_s - self._landmark_s) / self.half_life_s)
        self._into = np.array([SINCE_START, DECAYED, self._column(self._slice)])
        self._weights = np.array([1.0, weight, 1.0])
        totals = np.zeros(len(TOTALS))
        totals[:4] = len(blocks), np.count_nonzero(blocks), blocks.sum(), tokens.sum()
        keys, near_tokens, far_tokens = digests[:, 0], np.zeros(len(blocks)), np.zeros(len(blocks))
        near_blocks, anchors = np.zeros(len(blocks), np.int64), np.zeros((2, len(blocks)), np.int64)
        if self.near is not None:
            near_blocks, anchors = self._add_near(keys, offsets, blocks, tokens)
            near_tokens = leading(near_blocks, self.block_size, tokens)
            totals[NEAR] = near_blocks.sum(), near_tokens.sum(), (near_blocks / np.maximum(blocks, 1)).sum()
        if self.far is not None:
            far_tokens, totals[MISSED] = self._add_far(keys, offsets, blocks, tokens, near_blocks, anchors)
        if cached_tokens is not None:
            stated = cached_tokens >= 0
            columns = (np.ones(len(blocks)), tokens, cached_tokens, near_tokens, far_tokens)
            totals[KNOWN] = [column[stated].sum() for column in columns]
        self._totals[self._into] += self._weights[:, None] * totals

    def _add_near(self, keys, offsets, blocks, tokens):
        """Known leading blocks of each row, and its anchors: the length of the list, and its sampled blocks."""
        from .._native.recency import add_runs

        assert self.near is not None
        runs, rows = self.near.runs(keys, offsets)
        add_runs(self._sums[0], self._edges, self._into, self._weights, runs, blocks, tokens, self.block_size)
        return rows[0], rows[1:]

    def _add_far(self, keys, offsets, blocks, tokens, near_blocks, anchors):
        """Hit tokens of each row beyond the near list, and what of the sample is beyond it, each 1 / sample times."""
        from .._native.recency import add_sample, sampled_positions

        assert self.far is not None
        positions = sampled_positions(keys, self.sample, self._seed)
        sampled_offsets = np.searchsorted(positions, offsets)
        runs, _ = self.far.runs(keys[positions], sampled_offsets)
        row = np.repeat(np.arange(len(blocks)), np.diff(sampled_offsets))
        depth = positions - offsets[row]
        missed = depth >= near_blocks[row]
        skipped = np.bincount(row, weights=~missed, minlength=len(blocks)).astype(np.int64)
        hits = add_sample(
            self._sums[1], self._edges, self._into, self._weights, runs, skipped, sampled_offsets, depth, anchors,
            blocks, tokens, self.block_size, 1 / self.sample,
        )  # fmt: skip
        row, depth = row[missed], depth[missed]
        covered = leading(depth + 1, self.block_size, tokens[row]) - leading(depth, self.block_size, tokens[row])
        return hits[1], np.array([len(row), covered.sum(), (1 / blocks[row]).sum()]) / self.sample

    def advance(self, now_s: float) -> None:
        """Move the window to this time, if it is later than the last one."""
        if self._slice is None:
            self.started_s = self._now_s = self._landmark_s = now_s
            self._slice = 0
        self._now_s = max(self._now_s, now_s)
        number = int((self._now_s - self.started_s) / (self.window_s / SLICES))
        for passed in range(max(self._slice, number - SLICES) + 1, number + 1):
            self._sums[:, self._column(passed)] = 0
            self._totals[self._column(passed)] = 0
            for table in (self.near, self.far):
                if table is not None:
                    table.mark(passed % SLICES)
        self._slice = number
        exponent = (self._now_s - self._landmark_s) / self.half_life_s
        if exponent > MAX_EXPONENT:
            self._sums[:, DECAYED] *= 2.0**-exponent
            self._totals[DECAYED] *= 2.0**-exponent
            self._landmark_s = self._now_s

    def over(self, span: Span) -> SpanCurve:
        """The curve of all requests, of those in the window, or of all with decayed weights."""
        (near, far), totals = self._columns_of(span)
        values = dict(zip(TOTALS, totals.tolist(), strict=True))
        wholes = np.array([values["blocks"], values["tokens"], values["requests_with_blocks"]])
        missed, sampled = wholes - totals[NEAR], totals[MISSED]
        scale, shift = np.ones(3), np.zeros(3)
        if self.near is None:
            shift = missed - sampled
        else:
            scale = np.divide(missed, sampled, out=scale, where=sampled > 0)
        sums = np.zeros((3, len(self._steps)))
        sums[:, 1:] = np.cumsum(near + far * scale[:, None], axis=1) + shift[:, None]
        return SpanCurve(
            **{name: values[name] for name in (*TOTALS[:4], "known_requests", "known_tokens", "known_cached")},
            known_possible=values["known_near"] + scale[1] * values["known_far"],
            steps=self._steps,
            sums=np.clip(sums, 0, wholes[:, None]),
        )

    def working_set(self) -> tuple[int, bool]:
        """(distinct blocks used in the window, whether this is exact and not estimated from the sample)."""
        if self._slice is None:
            return 0, True
        mark = (self._slice + 1) % SLICES if self._slice + 1 >= SLICES else 0
        near, is_all = (0, False) if self.near is None else self.near.used_since(mark)
        if is_all or self.far is None:
            return near, is_all
        held, sampled = (0, 0) if self.near is None else (self.near.held, self.near.sampled)
        far, _ = self.far.used_since(mark)
        return max(near, held + round((far - sampled) / self.sample)), False

    def _columns_of(self, span):
        """(near and far, measure, bin) sums over ranks, and the totals."""
        if span == "window":
            return self._sums[:, FIRST_SLICE:].sum(axis=1), self._totals[FIRST_SLICE:].sum(axis=0)
        if span == "since_start":
            return self._sums[:, SINCE_START], self._totals[SINCE_START]
        scale = 2.0 ** ((self._landmark_s - self._now_s) / self.half_life_s)
        return self._sums[:, DECAYED] * scale, self._totals[DECAYED] * scale

    def _column(self, number) -> int:
        return FIRST_SLICE + number % SLICES


def leading(blocks: np.ndarray, block_size: int, tokens: np.ndarray) -> np.ndarray:
    """The prompt tokens in so many leading blocks of prompts of so many tokens."""
    return np.minimum(blocks * block_size, tokens)


def _edges(capacities) -> np.ndarray:
    """The largest rank of each bin: BINS an octave, and the capacities."""
    octaves = int(np.log2(MAX_BLOCKS / BINS))
    spaced = np.unique(np.floor(BINS * 2 ** (np.arange(octaves * BINS + 1) / BINS)).astype(np.int64))
    single, chosen = np.arange(1, BINS), np.array([*capacities], dtype=np.int64)
    if ((chosen < 1) | (chosen > MAX_BLOCKS)).any():
        raise UsageError("a capacity must be at least 1 block.")
    return np.unique(np.concatenate([single, spaced, chosen]))
