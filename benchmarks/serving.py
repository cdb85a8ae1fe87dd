"""Serving in time: seconds for four instances, that a request costs the same from 1e4 to 1e6, and Dynamo's replay.

Run alone: python -m benchmarks.serving [rounds]. Dynamo's replay runs where KVTRACE_CLIENTS has its environment.
"""

from __future__ import annotations

import statistics
import sys
import time

from .apart import medians
from .raw_logs import SHARED
from .table import Claim, show

SIZES = (10_000, 1_000_000)
LANES = (10, 1_000)
CONVERSATION = SHARED / "data/mooncake/conversation_trace.jsonl"
WORKERS, BLOCKS = 4, 5_000  # of Dynamo's replay


def claims(rounds: int) -> list[Claim]:
    """Ten thousand requests on four instances beside 3 s, and one of a million requests beside one of those."""
    few, many = (medians({"taken": (seconds, size)}, rounds)["taken"] for size in SIZES)
    engines = {
        "vLLM": ("vllm", None, 10.0),
        "SGLang": ("sglang", 512, 10.0),
        "SGLang, pages of 16": ("sglang", 16, 40.0),
    }
    taken = medians({name: (engine_seconds, SIZES[0], *how[:2]) for name, how in engines.items()}, rounds)
    return [
        *(
            Claim(
                f"serve {SIZES[0]:,} in the steps of {name}, a request / promised",
                taken[name] / SIZES[0] * 1e6,
                most,
                "us",
                1,
            )
            for name, (_, _, most) in engines.items()
        ),
        *closed_claims(rounds),
        *dynamo_claims(rounds),
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


def engine_seconds(requests: int, engine: str, page: int | None) -> float:
    """Processor seconds to serve so many requests of conversations on one instance, step by step as the engine does."""
    from kvtrace.cache.simulation import Setting
    from kvtrace.serving.schedulers import scheduler_of
    from kvtrace.serving.schedulers.sglang import SglangScheduler
    from kvtrace.serving.simulation import StepCost, simulate_serving

    trace = conversations(requests)
    rates, scheduler = StepCost(7.1e-6, 1e-10, 0.004, 1e-8, 0.002), scheduler_of(engine)
    if page is not None:
        scheduler = SglangScheduler(page_size=page)
    start = time.process_time()
    simulate_serving(trace, rates, setting=Setting(20_000, engine=engine), scheduler=scheduler)
    return time.process_time() - start


def closed_claims(rounds: int) -> list[Claim]:
    """What a request of a closed loop costs, with ten lanes and with a thousand, beyond the steps of its engine."""
    few, many = (medians({"taken": (loop_seconds, SIZES[0], lanes)}, rounds)["taken"] / SIZES[0] for lanes in LANES)
    name = "a request of a closed loop, beside the open loop on its arrivals"
    return [
        Claim(f"{name}, {LANES[0]:,} lanes / promised", few * 1e6, 3.0, "us", 1),
        Claim(f"{name}, {LANES[1]:,} lanes / promised", many * 1e6, 3.0, "us", 1),
        Claim(f"{name}, {LANES[1]:,} lanes / {LANES[0]:,} lanes", many * 1e6, few * 1e6, "us", 2),
    ]


def loop_seconds(requests: int, lanes: int) -> float:
    """Processor seconds of a closed loop on one instance of the engine reference, less those of the open loop."""
    from kvtrace.cache.simulation import Setting
    from kvtrace.serving.closed_loop import ClosedLoop
    from kvtrace.serving.simulation import StepCost, simulate_serving

    trace, setting = sessions(requests), Setting(20_000, mode="token")
    rates = StepCost(7.1e-6, 1e-10, 0.004, 1e-8, 0.002)
    simulate_serving(trace[:100], rates, setting=setting, loop=ClosedLoop(2))  # imports
    start = time.process_time()
    done = simulate_serving(trace, rates, setting=setting, loop=ClosedLoop(lanes))
    closed = time.process_time() - start
    start = time.process_time()
    simulate_serving(done.trace, rates, setting=setting)
    return closed - (time.process_time() - start)


def sessions(requests: int):
    """The conversations, in which each turn waits for the end of the one before, and then up to 20 s."""
    import numpy as np

    from kvtrace.trace.columns import replace_columns
    from kvtrace.trace.dependencies import COMPLETION, SEQUENCE, dependencies_between
    from kvtrace.trace.trace import Trace
    from kvtrace.trace.turns import previous_turn

    trace = conversations(requests)
    session = trace.hash_ids[trace.offsets[:-1]]
    parent = previous_turn(session)
    rows = np.flatnonzero(parent >= 0)
    delay = np.random.default_rng(2).uniform(0, 20_000, len(rows))
    kinds = np.full(len(rows), COMPLETION), np.full(len(rows), SEQUENCE)
    waits = dependencies_between(rows, parent[rows], *kinds, delay, len(trace))
    return Trace.from_columns(replace_columns(trace, dependencies=waits, session=session), block_size=512)


def dynamo_claims(rounds: int) -> list[Claim]:
    """The whole conversation trace beside Dynamo's offline replay of it; nothing where one of them is missing."""
    from .dynamo_replay import PYTHON

    if not (PYTHON.exists() and CONVERSATION.exists()):
        return []
    runs = [(dynamo_seconds(), their_seconds()) for _ in range(rounds)]
    for (_, ours), (_, theirs) in runs:
        if abs(ours / theirs - 1) > 1e-3:
            raise SystemExit(f"mean TTFT: {ours:.6f} s, Dynamo's replay finds {theirs:.6f} s")
    ours, theirs = (statistics.median(run[side][0] for run in runs) for side in (0, 1))
    name = f"serve the conversation trace on {WORKERS} workers"
    return [
        Claim(f"{name} / Dynamo's replay, equal times", ours, theirs, "s", 0.4 / 2.7),
        Claim(f"{name} / promised", ours, 0.4, "s", 1),
    ]


def dynamo_seconds() -> tuple[float, float]:
    """Seconds to read the conversation trace and serve it as Dynamo's replay does, and its mean TTFT."""
    import kvtrace

    start = time.perf_counter()
    trace, setting = kvtrace.read(CONVERSATION), kvtrace.Setting(BLOCKS, engine="dynamo")
    done = kvtrace.simulate_serving(trace, kvtrace.DynamoCost(), setting=setting, instances=WORKERS)
    return time.perf_counter() - start, float(done.ttft_s.mean())


def their_seconds() -> tuple[float, float]:
    """The seconds that Dynamo's replay says it took, and its mean TTFT."""
    import kvtrace

    from .dynamo_replay import replay

    case = {"path": str(CONVERSATION), "engine": {"num_gpu_blocks": BLOCKS}, "settings": {"num_workers": WORKERS}}
    (seen,) = replay(kvtrace.read(CONVERSATION), [case])
    return seen.summary["wall_time_ms"] / 1000, seen.summary["mean_ttft_ms"] / 1000


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


if __name__ == "__main__":
    show(claims(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
