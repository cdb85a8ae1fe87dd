"""The live curve: blocks a second of processor time beside the kernels of whole traces, and its cost a request.

Run alone: python -m benchmarks.live_curve [rounds].
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import kvtrace
from kvtrace._native.numbering import DigestIndex
from kvtrace._native.recency import segments
from kvtrace.analysis.live_curve import LiveCurve
from kvtrace.capture.gauge import Gauge
from kvtrace.trace.trace import Trace

from .apart import medians
from .live_accuracy import digests_of, drifting
from .raw_logs import SHARED
from .table import Claim, show

REQUESTS = 60_000  # of the drifting stream: 3.6 million block references
SHORT, LONG = 20, 2_000  # blocks of a request
ADDED = 2_000  # requests
TIMES = 5  # a measurement, of which the median counts


def claims(rounds: int) -> list[Claim]:
    """Speed, cost a request and the time of a snapshot."""
    names = ("agents", "drifting", "all new")
    contenders: dict[str, tuple] = {f"live {name}": (live, name) for name in names}
    contenders |= {f"whole {name}": (whole, name) for name in names}
    contenders |= {f"request {blocks}": (request_us, blocks, True) for blocks in (SHORT, LONG)}
    contenders |= {f"new {blocks}": (request_us, blocks, False) for blocks in (SHORT, LONG)}
    taken = medians(contenders | {"snapshot": (snapshot_ms,)}, rounds)
    found = []
    for name in names:
        ours, rival = (1e3 / taken[f"{kind} {name}"] for kind in ("live", "whole"))
        found += [
            Claim(f"live curve, ns a block of digests ({name}), beside 3 M blocks/s", ours, 1e3 / 3, "ns", 1),
            Claim("... beside the whole trace: digests numbered, then all ranks", ours, rival, "ns", 8),
        ]
    for blocks, most in ((SHORT, 200), (LONG, 2000)):
        for kind, what in (("request", "known"), ("new", "new")):
            found.append(Claim(f"one request of {blocks:,} {what} blocks", taken[f"{kind} {blocks}"], most, "us", 1))
    return [*found, Claim("a snapshot", taken["snapshot"], 5, "ms", 1)]


def live(name: str) -> float:
    """Million blocks a second of LiveCurve, in batches of 50 requests."""
    trace = stream(name)
    digests = digests_of(trace)

    def run() -> None:
        curve = LiveCurve(trace.block_size)
        for first in range(0, len(trace), 50):
            stop = min(first + 50, len(trace))
            offsets = trace.offsets[first : stop + 1]
            curve.add(digests[offsets[0] : offsets[-1]], offsets - offsets[0], trace.input_length[first:stop], 0.0)

    return len(digests) / _seconds(run) / 1e6


def whole(name: str) -> float:
    """Million blocks a second from digests to ranks of a whole trace, whose memory grows with its blocks."""
    trace = stream(name)
    digests = digests_of(trace)

    def run() -> None:
        index = DigestIndex()
        segments(index.add(digests), trace.offsets, index.distinct)

    return len(digests) / _seconds(run) / 1e6


def request_us(blocks: int, known: bool) -> float:
    """Microseconds to add one request with so many blocks, as a batch of its own, to full tables."""
    rng = np.random.default_rng(0)
    curve, offsets, tokens = LiveCurve(16), np.array([0, blocks]), np.array([16 * blocks])
    full = rng.integers(0, 2**64, (1_500_000, 2), dtype=np.uint64)
    curve.add(full, np.arange(0, len(full) + 1, 100), np.full(len(full) // 100, 1600), 0.0)
    made = rng.integers(0, 2**64, (ADDED, blocks, 2), dtype=np.uint64)
    requests = made[: 10 if known else ADDED]

    def run() -> None:
        for number in range(ADDED):
            curve.add(requests[number % len(requests)], offsets, tokens, 0.0)

    if known:
        return _seconds(run) / ADDED * 1e6
    start = time.process_time()
    run()
    return (time.process_time() - start) / ADDED * 1e6


def snapshot_ms() -> float:
    """Milliseconds of a snapshot of a gauge with full tables, as an object for JSON."""
    gauge = Gauge(16, capacity_blocks=100_000)
    full = np.random.default_rng(0).integers(0, 2**64, (1_500_000, 2), dtype=np.uint64)
    gauge._curve.add(full, np.arange(0, len(full) + 1, 100), np.full(len(full) // 100, 1600), 0.0)
    return _seconds(lambda: gauge.snapshot(1.0).to_dict()) * 1e3


def stream(name: str) -> Trace:
    """A trace of agents, of drifting topics, or of blocks that are all new."""
    if name == "agents":
        return kvtrace.read(str(SHARED / "data/agents/claude-code"))
    if name == "drifting":
        return drifting(REQUESTS)
    blocks, requests = 20, 200_000
    return Trace(
        np.arange(requests, dtype=float), np.full(requests, 16 * blocks), np.ones(requests, np.int64),
        np.arange(blocks * requests), np.arange(0, blocks * requests + 1, blocks), block_size=16,
    )  # fmt: skip


def _seconds(run: Callable[[], object]) -> float:
    def once() -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    return statistics.median(once() for _ in range(TIMES))


if __name__ == "__main__":
    show(claims(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
