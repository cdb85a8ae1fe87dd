"""The sessions of a trace: recorded, or inferred from the blocks that requests share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace.trace import Trace
from .reuse import Segments, find_segments

MAX_CONTINUATIONS = 2  # of a block inside a session: the next turn, and one retry or branch


@dataclass(frozen=True, eq=False)
class SessionLinks:
    """The session of each request, and the previous turn of that session."""

    session: np.ndarray  # request -> session, -1 = none
    parent: np.ndarray  # request -> row of the previous turn, -1 = first turn
    recorded: bool  # True: from the trace; False: inferred


def recorded_sessions(trace: Trace) -> SessionLinks | None:
    """The recorded sessions; None if the trace has no sessions.

    If the trace has no parents, the previous turn is the request before it in the same session.

    >>> from kvtrace.trace.columns import Columns
    >>> trace = Trace([0, 1, 2], [1, 1, 1], [1, 1, 1], [0, 1, 0], [0, 1, 2, 3], session=[0, 1, 0], block_size=1)
    >>> recorded_sessions(trace).parent
    array([-1, -1,  0])
    """
    if trace.session is None or not (trace.session >= 0).any():
        return None
    parent = _previous_turn(trace.session) if trace.parent is None else trace.parent
    return SessionLinks(trace.session, parent, recorded=True)


def infer_sessions(trace: Trace, segments: Segments | None = None) -> SessionLinks:
    """Infer sessions from shared blocks. A request follows the last request that used its deepest block seen before.

    A block with three or more continuations in the whole trace (its children, and prompts that end at it) is a common
    beginning, such as a system prompt. A request whose deepest seen block is a common beginning starts a session.

    Args:
        trace: The trace.
        segments: The reuse segments of the trace, if they are known already.

    Returns:
        The session and the previous turn of each request.

    Raises:
        InputError: The ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> links = infer_sessions(toy("0 1", "0 2", "0 1 3", "0 4"))
    >>> links.session, links.parent
    (array([0, 1, 0, 2]), array([-1, -1,  0, -1]))
    """
    segments = segments or find_segments(trace)
    parent = np.full(len(trace), -1, dtype=np.int64)
    if len(segments.row):
        last = np.append(segments.row[1:] != segments.row[:-1], True)  # the deepest segment of each request with hits
        row = segments.row[last]
        hit_blocks = np.add.reduceat(segments.blocks, np.flatnonzero(np.append(True, last[:-1])))
        deepest = trace.hash_ids[trace.offsets[row] + hit_blocks - 1]
        # the first request of a block is one continuation; each later request adds one at its deepest block only
        continuations = 1 + np.bincount(deepest)
        follows = continuations[deepest] <= MAX_CONTINUATIONS
        parent[row[follows]] = segments.last_row[last][follows]
    return SessionLinks(_session_numbers(parent), parent, recorded=False)


def _session_numbers(parent):
    """The session of each request, numbered by first appearance: all requests that lead back to one first turn."""
    first = np.where(parent < 0, np.arange(len(parent)), parent)
    while (first[first] != first).any():  # each step doubles the distance
        first = first[first]
    return (np.cumsum(parent < 0) - 1)[first]


def _previous_turn(session):
    """The row of the previous turn in the same session, -1 = none."""
    order = np.argsort(session, kind="stable")
    parent = np.full(len(session), -1, dtype=np.int64)
    continues = (session[order][1:] == session[order][:-1]) & (session[order][1:] >= 0)
    parent[order[1:][continues]] = order[:-1][continues]
    return parent
