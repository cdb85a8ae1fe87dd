"""The numbers of agents in a session: 0 is the main agent, the others count by their first requests."""

from __future__ import annotations

import numpy as np

from ..trace.columns import Columns


def numbered_agents(session: np.ndarray | None, agent: np.ndarray) -> np.ndarray:
    """The agents, numbered 1, 2, ... in each session by their first requests; 0 for main agents, and without a session.

    A number that a log gives to an agent could be an identifier; these are a count.

    >>> numbered_agents(np.array([0, 0, 1, 0, 0]), np.array([0, 7, 7, 3, 7]))
    array([0, 1, 1, 2, 1])
    """
    numbers = np.zeros(len(agent), dtype=np.int64)
    if session is None or agent.dtype.kind not in "iu":
        return numbers
    rows = np.flatnonzero((session >= 0) & (agent > 0))
    pairs, first, pair = np.unique(
        np.stack([session[rows], agent[rows]]), axis=1, return_index=True, return_inverse=True
    )
    by_session = np.lexsort((first, pairs[0]))
    of_session = pairs[0][by_session]
    rank = np.empty(len(first), dtype=np.int64)
    rank[by_session] = np.arange(len(first)) - np.searchsorted(of_session, of_session) + 1
    numbers[rows] = rank[pair.reshape(-1)]
    return numbers


def agents_in_order(columns: Columns) -> bool:
    """Whether the column of agents, if there is one, has these numbers.

    >>> from kvtrace.trace.building import toy
    >>> agents_in_order(toy("0"))
    True
    """
    agent = columns.extra.get("agent")
    return agent is None or np.array_equal(numbered_agents(columns.session, agent), agent)
