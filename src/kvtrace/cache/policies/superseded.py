"""Superseded: blocks that no agent's newest context contains any more go first; otherwise LRU.

After a compaction, or when a session returns to an earlier turn and continues from there, the states in between are
rarely used again (SGLang's RFC 24656 asks for such updates of priorities). A context is the prompt and the output of an
agent's newest request. A request that uses a superseded block makes it current again.
structures/session_hints.py says what agents, contexts and ties are.
"""

from cython.cimports.kvtrace.cache.policies.base import Context
from cython.cimports.kvtrace.cache.structures.session_hints import SessionHints


class Superseded(SessionHints):
    """Superseded blocks first, then least recently used."""

    def __init__(self, context: Context):
        SessionHints.__init__(self, context)
        for agent in range(self.agents):
            self.shelves.set_rank(self.agents + agent, 0)
