"""The chains of a trace's sessions: runs of requests in which each waits for the one before it.

A session tree is cut into chains. The main chain begins with the session's first request. A request continues the chain
of the request that it waits for, if it belongs to the same agent; if several do, the one with the latest descendant
continues it, so that a chain outlives its branches. All others begin a chain of their own: a subagent (spawn), a second
line of the same agent (fork), or requests that wait for nothing (root).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...trace.dependencies import COMPLETION, JOIN, SEQUENCE, SPAWN, Dependencies
from ...trace.session_trees import previous_turn
from ...trace.trace import Trace

MAIN, SPAWNED, FORKED, ROOT = range(4)  # kinds of chains


@dataclass(frozen=True, eq=False)
class Chains:
    """The chains of a trace; its requests by chain, and what each waits for."""

    session: np.ndarray  # row -> session, numbered 0, 1, ... by first request
    base: np.ndarray  # row -> the request that it continues, or that its chain begins from; -1 = none
    trigger: np.ndarray  # row -> trigger of base
    relation: np.ndarray  # row -> relation to base
    delay_ms: np.ndarray  # row -> ms after what it waits for; of a later root: after the session's first request
    chain: np.ndarray  # row -> chain, numbered by first request
    place: np.ndarray  # row -> its place in its chain, from 0
    rows: np.ndarray  # all rows, by chain and place
    starts: np.ndarray  # chain -> place of its first row in `rows`; the last entry is the number of rows
    kind: np.ndarray  # chain -> MAIN, SPAWNED, FORKED or ROOT
    join: np.ndarray  # chain -> the row that waits for its end, -1 = none
    alone: np.ndarray  # chain -> 1 if that row waits for nothing but joins

    @property
    def first(self) -> np.ndarray:
        """chain -> its first row."""
        return self.rows[self.starts[:-1]]

    @property
    def turns(self) -> np.ndarray:
        """chain -> number of its requests."""
        return np.diff(self.starts)


def chains_of(trace: Trace) -> Chains:
    """The chains of a trace with dependencies. A request without a session is a session of its own.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> waits = [[], [(0, "completion", "sequence", 5.0)], [(0, "completion", "spawn", 1.0)]]
    >>> columns = replace_columns(toy("0", "0 1", "2"), session=[0, 0, 0], dependencies=Dependencies.of(waits))
    >>> chains = chains_of(Trace(columns.timestamp, *list(vars(columns).values())[1:], block_size=1))
    >>> chains.chain, chains.kind
    (array([0, 0, 1]), array([0, 1]))
    """
    n, waits = len(trace), trace.dependencies if trace.dependencies is not None else Dependencies.none(len(trace))
    session = _sessions(trace)
    agent = trace.extra.get("agent")
    line = session if agent is None else _numbered(session * (int(agent.max(initial=0)) + 1) + np.maximum(agent, 0))
    inside = session[waits.request] == session[waits.row]
    base, trigger, relation, delay = _bases(waits, inside, n)
    joins = np.flatnonzero((waits.relation == JOIN) & inside)
    alone = np.zeros(n, dtype=bool)
    alone[waits.request[joins]] = base[waits.request[joins]] < 0
    before = previous_turn(line)
    first_of_session = _first_rows(session)
    loose = (base < 0) & (before >= 0) & ((agent is not None) | alone)  # no base of its own: the previous turn
    base[loose], trigger[loose], relation[loose] = before[loose], COMPLETION, SEQUENCE
    delay[loose] = np.maximum(0, trace.timestamp[loose] - _ends(trace)[before[loose]])
    delay[waits.request[joins]] = np.where(
        alone[waits.request[joins]], waits.delay_ms[joins], delay[waits.request[joins]]
    )
    root = base < 0
    delay[root] = (trace.timestamp - trace.timestamp[first_of_session[session]])[root]
    same = np.zeros(n, dtype=bool)
    has = np.flatnonzero(~root)
    same[has] = line[has] == line[base[has]] if agent is not None else relation[has] == SEQUENCE
    chain, place = _cut(base, same)
    order = np.lexsort((place, chain))
    starts = np.append(np.flatnonzero(place[order] == 0), n)
    first = order[starts[:-1]]
    kind = np.where(
        root[first],
        np.where(first == first_of_session[session[first]], MAIN, ROOT),
        np.where(same[first], FORKED, SPAWNED),
    )
    join = np.full(len(first), -1, dtype=np.int64)
    awaited, by = chain[waits.row[joins]], waits.request[joins]
    other = chain[by] != awaited
    join[awaited[other][::-1]] = by[other][::-1]  # the first row that waits
    return Chains(
        session, base, trigger, relation, delay, chain, place, order, starts, kind, join,
        np.where(join >= 0, alone[join], False).astype(np.int64),
    )  # fmt: skip


def _sessions(trace):
    session = np.arange(len(trace)) if trace.session is None else trace.session.copy()
    without = session < 0
    session[without] = session.max(initial=-1) + 1 + np.arange(np.count_nonzero(without))
    return _numbered(session)


def _numbered(values):
    """The values as numbers by first appearance."""
    _, first, number = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[number]


def _first_rows(session):
    """session -> its first row."""
    return np.unique(session, return_index=True)[1]


def _ends(trace):
    return trace.timestamp if trace.service_ms is None else trace.timestamp + np.nan_to_num(trace.service_ms)


def _bases(waits, inside, n):
    """The first dependency of each request that is not a join: its row (-1 = none), trigger, relation and delay."""
    base, trigger, relation = (np.full(n, value, dtype=np.int64) for value in (-1, COMPLETION, SEQUENCE))
    delay = np.zeros(n)
    candidates = np.flatnonzero(inside & ((waits.relation == SEQUENCE) | (waits.relation == SPAWN)))[::-1]
    request = waits.request[candidates]  # reversed, so that the first of each request is written last
    base[request], trigger[request] = waits.row[candidates], waits.trigger[candidates]
    relation[request], delay[request] = waits.relation[candidates], waits.delay_ms[candidates]
    return base, trigger, relation, delay


def _cut(base, same):
    """The chain of each row, and its place in it."""
    n = len(base)
    latest, best, heir = list(range(n)), [-1] * n, [-1] * n
    bases, continues = base.tolist(), same.tolist()
    for row in range(n - 1, -1, -1):
        above = bases[row]
        if above >= 0:
            latest[above] = max(latest[above], latest[row])
            if continues[row] and latest[row] > best[above]:
                best[above], heir[above] = latest[row], row
    chain, place, chains = [0] * n, [0] * n, 0
    for row in range(n):
        above = bases[row]
        if above >= 0 and heir[above] == row:
            chain[row], place[row] = chain[above], place[above] + 1
        else:
            chain[row] = chains
            chains += 1
    return np.array(chain, dtype=np.int64), np.array(place, dtype=np.int64)
