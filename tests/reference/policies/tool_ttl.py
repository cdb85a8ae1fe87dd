"""Blocks of agents with neither a request nor a tool that can still be running first, then least recently used."""

from .pauses import Pauses
from .session_hints import SessionHints


class ToolTTL(SessionHints):
    def __init__(self, context, share=0.9):
        super().__init__(context)
        self.pauses = Pauses(context.trace, share)

    def began(self, agent, row):
        self.pauses.resumed(agent, self.context.now)

    def paused(self, agent, row):
        self.pauses.paused(agent, row, self.context.now)

    def rank_held(self, agent):
        return int(self.pauses.is_kept(agent, self.context.now))
