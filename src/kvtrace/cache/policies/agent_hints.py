"""Agent hints: `session-end`, `superseded` and `tool-ttl` together.

In this order: blocks of closed agents and superseded blocks; blocks of agents whose person thinks or whose tool has run
past its deadline; all others. Ties: the least recent block. Each hint is as in the policy of its name;
structures/session_hints.py says what agents and contexts are.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import Context
from cython.cimports.kvtrace.cache.structures.pauses import Pauses
from cython.cimports.kvtrace.cache.structures.session_hints import SessionHints

# the ranks
DEAD = cython.declare(cython.double, -1.0)
IDLE = cython.declare(cython.double, 0.0)
BUSY = cython.declare(cython.double, 1.0)


class AgentHints(SessionHints):
    """Dead blocks first, then those of idle agents, then least recently used."""

    def __init__(self, context: Context, share=0.9):
        SessionHints.__init__(self, context)
        self.pauses = Pauses(context.trace, self.agents, share)
        for agent in range(self.agents):
            self.shelves.set_rank(self.agents + agent, DEAD)

    def began(self, agent, row):
        self.pauses.resumed(agent, self.context.now)
        return self.shelves.set_rank(agent, BUSY)

    def paused(self, agent, row):
        is_tool: cython.bint = self.pauses.paused(agent, row, self.context.now)
        return self.shelves.set_rank(agent, BUSY if is_tool else IDLE)

    def closed(self, agent):
        return self.switch_context(agent, -1)

    def victim(self):
        agent: cython.int = self.pauses.expired(self.context.now)
        while agent >= 0:
            self.shelves.set_rank(agent, IDLE)
            agent = self.pauses.expired(self.context.now)
        return self.shelves.first()
