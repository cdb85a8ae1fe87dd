"""Who holds each block: the newest context of each agent, as sets. LRU within what a policy ranks equal."""

from collections import Counter

from .depth import depths


def agents(trace):
    """Request -> (session, agent), or None."""
    number = trace.extra.get("agent", [0] * len(trace))
    pairs = zip(trace.session.tolist(), number, strict=True)
    return [None if session < 0 else (session, agent or 0) for session, agent in pairs]


class SessionHints:
    def __init__(self, context):
        self.context, self.demand, self.depth = context, context.demand, depths(context.demand)
        self.agent_of = agents(context.trace)
        self.left, self.running = {}, Counter()
        self.contexts = {}  # agent -> blocks of its newest request
        self.newest = {}  # agent -> its newest request
        self.gave_up = {}  # block -> the agent that held it last, or None
        self.used = {}  # block -> recency of its last use
        self.evictable = set()

    def insert(self, block):
        self.used[block] = (self.context.order, -self.depth[block])

    def use(self, block):
        self.evictable.discard(block)
        self.insert(block)

    def release(self, block):
        self.evictable.add(block)

    def remove(self, block):
        self.evictable.discard(block)

    def victim(self):
        return min(self.evictable, key=lambda block: (self.rank_of(block), self.used[block]), default=None)

    def request_started(self, row):
        demand, agent = self.demand, self.agent_of[row]
        path = demand.ids[demand.start[row] :][: demand.full[row]].tolist()
        path += range(demand.fresh[row], demand.fresh[row] + demand.grown[row])
        if agent is None:
            self.gave_up.update(dict.fromkeys(path))
            return
        self.left.setdefault(agent, self.agent_of[row:].count(agent))
        self.running[agent] += 1
        self.newest[agent] = row
        self.switch(agent, set(path))
        self.began(agent, row)

    def request_ended(self, row):
        agent = self.agent_of[row]
        if agent is None:
            return
        self.running[agent] -= 1
        self.left[agent] -= 1
        if not self.running[agent]:
            self.paused(agent, row)
            if self.left[agent] <= 0:
                self.closed(agent)

    def switch(self, agent, blocks):
        self.gave_up.update(dict.fromkeys(self.contexts.get(agent, set()) - blocks, agent))
        self.contexts[agent] = blocks

    def rank_of(self, block):
        holders = [agent for agent, blocks in self.contexts.items() if block in blocks]
        if len(holders) > 1:
            return self.rank_shared()
        if holders:
            return self.rank_held(holders[0])
        agent = self.gave_up.get(block)
        return self.rank_free() if agent is None else self.rank_given_up(agent)

    # what a policy overrides

    def began(self, agent, row):
        pass

    def paused(self, agent, row):
        pass

    def closed(self, agent):
        pass

    def rank_shared(self):
        return 1

    def rank_free(self):
        return 1

    def rank_held(self, agent):
        return 1

    def rank_given_up(self, agent):
        return self.rank_held(agent)
