"""Hits within a session and across sessions: whether the session of a request used its hit blocks before.

In a forest, a session that used a block used all blocks above it. So the blocks of a prompt that its session used
before are a leading run, and the hits across sessions are the rest of the hits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..trace.columns import Columns
from ..trace.hits import Hits, count_hits
from ..trace.trace import Trace


@dataclass(frozen=True)
class SessionHits:
    """The hits of a cache that never evicts, by the session that used the blocks before; both add up to all hits."""

    same_session: Hits
    across_sessions: Hits

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of docs/analysis/analyze.md."""
        return {"same_session": self.same_session.to_dict(), "across_sessions": self.across_sessions.to_dict()}


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
