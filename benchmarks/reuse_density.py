"""`reuse-density` beside `lru`: blocks a second, on copies of conversations that are made up.

Run alone: python -m benchmarks.reuse_density [requests [rounds]].
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

import kvtrace
from kvtrace.cache.demand import BlockDemand, block_demand
from kvtrace.cache.simulation import Setting, run
from kvtrace.trace.trace import Trace

from .table import Claim, show

REQUESTS, LEAST = 200_000, 5e6  # blocks a second that are promised


def claims(requests: int, rounds: int) -> list[Claim]:
    """Nanoseconds a block of each policy and pool, beside those of 5 million blocks a second."""
    trace = conversations(requests)
    demand = block_demand(trace)
    found = []
    for policy, pool in (("lru", "flat"), ("reuse-density", "flat"), ("reuse-density", "leaf-first")):
        seconds = [seconds_of(trace, demand, policy, pool) for _ in range(rounds)]
        each = 1e9 * statistics.median(seconds) / len(trace.hash_ids)
        found.append(Claim(f"{policy}, {pool}, {len(trace.hash_ids):,} blocks", each, 1e9 / LEAST, "ns/block", 1))
    return found


def seconds_of(trace: Trace, demand: BlockDemand, policy: str, pool: str) -> float:
    """Seconds of a simulation at a tenth of the working set."""
    options = (("pool", pool),) if pool != "flat" else ()
    setting = Setting(trace.working_set // 10, policy, engine_options=options)
    start = time.perf_counter()
    run(setting, trace, demand)
    return time.perf_counter() - start


def conversations(requests: int, seed: int = 0) -> Trace:
    """Conversations of 1 to 8 turns; a turn adds 1 to 15 blocks, and the next one comes a minute later on average.

    >>> conversations(100).prompt_blocks.max() > 15
    True
    """
    rng = np.random.default_rng(seed)
    turns = np.minimum(rng.geometric(0.5, requests), 8)
    turns = turns[: np.searchsorted(np.cumsum(turns), requests) + 1]
    conversation = np.repeat(np.arange(len(turns)), turns)
    first = np.cumsum(turns) - turns
    new = rng.integers(1, 16, len(conversation))
    total = np.cumsum(new)
    start = np.repeat(total[first] - new[first], turns)  # the first block of the conversation
    length = total - start
    began = np.sort(rng.uniform(0, 100.0 * len(turns), len(turns)))
    waits = rng.exponential(60_000, len(conversation))
    elapsed = np.cumsum(waits) - np.repeat(np.cumsum(waits)[first], turns)
    order = np.argsort(began[conversation] + elapsed, kind="stable")
    ids = np.concatenate([np.arange(start[row], start[row] + length[row]) for row in order.tolist()])
    columns = kvtrace.Columns(
        timestamp=(began[conversation] + elapsed)[order], input_length=16 * length[order],
        output_length=np.full(len(order), 100), hash_ids=ids, offsets=np.append(0, np.cumsum(length[order])),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=16)


if __name__ == "__main__":
    asked_for = [int(text) for text in sys.argv[1:]]
    requests, rounds = (*asked_for, *(REQUESTS, 3)[len(asked_for) :])
    show(claims(requests, rounds))
