"""tails: no two requests share a partial block.

A shared partial block reveals that two prompts end in the same few tokens, and few tokens can be guessed.
"""

from __future__ import annotations

import numpy as np

from .evidence import Evidence
from .finding import Finding, failed, not_checked, passed

SHORT = 2  # tokens: an attacker can guess this many within minutes


def check(evidence: Evidence) -> Finding:
    """Count the tail blocks of prompts and outputs whose id is used more than once, and their tokens."""
    requests, allowed = evidence.requests, evidence.profile.tail
    if requests is None:
        return not_checked("no row is a valid request")
    tails, uses = evidence.sums.tails, evidence.sums.uses.anywhere
    shared, lengths = int(np.count_nonzero(uses[tails.numbers] > 1)), tails.tokens
    short = int((lengths <= SHORT).sum())
    figure = {"tails": len(lengths), "shared": shared, "of_1_or_2_tokens": short, "tokens": _histogram(lengths)}
    if allowed == "kept":
        return passed(
            figure, f"{shared:,} of {len(lengths):,} tail blocks are shared; {evidence.profile.name} allows it."
        )
    if allowed == "dropped" and len(lengths):
        return failed(
            figure, f"the trace has {len(lengths):,} tail blocks, but {evidence.profile.name} drops them.",
            "Release it with `kvtrace release --tail dropped`.",
        )  # fmt: skip
    if shared:
        return failed(
            figure, f"{shared:,} of {len(lengths):,} tail blocks are shared: an attacker can confirm a guess of their "
            "tokens.",
            "Release it with `kvtrace release --tail unique`, which gives each tail block its own id.",
        )  # fmt: skip
    return passed(figure, f"none of the {len(lengths):,} tail blocks is shared.")


def _histogram(lengths) -> dict[str, int]:
    """Tail blocks by tokens, in powers of two: 1, 2-3, 4-7, ..."""
    power = np.log2(lengths).astype(np.int64)
    return {_range(1 << p): count for p, count in enumerate(np.bincount(power).tolist())}


def _range(low: int) -> str:
    return "1" if low == 1 else f"{low}-{2 * low - 1}"
