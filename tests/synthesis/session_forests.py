"""Made-up session forests: agents whose contexts grow, break and are compacted, with subagents that are joined."""

import numpy as np

from kvtrace.trace.columns import Columns
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.trace import Trace


class Forest:
    """Requests of sessions, in the order in which they are added."""

    def __init__(self, seed, block_size):
        self.rng, self.block_size = np.random.default_rng(seed), block_size
        self.fresh, self.systems = 0, {}
        self.paths, self.rows, self.waits = [], [], []

    def blocks(self, count):
        """New blocks."""
        self.fresh += count
        return list(range(self.fresh - count, self.fresh))

    def system(self, number, count):
        """The blocks of a system prompt, the same for all that ask for it."""
        if number not in self.systems:
            self.systems[number] = self.blocks(count)
        return self.systems[number]

    def add(self, session, agent, tokens, kept, output, start, service, waits):
        """One request that keeps some leading blocks; returns its row."""
        full = tokens // self.block_size
        self.paths.append(list(kept[:full]) + self.blocks(full - min(full, len(kept))))
        self.rows.append((start, tokens, output, session, agent, service))
        self.waits.append(waits)
        return len(self.rows) - 1

    def end(self, row):
        """When a request ends."""
        start, service = self.rows[row][0], self.rows[row][5]
        return start + (0 if np.isnan(service) else service)

    def trace(self, *, agents=True, tail="dropped"):
        """The requests as a trace."""
        start, tokens, output, session, agent, service = map(np.array, zip(*self.rows, strict=True))
        offsets = np.concatenate([[0], np.cumsum([len(path) for path in self.paths])])
        columns = Columns(
            start, tokens, output, [block for path in self.paths for block in path], offsets, session=session,
            extra={"agent": agent} if agents else {}, dependencies=Dependencies.of(self.waits), service_ms=service,
        )  # fmt: skip
        return Trace.from_columns(columns, block_size=self.block_size, tail=tail)


def forest(sessions=40, seed=1, *, shared=0, subagents=0.5, start_gap_ms=0.0, block_size=16, agents=True):
    """A forest of sessions of 3 to 60 turns.

    `shared`: number of system prompts that sessions share, 0 = each session has its own; `subagents`: mean number of
    groups of one to three subagents in a session, half of them joined.
    """
    made = Forest(seed, block_size)
    rng = made.rng
    for session in range(sessions):
        number = int(rng.integers(shared)) if shared else 100 + session
        _session(made, session, made.system(number, 20), subagents, session * start_gap_ms)
    return made.trace(agents=agents)


def _session(made, session, system, subagents, start):
    rng, size = made.rng, made.block_size
    tokens = len(system) * size + int(rng.integers(1, 400))
    speed = float(rng.lognormal(0, 0.5))
    row = made.add(session, 0, tokens, system, int(rng.integers(20, 400)), start, _service(rng), [])
    agent, waiting, groups = 0, [], int(rng.poisson(subagents))
    turns = int(rng.integers(3, 61))
    spawning = set(rng.integers(1, turns, size=groups).tolist())
    for turn in range(1, turns):
        if turn in spawning:
            ends = []
            for _ in range(int(rng.integers(1, 4))):
                agent += 1
                ends.append(_subagent(made, session, agent, row))
            waiting += ends if rng.random() < 0.5 else []
        gates = [row, *waiting]
        delay = float(int(rng.lognormal(8, 1.5) * speed))
        at = max(made.end(gate) for gate in gates) + delay
        waits = [(row, "completion", "sequence", delay), *((gate, "completion", "join", delay) for gate in waiting)]
        waiting, path, output = [], made.paths[row], made.rows[row][2]
        if rng.random() < 0.02:  # compacted: the system prompt stays
            tokens = len(system) * size + int(rng.integers(200, 900))
            path = system
        elif rng.random() < 0.02:  # written anew
            tokens, path = tokens + 10, system
        else:
            tokens += output + int(rng.lognormal(4, 1))
        row = made.add(session, 0, tokens, path, int(rng.integers(20, 400)), at, _service(rng), waits)


def _subagent(made, session, agent, spawner):
    """A subagent with a system prompt of all subagents of its session; returns its last row."""
    rng, size = made.rng, made.block_size
    system = made.system(("subagent", session), 8)
    delay = float(int(rng.integers(50, 500)))
    tokens, at = len(system) * size + int(rng.integers(50, 300)), made.end(spawner) + delay
    output = int(rng.integers(20, 200))
    row = made.add(session, agent, tokens, system, output, at, _service(rng), [(spawner, "completion", "spawn", delay)])
    for _ in range(int(rng.integers(0, 9))):
        delay = float(int(rng.lognormal(7, 1)))
        tokens, at = tokens + output + int(rng.integers(5, 90)), made.end(row) + delay
        output = int(rng.integers(20, 200))
        waits = [(row, "completion", "sequence", delay)]
        row = made.add(session, agent, tokens, made.paths[row], output, at, _service(rng), waits)
    return row


def _service(rng):
    """A service time in whole ms; now and then unknown."""
    return float("nan") if rng.random() < 0.1 else float(int(rng.lognormal(8, 0.7)))
