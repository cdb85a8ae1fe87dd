"""The deadlines of tools: a quantile of the times that tools have taken so far."""

from math import ceil, inf


class Pauses:
    def __init__(self, trace, share):
        self.stop, self.share = trace.extra.get("stop", [None] * len(trace)), share
        self.times, self.since, self.deadline = [], {}, {}

    def paused(self, agent, row, now):
        if self.stop[row] in ("end_turn", "stop"):
            self.deadline[agent] = -inf
            return
        self.since[agent] = now
        self.deadline[agent] = now + sorted(self.times)[ceil(self.share * len(self.times)) - 1] if self.times else inf

    def resumed(self, agent, now):
        self.deadline[agent] = inf
        if agent in self.since:
            self.times.append(now - self.since.pop(agent))

    def is_kept(self, agent, now):
        return self.deadline[agent] >= now
