"""Blocks of closed agents first, then least recently used."""

from .session_hints import SessionHints


class SessionEnd(SessionHints):
    def closed(self, agent):
        self.switch(agent, set())

    def rank_held(self, agent):
        return 1 if self.left[agent] > 0 else 0
