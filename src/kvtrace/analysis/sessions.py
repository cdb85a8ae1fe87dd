"""Who talks with whom: the conversations of a trace, as recorded, or inferred from the blocks that requests share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..trace.trace import Trace
from .reuse import Segments, segments

MOST_WAYS = 2  # on from a block of a conversation: what was said next, and one retry or branch


@dataclass(frozen=True, eq=False)
class Turns:
    """Which conversation each request belongs to, and which request it follows there."""

    session: np.ndarray  # request -> conversation, -1 = none
    parent: np.ndarray  # request -> row of the previous turn, -1 = it begins a conversation
    recorded: bool  # the trace says so; else it was inferred


def recorded_sessions(trace: Trace) -> Turns | None:
    """The conversations that the trace itself has; None where it has none.

    Where the trace names no parents, a request follows the one before it in its conversation.

    >>> from kvtrace.trace.columns import Columns
    >>> trace = Trace([0, 1, 2], [1, 1, 1], [1, 1, 1], [0, 1, 0], [0, 1, 2, 3], session=[0, 1, 0], block_size=1)
    >>> recorded_sessions(trace).parent
    array([-1, -1,  0])
    """
    if trace.session is None or not (trace.session >= 0).any():
        return None
    parent = _previous(trace.session) if trace.parent is None else trace.parent
    return Turns(trace.session, parent, recorded=True)


def infer_sessions(trace: Trace, found: Segments | None = None) -> Turns:
    """Infer conversations from the blocks that requests share: each follows the last user of its deepest known block.

    Not where there are three ways or more on from that block in the whole trace (its children, and prompts that end at
    it): such a block is a common beginning, and the request begins a conversation.

    Args:
        trace: The trace.
        found: The reuse segments of the trace, where they are known already.

    Returns:
        The conversation and the previous turn of each request.

    Raises:
        InputError: The ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> turns = infer_sessions(toy("0 1", "0 2", "0 1 3", "0 4"))
    >>> turns.session, turns.parent
    (array([0, 1, 0, 2]), array([-1, -1,  0, -1]))
    """
    found = found or segments(trace)
    parent = np.full(len(trace), -1, dtype=np.int64)
    if len(found.row):
        last = np.append(found.row[1:] != found.row[:-1], True)  # the deepest run of each request that found any
        row = found.row[last]
        hit_blocks = np.add.reduceat(found.blocks, np.flatnonzero(np.append(True, last[:-1])))
        deepest = trace.hash_ids[trace.offsets[row] + hit_blocks - 1]
        # a block's first request makes one way on; each later one adds a way at its deepest block, and nowhere else
        ways = 1 + np.bincount(deepest)
        follows = ways[deepest] <= MOST_WAYS
        parent[row[follows]] = found.last_row[last][follows]
    return Turns(_numbered(parent), parent, recorded=False)


def _numbered(parent):
    """The conversation of each request, numbered by first appearance: everything that leads back to one request."""
    first = np.where(parent < 0, np.arange(len(parent)), parent)
    while (first[first] != first).any():  # each step doubles the way back
        first = first[first]
    return (np.cumsum(parent < 0) - 1)[first]


def _previous(session):
    """The row before each in its conversation, -1 where there is none."""
    order = np.argsort(session, kind="stable")
    parent = np.full(len(session), -1, dtype=np.int64)
    again = (session[order][1:] == session[order][:-1]) & (session[order][1:] >= 0)
    parent[order[1:][again]] = order[:-1][again]
    return parent
