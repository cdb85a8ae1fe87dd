"""Policies that read an agent platform's hints, the structures that they share, and an oracle of sessions."""

import cython
import numpy as np
from cython.cimports.kvtrace.cache.policies.base import NONE, Context, Policy
from cython.cimports.kvtrace.cache.structures.queues import Heaps, Recency
from cython.cimports.libc.math import INFINITY, ceil

from kvtrace._base.errors import InputError, UsageError
from kvtrace.cache.policies.classic import request_priorities


class RunningQuantile:
    """A quantile of the values so far, exactly: the k-th least of n values, with k = ceil(share x n).

    Two heaps, one with the k least values and one with the others; a value costs O(log n).
    """

    def __init__(self, max_values, share):
        self.heaps, self.share = Heaps(max(max_values, 1), 2), share
        self.count = self.lowest = 0

    def add(self, value):
        """Add a value."""
        number: cython.int = self.count
        is_low: cython.bint = value < self.value() and self.count > 0
        self.count += 1
        self.heaps.put(0 if is_low else 1, number, -value if is_low else value, number)
        self.lowest += is_low
        while self.lowest < ceil(self.share * self.count):
            self._shift(1, 0)
            self.lowest += 1
        while self.lowest > ceil(self.share * self.count):
            self._shift(0, 1)
            self.lowest -= 1
        return 0

    def value(self):
        """The quantile, or infinity if there are no values."""
        return -self.heaps.key[self.heaps.first(0)] if self.count else INFINITY

    def _shift(self, source, target):
        """Move the first value of a heap to the other one."""
        number: cython.int = self.heaps.first(source)
        self.heaps.drop(number)
        return self.heaps.put(target, number, -self.heaps.key[number], number)


PERSON = ("end_turn", "stop")  # Anthropic's and OpenAI's names


class Pauses:
    """Pauses of agents: for how long a tool is expected to run, from the pauses so far.

    After a request either a tool runs or a person thinks. The trace's column `stop` says which: `end_turn` and `stop`
    mean a person; every other value, or none, means a tool. The deadline of a tool is a quantile of the times that
    tools have taken so far, in this run; before the first one it is never.
    """

    def __init__(self, trace, agents, share):
        self.times, self.deadlines = RunningQuantile(len(trace), share), Heaps(agents)
        self.since = np.full(agents, -1.0)
        stop = trace.extra.get("stop")
        tools = [True] * len(trace) if stop is None else [reason not in PERSON for reason in stop.tolist()]
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


class Shelves:
    """Blocks on shelves: the least recent block of the shelves with the lowest rank comes first.

    A shelf changes its rank in one step, however many blocks it has. With equal ranks the order is by recency alone.
    """

    def __init__(self, blocks, shelves):
        self.blocks, self.order = Heaps(blocks, shelves), Heaps(shelves)
        self.rank = np.ones(shelves)

    def holds(self, block):
        """Whether a block is on any shelf."""
        return self.blocks.holds(block)

    def put(self, shelf, block, stamp):
        """Put a block that is on no shelf onto one; stamps are distinct, and lower ones are less recent."""
        self.blocks.put(shelf, block, 0.0, stamp)
        return self._reorder(shelf) if self.blocks.first(shelf) == block else 0

    def drop(self, block):
        """Take a block off its shelf."""
        shelf: cython.int = self.blocks.heap_of[block]
        was_first: cython.bint = self.blocks.first(shelf) == block
        self.blocks.drop(block)
        return self._reorder(shelf) if was_first else 0

    def move(self, block, shelf):
        """Move a block to another shelf; it keeps its stamp."""
        stamp: cython.longlong = self.blocks.tiebreak[block]
        if self.blocks.heap_of[block] == shelf:
            return 0
        self.drop(block)
        return self.put(shelf, block, stamp)

    def set_rank(self, shelf, rank):
        """Set the rank of a shelf."""
        if self.rank[shelf] == rank:
            return 0
        self.rank[shelf] = rank
        return self._reorder(shelf)

    def first(self):
        """The first block, or NONE."""
        shelf: cython.int = self.order.first(0)
        return self.blocks.first(shelf) if shelf >= 0 else NONE

    def _reorder(self, shelf):
        """Put a shelf where its rank and its least recent block belong."""
        block: cython.int = self.blocks.first(shelf)
        if self.order.holds(shelf):
            self.order.drop(shelf)
        if block < 0:
            return 0
        return self.order.put(0, shelf, self.rank[shelf], self.blocks.tiebreak[block])


NO_AGENT = cython.declare(cython.int, -1)


class SessionHints(Policy):
    """What policies with an agent platform's hints share: which agent holds each block, and LRU on ranked shelves.

    An agent is the main agent of a session or one of its subagents (the trace's columns `session` and `agent`). Its
    context is the prompt and the output of its newest request. A block that one agent's context contains is on the
    shelf of that agent. A block of several agents' contexts is on a shelf of its own. A block that no context contains
    any more is on the second shelf of the agent that gave it up. A policy ranks the shelves; the least recent block of
    the lowest rank is evicted, so with equal ranks the policy is LRU. Recency is the last request that used a block; in
    one request, deeper blocks are less recent. Requests without a session give no hints: their blocks have rank 1.

    A policy overrides `began` (a request of an agent starts), `paused` (the last running request of an agent has ended)
    and `closed` (the last request of an agent has ended).
    """

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

    def _common(self, row, other):
        """Number of leading blocks that two prompts share, by bisection: blocks are chained, so they part only once."""
        low: cython.int = 0
        high: cython.int = min(self.full[row], self.full[other])
        middle: cython.int
        while low < high:
            middle = (low + high + 1) // 2
            if self.ids[self.start[row] + middle - 1] == self.ids[self.start[other] + middle - 1]:
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
        [0] * len(trace) if column is None else [value if value == value else 0 for value in column.tolist()]
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


class SessionEnd(SessionHints):
    """Session end: when an agent's last request has ended, the blocks of its session go first; otherwise LRU.

    The hint of vLLM's RFCs 37003 and 52113: the platform says that a session is over. Blocks that the newest context of
    another open agent contains stay where they are; so do superseded blocks that another open agent gave up last.
    policies/hinted.py says what agents, contexts and ties are.
    """

    def __init__(self, context: Context):
        SessionHints.__init__(self, context)

    def began(self, agent, row):
        return self.rank_agent(agent, 1)

    def closed(self, agent):
        self.rank_agent(agent, 0)
        return self.switch_context(agent, -1)


class Superseded(SessionHints):
    """Superseded: blocks that no agent's newest context contains any more go first; otherwise LRU.

    After a compaction, or when a session returns to an earlier turn and continues from there, the states in between are
    rarely used again (SGLang's RFC 24656 asks for such updates of priorities). A context is the prompt and the output
    of an agent's newest request. A request that uses a superseded block makes it current again.
    policies/hinted.py says what agents, contexts and ties are.
    """

    def __init__(self, context: Context):
        SessionHints.__init__(self, context)
        for agent in range(self.agents):
            self.shelves.set_rank(self.agents + agent, 0)


class ToolTTL(SessionHints):
    """Tool TTL: blocks of agents whose tool is running are kept up to a deadline; all others go first. Otherwise LRU.

    The deadline after a request is a quantile (`tool-ttl:P90`) of the times that tools have taken so far in the run:
    from the end of a request to the start of the agent's next one, as the cache sees them. The future is not used. If a
    person thinks, the blocks are not protected (policies/hinted.py says how the two are told apart). A running agent
    is protected. If all evictable blocks are protected, the least recent one is evicted. vLLM's RFCs 37003 and 51428
    propose such times to live. policies/hinted.py says what agents, contexts and ties are.
    """

    def __init__(self, context: Context, share=0.9):
        SessionHints.__init__(self, context)
        self.pauses = Pauses(context.trace, self.agents, share)

    def began(self, agent, row):
        self.pauses.resumed(agent, self.context.now)
        return self.rank_agent(agent, 1)

    def paused(self, agent, row):
        is_tool: cython.bint = self.pauses.paused(agent, row, self.context.now)
        return self.rank_agent(agent, 1 if is_tool else 0)

    def victim(self):
        agent: cython.int = self.pauses.expired(self.context.now)
        while agent >= 0:
            self.rank_agent(agent, 0)
            agent = self.pauses.expired(self.context.now)
        return self.shelves.first()


SUBAGENT, USUAL, LONG, SHARED = 20.0, 35.0, 65.0, 80.0


class Retain(SessionHints):
    """Retain: evicts the blocks of the agent with the lowest priority first; in one priority, LRU.

    The priorities, 0 to 100, that a platform can give without knowing the future (vLLM's RFCs 37003 and 57103 and
    TensorRT-LLM have such retention priorities). They follow what a lost context costs: subagents 20, because they live
    for minutes and have short contexts; main agents 35 and one more for each request so far, up to 65, because their
    contexts grow with their requests; blocks of several agents' contexts, such as system prompts, 80; requests without
    a session 35. The trace's column `priority` overrides them: an agent has the priority of its newest request, and a
    missing one is 35. With a duration (`retain:10m`), an agent that has been paused for longer has priority 0.
    policies/hinted.py says what agents, contexts and ties are.
    """

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


# the ranks
DEAD = cython.declare(cython.double, -1.0)
IDLE = cython.declare(cython.double, 0.0)
BUSY = cython.declare(cython.double, 1.0)


class AgentHints(SessionHints):
    """Agent hints: `session-end`, `superseded` and `tool-ttl` together.

    In this order: blocks of closed agents and superseded blocks; blocks of agents whose person thinks or whose tool has
    run past its deadline; all others. Ties: the least recent block. Each hint is as in the policy of its name;
    policies/hinted.py says what agents and contexts are.
    """

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


NEVER = cython.declare(cython.double, -np.inf)


class OracleSession(SessionHints):
    """Oracle of sessions: evicts first what no session will resume, then the session that resumes last. It looks ahead.

    The best that hints about sessions can do: it knows when the next request of each agent arrives, and which agents
    are closed, but not which blocks a request will use. In this order: superseded blocks and blocks of closed agents;
    blocks of paused agents, the one whose next request arrives last first; blocks of agents with a running request;
    blocks that several agents' contexts contain. Ties: the least recent block. Requests without a session are closed
    when they end.

    The next request of an agent is the one after its newest request. It arrives as in the trace; in a closed loop, when
    the ends so far let it arrive (with several instances: the ends that the loop has taken so far).
    policies/hinted.py says what agents, contexts and ties are.
    """

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
