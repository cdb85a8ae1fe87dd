"""Serving in time: seconds for four instances, and that a request costs the same from 1e4 to 1e6 of them."""

from __future__ import annotations

import time

from .apart import medians
from .table import Claim

SIZES = (10_000, 1_000_000)


def claims(rounds: int) -> list[Claim]:
    """Ten thousand requests on four instances beside 3 s, and one of a million requests beside one of those."""
    few, many = (medians({"taken": (seconds, size)}, rounds)["taken"] for size in SIZES)
    fine = medians({"taken": (vllm_seconds, SIZES[0])}, rounds)["taken"] / SIZES[0] * 1e6
    return [
        Claim(f"serve {SIZES[0]:,} in vLLM's steps, a request / promised", fine, 10.0, "us", 1),
        Claim(f"serve {SIZES[0]:,} requests on 4 instances / 3 s", few, 3.0, "s", 1),
        Claim(f"serve {SIZES[1]:,}, a request / of {SIZES[0]:,}", many / SIZES[1] * 1e6, few / SIZES[0] * 1e6, "us", 2),
    ]


def seconds(requests: int) -> float:
    """Seconds to serve so many requests of conversations on four instances."""
    from kvtrace.cache.simulation import Setting
    from kvtrace.serving.simulation import StepCost, simulate_serving

    trace = conversations(requests)
    rates = StepCost(7.1e-5, 1e-9, 0.013, 3e-8, 0.002)
    start = time.perf_counter()
    simulate_serving(trace, rates, setting=Setting(20_000, mode="token"), instances=4, router="lmetric")
    return time.perf_counter() - start


def vllm_seconds(requests: int) -> float:
    """Seconds to serve so many requests of conversations on one instance, step by step as vLLM does."""
    from kvtrace.cache.simulation import Setting
    from kvtrace.serving.simulation import StepCost, simulate_serving

    trace = conversations(requests)
    rates = StepCost(7.1e-6, 1e-10, 0.004, 1e-8, 0.002)
    start = time.perf_counter()
    simulate_serving(trace, rates, setting=Setting(20_000, engine="vllm"))
    return time.perf_counter() - start


def conversations(requests: int, seed: int = 1):
    """Conversations of four turns, each six blocks longer than the one before, three requests a second."""
    import numpy as np

    from kvtrace.trace.columns import Columns
    from kvtrace.trace.trace import Trace

    rng, sessions = np.random.default_rng(seed), requests // 4
    begins = np.sort(rng.uniform(0, requests * 300, sessions))
    arrival = (begins[:, None] + np.arange(4) * 60_000 + rng.uniform(0, 20_000, (sessions, 4))).ravel()
    order = np.argsort(arrival, kind="stable")
    session, turn = np.repeat(np.arange(sessions), 4)[order], np.tile(np.arange(4), sessions)[order]
    blocks = 6 * (turn + 1)
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
    arrival = arrival[order] - arrival.min()
    ids, outputs = np.repeat(session * 24, blocks) + place, rng.integers(50, 600, len(blocks))
    columns = Columns(arrival, blocks * 512, outputs, ids, offsets)
    return Trace.from_columns(columns, block_size=512)
