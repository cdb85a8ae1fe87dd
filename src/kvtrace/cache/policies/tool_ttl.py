"""Tool TTL: blocks of agents whose tool is running are kept up to a deadline; all others go first. Otherwise LRU.

The deadline after a request is a quantile (`tool-ttl:P90`) of the times that tools have taken so far in the run: from
the end of a request to the start of the agent's next one, as the cache sees them. The future is not used. If a person
thinks, the blocks are not protected (structures/pauses.py says how the two are told apart). A running agent is
protected. If all evictable blocks are protected, the least recent one is evicted. vLLM's RFCs 37003 and 51428 propose
such times to live.
structures/session_hints.py says what agents, contexts and ties are.
"""

import cython
from cython.cimports.kvtrace.cache.policies.base import Context
from cython.cimports.kvtrace.cache.structures.pauses import Pauses
from cython.cimports.kvtrace.cache.structures.session_hints import SessionHints


class ToolTTL(SessionHints):
    """Blocks of agents without a running request or tool first, then least recently used."""

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
