"""The figures of a trace in sidecars and summaries: its size, and its hit rates without eviction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NotRequired, TypedDict

from .columns import Columns
from .hits import Hits, count_hits, unlimited_hits
from .meta import shares_prefixes
from .trace import Trace
from .unknown import known_outputs


class Figures(TypedDict):
    """The result of `figures`, which a sidecar file states under "figures"."""

    requests: int
    tokens: int
    output_tokens: NotRequired[int]  # only if all outputs are known
    known_output_tokens: NotRequired[int]  # of the outputs that are known, if some are not
    unknown_outputs: NotRequired[int]  # requests whose output length is unknown
    blocks: int
    distinct_blocks: int
    sessions: int
    duration_ms: float
    hits: NotRequired[dict[str, Any]]
    hits_with_outputs: NotRequired[dict[str, Any]]


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
        **output_figures(*count_outputs(rows)),
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


class OutputCounts(NamedTuple):
    """The tokens of the outputs of known length, and the requests with such an output and without one."""

    tokens: int
    with_length: int
    without_length: int


def count_outputs(rows: Columns) -> OutputCounts:
    """Count the outputs of some rows.

    >>> count_outputs(Columns([0, 1], [2, 2], [-1, 5], [], [0, 0, 0]))
    OutputCounts(tokens=5, with_length=1, without_length=1)
    """
    lengths = rows.output_length[known_outputs(rows)]
    return OutputCounts(int(lengths.sum()), len(lengths), len(rows) - len(lengths))


class OutputFigures(TypedDict, total=False):
    """The keys of Figures on outputs."""

    output_tokens: int
    known_output_tokens: int
    unknown_outputs: int


def output_figures(tokens: int, with_length: int, without_length: int) -> OutputFigures:
    """The keys on outputs: a sum of some outputs is not named as that of all.

    >>> output_figures(5, 2, 0), output_figures(5, 1, 1), output_figures(0, 0, 2)
    ({'output_tokens': 5}, {'known_output_tokens': 5, 'unknown_outputs': 1}, {'unknown_outputs': 2})
    """
    if not without_length:
        return {"output_tokens": tokens}
    if not with_length:
        return {"unknown_outputs": without_length}
    return {"known_output_tokens": tokens, "unknown_outputs": without_length}


def output_words(figures: Mapping[str, Any]) -> str:
    """The output tokens of figures in words.

    >>> output_words({"known_output_tokens": 1200, "unknown_outputs": 3})
    '1,200 in the outputs that are known; 3 requests have no output length'
    """
    if "output_tokens" in figures:
        return f"{figures['output_tokens']:,} in outputs"
    tokens, unknown = figures.get("known_output_tokens"), figures.get("unknown_outputs")
    if tokens is None or unknown is None:
        return "output lengths are unknown"
    requests = "1 request has" if unknown == 1 else f"{unknown:,} requests have"
    return f"{tokens:,} in the outputs that are known; {requests} no output length"
