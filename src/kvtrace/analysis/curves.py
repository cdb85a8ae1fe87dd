"""The hit curve of a trace, exact or estimated from a sample of its blocks."""

from __future__ import annotations

from typing import overload

from .._base.errors import InputError
from ..trace.domains import in_domains
from ..trace.trace import Trace
from ..trace.unknown import PREFIXES, require_known
from .exact_curve import HitCurve
from .reuse import find_segments
from .sampled_curve import SampledCurve


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
