"""Retain: evicts the blocks of the agent with the lowest priority first; in one priority, LRU.

The priorities, 0 to 100, that a platform can give without knowing the future (vLLM's RFCs 37003 and 57103 and
TensorRT-LLM have such retention priorities). They follow what a lost context costs: subagents 20, because they live for
minutes and have short contexts; main agents 35 and one more for each request so far, up to 65, because their contexts
grow with their requests; blocks of several agents' contexts, such as system prompts, 80; requests without a session 35.
The trace's column `priority` overrides them: an agent has the priority of its newest request, and a missing one is 35.
With a duration (`retain:10m`), an agent that has been paused for longer has priority 0.
structures/session_hints.py says what agents, contexts and ties are.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context
from cython.cimports.kvtrace.cache.structures.heap import Heaps
from cython.cimports.kvtrace.cache.structures.session_hints import SessionHints

from kvtrace._base.errors import UsageError
from kvtrace.cache.policies.priority import request_priorities

SUBAGENT, USUAL, LONG, SHARED = 20.0, 35.0, 65.0, 80.0


class Retain(SessionHints):
    """Lowest priority first, then least recently used."""

    def __init__(self, context: Context, duration_ms=float("inf")):
        SessionHints.__init__(self, context)
        if not duration_ms >= 0:
            raise UsageError(f"{duration_ms} ms is not a duration. Try retain:10m.")
        self.duration_ms, self.deadlines = duration_ms, Heaps(self.agents)
        self.priority = priorities_of(context.trace, np.asarray(self.agent_of), self.agents)
        self.shelves.set_rank(2 * self.agents, SHARED)
        self.shelves.set_rank(2 * self.agents + 1, USUAL)

    def began(self, agent, row):
        if self.deadlines.holds(agent):
            self.deadlines.drop(agent)
        return self.rank_agent(agent, self.priority[row])

    def paused(self, agent, row):
        return self.deadlines.put(0, agent, self.context.now + self.duration_ms, agent)

    def victim(self):
        agent: cython.int = self.deadlines.first(0)
        while agent >= 0 and self.deadlines.key[agent] < self.context.now:
            self.deadlines.drop(agent)
            self.rank_agent(agent, 0)
            agent = self.deadlines.first(0)
        return self.shelves.first()


def priorities_of(trace, agent_of, agents):
    """float64: request -> its priority, from the trace's column or by role and turn."""
    if "priority" in trace.extra:
        return request_priorities(trace)
    number = trace.extra.get("agent")
    priority = np.full(len(trace), USUAL)
    turns = np.zeros(agents)
    for row, agent in enumerate(agent_of.tolist()):
        if agent >= 0:
            turns[agent] += 1
            priority[row] = min(USUAL + turns[agent] - 1, LONG)
            if number is not None and number[row] is not None and number[row] > 0:
                priority[row] = SUBAGENT
    return priority
