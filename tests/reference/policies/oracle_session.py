"""What no session resumes first, then the session that resumes last."""

from math import inf

from .session_hints import SessionHints


class OracleSession(SessionHints):
    def closed(self, agent):
        self.switch(agent, set())

    def rank_held(self, agent):
        if self.running[agent]:
            return 1
        later = (row for row in range(self.newest[agent] + 1, len(self.agent_of)) if self.agent_of[row] == agent)
        following = next(later, None)
        return -inf if following is None else -self.demand.arrival[following]

    def rank_given_up(self, agent):
        return -inf

    def rank_shared(self):
        return 2

    def rank_free(self):
        return -inf
