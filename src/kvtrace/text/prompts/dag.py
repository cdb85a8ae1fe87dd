"""Sessions as AIPerf's `dag_jsonl`: a line for each agent, with its turns, their delays and the subagents they spawn.

A turn starts some time after the end of the turn before it; subagents start at the end of a turn, and a later turn may
wait for them. The format can express nothing else, and `Dag.losses` counts what differs in a trace. Every turn has its
whole prompt (`message_array_with_responses`), so that the server sees the prefixes of the trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...formats.targets.losses import Losses
from ...trace.dependencies import COMPLETION, SPAWN, Dependencies
from ...trace.session_trees import session_trees
from ...trace.trace import Trace

CONTEXT = "message_array_with_responses"


@dataclass
class Spawn:
    """Agents that a turn starts at its end; `join_at` is the turn that waits for them, None after the last turn."""

    children: list[str]
    join_at: int | None


@dataclass
class Agent:
    """An agent of a session: the rows of its turns, the delay before each in ms, and what each turn spawns."""

    name: str
    rows: list[int]
    delays: list[float]
    spawns: list[list[Spawn]] = field(default_factory=list)

    def line(self, texts: list[str], outputs: list[int], model: str | None) -> dict[str, Any]:
        """The line of the file, for the texts of its turns."""
        turns = []
        for text, output, delay, spawns in zip(texts, outputs, self.delays, self.spawns, strict=True):
            turn: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": max(1, output)}
            turn |= {} if model is None else {"model": model}
            turn |= {"delay": delay} if delay else {}
            if spawns:
                turn["spawns"] = [
                    {"children": spawn.children} | ({} if spawn.join_at is None else {"join_at": spawn.join_at})
                    for spawn in spawns
                ]
            turns.append(turn)
        return {"session_id": self.name, "context_mode": CONTEXT, "turns": turns}


@dataclass
class Dag:
    """The agents of a trace, those that spawn others first, and sentences on what the format cannot express."""

    agents: list[Agent]
    losses: list[str]


def dag_of(trace: Trace) -> Dag:
    """The agents of a trace with dependencies.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> ends = [(0, "completion", "sequence", 9.0), (1, "completion", "join", 9.0)]
    >>> waits = Dependencies.of([[], [(0, "completion", "spawn", 0.0)], ends])
    >>> columns = replace_columns(toy("0", "5", "0 1"), dependencies=waits)
    >>> columns.extra = {"agent": np.array([0, 1, 0])}
    >>> [(agent.rows, agent.delays, agent.spawns) for agent in dag_of(Trace.from_columns(columns, block_size=1)).agents]
    [([0, 2], [0.0, 9.0], [[Spawn(children=['session-0/agent-1'], join_at=1)], []]), ([1], [0.0], [[]])]
    """
    tree, number = session_trees(trace), trace.extra.get("agent", np.zeros(len(trace), dtype=np.int64))
    agents: dict[str, Agent] = {}
    name_of, turn_of = [], []
    for row in range(len(trace)):
        name = f"session-{tree[row]}/agent-{number[row]}"
        agent = agents.setdefault(name, Agent(name, [], []))
        name_of.append(name)
        turn_of.append(len(agent.rows))
        agent.rows.append(row)
        agent.spawns.append([])
    waits = trace.dependencies or Dependencies.none(len(trace))
    losses = _Losses()
    for agent in agents.values():
        agent.delays = [_delay(agent, turn, waits, losses) for turn in range(len(agent.rows))]
    joins = _joins(waits, name_of)
    for agent in agents.values():
        _add_spawn(agent, agents, name_of, turn_of, joins, waits, losses)
    return Dag(list(agents.values()), losses.sentences(trace))


class _Losses:
    """Counts of what the format cannot express."""

    def __init__(self) -> None:
        self.other = self.early = self.joined = self.roots = 0

    def sentences(self, trace: Trace) -> list[str]:
        losses = Losses()
        losses.add(self.roots, "time of a session's start was left out: AIPerf starts sessions by its own load.",
                   "times of sessions' starts were left out: AIPerf starts sessions by its own load.")  # fmt: skip
        losses.add(self.other, "request waits for the turn before it, not for another one.",
                   "requests wait for the turn before them, not for other ones.")  # fmt: skip
        losses.add(self.early, "subagent starts at the end of the turn that spawns it, not before.",
                   "subagents start at the ends of the turns that spawn them, not before.")  # fmt: skip
        losses.add(self.joined, "subagent that no turn waits for is waited for by its agent's last turn.",
                   "subagents that no turn waits for are waited for by their agents' last turns.")  # fmt: skip
        service = 0 if trace.service_ms is None else int((~np.isnan(trace.service_ms)).sum())
        losses.add(service, "service time was left out.", "service times were left out.")
        losses.left_out_measured(trace)
        return losses.sentences


def _delay(agent: Agent, turn: int, waits: Dependencies, losses: _Losses) -> float:
    """The delay of a turn: after the turn before it, or else the one that the trace has."""
    row = agent.rows[turn]
    span = range(waits.offsets[row], waits.offsets[row + 1])
    if turn:
        after = [at for at in span if waits.row[at] == agent.rows[turn - 1] and waits.trigger[at] == COMPLETION]
        losses.other += not after
        span = after or span  # type: ignore[assignment]
    return max((float(waits.delay_ms[at]) for at in span), default=0.0)


def _joins(waits: Dependencies, name_of: list[str]) -> dict[tuple[str, str], int]:
    """(agent that waits, agent that it waits for) -> the first row that does."""
    joins: dict[tuple[str, str], int] = {}
    for request, row in zip(waits.request.tolist(), waits.row.tolist(), strict=True):
        if name_of[request] != name_of[row]:
            joins.setdefault((name_of[request], name_of[row]), request)
    return joins


def _add_spawn(agent, agents, name_of, turn_of, joins, waits, losses) -> None:
    """Add an agent to those that a turn spawns, if its first request waits for a request of another agent."""
    first = agent.rows[0]
    span = range(waits.offsets[first], waits.offsets[first + 1])
    spawns = [at for at in span if waits.relation[at] == SPAWN] or list(span)
    if not spawns:
        losses.roots += 1
        return
    parent, turn = agents[name_of[waits.row[spawns[0]]]], turn_of[waits.row[spawns[0]]]
    losses.early += int(waits.trigger[spawns[0]] != COMPLETION)
    join = joins.get((parent.name, agent.name))
    join_at = None if join is None else turn_of[join]
    if join_at is None and turn + 1 < len(parent.rows):
        losses.joined += 1
        join_at = len(parent.rows) - 1
    for spawn in parent.spawns[turn]:
        if spawn.join_at == join_at:
            spawn.children.append(agent.name)
            return
    parent.spawns[turn].append(Spawn([agent.name], join_at))
