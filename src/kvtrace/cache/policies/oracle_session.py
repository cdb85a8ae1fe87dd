"""Oracle of sessions: evicts first what no session will resume, then the session that resumes last. It looks ahead.

The best that hints about sessions can do: it knows when the next request of each agent arrives, and which agents are
closed, but not which blocks a request will use. In this order: superseded blocks and blocks of closed agents; blocks of
paused agents, the one whose next request arrives last first; blocks of agents with a running request; blocks that
several agents' contexts contain. Ties: the least recent block. Requests without a session are closed when they end.

The next request of an agent is the one after its newest request. It arrives as in the trace; in a closed loop, when the
ends so far let it arrive (with several instances: the ends that the loop has taken so far).
structures/session_hints.py says what agents, contexts and ties are.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context
from cython.cimports.kvtrace.cache.structures.session_hints import SessionHints

NEVER = cython.declare(cython.double, -np.inf)


class OracleSession(SessionHints):
    """Never resumed first, then resumed last."""

    def __init__(self, context: Context):
        SessionHints.__init__(self, context)
        self.arrival = context.demand.arrival
        self.next_row = next_rows(np.asarray(self.agent_of), self.agents)
        for shelf in range(self.agents, 2 * self.agents + 2):
            self.shelves.set_rank(shelf, NEVER)
        self.shelves.set_rank(2 * self.agents, 2)

    def began(self, agent, row):
        return self.shelves.set_rank(agent, 1)

    def paused(self, agent, row):
        following: cython.Py_ssize_t = self.next_row[self.newest[agent]]
        if following < 0:
            return self.shelves.set_rank(agent, NEVER)
        return self.shelves.set_rank(agent, -(self.context.due if self.context.in_loop else self.arrival)[following])

    def closed(self, agent):
        return self.switch_context(agent, -1)


def next_rows(agent_of, agents):
    """intp: request -> the next request of its agent, or -1."""
    later = np.full(agents, -1, dtype=np.intp)
    following = np.full(len(agent_of), -1, dtype=np.intp)
    for row in range(len(agent_of) - 1, -1, -1):
        if agent_of[row] >= 0:
            following[row] = later[agent_of[row]]
            later[agent_of[row]] = row
    return following
