"""Serving in time: a request on four instances, in the steps of engines and in a closed loop; Dynamo's replay."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

import kvtrace
from kvtrace.cache.simulation import Setting
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.schedulers import scheduler_of
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.simulation import StepCost, closed_loop, open_loop
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.dependencies import COMPLETION, SEQUENCE, dependencies_between
from kvtrace.trace.session_trees import previous_turn
from kvtrace.trace.trace import Trace

from .inputs import CONVERSATIONS
from .measuring import Line, client, look_up

FEW, MANY = 10_000, 1_000_000  # requests
LANES = (10, 1_000)
ENGINES = (
    ("vLLM's steps", "vllm", None, 1.2),
    ("SGLang's steps", "sglang", 512, 1),
    ("SGLang's steps, pages of 16", "sglang", 16, 1),
)
WORKERS, BLOCKS = 4, 5_000  # of Dynamo's replay
RATES = StepCost(7.1e-6, 1e-10, 0.004, 1e-8, 0.002)


def lines(folder: str, share: float) -> Iterator[Line]:
    """A request beside look-ups, a million requests beside ten thousand, many lanes beside few, and Dynamo's replay."""
    few, many = FEW, round(MANY * share)
    yield Line(f"serve {few:,} on 4 instances / 1,000 look-ups", "us", (fleet, few), (look_up, 1000), 0.8)
    yield Line(f"serve {many:,}, a request / of {few:,}", "us", (fleet, many), (fleet, few), 2)
    for name, engine, page, most in ENGINES:
        ours = (steps, few, engine, page)
        yield Line(f"serve {few:,}, {name} / 1,000 look-ups", "us", ours, (look_up, 1000), most)
    for lanes in LANES:
        yield Line(
            f"closed loop, a request, {lanes:,} lanes / 1,000 look-ups",
            "us",
            (loop, few, lanes),
            (look_up, 1000),
            0.5,
        )
    yield Line(f"... {LANES[1]:,} lanes / {LANES[0]:,} lanes", "us", *((loop, few, lanes) for lanes in LANES[::-1]), 2)
    missing = "" if CONVERSATIONS.exists() else "the shared conversation trace"
    name = f"the conversation trace on {WORKERS} workers"
    yield Line(
        f"{name} / Dynamo's replay",
        "s",
        None if missing else (as_dynamo,),
        (dynamo,),
        0.4 / 2.7,
        missing or client("dynamo")[1],
    )


def fleet(requests: int) -> float:
    """Processor seconds a request of conversations on four instances."""
    trace, rates = conversations(requests), StepCost(7.1e-5, 1e-9, 0.013, 3e-8, 0.002)
    start = time.process_time()
    open_loop(trace, rates, setting=Setting(20_000, mode="token"), instances=4, router="lmetric")
    return (time.process_time() - start) / requests


def steps(requests: int, engine: str, page: int | None) -> float:
    """Processor seconds a request of conversations on one instance, step by step as the engine does."""
    trace, scheduler = (
        conversations(requests),
        scheduler_of(engine) if page is None else SglangScheduler(page_size=page),
    )
    start = time.process_time()
    open_loop(trace, RATES, setting=Setting(20_000, engine=engine), scheduler=scheduler)
    return (time.process_time() - start) / requests


def loop(requests: int, lanes: int) -> float:
    """Processor seconds a request of a closed loop on one instance, less those of the open loop on its arrivals."""
    trace, setting = sessions(requests), Setting(20_000, mode="token")
    closed_loop(trace[:100], RATES, setting=setting, loop=ClosedLoop(2))  # imports
    start = time.process_time()
    done = closed_loop(trace, RATES, setting=setting, loop=ClosedLoop(lanes))
    closed = time.process_time()
    open_loop(done.trace, RATES, setting=setting)
    return (2 * closed - start - time.process_time()) / requests


def sessions(requests: int) -> Trace:
    """The conversations, in which each turn waits for the end of the one before, and then up to 20 s."""
    trace = conversations(requests)
    session = trace.hash_ids[trace.offsets[:-1]]
    parent = previous_turn(session)
    rows = np.flatnonzero(parent >= 0)
    delay = np.random.default_rng(2).uniform(0, 20_000, len(rows))
    kinds = np.full(len(rows), COMPLETION), np.full(len(rows), SEQUENCE)
    waits = dependencies_between(rows, parent[rows], *kinds, delay, len(trace))
    return Trace.from_columns(replace_columns(trace, dependencies=waits, session=session), block_size=512)


def as_dynamo() -> float:
    """Seconds to read the conversation trace and serve it as Dynamo's replay does."""
    start = time.perf_counter()
    _served()
    return time.perf_counter() - start


def dynamo() -> float:
    """The seconds that Dynamo's replay states; ValueError unless its mean time to the first token is ours."""
    from .dynamo_replay import replay

    case = {"path": str(CONVERSATIONS), "engine": {"num_gpu_blocks": BLOCKS}, "settings": {"num_workers": WORKERS}}
    (seen,) = replay(kvtrace.read(CONVERSATIONS), [case])
    ours, theirs = _served(), seen.summary["mean_ttft_ms"] / 1000
    if abs(ours / theirs - 1) > 1e-3:
        raise ValueError(f"mean TTFT: {ours:.6f} s, Dynamo's replay finds {theirs:.6f} s")
    return seen.summary["wall_time_ms"] / 1000


def _served() -> float:
    """The mean time to the first token, in seconds."""
    setting = Setting(BLOCKS, engine="dynamo")
    trace, cost = kvtrace.read(CONVERSATIONS), kvtrace.serving.DynamoCost()
    return float(open_loop(trace, cost, setting=setting, instances=WORKERS).ttft_s.mean())


def conversations(requests: int, seed: int = 1) -> Trace:
    """Conversations of four turns, each six blocks longer than the one before, three requests a second."""
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
