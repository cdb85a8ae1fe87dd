"""Session end: when an agent's last request has ended, the blocks of its session go first; otherwise LRU.

The hint of vLLM's RFCs 37003 and 52113: the platform says that a session is over. Blocks that the newest context of
another open agent contains stay where they are; so do superseded blocks that another open agent gave up last.
structures/session_hints.py says what agents, contexts and ties are.
"""

from cython.cimports.kvtrace.cache.policies.base import Context
from cython.cimports.kvtrace.cache.structures.session_hints import SessionHints


class SessionEnd(SessionHints):
    """Blocks of closed sessions first, then least recently used."""

    def __init__(self, context: Context):
        SessionHints.__init__(self, context)

    def began(self, agent, row):
        return self.rank_agent(agent, 1)

    def closed(self, agent):
        self.rank_agent(agent, 0)
        return self.switch_context(agent, -1)
