"""The sessions of a trace: recorded, or inferred from the blocks that requests share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.results import Result
from ..trace.columns import require_trace
from ..trace.trace import Trace
from ..trace.turns import previous_turn


@dataclass(frozen=True, eq=False, repr=False)
class SessionLinks(Result):
    """The session of each request, and the previous turn of that session."""

    session: np.ndarray  # request -> session, -1 = none
    parent: np.ndarray  # request -> row of the previous turn, -1 = first turn
    recorded: bool  # True: from the trace; False: inferred

    def _headline(self) -> str:
        sessions = len(np.unique(self.session[self.session >= 0]))
        return f"{len(self.session):,} requests, {sessions:,} sessions, {'recorded' if self.recorded else 'inferred'}"

    def _columns(self) -> dict[str, np.ndarray]:
        return {"session": self.session, "parent": self.parent}


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
    parent = previous_turn(trace.session) if trace.parent is None else trace.parent
    return SessionLinks(trace.session, parent, recorded=True)


def infer_sessions(trace: Trace) -> SessionLinks:
    """Infer sessions from shared blocks, each request from the requests before it.

    Take the last request that used the deepest block of this request's shared prefix. This request continues its
    session if the shared prefix is all of that request's prompt (but for a last, perhaps partial, block), and fewer
    than three sessions have used the block: a block of more sessions is a common beginning, such as a system prompt.
    k-sharing counts the same conversations.

    Args:
        trace: The trace.

    Returns:
        The session and the previous turn of each request.

    >>> from kvtrace.trace.building import toy
    >>> links = infer_sessions(toy("0 1", "0 2", "0 1 3", "4"))
    >>> links.session, links.parent
    (array([0, 0, 0, 1]), array([-1,  0,  1, -1]))
    """
    from .._native import sharing

    require_trace(trace)
    has_tails = trace.tail != "dropped"
    session = sharing.infer(trace.hash_ids, trace.offsets, trace.prompt_blocks, has_tails, trace.distinct)
    return SessionLinks(session, previous_turn(session), recorded=False)
