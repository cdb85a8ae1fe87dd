"""The hit curve of a trace, exact or estimated from a sample: adjusted SHARDS (Waldspurger et al., FAST'15).

A subsequence of a path is a path, and ancestors stay ancestors. So the same kernel runs on the sampled blocks alone,
and a rank of k in the sample estimates a rank of k / rate in the trace. A sample takes one id of each group of
consecutive ids, chosen by a hash. It then holds a part of every long prompt, and every sample has the same number of
distinct blocks; a plain threshold on the hash has an error several times as large. If a sample has too few or too many
references, the difference is due to blocks in constant use: it is corrected at rank 1 (SHARDS-adj). The spread of
disjoint samples gives the error.

The exact curve is sums over reuse distances, which are linear ramps and steps over the capacity; one value takes a few
binary searches. Integer weights give exact sums: a moment that overflows 64 bits wraps around, and the difference wraps
back.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Self, overload

import numpy as np

from .._base.arrays import split_mix
from .._base.errors import InputError, UsageError
from .._base.results import Described, PlottedResult, column, columns_of
from .._base.units import GIB
from ..trace.domains import in_domains
from ..trace.hits import RATES, Hits
from ..trace.trace import Trace
from ..trace.unknown import PREFIXES, require_known
from .capacities import ADD_MODEL, log_spaced, parse_capacity, whole_blocks
from .reuse import Segments, find_segments, partial_block_hits, partial_blocks


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
    _capacities: Iterable[int] | None = None  # of its table; None = `capacities()`
    _kv_bytes: int | None = None  # of a token, in its table

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

        >>> from kvtrace import toy
        >>> from kvtrace.analysis import hit_curve
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

    def at(self, capacity: int | str) -> Hits:
        """The hit counts at one capacity.

        Args:
            capacity: A number of blocks, or a text as on the command line; bytes need a curve with a model.

        Raises:
            UsageError: It is not a capacity.

        >>> from kvtrace import curve, toy
        >>> curve(toy("0 1", "2", "0 1"), model="llama-3.1-8b").at("1GiB") == curve(toy("0 1", "2", "0 1")).at("100%")
        True
        """
        if isinstance(capacity, str):
            size, kv_bytes = self.working_set, self._kv_bytes
            try:
                capacity = parse_capacity(
                    capacity, block_size=self.block_size, working_set=size, kv_bytes_per_token=kv_bytes
                )
            except UsageError as error:
                raise UsageError(str(error).replace(ADD_MODEL, "Make the curve with a model.")) from None
        return self.hits([capacity])[0]

    def least_capacity(self, share: float, counted: Literal["hit_blocks", "hit_tokens"] = "hit_blocks") -> int:
        """The smallest capacity, in blocks, with at least this share of the hits of a cache that never evicts.

        Args:
            share: Above 0, at most 1.
            counted: The hits that count.

        Raises:
            UsageError: The share is outside of this range.

        >>> from kvtrace import toy
        >>> from kvtrace.analysis import hit_curve
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

        >>> from kvtrace import toy
        >>> from kvtrace.analysis import hit_curve
        >>> hit_curve(toy("0 1", "2 3", "4 5 6 7")).capacities(3)
        [4, 6, 8]
        """
        return log_spaced(self.longest, self.working_set, points)

    def shown(self, capacities: Iterable[int], kv_bytes_per_token: int | None = None) -> Self:
        """The same curve, whose table and JSON have these capacities, in blocks.

        >>> from kvtrace.trace.building import toy
        >>> [point["capacity"] for point in hit_curve(toy("0", "1", "0")).shown([1, 2]).to_dict()["points"]]
        [1, 2]
        """
        curve = copy(self)
        curve._capacities, curve._kv_bytes = list(capacities), kv_bytes_per_token
        return curve

    def _points(self, capacities: Iterable[int] | None) -> list[int]:
        chosen = self._capacities if capacities is None else capacities
        return self.capacities() if chosen is None else list(chosen)

    def to_dict(
        self, capacities: Iterable[int] | None = None, *, kv_bytes_per_token: int | None = None
    ) -> dict[str, Any]:
        """The JSON object of https://github.com/kvtrace/kvtrace/blob/main/docs/analysis/curve.md, with one point for
        each capacity; `schema` is its version."""
        capacities, points = self._points(capacities), []
        kv_bytes_per_token = self._kv_bytes if kv_bytes_per_token is None else kv_bytes_per_token
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


SAMPLES = 8  # disjoint, of equal size; their mean is the estimate, their spread gives the error
T_95 = 2.365  # Student's t, 7 degrees of freedom: standard errors of a 95 % confidence interval
CHUNK = 1 << 20  # blocks sampled at a time, which bounds memory
MIN_SAMPLE_BLOCKS = 20  # a smaller sample has no useful estimate


class SampledCurve(HitCurve):
    """Hit counts at any capacity, estimated from a share of the blocks; `errors` gives the confidence intervals.

    >>> from kvtrace.trace.building import toy
    >>> trace = toy(*[" ".join(str(first + i) for i in range(40)) for first in range(0, 4000, 40)] * 2)
    >>> curve = SampledCurve(trace, 0.1)
    >>> [hits.hit_blocks for hits in curve.hits([2000, 4000])]
    [0, 4000]
    """

    sample: float | None

    def __init__(self, trace: Trace, share: float, seed: int = 0, max_references: int | None = None):
        """UsageError if the sample has more than `max_references` block references."""
        self._count(trace)
        self._every = _every(share, trace.distinct)
        self.sample = SAMPLES / self._every
        self._curves = list(_sample_curves(trace, self._every, seed, max_references))

    def hits(self, capacities: Iterable[int]) -> list[Hits]:
        """The estimated hit counts at each capacity, in blocks."""
        blocks, tokens, requests = self._estimates(capacities).mean(axis=0)
        return [
            self._hits_of(round(hit_blocks), round(hit_tokens), float(request_hits))
            for hit_blocks, hit_tokens, request_hits in zip(blocks, tokens, requests, strict=True)
        ]

    def errors(self, capacities: Iterable[int]) -> dict[str, np.ndarray]:
        """Rate -> half the width of its 95 % confidence interval, under the assumption of independent samples."""
        totals = (self.blocks, self.tokens, self.requests_with_blocks)
        spread = self._estimates(capacities).std(axis=0, ddof=1) * T_95 / SAMPLES**0.5
        return {rate: error / max(1, total) for rate, error, total in zip(RATES, spread, totals, strict=True)}

    def to_dict(
        self, capacities: Iterable[int] | None = None, *, kv_bytes_per_token: int | None = None
    ) -> dict[str, Any]:
        """The JSON object of https://github.com/kvtrace/kvtrace/blob/main/docs/analysis/curve.md; each point has an
        `error` for each rate."""
        capacities = self._points(capacities)
        values, errors = super().to_dict(capacities, kv_bytes_per_token=kv_bytes_per_token), self.errors(capacities)
        for number, point in enumerate(values["points"]):
            point["error"] = {rate: float(error[number]) for rate, error in errors.items()}
        return values

    def hits_per_request(self, capacity: int) -> np.ndarray:
        """Raise a UsageError: a sample of the blocks has no estimate for a single request."""
        raise UsageError("a sampled curve has no hits of single requests. Use hit_curve(trace) without a sample.")

    def _estimates(self, capacities) -> np.ndarray:
        """(sample, measure, capacity) -> hit blocks, hit tokens and request hits."""
        capacity = whole_blocks(capacities)
        totals = np.array([self.blocks, self.tokens, self.requests_with_blocks]).reshape(-1, 1)
        return np.clip([curve.at(capacity) for curve in self._curves], 0, totals)


class _SampleCurve:
    """The curve of one sample, scaled up to the whole trace."""

    def __init__(self, trace, references, ids, every):
        from .._native import recency

        self._every, blocks = every, trace.prompt_blocks
        offsets = np.searchsorted(references, trace.offsets)  # row -> its first reference in the sample
        segments = Segments(*recency.segments(ids, offsets, trace.distinct // every + 1))
        start, shares = segments.rank, 1 / blocks[segments.row]
        self._full_blocks = PiecewiseLinear(
            start, start + segments.blocks, np.array([np.full(len(start), trace.block_size), shares])
        )
        self._block_size = trace.block_size
        self._missing_tokens = StepFunction(*partial_block_hits(trace, segments, references))
        self._adjustments = np.array(_adjustments(trace, references, every)).reshape(-1, 1)

    def at(self, capacity):
        sampled_capacity = capacity / self._every
        hit_tokens, shares = self._full_blocks.at(sampled_capacity) * self._every
        missing = self._missing_tokens.at(sampled_capacity) * self._every
        return np.array([hit_tokens / self._block_size, hit_tokens - missing, shares]) + self._adjustments


def _adjustments(trace, sampled, every):
    """Totals of the trace less the scaled totals of the sample: blocks, tokens, and shares of requests."""
    blocks, row = trace.prompt_blocks, np.searchsorted(trace.offsets, sampled, side="right") - 1
    _, places, missing = partial_blocks(trace)
    sampled_tokens = len(row) * trace.block_size - missing[np.isin(places, sampled)].sum()
    references = int(trace.offsets[-1])
    return (
        references - len(row) * every,
        references * trace.block_size - missing.sum() - sampled_tokens * every,
        (blocks > 0).sum() - (1 / blocks[row]).sum() * every,
    )


def _sample_curves(trace, every, seed, max_references):
    """One curve for each sample."""
    references, sample, ids = _sampled_references(trace, every, seed, max_references)
    for number in range(SAMPLES):
        selected = sample == number
        yield _SampleCurve(trace, references[selected], ids[selected], every)


def _sampled_references(trace, every, seed, max_references):
    """The references to sampled blocks: (positions in the trace, sample of each, ids within the sample)."""
    sample_of, columns, count = _sample_of(trace.distinct, every, seed), [], 0
    for rows, piece in trace.pieces():
        sample = sample_of[piece.hash_ids]
        positions = np.flatnonzero(sample >= 0)
        ids = piece.hash_ids[positions] // every  # one id of each group: the number of the group
        columns.append((int(trace.offsets[rows.start]) + positions, sample[positions], ids))
        count += len(positions)
        if max_references is not None and count > max_references:
            raise UsageError("the references of the sample do not fit into --memory. Try a smaller --sample.")
    return map(np.concatenate, zip(*columns, strict=True))


def _sample_of(distinct, every, seed) -> np.ndarray:
    """block -> its sample, or -1. In each group of `every` ids, the samples take evenly spaced ids."""
    sample_of = np.empty(distinct, dtype=np.int8)
    for start in range(0, distinct, CHUNK):
        group, place = np.divmod(np.arange(start, min(distinct, start + CHUNK)), every)
        drawn = split_mix(group + (seed << 32)) % np.uint64(every)
        sample, rest = np.divmod((place - drawn.astype(np.int64)) % every, every // SAMPLES)
        sample_of[start : start + CHUNK] = np.where((rest == 0) & (sample < SAMPLES), sample, -1)
    return sample_of


def _every(share, distinct):
    """The size of a group of ids, of which each sample takes one."""
    if not 0 < share < 1:
        raise UsageError(f"the sample is {share:g}; it must be a share above 0 and below 1. Example: --sample 0.01.")
    if share * distinct < MIN_SAMPLE_BLOCKS * SAMPLES:
        raise UsageError(
            f"a sample of {share:g} has {share * distinct:,.0f} of {distinct:,} blocks; an estimate needs at least "
            f"{MIN_SAMPLE_BLOCKS * SAMPLES}. Try a larger share, or the exact curve."
        )
    return round(SAMPLES / share)


@overload
def hit_curve(trace: Trace, *, sample: None = None, domains: str | None = None) -> HitCurve: ...
@overload
def hit_curve(
    trace: Trace, *, sample: float, seed: int = 0, max_references: int | None = None, domains: str | None = None
) -> SampledCurve: ...
@overload
def hit_curve(
    trace: Trace, *, sample: float | None, seed: int = 0, max_references: int | None = None, domains: str | None = None
) -> HitCurve: ...
def hit_curve(
    trace: Trace,
    *,
    sample: float | None = None,
    seed: int = 0,
    max_references: int | None = None,
    domains: str | None = None,
) -> HitCurve:
    """Compute the hit counts of an LRU cache at every capacity, one request at a time.

    Args:
        trace: The trace.
        sample: Estimate the curve from this share of the blocks, with an error (`SampledCurve`).
        seed: Seed of the sample.
        max_references: Upper limit of the block references in the sample.
        domains: Isolation domains, as in `in_domains`; None keeps those of the trace apart, if it has any.

    Returns:
        The exact curve, or the estimate if there is a `sample`.

    Raises:
        InputError: The trace has no blocks, or its ids do not form a forest.
        UnknownError: Shared prefixes are unknown.
        UsageError: The sample has more than `max_references` references, or is not a valid share.

    >>> from kvtrace.trace.building import toy
    >>> curve = hit_curve(toy("0 1", "2", "0 1"))
    >>> [hits.hit_blocks for hits in curve.hits([1, 2, 3])]
    [0, 1, 2]
    """
    trace = in_domains(trace, domains)
    require_known(trace, trace.meta, "the hit curve", PREFIXES)
    if not trace.offsets[-1]:
        raise InputError("the trace has no hash_ids, so its reuse is unknown.")
    if sample is not None:
        return SampledCurve(trace.require_chained(), sample, seed, max_references)
    return HitCurve(trace, find_segments(trace))
