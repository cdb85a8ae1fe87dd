"""Check 7: how many requests look like no other, and how often somebody finds a request they know.

The simulated attacker knows one request: its lengths, which they round as the release did, and its time to a minute.
The candidates are all rows with these lengths whose time is at most 60 s from the request's row; a request alone among
them is found. It says who a row can belong to; it does not say what stands in it.
"""

from __future__ import annotations

import numpy as np

from .blocks import Blocks
from .evidence import Evidence
from .finding import Finding, not_made, passed, warned
from .mix import of_rows

NEAR_MS = 60_000.0
MOST = 0.1  # share of requests found alone from which on there is a warning


def check(there: Evidence) -> Finding:
    """Shares of rows that are alone by what they show; of requests that are located by who knows them."""
    requests = there.requests
    if requests is None:
        return not_made("its rows make no trace", "WARN")
    lengths = _group(_numbered(requests.input_length), _numbered(requests.output_length))
    located = alone_near(lengths, requests.timestamp, NEAR_MS)
    figure = {
        "alone_by_input": _alone(_numbered(requests.input_length)),
        "alone_by_lengths": _alone(lengths),
        "alone_by_time_and_lengths": _alone(_group(_numbered(requests.timestamp), lengths)),
        "alone_by_structure": _alone(_numbered(structure(there))),
        "located": located,
        "within_ms": NEAR_MS,
    }
    said = f"who knows a request's lengths, and its time to 60 s, finds {located:.1%} of the requests alone"
    if located > MOST:
        return warned(
            figure,
            f"{said}; {figure['alone_by_lengths']:.1%} by lengths, {figure['alone_by_structure']:.1%} by sharing.",
            "Round lengths and times (--profile strict), or accept it: what is found is no content.",
        )
    return passed(figure, f"{said}.")


def alone_near(group: np.ndarray, timestamp: np.ndarray, near_ms: float) -> float:
    """The share of rows without another one of their group within `near_ms`.

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


def structure(there: Evidence) -> np.ndarray:
    """A number for the shape of what each request shares: how many prompts hold each of its shared blocks, in order.

    Requests that share nothing have one shape together.
    """
    assert there.requests is not None
    uses, shape = there.sums.uses.in_prompts, np.empty(len(there.requests), dtype=np.uint64)

    def take(blocks: Blocks):
        shape[blocks.requests] = shapes(uses[blocks.numbers], blocks.offsets)

    there.feed(take)
    return shape.view(np.int64)


def shapes(uses: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """A number (uint64) for each row's list of uses, where blocks that are used once count as none.

    >>> same, alike, other = shapes(np.array([2, 1, 2, 1, 1, 3]), np.array([0, 2, 4, 6])).tolist()
    >>> same == alike, same == other
    (True, False)
    """
    return of_rows(uses, offsets, skip=uses < 2)


def _numbered(values) -> np.ndarray:
    return np.unique(values, return_inverse=True)[1]


def _group(first, second) -> np.ndarray:
    """A number for each pair of numbers."""
    return _numbered(first * (int(second.max(initial=0)) + 1) + second)


def _alone(group) -> float:
    return _share((np.bincount(group) == 1).sum(), len(group))


def _share(part, whole) -> float:
    return float(part / whole) if whole else 0.0
