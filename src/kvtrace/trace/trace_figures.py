"""The figures of a trace in sidecars and summaries: its size, and its hit rates without eviction."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from .hits import HitsDict, count_hits, unlimited_hits
from .meta import shares_prefixes
from .trace import Trace


class Figures(TypedDict):
    """The result of `figures`, and a sidecar file states under "figures"."""

    requests: int
    tokens: int
    output_tokens: int
    blocks: int
    distinct_blocks: int
    sessions: int
    duration_ms: float
    hits: NotRequired[HitsDict]
    hits_with_outputs: NotRequired[HitsDict]


def figures(trace: Trace) -> Figures:
    """Counts by name, and the hits of a cache that never evicts, where the trace knows what its prompts share.

    >>> from kvtrace.trace.building import toy
    >>> figures(toy("0 1", "0 2"))["hits"]["block_hit_rate"]
    0.25
    """
    values: Figures = {
        "requests": len(trace),
        "tokens": int(trace.input_length.sum()),
        "output_tokens": int(trace.output_length.sum()),
        "blocks": len(trace.hash_ids),
        "distinct_blocks": trace.distinct,
        "sessions": 0 if trace.session is None else int(trace.session.max()) + 1,
        "duration_ms": float(trace.timestamp[-1]),
    }
    if shares_prefixes(trace.meta):  # otherwise shared prefixes are unknown, and rates of 0 would be wrong
        values["hits"] = count_hits(trace, unlimited_hits(trace)).to_dict()
    if trace.output_ids is not None:
        values["hits_with_outputs"] = count_hits(trace, unlimited_hits(trace, outputs=True)).to_dict()
    return values
