"""Sessions: the values of turns, times, growth and subagents, and statistics of them; requests by turn and by type.

A value is None if the trace does not show it. docs/analysis/analyze.md defines each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._base.results import Described, column
from .._base.tables import number
from ..trace.dependencies import COMPLETION, SPAWN
from ..trace.hits import Hits, count_hits
from ..trace.session_trees import previous_turn, turn_numbers
from ..trace.trace import Trace
from ..trace.unknown import UNKNOWN_LENGTH
from .distribution import Distribution
from .sessions import SessionHits, SessionLinks, agents, recorded_turns, session_hits

SHRINKS = 0.5  # a context below this share of the one before it has dropped


@dataclass(frozen=True, eq=False)
class SessionValues:
    """Values of the sessions of a trace."""

    turns: np.ndarray  # session -> requests
    duration_ms: np.ndarray  # session -> from its first arrival to its last end, or to its last arrival
    compactions: np.ndarray  # session -> turns whose prompt is less than half of the previous turn's
    context_drops: np.ndarray  # session -> requests whose prompt is less than half of the one before, of any agent
    turn_gap_ms: np.ndarray  # turn with a previous one -> from that one's arrival to its own
    growth: np.ndarray  # turn with a previous one -> tokens of its prompt less those of the previous turn's
    think_rows: np.ndarray  # turn that waits for an end -> its request
    think_ms: np.ndarray | None  # turn that waits for an end -> from that end to its arrival
    service_ms: np.ndarray | None  # request with a known one -> from its start to its end
    tool_share: np.ndarray | None  # session -> share of its duration in which no request is served
    answers_tools: np.ndarray | None  # request -> whether it is in a session and answers a tool
    subagents: Subagents | None


def session_values(trace: Trace, links: SessionLinks) -> SessionValues:
    """The values of recorded or inferred sessions; of inferred ones no times of service and no agents are known.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> columns = replace_columns(toy("0 1 2", "0 1 2 3 4 5", "0 6", gap_ms=9), session=np.zeros(3, dtype=np.int64))
    >>> trace = Trace.from_columns(columns, block_size=1)
    >>> values = session_values(trace, SessionLinks(trace.session, np.array([-1, 0, 1]), recorded=True))
    >>> values.growth, values.compactions, values.turn_gap_ms
    (array([ 3, -4]), array([1]), array([9., 9.]))
    """
    session = links.session
    inside = np.flatnonzero(session >= 0)
    which = np.unique(session[inside], return_inverse=True)[1]  # request in a session -> its session, from 0
    sessions = int(which.max(initial=-1)) + 1
    child = np.flatnonzero(links.parent >= 0)
    parent = links.parent[child]
    think_rows, think_ms = think_times(trace, links) if links.recorded else (child[:0], None)
    drops, everywhere = _drops(trace, links.parent), _drops(trace, previous_turn(session))
    start, end = trace.timestamp[inside], _ends(trace)[inside]
    return SessionValues(
        turns=np.bincount(which, minlength=sessions),
        duration_ms=_largest(which, end, sessions) + _largest(which, -start, sessions),
        compactions=np.bincount(which, weights=drops[inside], minlength=sessions).astype(np.int64),
        context_drops=np.bincount(which, weights=everywhere[inside], minlength=sessions).astype(np.int64),
        turn_gap_ms=trace.timestamp[child] - trace.timestamp[parent],
        growth=trace.input_length[child] - trace.input_length[parent],
        think_rows=think_rows,
        think_ms=think_ms,
        service_ms=_known_service(trace) if links.recorded else None,
        tool_share=_tool_share(trace, inside, which, sessions) if links.recorded else None,
        answers_tools=answers_tools(trace, links) if links.recorded else None,
        subagents=subagents(trace, agents(trace), _ends(trace)) if links.recorded else None,
    )


def think_times(trace: Trace, links: SessionLinks) -> tuple[np.ndarray, np.ndarray | None]:
    """The requests that wait for an end, and the time of each from that end to its arrival; None if not known.

    With dependencies it is their delay (the longest of several) after completions, but for first requests of
    subagents. Without them, and with service times, it is the time since the end of the previous turn; requests that
    arrive before that end have none.
    """
    waits = trace.dependencies
    if waits is not None:
        thinks = np.flatnonzero((waits.trigger == COMPLETION) & (waits.relation != SPAWN))
        longest = np.full(len(trace), -1.0)
        np.maximum.at(longest, waits.request[thinks], waits.delay_ms[thinks])
        rows = np.flatnonzero(longest >= 0)
        return rows, longest[rows]
    child = np.flatnonzero(links.parent >= 0)
    if trace.service_ms is None or np.isnan(trace.service_ms).all():
        return child[:0], None
    waited = trace.timestamp[child] - (trace.timestamp + trace.service_ms)[links.parent[child]]
    return child[waited >= 0], waited[waited >= 0]


def answers_tools(trace: Trace, links: SessionLinks) -> np.ndarray | None:
    """Whether each request answers a tool: `input_types` names a tool result, or its previous turn stopped for a tool.

    Requests without a session do not count. None without these columns.
    """
    inside = links.session >= 0
    if (types := trace.extra.get("input_types")) is not None:
        return inside & np.array([TOOL_RESULT in (value or ()) for value in types.tolist()], dtype=bool)
    if (stop := trace.extra.get("stop")) is not None:
        has_stopped = np.array([value in TOOL_STOPS for value in stop.tolist()], dtype=bool)
        return inside & (links.parent >= 0) & has_stopped[links.parent]
    return None


TOOL_RESULT = "tool_result"  # an input type: in a list of them, or in a text that names several
TOOL_STOPS = ("tool_use", "tool_calls")  # Anthropic's and OpenAI's reasons of an answer that calls tools


def _ends(trace: Trace) -> np.ndarray:
    """The end of each request; its arrival if the service time is not known."""
    return trace.timestamp if trace.service_ms is None else trace.timestamp + np.nan_to_num(trace.service_ms)


def _known_service(trace: Trace) -> np.ndarray | None:
    if trace.service_ms is None:
        return None
    service_ms = trace.service_ms[~np.isnan(trace.service_ms)]
    return service_ms if len(service_ms) else None


def _drops(trace: Trace, parent: np.ndarray) -> np.ndarray:
    """Whether the prompt of each request is less than half of its parent's."""
    before = np.where(parent >= 0, trace.input_length[parent], 0)
    return trace.input_length < SHRINKS * before


def _largest(which: np.ndarray, values: np.ndarray, groups: int) -> np.ndarray:
    largest = np.full(groups, -np.inf)
    np.maximum.at(largest, which, values)
    return largest


def _tool_share(trace: Trace, inside: np.ndarray, which: np.ndarray, sessions: int) -> np.ndarray | None:
    """The share of each session's duration in which none of its requests is served.

    Only for sessions of some duration with service times of all requests; None if there is none.
    """
    if trace.service_ms is None:
        return None
    is_known = np.bincount(which, weights=np.isnan(trace.service_ms[inside]), minlength=sessions) == 0
    order = np.lexsort((trace.timestamp[inside], which))
    rows, which = inside[order], which[order]
    start, end = trace.timestamp[rows], trace.timestamp[rows] + np.nan_to_num(trace.service_ms[rows])
    reached = _running_largest(end, which)
    idle = np.zeros(len(rows))
    continues = which[1:] == which[:-1]
    idle[1:][continues] = np.maximum(start[1:] - reached[:-1], 0)[continues]
    duration = _largest(which, end, sessions) + _largest(which, -start, sessions)
    lasts = is_known & (duration > 0)
    return np.bincount(which, weights=idle, minlength=sessions)[lasts] / duration[lasts] if lasts.any() else None


def _running_largest(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The largest value so far in each group; the rows of a group are together, and groups rise."""
    rank = np.empty(len(values), dtype=np.int64)
    order = np.argsort(values, kind="stable")
    rank[order] = np.arange(len(values))
    return values[order[np.maximum.accumulate(rank + group * len(values)) - group * len(values)]]


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
    >>> values = subagents(trace, np.array([0, 1, 2, 1]), trace.timestamp + 5)
    >>> values.subagents, values.width, values.calls
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
    first_rows = np.unique(session, return_index=True)[1]
    firsts = np.searchsorted(both[order], session[first_rows])
    return np.maximum.reduceat(running, firsts) if len(firsts) else np.zeros(0, dtype=np.int64)


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
