"""The live curve: processor time a block beside the kernels of whole traces, and its cost a request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import kvtrace
from kvtrace._native.numbering import DigestIndex
from kvtrace._native.recency import segments
from kvtrace.analysis.live_curve import LiveCurve
from kvtrace.capture.gauge import Gauge
from kvtrace.trace.trace import Trace

from .inputs import SESSIONS
from .live_accuracy import digests_of, drifting
from .measuring import Line, best, look_up, python_step

REQUESTS = 60_000  # of the drifting stream: 3.6 million block references
SHORT, LONG = 20, 2_000  # blocks of a request
ADDED, FULL = 2_000, 1_500_000  # requests, and blocks that fill the tables
TIMES = 5  # a measurement, of which the median counts


def lines(folder: str, share: float) -> Iterator[Line]:
    """A block in batches, one request on its own, and a snapshot."""
    for name in ("agents", "drifting", "all new"):
        needs = "the shared sessions of agents" if name == "agents" and not SESSIONS.is_dir() else ""
        ours = None if needs else (live, name, share)
        yield Line(f"live curve, {name}, a block / look-up", "ns", ours, (look_up,), 60, needs)
        most = 10 if name == "all new" else 8  # a table of fixed size drops a block for each new one
        yield Line("... / numbering all digests, then all ranks", "ns", ours, (whole, name, share), most, needs)
    for blocks, kind, most in ((SHORT, "known", 3), (SHORT, "new", 3), (LONG, "known", 6), (LONG, "new", 20)):
        ours = (request, blocks, kind == "known", round(ADDED * share))
        yield Line(f"live curve, {blocks:,} {kind} blocks / 1,000 Python steps", "us", ours, (python_step, 1000), most)
    yield Line("live curve, a snapshot / 1,000 Python steps", "us", (snapshot,), (python_step, 1000), 30)


def live(name: str, share: float) -> float:
    """Processor seconds a block of LiveCurve, in batches of 50 requests."""
    trace = stream(name, share)
    digests = digests_of(trace)

    def run() -> None:
        curve = LiveCurve(trace.block_size)
        for first in range(0, len(trace), 50):
            stop = min(first + 50, len(trace))
            offsets = trace.offsets[first : stop + 1]
            curve.add(digests[offsets[0] : offsets[-1]], offsets - offsets[0], trace.input_length[first:stop], 0.0)

    return best(run) / len(digests)


def whole(name: str, share: float) -> float:
    """Processor seconds a block from digests to ranks of a whole trace, whose memory grows with its blocks."""
    trace = stream(name, share)
    digests = digests_of(trace)

    def run() -> None:
        index = DigestIndex()
        segments(index.add(digests), trace.offsets, index.distinct)

    return best(run) / len(digests)


def request(blocks: int, known: bool, added: int) -> float:
    """Processor seconds to add one request with so many blocks, as a batch of its own, to full tables."""
    rng = np.random.default_rng(0)
    curve, offsets, tokens = LiveCurve(16), np.array([0, blocks]), np.array([16 * blocks])
    full = rng.integers(0, 2**64, (FULL * added // ADDED // 100 * 100, 2), dtype=np.uint64)
    curve.add(full, np.arange(0, len(full) + 1, 100), np.full(len(full) // 100, 1600), 0.0)
    made = rng.integers(0, 2**64, (added, blocks, 2), dtype=np.uint64)
    requests = made[: 10 if known else added]

    def run() -> None:
        for number in range(added):
            curve.add(requests[number % len(requests)], offsets, tokens, 0.0)

    return best(run, TIMES if known else 1) / added


def snapshot() -> float:
    """Processor seconds of a snapshot of a gauge with full tables, as an object for JSON."""
    gauge = Gauge(16, capacity_blocks=100_000)
    full = np.random.default_rng(0).integers(0, 2**64, (FULL, 2), dtype=np.uint64)
    gauge._curve.add(full, np.arange(0, len(full) + 1, 100), np.full(len(full) // 100, 1600), 0.0)
    return best(lambda: gauge.snapshot(1.0).to_dict())


def stream(name: str, share: float) -> Trace:
    """A trace of agents, of drifting topics, or of blocks that are all new."""
    if name == "agents":
        trace = kvtrace.read(str(SESSIONS))
        return trace[: round(len(trace) * share)]
    if name == "drifting":
        return drifting(round(REQUESTS * share))
    blocks, requests = 20, round(200_000 * share)
    return Trace(
        np.arange(requests, dtype=float), np.full(requests, 16 * blocks), np.ones(requests, np.int64),
        np.arange(blocks * requests), np.arange(0, blocks * requests + 1, blocks), block_size=16,
    )  # fmt: skip
