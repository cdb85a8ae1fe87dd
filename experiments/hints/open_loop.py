"""Hints in the open loop: recorded times, one request at a time, the token hit rate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from experiments.hints.load import staggered
from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting, run
from kvtrace.trace.trace import Trace

POLICIES = (
    "lru", "arc", "session-end", "superseded", "tool-ttl:P90", "retain", "retain:10m", "agent-hints:P90",
    "oracle-session", "belady",
)  # fmt: skip
POINTS = ((8, 8), (8, 16), (32, 8), (32, 16), (32, 32))  # open sessions, capacity in median contexts


@dataclass(frozen=True)
class OpenPoint:
    """The token hit rate of each policy, the mean over the seeds."""

    sessions: int  # open ones, on average
    contexts: int  # the capacity, in median contexts
    capacity: int  # in blocks
    token_hit_rate: dict[str, float]


def open_loop(
    trace: Trace, context: int, seeds: Iterable[int], on_run: Callable[[str], None] = lambda name: None
) -> list[OpenPoint]:
    """Simulate each policy at each point; `context` is the median context in blocks."""
    seeds, points = list(seeds), []
    numbers = dict.fromkeys(sessions for sessions, _ in POINTS)
    loads = {sessions: [staggered(trace, sessions, seed) for seed in seeds] for sessions in numbers}
    demands = {sessions: [block_demand(load) for load in loads[sessions]] for sessions in numbers}
    for sessions, contexts in POINTS:
        capacity = max(contexts * context, int(trace.prompt_blocks.max()))
        rates = {}
        for policy in POLICIES:
            on_run(f"open loop, {sessions} sessions, {contexts} contexts, {policy}")
            pairs = zip(loads[sessions], demands[sessions], strict=True)
            done = [run(Setting(capacity, policy), load, demand) for load, demand in pairs]
            rates[policy] = float(np.mean([one.hits.token_hit_rate for one in done]))
        points.append(OpenPoint(sessions, contexts, capacity, rates))
    return points
