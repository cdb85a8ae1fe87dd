"""The live curve has the law of the exact one, over all requests, those of a window, and with decaying weights."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace import UsageError
from kvtrace._base.arrays import split_mix
from kvtrace._native.recency import segments
from kvtrace.analysis.curves import hit_curve
from kvtrace.analysis.live_curve import SLICES, LiveCurve
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.strategies import traces

MORE = 10_000  # blocks: more than a random trace has
CAPACITIES = list(range(1, 90))
EXACT = st.sampled_from([
    {"near_blocks": MORE, "sample": 0.0},
    {"near_blocks": 0, "sample": 1.0, "far_blocks": MORE},
    {"near_blocks": 4, "sample": 1.0, "far_blocks": MORE},
    {"near_blocks": 13, "sample": 1.0, "far_blocks": MORE},
])  # fmt: skip


def digests_of(ids):
    return np.stack([split_mix(ids), split_mix(ids + (1 << 40))], axis=1)


def fill(curve, trace, times=None, batch=1):
    """Add the rows of a trace; a batch has one time."""
    digests = digests_of(trace.hash_ids)
    for first in range(0, len(trace), batch):
        stop = min(first + batch, len(trace))
        offsets = trace.offsets[first : stop + 1]
        now_s = float(first if times is None else times[first])
        curve.add(digests[offsets[0] : offsets[-1]], offsets - offsets[0], trace.input_length[first:stop], now_s)
    return curve


def exact_hits(trace, weights, capacities=CAPACITIES):
    """(3, capacity): hits of the rows with these weights, given all the past."""
    row, _, blocks, rank = segments(trace.hash_ids, trace.offsets, trace.distinct)
    hits = np.zeros((len(capacities), len(trace)))
    for i, capacity in enumerate(capacities):
        np.add.at(hits[i], row, np.clip(capacity - rank + 1, 0, blocks))
    tokens = np.minimum(hits * trace.block_size, trace.input_length)
    return np.array([hits @ weights, tokens @ weights, (hits / np.maximum(trace.prompt_blocks, 1)) @ weights])


@given(traces(), EXACT, st.integers(1, 5))
def test_where_all_blocks_are_kept_it_is_the_exact_curve(trace, options, batch):
    curve = fill(LiveCurve(trace.block_size, capacities=CAPACITIES, **options), trace, batch=batch).over("since_start")
    assert curve.hits(CAPACITIES) == pytest.approx(exact_hits(trace, np.ones(len(trace))))
    assert (curve.requests, curve.blocks, curve.tokens) == (len(trace), len(trace.hash_ids), trace.input_length.sum())
    if trace.hash_ids.size:
        exact = hit_curve(trace)
        unlimited = exact.at(exact.working_set)
        expected = [unlimited.hit_blocks, unlimited.hit_tokens, unlimited.request_hits]
        assert curve.possible == pytest.approx(expected)
        least = curve.least_capacity(0.9)
        assert least == (exact.least_capacity(0.9, "hit_tokens") if unlimited.hit_tokens else None)


@given(traces(), EXACT, st.data())
def test_a_window_has_the_hits_of_its_requests_given_all_the_past(trace, options, data):
    gap = st.sampled_from([0, 0.5, 1, 7, 30, 61])
    times = np.cumsum([data.draw(gap) for _ in range(len(trace))])
    curve = fill(LiveCurve(trace.block_size, window_s=SLICES, capacities=CAPACITIES, **options), trace, times)
    now = times[-1] + data.draw(gap)
    curve.advance(now)
    slices = np.floor(times - times[0])
    inside = slices > np.floor(now - times[0]) - SLICES
    assert curve.over("window").hits(CAPACITIES) == pytest.approx(exact_hits(trace, inside.astype(float)))
    assert curve.over("window").requests == inside.sum()
    blocks = np.repeat(inside, trace.prompt_blocks)
    distinct, is_exact = curve.working_set()
    assert distinct == len(np.unique(trace.hash_ids[blocks]))
    assert is_exact or options["near_blocks"] != MORE


@given(traces(), EXACT, st.data())
def test_decayed_requests_have_half_the_weight_after_each_half_life(trace, options, data):
    gap = st.sampled_from([0, 1, 10, 400, 3000])
    times = np.cumsum([data.draw(gap) for _ in range(len(trace))])
    curve = fill(LiveCurve(trace.block_size, half_life_s=20, capacities=CAPACITIES, **options), trace, times)
    now = times[-1] + data.draw(gap)
    curve.advance(now)
    weights = 2.0 ** ((times - now) / 20)
    assert curve.over("decayed").hits(CAPACITIES) == pytest.approx(
        exact_hits(trace, weights), abs=1e-9 * weights.sum(), rel=1e-6
    )
    assert curve.over("decayed").requests == pytest.approx(weights.sum(), rel=1e-6)


def drifting(requests, seed, topics=3000):
    """Prompts over topics whose popularity drifts: a shared system prompt, the topic's blocks, some of their own."""
    rng = np.random.default_rng(seed)
    path, next_id = {}, 10
    prompts = []
    for number in range(requests):
        topic = int(rng.zipf(1.3)) + number // 4 if rng.random() < 0.7 else int(rng.integers(0, topics))
        topic %= topics
        if topic not in path:
            length = int(rng.integers(5, 60))
            path[topic] = list(range(next_id, next_id + length))
            next_id += length
        own = int(rng.geometric(0.1))
        prompts.append([*range(10), *path[topic], *range(next_id, next_id + own)])
        next_id += own
    blocks = np.array([len(prompt) for prompt in prompts])
    columns = Columns(
        np.arange(requests, dtype=float) * 1000, blocks * 16 - rng.integers(0, 16, requests), np.ones(requests),
        np.concatenate(prompts), np.concatenate([[0], np.cumsum(blocks)]),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=16)


@pytest.fixture(scope="module")
def drifting_trace():
    return drifting(20_000, 3)


def errors(curve, exact, capacities):
    """(3, capacity) points off."""
    hits = np.array([[one.hit_blocks, one.hit_tokens, one.request_hits] for one in exact.hits(capacities)]).T
    return 100 * np.abs(curve.hits(capacities) - hits) / curve.wholes[:, None]


def test_a_working_set_much_larger_than_the_near_list_is_estimated_from_the_sample(drifting_trace):
    exact = hit_curve(drifting_trace)
    capacities = exact.capacities(30)
    assert exact.working_set > 20 * 5_000
    for seed in range(2):
        curve = fill(LiveCurve(16, near_blocks=5_000, sample=0.05, seed=seed), drifting_trace, batch=64)
        assert curve.near.dropped
        off = errors(curve.over("since_start"), exact, capacities)
        assert off.max() <= 1.0
        assert off[:, np.array(capacities) <= curve.near.reach].max() <= 0.1  # exact but for bins


def test_the_near_list_and_its_anchor_make_the_sample_more_precise(drifting_trace):
    exact = hit_curve(drifting_trace)
    capacities = exact.capacities(30)
    worst = {}
    for near in (0, 5_000):
        curves = [
            fill(LiveCurve(16, near_blocks=near, sample=0.02, seed=seed), drifting_trace, batch=64) for seed in range(2)
        ]
        worst[near] = np.mean([errors(curve.over("since_start"), exact, capacities).max() for curve in curves])
    assert worst[5_000] < worst[0] / 2


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_batches_make_no_difference(drifting_trace, batch):
    part = drifting_trace[:3000]
    one, other = (
        fill(LiveCurve(16, near_blocks=1_000, sample=0.1, window_s=1e9), part, batch=size) for size in (50, batch)
    )
    assert one.near.dropped
    hits = [curve.over("window").hits([100, 10_000, 1_000_000]) for curve in (one, other)]
    assert hits[0] == pytest.approx(hits[1])


def test_the_working_set_beyond_the_near_list_is_estimated(drifting_trace):
    curve = fill(LiveCurve(16, near_blocks=5_000, sample=0.1, window_s=1e9), drifting_trace, batch=50)
    blocks, is_exact = curve.working_set()
    assert not is_exact and blocks == pytest.approx(drifting_trace.working_set, rel=0.03)


@pytest.mark.parametrize(
    ("name", "near"),
    [("mooncake/conversation_trace.jsonl", None), ("mooncake/conversation_trace.jsonl", 100_000),
     ("agents/claude-code", None)],
)  # fmt: skip
def test_on_real_traces_it_is_within_a_point(name, near, shared):
    path = shared / "data" / name
    if not path.exists():
        pytest.skip(f"{name} is not here")
    trace = kvtrace.read(path)
    exact = hit_curve(trace)
    shares = np.geomspace(0.002, 1, 25)
    capacities = [round(share * exact.working_set) for share in shares]
    options = {} if near is None else {"near_blocks": near}
    curve = fill(LiveCurve(trace.block_size, **options), trace, trace.timestamp / 1000, batch=50)
    assert errors(curve.over("since_start"), exact, capacities).max() <= (0.1 if near is None else 1.0)


GROWTH = """
import resource, sys
import numpy as np
from kvtrace.analysis.live_curve import LiveCurve
from kvtrace._native.recency import segments
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
rng = np.random.default_rng(0)
make = lambda: rng.integers(0, 2**64, (2000, 2), dtype=np.uint64)
offsets, lengths = np.arange(0, 2001, 20), np.full(100, 320)
make()
before = peak()
curve = LiveCurve(16)
for number in range(1500):
    curve.add(make(), offsets, lengths, float(number))
curve.over("window").least_capacity(0.9)
assert curve.near.dropped
print((peak() - before) / 1e6, curve.memory_bytes / 1e6)
"""


def test_memory_is_at_most_64_MB_after_more_blocks_than_the_tables_hold():
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    growth, stated = map(float, done.stdout.split())
    assert growth <= 64 and stated <= 64


@pytest.mark.parametrize(
    "options",
    [{"block_size": 0}, {"near_blocks": -1}, {"sample": 1.5}, {"near_blocks": 0, "sample": 0}, {"window_s": 0},
     {"half_life_s": float("nan")}, {"capacities": [0]}, {"far_blocks": 0}],
)  # fmt: skip
def test_options_that_are_not_valid(options):
    with pytest.raises(UsageError):
        LiveCurve(**({"block_size": 16} | options))
