"""The figures of a trace in sidecars and summaries: its size, and its hit rates without eviction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NotRequired, TypedDict

from .columns import Columns
from .hits import Hits, HitsDict, count_hits, unlimited_hits
from .meta import shares_prefixes
from .trace import Trace
from .unknown import OUTPUTS, unknown


class Figures(TypedDict):
    """The result of `figures`, which a sidecar file states under "figures"."""

    requests: int
    tokens: int
    output_tokens: int | None  # None if an output length is unknown
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

    def hits(*, outputs: bool = False) -> Hits:
        return count_hits(trace, unlimited_hits(trace, outputs=outputs))

    outputs = trace.output_ids is not None
    return figures_of(trace, len(trace.hash_ids), trace.distinct, hits, outputs=outputs, meta=trace.meta)


def figures_of(
    rows: Columns, blocks: int, distinct: int, hits: Callable[..., Hits], *, outputs: bool, meta: Mapping[str, Any]
) -> Figures:
    """As `figures`, for rows whose blocks are elsewhere.

    Args:
        rows: The rows; their blocks are not looked at.
        blocks: The number of blocks of the prompts.
        distinct: The number of distinct blocks.
        hits: Returns the hits of a cache that never evicts, with `outputs=True` in blocks of earlier outputs, too.
        outputs: Whether outputs have blocks.
        meta: The values of the sidecar.
    """
    values: Figures = {
        "requests": len(rows),
        "tokens": int(rows.input_length.sum()),
        "output_tokens": None if OUTPUTS in unknown(rows, meta) else int(rows.output_length.sum()),
        "blocks": blocks,
        "distinct_blocks": distinct,
        "sessions": 0 if rows.session is None else int(rows.session.max()) + 1,
        "duration_ms": float(rows.timestamp[-1]),
    }
    if shares_prefixes(meta):  # otherwise shared prefixes are unknown, and rates of 0 would be wrong
        values["hits"] = hits().to_dict()
    if outputs:
        values["hits_with_outputs"] = hits(outputs=True).to_dict()
    return values
