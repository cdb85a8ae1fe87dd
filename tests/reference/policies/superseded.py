"""Blocks that an agent gave up first, then least recently used."""

from .session_hints import SessionHints


class Superseded(SessionHints):
    def rank_given_up(self, agent):
        return 0
