"""The sessions of a trace, recorded or inferred from shared blocks; and hits within a session and across sessions.

In a forest, a session that used a block used all blocks above it. So the blocks of a prompt that its session used
before are a leading run, and the hits across sessions are the rest of the hits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.results import Described, Result
from ..trace.columns import Columns, require_trace
from ..trace.dependencies import SEQUENCE, SPAWN
from ..trace.hits import Hits, count_hits
from ..trace.session_trees import previous_turn, turn_numbers
from ..trace.trace import Trace
from ..trace.unknown import PREFIXES, require_known


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


def recorded_turns(trace: Trace) -> SessionLinks | None:
    """The recorded sessions; without parents, the previous turn is the request before it of the same session and agent.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> columns = replace_columns(toy("0", "1", "2"), session=np.zeros(3, dtype=np.int64), extra={"agent": [0, 1, 0]})
    >>> recorded_turns(Trace.from_columns(columns, block_size=1)).parent
    array([-1, -1,  0])
    """
    links = recorded_sessions(trace)
    if links is None or trace.parent is not None or (agent := agents(trace)) is None:
        return links
    of_agent = np.where(links.session < 0, -1, links.session * (agent.max(initial=0) + 1) + agent)
    return SessionLinks(links.session, previous_turn(of_agent), recorded=True)


def agents(trace: Trace) -> np.ndarray | None:
    """The agent of each request within its session: 0 is the main agent, 1, 2, ... are subagents; None if unknown.

    They are the column `agent`; without it they follow from the dependencies, where a request that is spawned begins an
    agent and its sequence continues it. Requests without a session have agent 0.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> from kvtrace.trace.dependencies import Dependencies
    >>> waits = Dependencies.of([[], [(0, "completion", "spawn", 0.0)], [(1, "completion", "sequence", 5.0)]])
    >>> columns = replace_columns(toy("0", "1", "2"), session=np.zeros(3, dtype=np.int64), dependencies=waits)
    >>> agents(Trace.from_columns(columns, block_size=1))
    array([0, 1, 1])
    """
    if trace.session is None:
        return None
    recorded = trace.extra.get("agent")
    if recorded is not None and all(isinstance(number, int) for number in recorded.tolist()):
        return np.where(trace.session < 0, 0, np.maximum(recorded.astype(np.int64), 0))
    waits = trace.dependencies
    if waits is None:
        return None
    rows = np.arange(len(trace))
    first, is_spawned = rows.copy(), np.zeros(len(trace), dtype=bool)
    follows = np.flatnonzero(waits.relation == SEQUENCE)[::-1]  # the first of several is written last
    first[waits.request[follows]] = waits.row[follows]
    is_spawned[waits.request[waits.relation == SPAWN]] = True
    while (first[first] != first).any():  # each round doubles the steps towards the first request of the agent
        first = first[first]
    return np.where(is_spawned[first] & (trace.session >= 0), _numbered(trace.session, first, is_spawned), 0)


def _numbered(session: np.ndarray, first: np.ndarray, is_spawned: np.ndarray) -> np.ndarray:
    """The number of each request's agent among the spawned agents of its session, from 1, by first request."""
    begins = np.flatnonzero(is_spawned & (first == np.arange(len(first))))
    number = np.zeros(len(first), dtype=np.int64)
    number[begins] = turn_numbers(session[begins])
    return number[first]


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
    require_known(trace, trace.meta, "which requests are of one session", PREFIXES)
    has_tails = trace.tail != "dropped"
    session = sharing.infer(trace.hash_ids, trace.offsets, trace.prompt_blocks, has_tails, trace.distinct)
    return SessionLinks(session, previous_turn(session), recorded=False)


@dataclass(frozen=True)
class SessionHits(Described):
    """The hits of a cache that never evicts, by the session that used the blocks before; both add up to all hits."""

    same_session: Hits
    across_sessions: Hits


def session_hits(trace: Trace, hit_blocks: np.ndarray, session: np.ndarray) -> SessionHits:
    """Split the hits of a cache that never evicts.

    Args:
        trace: The trace, in memory or streamed.
        hit_blocks: Request -> leading blocks that an earlier request contains.
        session: Request -> session, -1 = none: all hits of these requests are across sessions.

    Raises:
        InputError: The ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> trace = toy("0 1", "0 1 2", "0 1 2")
    >>> split = session_hits(trace, np.array([0, 2, 3]), np.array([0, 1, 0]))
    >>> split.same_session.hit_blocks, split.across_sessions.hit_blocks
    (2, 3)
    """
    own = own_session_blocks(trace, session)
    same = count_hits(trace, own)
    every = count_hits(trace, hit_blocks)
    across = Hits(
        every.requests, every.hit_blocks - same.hit_blocks, every.blocks, every.hit_tokens - same.hit_tokens,
        every.tokens, every.request_hits - same.request_hits, every.requests_with_blocks,
    )  # fmt: skip
    return SessionHits(same, across)


def own_session_blocks(trace: Trace, session: np.ndarray) -> np.ndarray:
    """Leading blocks of each prompt that an earlier request of its session contains, int64.

    >>> from kvtrace.trace.building import toy
    >>> own_session_blocks(toy("0 1", "0 1 2", "0 1 2"), np.array([0, 1, 0]))
    array([0, 0, 2])
    """
    from .._native import forest

    trace.require_chained()
    parent = np.full(trace.distinct, forest.UNSEEN, dtype=np.int32)
    tip, distinct = np.full(len(trace), -1, dtype=np.int64), 0
    for rows, piece in trace.pieces():
        distinct, _, _ = forest.verify(
            piece.hash_ids, piece.offsets, piece.input_length // trace.block_size,
            piece.output_ids, piece.output_offsets, parent, distinct,
        )  # fmt: skip
        tip[rows] = _last_blocks(piece)
    return forest.shared_with_earlier(parent, tip, trace.prompt_blocks, session)


def _last_blocks(piece: Columns) -> np.ndarray:
    """The last block of each prompt, -1 for a prompt without blocks."""
    last = np.full(len(piece), -1, dtype=np.int64)
    has_blocks = np.diff(piece.offsets) > 0
    last[has_blocks] = piece.hash_ids[piece.offsets[1:][has_blocks] - 1]
    return last
