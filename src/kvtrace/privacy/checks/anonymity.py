"""anonymity: how many requests are unique, and how often an attacker can single out a request that they know.

The simulated attacker knows one request: its lengths, which they round as the release did, and its arrival time. The
candidates are all rows with these lengths whose time is within 60 s of the request's row. The request is located if it
is the only candidate. A located row reveals which rows share its prefix, not its content.
"""

from __future__ import annotations

import numpy as np

from .block_feed import RequestBlocks
from .evidence import Evidence
from .finding import Finding, not_checked, passed, warned

NEAR_MS = 60_000.0
MAX_LOCATED = 0.1  # share of located requests above which the check warns


def check(evidence: Evidence) -> Finding:
    """Measure the shares of unique rows and of located requests."""
    requests = evidence.requests
    if requests is None:
        return not_checked("no row is a valid request", "WARN")
    lengths = group_of(numbered(requests.input_length), numbered(requests.output_length))
    located = alone_near(lengths, requests.timestamp, NEAR_MS)
    figure = {
        "alone_by_input": _alone(numbered(requests.input_length)),
        "alone_by_lengths": _alone(lengths),
        "alone_by_time_and_lengths": _alone(group_of(numbered(requests.timestamp), lengths)),
        "alone_by_structure": _alone(numbered(structure(evidence))),
        "located": located,
        "within_ms": NEAR_MS,
    }
    sentence = (
        "an observer who knows a request's lengths and its arrival time (within 60 s) can single out "
        f"{located:.1%} of the requests"
    )
    if located > MAX_LOCATED:
        by_lengths, by_structure = figure["alone_by_lengths"], figure["alone_by_structure"]
        return warned(
            figure,
            f"{sentence}; {by_lengths:.1%} are unique by lengths, {by_structure:.1%} by sharing.",
            f"{_stronger(evidence)}, or accept the risk: a row reveals no content.",
        )
    return passed(figure, f"{sentence}.")


def _stronger(evidence: Evidence) -> str:
    """A remedy that rounds more than the profile does."""
    if evidence.profile.drop_sessions and evidence.profile.round_output == "pow2":  # strict, or coarser
        return f"Use larger time steps (--time-step {max(600, evidence.profile.time_step_ms // 100)}s)"
    return "Round lengths and times (--profile strict)"


def alone_near(group: np.ndarray, timestamp: np.ndarray, near_ms: float) -> float:
    """The share of rows with no other row of their group within `near_ms`.

    >>> alone_near(np.array([0, 0, 1, 0]), np.array([0.0, 50.0, 50.0, 200.0]), 60)
    0.5
    """
    order = np.lexsort((timestamp, group))
    group, time = group[order], timestamp[order]
    follows = (group[1:] == group[:-1]) & (time[1:] - time[:-1] <= near_ms)
    alone = np.ones(len(group), dtype=bool)
    alone[1:] &= ~follows
    alone[:-1] &= ~follows
    return _share(alone.sum(), len(alone))


def structure(evidence: Evidence) -> np.ndarray:
    """A hash of each request's sharing: how many prompts contain each of its shared blocks, in order.

    All requests that share nothing have the same hash.
    """
    assert evidence.requests is not None
    uses, shape = evidence.sums.uses.in_prompts, np.empty(len(evidence.requests), dtype=np.uint64)

    def take(blocks: RequestBlocks):
        shape[blocks.requests] = shapes(uses[blocks.numbers], blocks.offsets)

    evidence.feed(take)
    return shape.view(np.int64)


def shapes(uses: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """A hash (uint64) of each row's list of uses; blocks that are used once are skipped.

    >>> same, alike, other = shapes(np.array([2, 1, 2, 1, 1, 3]), np.array([0, 2, 4, 6])).tolist()
    >>> same == alike, same == other
    (True, False)
    """
    from ..._native import numbering

    return numbering.hash_rows(uses, offsets, skip=uses < 2)


def numbered(values) -> np.ndarray:
    """A number for each distinct value."""
    from ..._native import numbering

    values = values + 0.0 if values.dtype.kind == "f" else values  # -0.0 becomes 0.0
    return numbering.renumber(np.ascontiguousarray(values).view(np.int64))[0]


def group_of(first, second) -> np.ndarray:
    """A number for each pair of numbers."""
    return numbered(first * (int(second.max(initial=0)) + 1) + second)


def _alone(group) -> float:
    return _share((np.bincount(group) == 1).sum(), len(group))


def _share(part, whole) -> float:
    return float(part / whole) if whole else 0.0
