"""Check 5: a partial block that two requests share says that their last tokens are equal, and few can be guessed."""

from __future__ import annotations

import numpy as np

from .evidence import Evidence
from .finding import Finding, failed, not_made, passed

SHORT = 2  # tokens: so many unknown ones can be guessed within minutes


def check(there: Evidence) -> Finding:
    """Tails of prompts and outputs whose id is used more than once, and how long tails are."""
    requests, wanted = there.requests, there.profile.tail
    if requests is None:
        return not_made("its rows make no trace")
    tails, uses = there.sums.tails, there.sums.uses.anywhere
    shared, lengths = int(np.count_nonzero(uses[tails.numbers] > 1)), tails.tokens
    short = int((lengths <= SHORT).sum())
    figure = {"tails": len(lengths), "shared": shared, "of_1_or_2_tokens": short, "tokens": _histogram(lengths)}
    if wanted == "kept":
        return passed(
            figure, f"{shared:,} of {len(lengths):,} tail blocks are shared, as {there.profile.name} lets them be."
        )
    if wanted == "dropped" and len(lengths):
        return failed(
            figure, f"{len(lengths):,} tail blocks, where {there.profile.name} drops them.", "Use --tail dropped."
        )
    if shared:
        return failed(
            figure, f"{shared:,} of {len(lengths):,} tail blocks are shared: whoever guesses their tokens can tell.",
            "Use `kvtrace release --tail unique`, which gives each tail an id of its own.",
        )  # fmt: skip
    return passed(figure, f"none of {len(lengths):,} tail blocks is shared.")


def _histogram(lengths) -> dict[str, int]:
    """Tails by tokens, in powers of two: 1, 2-3, 4-7, ..."""
    power = np.log2(lengths).astype(np.int64)
    return {_range(1 << p): count for p, count in enumerate(np.bincount(power).tolist())}


def _range(low: int) -> str:
    return "1" if low == 1 else f"{low}-{2 * low - 1}"
