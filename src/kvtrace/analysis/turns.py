"""Conversations: how many turns they have, how context grows, and what each turn hits; and the same by request type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..trace.hits import Hits, count_hits
from ..trace.trace import Trace
from .distribution import Distribution

MOST_TURNS = 20  # later turns are counted together
MOST_TYPES = 20  # and so are rarer types


@dataclass(frozen=True)
class Group:
    """Requests of one kind: a turn, or a type."""

    name: str
    input_length: Distribution
    output_length: Distribution
    hits: Hits  # of a cache that never evicts

    def to_dict(self) -> dict:
        """Keys as docs/analysis/analyze.md lists them."""
        lengths = {"input_length": self.input_length.to_dict(), "output_length": self.output_length.to_dict()}
        return {"name": self.name, **self.hits.to_dict(), **lengths}


@dataclass(frozen=True)
class Sessions:
    """The conversations of a trace."""

    sessions: int
    requests_in_sessions: int
    turns: Distribution  # requests of each conversation
    think_ms: Distribution  # from one turn's arrival to the next turn's
    growth: Distribution  # tokens by which a prompt is longer than the turn before
    by_turn: list[Group]

    def to_dict(self) -> dict:
        """Keys as docs/analysis/analyze.md lists them."""
        named = {name: getattr(self, name).to_dict() for name in ("turns", "think_ms", "growth")}
        counts = {"sessions": self.sessions, "requests_in_sessions": self.requests_in_sessions}
        return counts | named | {"by_turn": [group.to_dict() for group in self.by_turn]}


def sessions(trace: Trace, hit_blocks: np.ndarray, quantiles: Sequence[float] = ()) -> Sessions | None:
    """The conversations of a trace; None where it has no sessions.

    >>> from kvtrace.trace.building import toy
    >>> sessions(toy("0"), np.array([0])) is None
    True
    """
    if trace.session is None or not (trace.session >= 0).any():
        return None
    inside = trace.session >= 0
    turn, parent = turn_numbers(trace), trace.parent if trace.parent is not None else np.full(len(trace), -1)
    child = np.flatnonzero(parent >= 0)
    counted = np.minimum(turn, MOST_TURNS)
    return Sessions(
        sessions=len(np.unique(trace.session[inside])),
        requests_in_sessions=int(inside.sum()),
        turns=Distribution.of(np.bincount(trace.session[inside])[np.unique(trace.session[inside])], quantiles),
        think_ms=Distribution.of(trace.timestamp[child] - trace.timestamp[parent[child]], quantiles),
        growth=Distribution.of(trace.input_length[child] - trace.input_length[parent[child]], quantiles),
        by_turn=[
            group(trace, hit_blocks, inside & (counted == number), f"{number}{'+' if number == MOST_TURNS else ''}")
            for number in range(1, int(counted[inside].max()) + 1)
            if (inside & (counted == number)).any()
        ],
    )


def turn_numbers(trace: Trace) -> np.ndarray:
    """Each request's place in its conversation, from 1, by order of arrival."""
    assert trace.session is not None
    order = np.argsort(trace.session, kind="stable")
    session = trace.session[order]
    first = np.ones(len(trace), dtype=bool)
    first[1:] = session[1:] != session[:-1]
    place = np.arange(len(trace)) - np.maximum.accumulate(np.where(first, np.arange(len(trace)), 0)) + 1
    turn = np.empty(len(trace), dtype=np.int64)
    turn[order] = place
    return np.where(trace.session < 0, 1, turn)


def by_type(trace: Trace, hit_blocks: np.ndarray) -> list[Group]:
    """The requests of each `type`, the most frequent first, rare ones together; empty where the trace has no types."""
    if "type" not in trace.extra:
        return []
    kinds, which, counts = np.unique(trace.extra["type"].astype(str), return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    found = [group(trace, hit_blocks, which == kind, str(kinds[kind])) for kind in order[:MOST_TYPES]]
    if len(order) > MOST_TYPES:
        found.append(group(trace, hit_blocks, np.isin(which, order[MOST_TYPES:]), "(others)"))
    return found


def group(trace: Trace, hit_blocks: np.ndarray, mask: np.ndarray, name: str) -> Group:
    """The figures of the requests where the mask is true."""
    lengths = Distribution.of(trace.input_length[mask]), Distribution.of(trace.output_length[mask])
    return Group(name, *lengths, count_hits(trace, hit_blocks, mask))
