"""Sessions: turns of conversations, trees of requests that belong together, and what recorded requests waited for.

The dependencies of requests of agents are inferred from recorded start and service times. A request waits, on
completion, for the request of its agent that had completed by its start and shares the longest prefix of blocks with
it; of several, for the one that completed last. If none had completed, it waits on dispatch for the previous request of
its agent. The first request of a subagent is spawned by the request of the main agent that had completed last. The main
agent's first request after the end of a subagent also waits for that subagent's last end (join). All dependencies of a
request have one delay: its start less the latest of these events, so that recorded times give the recorded starts. An
unknown service time counts as 0.
"""

from __future__ import annotations

import numpy as np

from .._base.errors import UsageError
from .columns import Columns
from .dependencies import COMPLETION, DISPATCH, JOIN, SEQUENCE, SPAWN, Dependencies, dependencies_between
from .normalise import by_first_appearance


def session_trees(columns: Columns) -> np.ndarray:
    """request -> the number of its tree, by first appearance: int64.

    A tree is closed: its requests share no session, and no dependency, with those of another tree.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> from kvtrace.trace.dependencies import Dependencies
    >>> waits = Dependencies.of([[], [], [(0, "completion", "sequence", 5.0)]])
    >>> session_trees(replace_columns(toy("0", "1", "2"), dependencies=waits))
    array([0, 1, 0])
    """
    root = np.arange(len(columns))  # request -> an earlier request of its tree, or itself
    if columns.session is not None and len(columns):
        inside = np.flatnonzero(columns.session >= 0)
        number = by_first_appearance(columns.session[inside])
        first = np.empty(int(number.max(initial=-1)) + 1, dtype=np.int64)
        first[number[::-1]] = inside[::-1]  # the first row of each session is written last
        root[inside] = first[number]
    if columns.dependencies is not None:
        request, row = columns.dependencies.request, columns.dependencies.row
        while True:
            while not np.array_equal(root, root[root]):  # doubles its reach in each round
                root = root[root]
            apart = root[request] != root[row]
            if not apart.any():
                break
            request, row = request[apart], row[apart]
            np.minimum.at(root, np.maximum(root[request], root[row]), np.minimum(root[request], root[row]))
    return by_first_appearance(root)


def previous_turn(session: np.ndarray) -> np.ndarray:
    """The row of the previous request of the same session, -1 = none; requests without a session (-1) have none.

    >>> previous_turn(np.array([0, -1, 0, 1, -1]))
    array([-1, -1,  0, -1, -1])
    """
    order = np.argsort(session, kind="stable")
    parent = np.full(len(session), -1, dtype=np.int64)
    continues = (session[order][1:] == session[order][:-1]) & (session[order][1:] >= 0)
    parent[order[1:][continues]] = order[:-1][continues]
    return parent


def turn_numbers(session: np.ndarray) -> np.ndarray:
    """The number of each request within its session, from 1; 1 for requests without a session (-1).

    >>> turn_numbers(np.array([0, -1, 0, 1, -1]))
    array([1, 1, 2, 1, 1])
    """
    order = np.argsort(session, kind="stable")
    place, ordered = np.arange(len(session)), session[order]
    first = np.ones(len(session), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    turn = np.empty(len(session), dtype=np.int64)
    turn[order] = place - np.maximum.accumulate(np.where(first, place, 0)) + 1
    return np.where(session < 0, 1, turn)


NONE = -1
MAIN = 0  # the number of the main agent


def recorded_dependencies(
    columns: Columns, agent: np.ndarray | None = None, *, session: np.ndarray | None = None
) -> Dependencies:
    """The dependencies of requests in sessions of agents, from their start times, service times and blocks.

    Args:
        columns: Columns with sessions; `service_ms` are the service times. A request without a session waits for
            nothing. Rows may have any order; where two start together, the first row comes first.
        agent: Request -> number of its agent in its session, int64; 0 is the main agent, all others are subagents that
            it started. Default: all requests are the main agent's.
        session: Request -> its session, -1 = none. Default: that of the columns.

    Returns:
        A list for each request: first the request that it continues or that spawned it, then the joins.

    Raises:
        UsageError: The columns have no sessions.

    >>> columns = Columns([0, 30, 50], [2, 3, 3], [1, 1, 1], [0, 1, 0, 1, 2, 0, 1, 3], [0, 2, 5, 8],
    ...                   session=[0, 0, 0], service_ms=[10, 5, 5])
    >>> waits = recorded_dependencies(columns)
    >>> waits.request, waits.row, waits.delay_ms  # the third shares two blocks with both, and the second ended last
    (array([1, 2]), array([0, 1]), array([20., 15.]))
    """
    session = columns.session if session is None else session
    if session is None:
        raise UsageError("dependencies are inferred within sessions, and these requests have none.")
    agent = np.zeros(len(columns), dtype=np.int64) if agent is None else np.asarray(agent, dtype=np.int64)
    runs = _Runs(columns, session, agent)
    continued, is_completed = runs.continued()
    trigger = np.where(is_completed, COMPLETION, DISPATCH)
    relation = np.where(runs.is_first_of_agent, SPAWN, SEQUENCE)
    waiting = np.flatnonzero(continued >= 0)
    joining, joined = runs.joins()
    request = np.concatenate([waiting, joining])
    row = np.concatenate([continued[waiting], joined])
    trigger = np.concatenate([trigger[waiting], np.full(len(joined), COMPLETION)])
    relation = np.concatenate([relation[waiting], np.full(len(joined), JOIN)])
    event = np.where(trigger == COMPLETION, runs.end[row], runs.start[row])
    latest = np.full(len(columns), -np.inf)  # request -> the last event that it waits for
    np.maximum.at(latest, request, event)
    delay = np.maximum(runs.start[request] - latest[request], 0.0)
    return dependencies_between(request, row, trigger, relation, delay, len(columns))


class _Runs:
    """The requests of each agent of each session, in the order of their starts."""

    def __init__(self, columns: Columns, session: np.ndarray, agent: np.ndarray):
        self._columns = columns
        self.start = columns.timestamp
        service = np.zeros(len(columns)) if columns.service_ms is None else np.nan_to_num(columns.service_ms)
        self.end = self.start + service
        self.rank = np.empty(len(columns), dtype=np.int64)  # request -> its place in the order of starts
        self.rank[np.argsort(self.start, kind="stable")] = np.arange(len(columns))
        inside = np.flatnonzero(session >= 0)
        self.session, self.agent = session, agent
        self.order = inside[np.lexsort((self.rank[inside], agent[inside], session[inside]))]
        of_session, number = session[self.order], agent[self.order]
        is_head = np.ones(len(self.order), dtype=bool)
        is_head[1:] = (of_session[1:] != of_session[:-1]) | (number[1:] != number[:-1])
        self.bounds = np.append(np.flatnonzero(is_head), len(self.order))  # of the agents in `order`
        self.is_first_of_agent = np.zeros(len(columns), dtype=bool)
        self.is_first_of_agent[self.order[is_head]] = True

    def continued(self) -> tuple[np.ndarray, np.ndarray]:
        """Request -> the request that it waits for, -1 = none, and whether it waits for its completion."""
        from .._native import forest, numbering

        columns = self._columns
        hash_ids = columns.hash_ids
        if not numbering.is_numbered(hash_ids):
            hash_ids, _ = numbering.renumber(hash_ids)
        full = np.diff(columns.offsets)
        distinct, _, fork = forest.verify(hash_ids, columns.offsets, full)
        if fork >= 0:  # the blocks were hashed without their prefix
            hash_ids, _ = forest.chain(hash_ids, columns.offsets, full, None, None, distinct)
        place, completed = forest.longest_prefixes(
            self.order, self.bounds, self.start, self.end, hash_ids, columns.offsets
        )
        row = np.full(len(columns), NONE, dtype=np.int64)
        is_completed = np.zeros(len(columns), dtype=bool)
        row[self.order], is_completed[self.order] = place, completed
        self._spawn(row, is_completed)
        return row, is_completed

    def _spawn(self, row: np.ndarray, is_completed: np.ndarray) -> None:
        """Set what the first request of each subagent waits for."""
        first = np.flatnonzero(self.is_first_of_agent & (self.agent != MAIN))
        main = np.flatnonzero((self.agent == MAIN) & (self.session >= 0))
        ended = self._nearest(main, self.end[main], first, self.start[first], later=False)
        begun = self._nearest(main, self.start[main], first, self.start[first], later=False)
        row[first] = np.where(ended >= 0, ended, begun)
        is_completed[first] = ended >= 0

    def joins(self) -> tuple[np.ndarray, np.ndarray]:
        """The main agent's requests that wait for subagents, and the last-ending request of each of those."""
        heads = self.order[self.bounds[:-1]]
        last = self.order[_last_of_each(self.end[self.order], self.bounds)][self.agent[heads] != MAIN]
        main = np.flatnonzero((self.agent == MAIN) & (self.session >= 0))
        after = self._nearest(main, self.start[main], last, self.end[last], later=True)
        return after[after >= 0], last[after >= 0]

    def _nearest(
        self, candidates: np.ndarray, their_times: np.ndarray, requests: np.ndarray, times: np.ndarray, *, later: bool
    ) -> np.ndarray:
        """The last candidate of each request's session up to a time, or the first from that time on; -1 = none."""
        nearest = np.full(len(requests), NONE, dtype=np.int64)
        rows = np.concatenate([candidates, requests])
        is_candidate = np.arange(len(rows)) < len(candidates)
        order = np.lexsort((self.rank[rows], np.concatenate([their_times, times]), self.session[rows]))
        order = order[::-1] if later else order
        last = np.maximum.accumulate(np.where(is_candidate[order], np.arange(len(rows)), -1))
        is_request = ~is_candidate[order]
        place, at = last[is_request], order[is_request]
        row = np.where(place >= 0, rows[order[place]], NONE)
        is_same = (row >= 0) & (self.session[row] == self.session[rows[at]])
        nearest[at - len(candidates)] = np.where(is_same, row, NONE)
        return nearest


def _last_of_each(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """The place of the largest value of each group; of equal ones, the last."""
    group = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    order = np.lexsort((np.arange(len(values)), values, group))
    return order[bounds[1:] - 1]
