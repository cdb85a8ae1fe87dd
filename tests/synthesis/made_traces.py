"""Kinds of traces of our own, each a function of the number of requests, a seed and a block size."""

from collections.abc import Callable

import numpy as np

from kvtrace._base.arrays import offsets_of
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace


class Paper:
    """The requests of a trace under construction; blocks are numbered as they come."""

    def __init__(self, block_size):
        self.block_size, self.blocks, self.rows = block_size, 0, []

    def fresh(self, count):
        """New blocks."""
        self.blocks += count
        return list(range(self.blocks - count, self.blocks))

    def trace(self):
        """The trace of all rows, in order of time."""
        rows = sorted(self.rows, key=lambda row: row[0])
        times = np.array([round(row[0] - rows[0][0]) for row in rows], dtype=float)
        columns = Columns(
            times, np.array([row[2] for row in rows]), np.array([row[3] for row in rows]),
            np.concatenate([row[1] for row in rows]).astype(np.int64), offsets_of([len(row[1]) for row in rows]),
        )  # fmt: skip
        return Trace.from_columns(columns, block_size=self.block_size, tail="kept")


def conversations(
    rows: int, seed: int, block_size: int, *, prefixes: list[int], rate: float, think_s: float, turns: float,
    tokens: float, outputs: float, gap: Callable | None = None, pick: Callable | None = None,
) -> Trace:  # fmt: skip
    """Conversations that begin with one of some shared prefixes, and grow from turn to turn."""
    rng, paper = np.random.default_rng(seed), Paper(block_size)
    shared, now = [paper.fresh(blocks) for blocks in prefixes], 0.0
    while len(paper.rows) < rows:
        now += gap(rng) if gap else rng.exponential(1000 / rate)
        path, rest, at = list(shared[pick(rng, now) if pick else rng.integers(len(shared))]), 0, now
        for _ in range(rng.geometric(1 / turns)):
            rest += max(1, int(rng.lognormal(np.log(tokens), 1.1)))
            path += paper.fresh(rest // block_size)
            rest %= block_size
            length, prompt = len(path) * block_size + rest, path + (paper.fresh(1) if rest else [])
            paper.rows.append((at, prompt, max(1, length), 1 + int(rng.lognormal(np.log(outputs), 0.8) + length**0.5)))
            at += rng.lognormal(np.log(think_s), 1) * 1000
    paper.rows = paper.rows[:rows]
    return paper.trace()


def chats(rows, seed, block_size=16):
    """One system prompt, many users."""
    return conversations(rows, seed, block_size, prefixes=[20], rate=2, think_s=30, turns=4, tokens=200, outputs=150)


def bursts(rows, seed, block_size=64):
    """Crowds, then a minute of silence."""

    def gap(rng):
        return rng.exponential(20 if rng.random() < 0.98 else 60_000)

    return conversations(
        rows, seed, block_size, prefixes=[5] * 8, rate=1, think_s=10, turns=3, tokens=400, outputs=100, gap=gap
    )


def giant_prefix(rows, seed, block_size=64):
    """Two hundred blocks that all share, and little else."""
    return conversations(rows, seed, block_size, prefixes=[200], rate=5, think_s=20, turns=1.5, tokens=300, outputs=60)


def drifting_topics(rows, seed, block_size=64):
    """Four hundred prefixes, whose popularity moves on."""
    prefixes = np.random.default_rng(seed + 99).integers(2, 60, 400).tolist()

    def pick(rng, now):
        return int(now / 1000 * 0.2 + rng.pareto(0.8) * 3) % 400

    return conversations(
        rows, seed, block_size, prefixes=prefixes, rate=3, think_s=40, turns=1.6, tokens=300, outputs=120, pick=pick
    )


def tenants(rows, seed, block_size=16):
    """Thirty tenants of very different sizes, each with a prefix of its own."""
    prefixes = (np.random.default_rng(seed + 7).pareto(1.0, 30) * 20 + 2).astype(int).clip(max=400).tolist()
    weights = 1 / np.arange(1, 31) ** 1.1

    def pick(rng, now):
        return rng.choice(30, p=weights / weights.sum())

    return conversations(
        rows, seed, block_size, prefixes=prefixes, rate=4, think_s=60, turns=3, tokens=250, outputs=200, pick=pick
    )


def tool_loops(rows, seed, block_size=16):
    """Two agents' prompts, and sessions of some 25 quick turns."""
    return conversations(
        rows, seed, block_size, prefixes=[120, 80], rate=0.2, think_s=4, turns=25, tokens=350, outputs=80
    )


def scans(rows, seed, block_size=64):
    """Three hundred documents, one after the other, round and round."""
    rng, paper = np.random.default_rng(seed), Paper(block_size)
    documents, now = [paper.fresh(int(blocks)) for blocks in rng.integers(5, 50, 300)], 0.0
    for row in range(rows):
        now += rng.exponential(300)
        prompt = documents[row % 300 if rng.random() < 0.9 else rng.integers(300)] + paper.fresh(rng.integers(1, 4))
        tokens = (len(prompt) - 1) * block_size + int(rng.integers(1, block_size))
        paper.rows.append((now, prompt, tokens, int(rng.integers(1, 300))))
    return paper.trace()


def retrieval(rows, seed, block_size=16):
    """A system prompt, three of 2,000 documents in any order, and a question."""
    rng, paper = np.random.default_rng(seed), Paper(block_size)
    system, known, now = paper.fresh(12), {}, 0.0
    weights = 1 / np.arange(1, 2001) ** 0.9
    for _ in range(rows):
        now, chosen, prompt = now + rng.exponential(500), (), list(system)
        for _ in range(3):
            chosen += (int(rng.choice(2000, p=weights / weights.sum())),)
            if chosen not in known:
                known[chosen] = paper.fresh(8 + chosen[-1] % 23)
            prompt += known[chosen]
        prompt += paper.fresh(int(rng.integers(1, 6)))
        tokens = (len(prompt) - 1) * block_size + int(rng.integers(1, block_size))
        paper.rows.append((now, prompt, tokens, int(rng.integers(1, 500))))
    return paper.trace()


KINDS = {
    "chats": chats, "bursts": bursts, "giant prefix": giant_prefix, "drifting topics": drifting_topics,
    "tenants": tenants, "tool loops": tool_loops, "scans": scans, "retrieval": retrieval,
}  # fmt: skip
