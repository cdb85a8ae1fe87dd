"""Pauses of agents: for how long a tool is expected to run, from the pauses so far.

After a request either a tool runs or a person thinks. The trace's column `stop` says which: `end_turn` and `stop` mean
a person; every other value, or none, means a tool. The deadline of a tool is a quantile of the times that tools have
taken so far, in this run; before the first one it is never.
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE
from cython.cimports.kvtrace.cache.structures.heap import Heaps
from cython.cimports.kvtrace.cache.structures.running_quantile import RunningQuantile

PERSON = ("end_turn", "stop")  # Anthropic's and OpenAI's names


class Pauses:
    """The pauses of `agents` agents."""

    def __init__(self, trace, agents, share):
        self.times, self.deadlines = RunningQuantile(len(trace), share), Heaps(agents)
        self.since = np.full(agents, -1.0)
        stop = trace.extra.get("stop")
        tools = [True] * len(trace) if stop is None else [one not in PERSON for one in stop.tolist()]
        self.is_tool = np.array(tools, dtype=np.int8)

    def paused(self, agent, row, now):
        """An agent pauses after a request; returns whether a tool runs."""
        if not self.is_tool[row]:
            return False
        self.since[agent] = now
        self.deadlines.put(0, agent, now + self.times.value(), agent)
        return True

    def resumed(self, agent, now):
        """An agent has a request again."""
        if self.deadlines.holds(agent):
            self.deadlines.drop(agent)
        if self.since[agent] >= 0:
            self.times.add(now - self.since[agent])
            self.since[agent] = -1
        return 0

    def expired(self, now):
        """An agent whose deadline is before now, or NONE; each is returned once."""
        agent: cython.int = self.deadlines.first(0)
        if agent < 0 or self.deadlines.key[agent] >= now:
            return NONE
        self.deadlines.drop(agent)
        return agent
