"""Errors of the live curve against the exact one: python -m benchmarks.live_accuracy [--held-out] [--memory].

For each stream and each length of the near list: the largest error in points over the capacities, of the three hit
rates; the mean over seeds, and the worst seed. A near list of 0 is a sample alone (SHARDS-adj).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

import kvtrace
from kvtrace._base.arrays import offsets_of, split_mix
from kvtrace.analysis.curves import HitCurve
from kvtrace.analysis.live_curve import SLICES, LiveCurve, SpanCurve
from kvtrace.analysis.reuse import find_segments
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace

from .inputs import SESSIONS, conversations
from .measuring import apart

SHARES = np.geomspace(0.002, 1, 25)  # of the working set
FACTORS = (0.5, 1, 2, 4)  # of today's capacity, a tenth of the working set
NEAR = (1_000_000, 100_000, 20_000, 0)
BATCH = 50  # requests
WINDOW_S = 600.0
MOMENTS = 20  # of a stream, at which windows are compared
REQUESTS = 330_000  # of the drifting stream: 20 million block references


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--sample", type=float, default=0.01)
    parser.add_argument("--held-out", action="store_true", help="halves that tuned the estimate, and the others")
    parser.add_argument("--memory", action="store_true", help="what a fresh process grows by")
    parser.add_argument("--windows", action="store_true", help="windows and half-lives of ten minutes")
    options = parser.parse_args()
    if options.memory:
        print("peak memory grows by {:.1f} MB; the tables have {:.1f} MB".format(*apart(grown)))
        return
    if options.windows:
        print(f"{'stream':20}{'near':>10}  span        mean over moments and seeds of the largest error, and the worst")
        for name, trace in streams(held_out=False):
            for near in NEAR[:3]:
                show_windows(name, trace, near, options.sample, range(options.seeds))
        return
    print(f"{'stream':26}{'near':>10}  mean over seeds of the largest error, and the worst: block, token, request rate")
    for name, trace in streams(options.held_out):
        for near in NEAR:
            show_errors(name, trace, near, options.sample, range(options.seeds))


def streams(held_out: bool) -> Iterator[tuple[str, Trace]]:
    """The real traces, or their halves, and a stream of our own with a much larger working set."""
    talks, agents = conversations(), kvtrace.read(str(SESSIONS))
    if held_out:
        half, session = len(talks) // 2, agents.session
        assert session is not None
        yield from (("conversations, 1st half", talks[:half]), ("agents, even sessions", agents[session % 2 == 0]))
        yield from (("conversations, 2nd half", talks[half:]), ("agents, odd sessions", agents[session % 2 == 1]))
        return
    yield "conversations", talks
    yield "agents", agents
    yield "drifting", drifting(REQUESTS)


def show_errors(name: str, trace: Trace, near: int, sample: float, seeds: range) -> None:
    """Print one row: the errors of a stream with a near list."""
    exact = kvtrace.analysis.hit_curve(trace)
    tenth = exact.working_set / 10
    wanted = [*(exact.working_set * SHARES), *(tenth * factor for factor in FACTORS)]
    capacities = sorted({max(1, round(capacity)) for capacity in wanted})
    digests, worst, start = digests_of(trace), [], time.perf_counter()
    for seed in seeds:
        curve = LiveCurve(trace.block_size, near_blocks=near, sample=sample, seed=seed)
        fill(curve, trace, digests)
        worst.append(errors(curve.over("since_start"), exact, capacities).max(axis=1))
        if curve.near is not None and not curve.near.dropped:
            break  # no seed makes a difference
    seconds = (time.perf_counter() - start) / len(worst)
    mean, most = ("  ".join(f"{value:5.2f}" for value in f(worst, axis=0)) for f in (np.mean, np.max))
    blocks = f"{exact.working_set / 1e6:.2f} M blocks, {len(trace.hash_ids) / 1e6:.1f} M references"
    print(f"{name:26}{near:>10,}  {mean}   {most}   {blocks}, {seconds:.1f} s", flush=True)


def show_windows(name: str, trace: Trace, near: int, sample: float, seeds: range) -> None:
    """Print the errors of spans at MOMENTS moments, against the exact curve of their requests given all the past."""
    segments = find_segments(trace)
    capacities = np.unique(np.rint(trace.working_set * SHARES).astype(np.int64))
    found = np.zeros((len(capacities), len(segments.row)))
    for place, capacity in enumerate(capacities):
        found[place] = np.clip(capacity - segments.rank + 1, 0, segments.blocks)
    digests, worst = digests_of(trace), {"window": [], "decayed": []}
    batch_s = np.repeat(trace.timestamp[::BATCH] / 1000, BATCH)[: len(trace)]  # row -> the time of its batch
    stops = [len(trace) * (moment + 1) // MOMENTS // BATCH * BATCH for moment in range(MOMENTS)]
    for seed in seeds:
        curve = LiveCurve(
            trace.block_size, near_blocks=near, sample=sample, seed=seed, window_s=WINDOW_S, half_life_s=WINDOW_S
        )
        for start, stop in pairwise([0, *stops]):
            fill(curve, trace, digests, start, stop)
            now = batch_s[stop - 1]
            slices = np.floor((batch_s - batch_s[0]) / (WINDOW_S / SLICES))
            seen = np.arange(len(trace)) < stop
            weights = {
                "window": seen & (slices > slices[stop - 1] - SLICES),
                "decayed": seen * 2.0 ** ((batch_s - now) / WINDOW_S),
            }
            for span, weight in weights.items():
                hit_blocks = found @ weight[segments.row]
                estimate = curve.over(span).hits(capacities)[0]
                worst[span].append(100 * np.abs(estimate - hit_blocks).max() / (trace.prompt_blocks @ weight))
        if curve.near is not None and not curve.near.dropped:
            break
    for span, values in worst.items():
        print(f"{name:20}{near:>10,}  {span:10}  {np.mean(values):5.2f}   {np.max(values):5.2f}", flush=True)


def fill(curve: LiveCurve, trace: Trace, digests: np.ndarray, start: int = 0, end: int | None = None) -> None:
    """Add a trace, or the rows from `start` to `end`, in batches."""
    for first in range(start, len(trace) if end is None else end, BATCH):
        stop = min(first + BATCH, len(trace))
        offsets = trace.offsets[first : stop + 1]
        curve.add(
            digests[offsets[0] : offsets[-1]], offsets - offsets[0], trace.input_length[first:stop],
            trace.timestamp[first] / 1000,
        )  # fmt: skip


def errors(curve: SpanCurve, exact: HitCurve, capacities: list[int]) -> np.ndarray:
    """(block, token, request rate; capacity) -> points."""
    hits = np.array([[one.hit_blocks, one.hit_tokens, one.request_hits] for one in exact.hits(capacities)]).T
    return 100 * np.abs(curve.hits(capacities) - hits) / curve.wholes[:, None]


def digests_of(trace: Trace) -> np.ndarray:
    """A digest for each block reference, as of a key."""
    digests = np.empty((len(trace.hash_ids), 2), dtype=np.uint64)
    digests[:, 0] = split_mix(trace.hash_ids)
    digests[:, 1] = 0  # the live curve reads one half
    return digests


def drifting(requests: int, seed: int = 0) -> Trace:
    """Requests on topics whose popularity drifts: a system prompt, the topic's blocks, and blocks of their own.

    A new topic comes every third request. A request is on one that came up to 200,000 topics before, on recent ones
    most of the time; one in a hundred is on any topic.
    """
    rng = np.random.default_rng(seed)
    system, newest = 10, np.arange(requests) // 3
    lag = np.floor(np.exp(rng.uniform(0, np.log(200_000), requests)))
    topic = np.maximum(newest - lag.astype(np.int64), 0)
    anywhere = rng.random(requests) < 0.01
    topic[anywhere] = rng.integers(0, newest.max() + 1, requests)[anywhere]
    lengths = rng.integers(10, 70, int(topic.max()) + 1)  # topic -> blocks
    own = rng.geometric(0.1, requests)
    first_of_topic = system + offsets_of(lengths)[:-1]
    first_of_own = system + lengths.sum() + offsets_of(own)[:-1]
    blocks = system + lengths[topic] + own
    starts = offsets_of(blocks)
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], blocks)  # of each block in its prompt
    in_topic = np.repeat(lengths[topic], blocks)
    ids = np.where(
        place < system,
        place,
        np.where(
            place < system + in_topic,
            np.repeat(first_of_topic[topic], blocks) + place - system,
            np.repeat(first_of_own, blocks) + place - system - in_topic,
        ),
    )
    columns = Columns(
        np.arange(requests) * 100.0,
        blocks * 16 - rng.integers(0, 16, requests),
        np.ones(requests, np.int64),
        ids,
        starts,
    )
    return Trace.from_columns(columns, block_size=16)


def grown() -> tuple[float, float]:
    """MB that the peak memory of this process grows by, for a stream that fills all tables; bytes of the tables."""
    import resource

    trace = drifting(REQUESTS // 2)
    digests = digests_of(trace)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ballast = np.ones(1)  # the peak of making the trace would hide the growth: fill up to it
    page = np.ones(1 << 17)
    held = [page]
    while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss == before:
        held.append(page + ballast)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    curve = LiveCurve(16)
    fill(curve, trace, digests)
    assert curve.near is not None and curve.near.dropped
    curve.over("window").least_capacity(0.9)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e6, curve.memory_bytes / 1e6


if __name__ == "__main__":
    main()
