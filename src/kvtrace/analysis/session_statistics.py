"""Statistics of sessions: turns, times, growth, subagents, hits; and of requests by turn and by type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._base.results import Described, column
from .._base.tables import number
from ..trace.hits import Hits, count_hits
from ..trace.session_trees import turn_numbers
from ..trace.trace import Trace
from ..trace.unknown import UNKNOWN_LENGTH
from .distribution import Distribution
from .session_values import SessionValues, session_values
from .sessions import SessionHits, SessionLinks, recorded_turns, session_hits

UNKNOWN = "unknown"  # in place of a figure that the trace does not hold
MAX_TURNS = 20  # later turns are one group
MAX_TYPES = 20  # rarer types are one group


@dataclass(frozen=True)
class RequestGroup(Described):
    """The requests of one turn or of one type."""

    name: str = field(metadata=column(rank=0))
    hits: Hits | None = field(  # of a cache that never evicts; None if shared prefixes are unknown
        metadata=column(spread=Hits)
    )
    requests: int = field(metadata=column("requests", ","))
    input_length: Distribution = field(metadata=column("mean ISL", number, parts={("mean",): "mean ISL"}, none=UNKNOWN))
    output_length: Distribution = field(
        metadata=column("mean OSL", number, parts={("mean",): "mean OSL"}, none=UNKNOWN)
    )


@dataclass(frozen=True)
class ToolAnswers(Described):
    """The calls that answer tools, and the think times before them and before all other calls."""

    requests: int
    share: float  # of the requests in sessions
    think_ms: Distribution | None  # before a call that answers a tool; None if no think time is known
    other_think_ms: Distribution | None


@dataclass(frozen=True)
class SubagentStatistics(Described):
    """The subagents of sessions."""

    total: int
    per_session: Distribution
    width: Distribution  # of sessions with subagents: the most that run at once
    calls: Distribution  # requests of each subagent


@dataclass(frozen=True)
class SessionStatistics(Described):
    """Statistics of the sessions of a trace; None is what the trace does not tell."""

    sessions: int
    requests_in_sessions: int
    turns: Distribution  # requests of each session
    duration_ms: Distribution  # of each session, from its first arrival to its last end
    compactions: Distribution  # of each session: turns with less than half of the previous turn's context
    context_drops: Distribution  # of each session: the same in order of time, whatever the agent
    growth: Distribution  # tokens of a prompt less those of the previous turn's prompt
    turn_gap_ms: Distribution  # from the arrival of a turn to the arrival of the next
    think_ms: Distribution | None  # from the end that a turn waits for to its arrival
    service_ms: Distribution | None  # of each request
    tool_share: Distribution | None  # of each session: share of its duration outside model calls
    tool_answers: ToolAnswers | None
    subagents: SubagentStatistics | None
    hits: SessionHits | None  # None for inferred sessions
    by_turn: list[RequestGroup]

    def distributions(self) -> dict[str, Distribution]:
        """The known distributions by name; those of subagents with a prefix."""
        named = {name: getattr(self, name) for name in DISTRIBUTIONS}
        if self.subagents:
            named |= {"subagents": self.subagents.per_session, "spawn_width": self.subagents.width}
            named |= {"subagent_calls": self.subagents.calls}
        return {name: values for name, values in named.items() if values is not None and values.count}


DISTRIBUTIONS = ("turns", "duration_ms", "compactions", "context_drops", "growth", "turn_gap_ms", "think_ms",
                 "service_ms", "tool_share")  # fmt: skip


def session_statistics(
    trace: Trace, hit_blocks: np.ndarray | None, quantiles: Sequence[float] = (), links: SessionLinks | None = None
) -> SessionStatistics | None:
    """Compute the statistics of the sessions; None if the trace has no sessions.

    `hit_blocks` are None if shared prefixes are unknown. `links` are inferred sessions, in place of the recorded ones.

    >>> from kvtrace.trace.building import toy
    >>> session_statistics(toy("0"), np.array([0])) is None
    True
    """
    links = links or recorded_turns(trace)
    if links is None or not (links.session >= 0).any():
        return None
    values = session_values(trace, links)

    def distribution(sample: np.ndarray | None) -> Any:  # a Distribution, or None for what is not known
        return None if sample is None else Distribution.of(sample, quantiles)

    return SessionStatistics(
        sessions=len(values.turns),
        requests_in_sessions=int(values.turns.sum()),
        **{name: distribution(getattr(values, name)) for name in DISTRIBUTIONS},
        tool_answers=_tool_answers(values, distribution),
        subagents=_subagents(values, distribution),
        hits=None if hit_blocks is None or not links.recorded else session_hits(trace, hit_blocks, links.session),
        by_turn=_by_turn(trace, hit_blocks, links.session),
    )


def _tool_answers(values: SessionValues, distribution: Callable[..., Any]) -> ToolAnswers | None:
    if values.answers_tools is None:
        return None
    answers, think = int(values.answers_tools.sum()), (None, None)
    if values.think_ms is not None:
        after_tools = values.answers_tools[values.think_rows]
        think = values.think_ms[after_tools], values.think_ms[~after_tools]
    return ToolAnswers(answers, answers / int(values.turns.sum()), *map(distribution, think))


def _subagents(values: SessionValues, distribution: Callable[..., Any]) -> SubagentStatistics | None:
    if (agents := values.subagents) is None:
        return None
    per_session = distribution(agents.subagents), distribution(agents.width), distribution(agents.calls)
    return SubagentStatistics(len(agents.calls), *per_session)


def _by_turn(trace: Trace, hit_blocks: np.ndarray | None, session: np.ndarray) -> list[RequestGroup]:
    """The requests by the number of their turn."""
    inside, counted = session >= 0, np.minimum(turn_numbers(session), MAX_TURNS)
    return [
        request_group(trace, hit_blocks, inside & (counted == number), f"{number}{'+' if number == MAX_TURNS else ''}")
        for number in range(1, int(counted[inside].max()) + 1)
        if (inside & (counted == number)).any()
    ]


def by_type(trace: Trace, hit_blocks: np.ndarray | None) -> list[RequestGroup]:
    """One group for each `type`, the most frequent first, and one for all rarer types; empty without types."""
    if "type" not in trace.extra:
        return []
    kinds, which, counts = np.unique(trace.extra["type"].astype(str), return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    groups = [request_group(trace, hit_blocks, which == kind, str(kinds[kind])) for kind in order[:MAX_TYPES]]
    if len(order) > MAX_TYPES:
        groups.append(request_group(trace, hit_blocks, np.isin(which, order[MAX_TYPES:]), "(others)"))
    return groups


def request_group(trace: Trace, hit_blocks: np.ndarray | None, mask: np.ndarray, name: str) -> RequestGroup:
    """The figures of the requests selected by the mask."""
    lengths = Distribution.of(trace.input_length[mask]), known_lengths(trace.output_length[mask])
    hits = None if hit_blocks is None else count_hits(trace, hit_blocks, mask)
    return RequestGroup(name, hits, int(np.count_nonzero(mask)), *lengths)


def known_lengths(output_length: np.ndarray, quantiles: Sequence[float] = ()) -> Distribution:
    """The distribution of the output lengths that are known.

    >>> known_lengths(np.array([4, -1, 6])).mean
    5.0
    """
    return Distribution.of(output_length[output_length != UNKNOWN_LENGTH], quantiles)
