"""The hit curve estimated from a sample of the blocks, with its error: SHARDS (Waldspurger et al., FAST'15), adjusted.

A subsequence of a path is a path and ancestors stay ancestors, so the same kernel runs on the blocks of a sample alone:
what it finds at rank k lies near k / rate. Each sample takes one of every so many ids that follow each other, drawn
by a hash: it then holds a part of every long prompt, and as many distinct blocks as any other sample, where a plain
threshold on the hash errs several times as far. What a sample holds too few or too many references is due to blocks
in use all the time: it is added to, or taken from, the first place (SHARDS-adj). Disjoint samples tell the error.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .._base.errors import UsageError
from .._base.mixing import split_mix
from ..trace.hits import Hits
from ..trace.trace import Trace
from .exact_curve import RATES, HitCurve
from .piecewise_linear import PiecewiseLinear, StepFunction
from .reuse import Segments, tails

SAMPLES = 8  # disjoint, of equal size: their mean is the estimate, their spread its error
T_95 = 2.365  # Student's t: 95 % of means of eight independent estimates are as near as this many standard errors
CHUNK = 1 << 20  # blocks that are drawn together
FEWEST = 20  # blocks a sample, below which it says nothing


class SampledCurve(HitCurve):
    """Hit counts at any capacity, estimated from a share of the blocks; `errors` says how far off they may be.

    >>> from kvtrace.trace.building import toy
    >>> trace = toy(*[" ".join(str(first + i) for i in range(40)) for first in range(0, 4000, 40)] * 2)
    >>> curve = SampledCurve(trace, 0.1)
    >>> [hits.hit_blocks for hits in curve.hits([2000, 4000])]
    [0, 4000]
    """

    def __init__(self, trace: Trace, share: float, seed: int = 0, most: int | None = None):
        """UsageError where more than `most` references are to blocks of the sample."""
        self._count(trace)
        self._every = _every(share, trace.distinct)
        self.sample = SAMPLES / self._every
        self._parts = list(_parts(trace, self._every, seed, most))

    def hits(self, capacities: Iterable[int]) -> list[Hits]:
        """The estimated counts of caches of so many blocks each."""
        blocks, tokens, requests = self._estimates(capacities).mean(axis=0)
        return [
            self._hits_of(round(hit_blocks), round(hit_tokens), float(request_hits))
            for hit_blocks, hit_tokens, request_hits in zip(blocks, tokens, requests, strict=True)
        ]

    def errors(self, capacities: Iterable[int]) -> dict[str, np.ndarray]:
        """Rate -> how far off each may be, up or down: 95 % are nearer, were the samples independent; most are."""
        wholes = (self.blocks, self.tokens, self.requests_with_blocks)
        spread = self._estimates(capacities).std(axis=0, ddof=1) * T_95 / SAMPLES**0.5
        return {rate: off / max(1, whole) for rate, off, whole in zip(RATES, spread, wholes, strict=True)}

    def to_dict(self, capacities: Iterable[int] | None = None, *, kv_bytes_per_token: int | None = None) -> dict:
        """Keys as docs/analysis/curve.md lists them; each point has an `error` of each rate."""
        capacities = self.capacities() if capacities is None else list(capacities)
        found, errors = super().to_dict(capacities, kv_bytes_per_token=kv_bytes_per_token), self.errors(capacities)
        for place, point in enumerate(found["points"]):
            point["error"] = {rate: float(off[place]) for rate, off in errors.items()}
        return found

    def hits_per_request(self, capacity: int) -> np.ndarray:
        """UsageError: a sample of blocks says nothing of a single request."""
        raise UsageError("a sampled curve says nothing of single requests. Try hit_curve(trace) without a sample.")

    def _estimates(self, capacities) -> np.ndarray:
        """(sample, measure, capacity) -> hit blocks, hit tokens and request hits."""
        capacity = np.asarray(list(capacities), dtype=np.int64)
        most = np.array([self.blocks, self.tokens, self.requests_with_blocks]).reshape(-1, 1)
        return np.clip([part.at(capacity) for part in self._parts], 0, most)


class _Part:
    """The curve of one sample, scaled up to the whole."""

    def __init__(self, trace, references, ids, every):
        from .._native import reuse

        self._every, blocks = every, trace.prompt_blocks
        offsets = np.searchsorted(references, trace.offsets)  # row -> its first reference in the sample
        found = Segments(*reuse.segments(ids, offsets, trace.distinct // every + 1))
        start, shares = found.rank, 1 / blocks[found.row]
        self._ramps = PiecewiseLinear(
            start, start + found.blocks, np.array([np.full(len(start), trace.block_size), shares])
        )
        self._block_size = trace.block_size
        row = np.searchsorted(trace.offsets, references, side="right") - 1
        is_last = references == trace.offsets[row + 1] - 1
        sampled = np.full(len(trace), -1)  # row -> its blocks in the sample, if its last one is
        sampled[row[is_last]] = np.diff(offsets)[row[is_last]]
        self._missing = StepFunction(*tails(trace, found, sampled))
        self._adjustments = np.array(_adjustments(trace, row, is_last, every)).reshape(-1, 1)

    def at(self, capacity):
        reach = capacity / self._every
        hit_tokens, shares = self._ramps.at(reach) * self._every
        missing = self._missing.at(reach) * self._every
        return np.array([hit_tokens / self._block_size, hit_tokens - missing, shares]) + self._adjustments


def _adjustments(trace, row, is_last, every):
    """What all references hold beyond those of the sample, scaled up: blocks, tokens, and shares of requests."""
    blocks, lacking = trace.prompt_blocks, trace.prompt_blocks * trace.block_size - trace.input_length
    lacking = np.maximum(lacking, 0)  # tokens that the last block lacks to a full one
    sampled_tokens = len(row) * trace.block_size - lacking[row[is_last]].sum()
    references = int(trace.offsets[-1])
    return (
        references - len(row) * every,
        references * trace.block_size - lacking.sum() - sampled_tokens * every,
        (blocks > 0).sum() - (1 / blocks[row]).sum() * every,
    )


def _parts(trace, every, seed, most):
    """One curve a sample."""
    references, sample, ids = _sampled(trace, every, seed, most)
    for number in range(SAMPLES):
        taken = sample == number
        yield _Part(trace, references[taken], ids[taken], every)


def _sampled(trace, every, seed, most):
    """The references to blocks of any sample: their places in the trace, which sample, and their ids in it."""
    sample_of, found, count = _sample_of(trace.distinct, every, seed), [], 0
    for rows, piece in trace.pieces():
        sample = sample_of[piece.hash_ids]
        places = np.flatnonzero(sample >= 0)
        ids = piece.hash_ids[places] // every  # one id of a group: its number names it
        found.append((int(trace.offsets[rows.start]) + places, sample[places], ids))
        count += len(places)
        if most is not None and count > most:
            raise UsageError("the sample holds more references than the memory does. Try a smaller --sample.")
    return map(np.concatenate, zip(*found, strict=True))


def _sample_of(distinct, every, seed) -> np.ndarray:
    """block -> the sample that it is in, or -1: in each group of `every` ids the samples take places evenly apart."""
    found = np.empty(distinct, dtype=np.int8)
    for start in range(0, distinct, CHUNK):
        group, place = np.divmod(np.arange(start, min(distinct, start + CHUNK)), every)
        drawn = split_mix(group + (seed << 32)) % np.uint64(every)
        sample, rest = np.divmod((place - drawn.astype(np.int64)) % every, every // SAMPLES)
        found[start : start + CHUNK] = np.where((rest == 0) & (sample < SAMPLES), sample, -1)
    return found


def _every(share, distinct):
    """Ids of which each sample takes one."""
    if not 0 < share < 1:
        raise UsageError(f"the sample is {share:g} of the blocks; it is a share above 0 and below 1.")
    if share * distinct < FEWEST * SAMPLES:
        raise UsageError(
            f"a sample of {share:g} holds {share * distinct:,.0f} of {distinct:,} blocks, which says nothing; it takes "
            f"{FEWEST * SAMPLES}. Try a larger share, or the exact curve."
        )
    return round(SAMPLES / share)
