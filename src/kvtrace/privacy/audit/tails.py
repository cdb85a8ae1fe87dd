"""Check 5: a partial block that two requests share says that their last tokens are equal, and few can be guessed."""

from __future__ import annotations

import numpy as np

from .evidence import Evidence
from .finding import Finding, failed, not_made, passed

SHORT = 2  # tokens: so many unknown ones can be guessed within minutes


def check(there: Evidence) -> Finding:
    """Tails of prompts and outputs whose id is used more than once, and how long tails are."""
    trace, wanted = there.trace, there.profile.tail
    if trace is None:
        return not_made("its rows make no trace")
    parts = [] if trace.tail == "dropped" else _tails(trace)
    uses = np.bincount(there_ids(trace), minlength=trace.distinct)
    shared = sum(int((uses[ids] > 1).sum()) for ids, _ in parts)
    lengths = np.concatenate([length for _, length in parts]) if parts else np.empty(0, np.int64)
    short = int((lengths <= SHORT).sum())
    figure = {"tails": len(lengths), "shared": shared, "of_1_or_2_tokens": short, "tokens": _histogram(lengths)}
    if wanted == "shared":
        return passed(
            figure, f"{shared:,} of {len(lengths):,} tail blocks are shared, as {there.profile.name} lets them be."
        )
    if wanted == "drop" and len(lengths):
        return failed(
            figure, f"{len(lengths):,} tail blocks, where {there.profile.name} drops them.", "Use --tail drop."
        )
    if shared:
        return failed(
            figure, f"{shared:,} of {len(lengths):,} tail blocks are shared: whoever guesses their tokens can tell.",
            "Use `kvtrace release --tail unique`, which gives each tail an id of its own.",
        )  # fmt: skip
    return passed(figure, f"none of {len(lengths):,} tail blocks is shared.")


def there_ids(trace) -> np.ndarray:
    """All ids of prompts and outputs."""
    return trace.hash_ids if trace.output_ids is None else np.concatenate([trace.hash_ids, trace.output_ids])


def _tails(trace):
    """(ids, tokens) of the tail blocks of prompts, and of prompts and outputs together."""
    parts = [_part(trace.hash_ids, trace.offsets, trace.input_length % trace.block_size)]
    if trace.output_ids is not None:
        both = trace.input_length + trace.output_length
        parts.append(_part(trace.output_ids, trace.output_offsets, both % trace.block_size))
    return parts


def _part(ids, offsets, tokens):
    held = (tokens > 0) & (np.diff(offsets) > 0)
    return ids[offsets[1:][held] - 1], tokens[held]


def _histogram(lengths) -> dict[str, int]:
    """Tails by tokens, in powers of two: 1, 2-3, 4-7, ..."""
    power = np.log2(lengths).astype(np.int64)
    return {_range(1 << p): count for p, count in enumerate(np.bincount(power).tolist())}


def _range(low: int) -> str:
    return "1" if low == 1 else f"{low}-{2 * low - 1}"
