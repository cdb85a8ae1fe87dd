"""Subagents of sessions: how many there are, how many run at once, and how many calls each makes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Subagents:
    """Values of the subagents of a trace's sessions."""

    subagents: np.ndarray  # session -> its subagents
    width: np.ndarray  # session with subagents -> the most of them that run at once
    calls: np.ndarray  # subagent -> its requests


def subagents(trace: Trace, agent: np.ndarray | None, end: np.ndarray) -> Subagents | None:
    """The values of the subagents; None if the agents are not known.

    Args:
        trace: A trace with sessions.
        agent: Request -> agent of its session, 0 = the main agent; all others are subagents.
        end: Request -> its end in ms. A subagent runs from its first arrival to its last end.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> columns = replace_columns(toy("0", "1", "2", "3", gap_ms=10), session=np.zeros(4, dtype=np.int64))
    >>> trace = Trace.from_columns(columns, block_size=1)
    >>> found = subagents(trace, np.array([0, 1, 2, 1]), trace.timestamp + 5)
    >>> found.subagents, found.width, found.calls
    (array([2]), array([2]), array([2, 1]))
    """
    if agent is None or trace.session is None:
        return None
    rows = np.flatnonzero((agent > 0) & (trace.session >= 0))
    key = trace.session[rows] * (int(agent.max(initial=0)) + 1) + agent[rows]
    _, first, which, calls = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    session, start = trace.session[rows][first], trace.timestamp[rows][first]
    last = np.full(len(first), -np.inf)
    np.maximum.at(last, which, end[rows])
    sessions = np.unique(trace.session[trace.session >= 0])
    counts = np.bincount(np.searchsorted(sessions, session), minlength=len(sessions))
    return Subagents(counts, _width(session, start, last), calls)


def _width(session: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The most intervals of each session that have a time in common; one ends before another starts at that time."""
    end = np.maximum(end, np.nextafter(start, np.inf))  # an interval of no length is one, too
    time = np.concatenate([start, end])
    change = np.repeat([1, -1], len(start))
    both = np.concatenate([session, session])
    order = np.lexsort((change, time, both))
    running = np.cumsum(change[order])  # 0 after the last end of each session
    found = np.unique(session, return_index=True)[1]
    firsts = np.searchsorted(both[order], session[found])
    return np.maximum.reduceat(running, firsts) if len(firsts) else np.zeros(0, dtype=np.int64)
