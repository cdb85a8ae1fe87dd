"""Statistics of sessions: turns, think time, context growth, and hits by turn; and hits by request type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..trace.hits import Hits, count_hits
from ..trace.trace import Trace
from ..trace.turns import turn_numbers
from .distribution import Distribution
from .sessions import SessionLinks

MAX_TURNS = 20  # later turns are one group
MAX_TYPES = 20  # rarer types are one group


@dataclass(frozen=True)
class RequestGroup:
    """The requests of one turn or of one type."""

    name: str
    input_length: Distribution
    output_length: Distribution
    hits: Hits  # of a cache that never evicts

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of docs/analysis/analyze.md."""
        lengths = {"input_length": self.input_length.to_dict(), "output_length": self.output_length.to_dict()}
        return {"name": self.name, **self.hits.to_dict(), **lengths}


@dataclass(frozen=True)
class SessionStatistics:
    """Statistics of the sessions of a trace."""

    sessions: int
    requests_in_sessions: int
    turns: Distribution  # requests of each session
    think_ms: Distribution  # from the arrival of a turn to the arrival of the next
    growth: Distribution  # tokens of a prompt less those of the previous turn's prompt
    by_turn: list[RequestGroup]

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of docs/analysis/analyze.md."""
        named = {name: getattr(self, name).to_dict() for name in ("turns", "think_ms", "growth")}
        counts = {"sessions": self.sessions, "requests_in_sessions": self.requests_in_sessions}
        return counts | named | {"by_turn": [group.to_dict() for group in self.by_turn]}


def session_statistics(
    trace: Trace, hit_blocks: np.ndarray, quantiles: Sequence[float] = (), links: SessionLinks | None = None
) -> SessionStatistics | None:
    """Compute the statistics of the sessions; None if the trace has no sessions.

    `links` are inferred sessions, in place of the recorded ones.

    >>> from kvtrace.trace.building import toy
    >>> session_statistics(toy("0"), np.array([0])) is None
    True
    """
    session, parent = (trace.session, trace.parent) if links is None else (links.session, links.parent)
    if session is None or not (session >= 0).any():
        return None
    inside = session >= 0
    turn, parent = turn_numbers(session), parent if parent is not None else np.full(len(trace), -1)
    child = np.flatnonzero(parent >= 0)
    counted = np.minimum(turn, MAX_TURNS)
    return SessionStatistics(
        sessions=len(np.unique(session[inside])),
        requests_in_sessions=int(inside.sum()),
        turns=Distribution.of(np.bincount(session[inside])[np.unique(session[inside])], quantiles),
        think_ms=Distribution.of(trace.timestamp[child] - trace.timestamp[parent[child]], quantiles),
        growth=Distribution.of(trace.input_length[child] - trace.input_length[parent[child]], quantiles),
        by_turn=[
            request_group(
                trace, hit_blocks, inside & (counted == number), f"{number}{'+' if number == MAX_TURNS else ''}"
            )
            for number in range(1, int(counted[inside].max()) + 1)
            if (inside & (counted == number)).any()
        ],
    )


def by_type(trace: Trace, hit_blocks: np.ndarray) -> list[RequestGroup]:
    """One group for each `type`, the most frequent first, and one for all rarer types; empty without types."""
    if "type" not in trace.extra:
        return []
    kinds, which, counts = np.unique(trace.extra["type"].astype(str), return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    groups = [request_group(trace, hit_blocks, which == kind, str(kinds[kind])) for kind in order[:MAX_TYPES]]
    if len(order) > MAX_TYPES:
        groups.append(request_group(trace, hit_blocks, np.isin(which, order[MAX_TYPES:]), "(others)"))
    return groups


def request_group(trace: Trace, hit_blocks: np.ndarray, mask: np.ndarray, name: str) -> RequestGroup:
    """The figures of the requests selected by the mask."""
    lengths = Distribution.of(trace.input_length[mask]), Distribution.of(trace.output_length[mask])
    return RequestGroup(name, *lengths, count_hits(trace, hit_blocks, mask))
