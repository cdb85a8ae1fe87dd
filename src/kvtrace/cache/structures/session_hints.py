"""What policies with an agent platform's hints share: which agent holds each block, and LRU on ranked shelves.

An agent is the main agent of a session or one of its subagents (the trace's columns `session` and `agent`). Its context
is the prompt and the output of its newest request. A block that one agent's context contains is on the shelf of that
agent. A block of several agents' contexts is on a shelf of its own. A block that no context contains any more is on the
second shelf of the agent that gave it up. A policy ranks the shelves; the least recent block of the lowest rank is
evicted, so with equal ranks the policy is LRU. Recency is the last request that used a block; in one request, deeper
blocks are less recent. Requests without a session give no hints: their blocks have rank 1.

A policy overrides `began` (a request of an agent starts), `paused` (the last running request of an agent has ended) and
`closed` (the last request of an agent has ended).
"""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import Context, Policy
from cython.cimports.kvtrace.cache.structures.recency import Recency
from cython.cimports.kvtrace.cache.structures.shelves import Shelves

from kvtrace._base.errors import InputError

NO_AGENT = cython.declare(cython.int, -1)


class SessionHints(Policy):
    """LRU on shelves: of agent a are shelf a and, for blocks that it gave up, shelf agents + a."""

    def __init__(self, context: Context):
        Policy.__init__(self, context)
        self.follows_requests = True
        self.recency = Recency(context)
        demand = context.demand
        self.ids, self.start, self.full = demand.ids, demand.start, demand.full
        self.grown, self.fresh = demand.grown, demand.fresh
        agent_of = agents_of(context.trace)
        self.agent_of, self.agents = agent_of, int(agent_of.max(initial=-1)) + 1
        self.newest = np.full(self.agents, -1, dtype=np.intp)
        self.later = later_requests(agent_of, self.agents)
        self.left = np.full(self.agents, -1, dtype=np.int32)
        self.running = np.zeros(self.agents, dtype=np.int32)
        self.holders, self.holder = np.zeros((2, context.blocks), dtype=np.int32)
        self.owner = np.full(context.blocks, -1, dtype=np.int32)
        self.stamp = np.zeros(context.blocks, dtype=np.int64)
        self.shelves = Shelves(context.blocks, 2 * self.agents + 2)

    def insert(self, block):
        self.stamp[block] = self.recency.stamp(block)
        return 0

    def use(self, block):
        if self.shelves.holds(block):
            self.shelves.drop(block)
        self.stamp[block] = self.recency.stamp(block)
        return 0

    def release(self, block):
        return self.shelves.put(self._shelf(block), block, self.stamp[block])

    def victim(self):
        return self.shelves.first()

    def remove(self, block):
        return self.shelves.drop(block)

    def request_started(self, row):
        i: cython.Py_ssize_t
        agent: cython.int = self.agent_of[row]
        if agent == NO_AGENT:
            for i in range(self.start[row], self.start[row] + self.full[row]):
                self.owner[self.ids[i]] = NO_AGENT
            return 0
        if self.newest[agent] < 0 and self.running[agent] == 0:  # a closed loop can leave out the ones before
            self.left[agent] = self.later[row] + 1
        self.running[agent] += 1
        self.switch_context(agent, row)
        return self.began(agent, row)

    def request_ended(self, row):
        agent: cython.int = self.agent_of[row]
        if agent == NO_AGENT:
            return 0
        self.running[agent] -= 1
        self.left[agent] -= 1
        if self.running[agent] == 0:
            self.paused(agent, row)
            if self.left[agent] <= 0:
                self.closed(agent)
        return 0

    def began(self, agent, row):
        """A request of an agent starts; its context is the newest one. Default: nothing."""
        return 0

    def paused(self, agent, row):
        """A request has ended and no other request of its agent is running. Default: nothing."""
        return 0

    def closed(self, agent):
        """The last request of an agent has ended. Default: nothing."""
        return 0

    def rank_agent(self, agent, rank):
        """Rank both shelves of an agent."""
        self.shelves.set_rank(agent, rank)
        return self.shelves.set_rank(self.agents + agent, rank)

    def switch_context(self, agent, row):
        """Make the context of a request the newest one of its agent; row -1 is the empty context."""
        k: cython.Py_ssize_t
        old: cython.Py_ssize_t = self.newest[agent]
        common: cython.Py_ssize_t = self._common(old, row) if old >= 0 and row >= 0 else 0
        self.newest[agent] = row
        if row >= 0:
            for k in range(self.start[row] + common, self.start[row] + self.full[row]):
                self._hold(self.ids[k], agent)
            for k in range(self.fresh[row], self.fresh[row] + self.grown[row]):
                self._hold(cython.cast(cython.int, k), agent)
        if old >= 0:
            for k in range(self.start[old] + common, self.start[old] + self.full[old]):
                self._give_up(self.ids[k], agent)
            for k in range(self.fresh[old], self.fresh[old] + self.grown[old]):
                self._give_up(cython.cast(cython.int, k), agent)
        return 0

    def _shelf(self, block):
        """The shelf where a block belongs."""
        if self.holders[block] == 1:
            return self.holder[block]
        if self.holders[block] > 1:
            return 2 * self.agents
        return self.agents + self.owner[block] if self.owner[block] != NO_AGENT else 2 * self.agents + 1

    def _hold(self, block, agent):
        """An agent's newest context contains a block."""
        self.holders[block] += 1
        self.holder[block] ^= agent
        return self.shelves.move(block, self._shelf(block)) if self.shelves.holds(block) else 0

    def _give_up(self, block, agent):
        """An agent's newest context no longer contains a block."""
        self.holders[block] -= 1
        self.holder[block] ^= agent
        self.owner[block] = agent
        return self.shelves.move(block, self._shelf(block)) if self.shelves.holds(block) else 0

    def _common(self, one, other):
        """Number of leading blocks that two prompts share, by bisection: blocks are chained, so they part only once."""
        low: cython.int = 0
        high: cython.int = min(self.full[one], self.full[other])
        middle: cython.int
        while low < high:
            middle = (low + high + 1) // 2
            if self.ids[self.start[one] + middle - 1] == self.ids[self.start[other] + middle - 1]:
                low = middle
            else:
                high = middle - 1
        return low


def agents_of(trace):
    """int32: request -> its agent, numbered by first appearance; -1 without a session.

    Raises InputError if the trace has no sessions.
    """
    if trace.session is None or not (trace.session >= 0).any():
        raise InputError("the policy needs a trace with sessions, and this one has none. Try lru.")
    column = trace.extra.get("agent")
    agents = (
        [0] * len(trace) if column is None else [one if one == one else 0 for one in column.tolist()]
    )  # NaN: missing
    number: dict = {}
    pairs = zip(trace.session.tolist(), (agent or 0 for agent in agents), strict=True)
    return np.array([-1 if pair[0] < 0 else number.setdefault(pair, len(number)) for pair in pairs], dtype=np.int32)


def later_requests(agent_of, agents):
    """int32: request -> number of later requests of its agent."""
    count = np.zeros(agents, dtype=np.int32)
    later = np.zeros(len(agent_of), dtype=np.int32)
    for row in range(len(agent_of) - 1, -1, -1):
        if agent_of[row] >= 0:
            later[row] = count[agent_of[row]]
            count[agent_of[row]] += 1
    return later
