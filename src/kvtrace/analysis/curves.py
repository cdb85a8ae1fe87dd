"""The hit curve of a trace: exact, or estimated from a sample of its blocks."""

from __future__ import annotations

from typing import overload

from .._base.errors import InputError
from ..trace.trace import Trace
from .exact_curve import HitCurve
from .reuse import segments
from .sampled_curve import SampledCurve


@overload
def hit_curve(trace: Trace, *, sample: None = None) -> HitCurve: ...
@overload
def hit_curve(trace: Trace, *, sample: float, seed: int = 0, max_references: int | None = None) -> SampledCurve: ...
@overload
def hit_curve(trace: Trace, *, sample: float | None, seed: int = 0, max_references: int | None = None) -> HitCurve: ...
def hit_curve(
    trace: Trace, *, sample: float | None = None, seed: int = 0, max_references: int | None = None
) -> HitCurve:
    """Count the hits of an LRU cache at every capacity, one request at a time.

    Args:
        trace: The trace.
        sample: Share of the blocks to look at; the default is all of them, which is exact.
        seed: Seed of the sample.
        max_references: Largest number of block references that the sample may hold.

    Returns:
        The exact curve; with `sample` an estimate that states its error.

    Raises:
        UsageError: The sample is too small, or holds more than `max_references`.
        InputError: The trace has no blocks, or ids that do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> curve = hit_curve(toy("0 1", "2", "0 1"))
    >>> [hits.hit_blocks for hits in curve.hits([1, 2, 3])]
    [0, 1, 2]
    """
    if not trace.offsets[-1]:
        raise InputError("the trace has no hash_ids, so nothing can be said of its reuse.")
    if sample is not None:
        return SampledCurve(trace.require_chained(), sample, seed, max_references)
    return HitCurve(trace, segments(trace))
