"""The hit curve of a trace, exact or estimated from a sample: adjusted SHARDS (Waldspurger et al., FAST'15).

A subsequence of a path is a path, and ancestors stay ancestors. So the same kernel runs on the sampled blocks alone,
and a rank of k in the sample estimates a rank of k / rate in the trace. A sample takes one id of each group of
consecutive ids, chosen by a hash. It then holds a part of every long prompt, and every sample has the same number of
distinct blocks; a plain threshold on the hash has an error several times as large. If a sample has too few or too many
references, the difference is due to blocks in constant use: it is corrected at rank 1 (SHARDS-adj). The spread of
disjoint samples gives the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

import numpy as np

from .._base.arrays import split_mix
from .._base.errors import InputError, UsageError
from ..trace.domains import in_domains
from ..trace.hits import RATES, Hits
from ..trace.trace import Trace
from ..trace.unknown import PREFIXES, require_known
from .capacities import whole_blocks
from .exact_curve import HitCurve, PiecewiseLinear, StepFunction
from .reuse import Segments, find_segments, partial_block_hits, partial_blocks

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
        """The JSON object of docs/analysis/curve.md; each point has an `error` for each rate."""
        capacities = self.capacities() if capacities is None else list(capacities)
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
