"""Lowest priority of an agent first, then least recently used."""

from collections import Counter

from .session_hints import SessionHints


class Retain(SessionHints):
    def __init__(self, context, duration_ms=float("inf")):
        super().__init__(context)
        self.duration_ms, self.paused_at, self.turns, self.priority = duration_ms, {}, Counter(), {}

    def began(self, agent, row):
        extra = self.context.trace.extra
        self.paused_at.pop(agent, None)
        turn = self.agent_of[: row + 1].count(agent)
        if "priority" in extra:
            value = extra["priority"][row]
            self.priority[agent] = 35 if value is None or value != value else value
        else:
            self.priority[agent] = 20 if agent[1] > 0 else min(34 + turn, 65)

    def paused(self, agent, row):
        self.paused_at[agent] = self.context.now

    def rank_held(self, agent):
        over = agent in self.paused_at and self.paused_at[agent] + self.duration_ms < self.context.now
        return 0 if over else self.priority[agent]

    def rank_shared(self):
        return 80

    def rank_free(self):
        return 35
