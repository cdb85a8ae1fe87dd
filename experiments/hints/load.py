"""The load: recorded sessions that start at random moments, and the held-out third of them."""

from __future__ import annotations

import numpy as np

from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace

HELD_OUT = 2  # a session is held out if its number leaves this remainder when divided by 3


def sessions_of(trace: Trace, *, held_out: bool) -> Trace:
    """The requests of every third session, or of all others; nothing was tuned on the held-out ones.

    >>> from kvtrace.trace.building import toy
    >>> trace = replace_columns(toy("0", "1", "2", "3"), session=np.array([0, 1, 2, 2]))
    >>> trace = Trace.from_columns(trace, block_size=1)
    >>> [len(sessions_of(trace, held_out=one)) for one in (False, True)]
    [2, 2]
    """
    assert trace.session is not None
    return trace.select(np.flatnonzero((trace.session % 3 == HELD_OUT) == held_out))


def staggered(trace: Trace, live: float, seed: int) -> Trace:
    """Sessions in random order that start as a Poisson process; `live` of them are open at a time, on average.

    A session is open from the arrival of its first request to the end of its last one.

    >>> from kvtrace.trace.building import toy
    >>> trace = replace_columns(toy("0", "0", "1", "1", gap_ms=10.0), session=np.array([0, 0, 1, 1]))
    >>> trace = staggered(Trace.from_columns(trace, block_size=1), live=1, seed=0)
    >>> np.diff(trace.timestamp)[[0, 2]].tolist()
    [10.0, 10.0]
    """
    assert trace.session is not None
    _, number = np.unique(trace.session, return_inverse=True)
    count = int(number.max()) + 1
    service = np.zeros(len(trace)) if trace.service_ms is None else np.nan_to_num(trace.service_ms)
    begin, end = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(begin, number, trace.timestamp)
    np.maximum.at(end, number, trace.timestamp + service)
    rng = np.random.default_rng(seed)
    start = np.empty(count)
    start[rng.permutation(count)] = np.cumsum(rng.exponential((end - begin).mean() / live, count))
    columns = replace_columns(trace, timestamp=trace.timestamp - begin[number] + start[number])
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail)
