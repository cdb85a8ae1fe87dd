"""The hit curve of a trace: exact, or estimated from a sample of its blocks."""

from __future__ import annotations

from .._base.errors import InputError
from ..trace.trace import Trace
from .exact_curve import HitCurve
from .reuse import segments
from .sampled_curve import SampledCurve


def hit_curve(trace: Trace, *, sample: float | None = None, seed: int = 0, most: int | None = None) -> HitCurve:
    """The exact hit counts of an LRU cache at every capacity, one request at a time.

    With `sample`, an estimate from that share of the blocks and its error (`SampledCurve`); UsageError where
    it holds more than `most` references. InputError where there are no blocks, or ids that form no forest.

    >>> from kvtrace.trace.building import toy
    >>> curve = hit_curve(toy("0 1", "2", "0 1"))
    >>> [hits.hit_blocks for hits in curve.hits([1, 2, 3])]
    [0, 1, 2]
    """
    if not trace.offsets[-1]:
        raise InputError("the trace has no hash_ids, so nothing can be said of its reuse.")
    if sample is not None:
        return SampledCurve(trace.require_chained(), sample, seed, most)
    return HitCurve(trace, segments(trace))
