"""Check 7: how many requests look like no other, and how often somebody finds a request they know.

The simulated attacker knows one request: its lengths, which they round as the release did, and its time to a minute.
The candidates are all rows with these lengths whose time is at most 60 s from the request's row; a request alone among
them is found. It says who a row can belong to; it does not say what stands in it.
"""

from __future__ import annotations

import numpy as np

from .evidence import Evidence
from .finding import Finding, not_made, passed, warned

NEAR_MS = 60_000.0
MOST = 0.1  # share of requests found alone from which on there is a warning


def check(there: Evidence) -> Finding:
    """Shares of rows that are alone by what they show; of requests that are located by who knows them."""
    trace = there.trace
    if trace is None:
        return not_made("its rows make no trace", "WARN")
    lengths = _group(_numbered(trace.input_length), _numbered(trace.output_length))
    located = alone_near(lengths, trace.timestamp, NEAR_MS)
    figure = {
        "alone_by_input": _alone(_numbered(trace.input_length)),
        "alone_by_lengths": _alone(lengths),
        "alone_by_time_and_lengths": _alone(_group(_numbered(trace.timestamp), lengths)),
        "alone_by_structure": _alone(_numbered(structure(trace))),
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


def structure(trace) -> np.ndarray:
    """A number for the shape of what each request shares: how many requests hold each of its shared blocks, in order.

    Requests that share nothing have one shape together.

    >>> from kvtrace.trace import toy
    >>> len(set(structure(toy("0 1 2", "0 1 3", "0", "4")).tolist()))
    3
    """
    visits = np.bincount(trace.hash_ids, minlength=trace.distinct)[trace.hash_ids].astype(np.uint64)
    place = (np.arange(len(visits)) - np.repeat(trace.offsets[:-1], trace.prompt_blocks)).astype(np.uint64)
    mixed = mix(mix(place + np.uint64(1)) + visits)
    mixed[visits < 2] = 0
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])  # wraps, as differences do
    return (sums[trace.offsets[1:]] - sums[trace.offsets[:-1]]).view(np.int64)


def mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: equal inputs stay equal, others hardly ever meet."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _numbered(values) -> np.ndarray:
    return np.unique(values, return_inverse=True)[1]


def _group(first, second) -> np.ndarray:
    """A number for each pair of numbers."""
    return _numbered(first * (int(second.max(initial=0)) + 1) + second)


def _alone(group) -> float:
    return _share((np.bincount(group) == 1).sum(), len(group))


def _share(part, whole) -> float:
    return float(part / whole) if whole else 0.0
