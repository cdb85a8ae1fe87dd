"""Dead blocks first, then those of agents that no tool keeps, then least recently used."""

from .tool_ttl import ToolTTL


class AgentHints(ToolTTL):
    def closed(self, agent):
        self.switch(agent, set())

    def rank_given_up(self, agent):
        return -1
