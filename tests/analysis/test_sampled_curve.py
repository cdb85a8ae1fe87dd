"""The sampled curve: near the exact one, by no more than it says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace import UsageError
from kvtrace._base.arrays import split_mix
from kvtrace.analysis import curves as shards
from kvtrace.analysis.curves import RATES, SAMPLES, SampledCurve, _sample_of, hit_curve
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.strategies import traces


@pytest.fixture(scope="module")
def trace():
    """Conversations that come back, all behind one system prompt of five blocks, among prompts of one use."""
    rng = np.random.default_rng(7)
    prompts, next_id, turns = [], 5, {}
    for _ in range(4000):
        talk = int(rng.exponential(40)) if rng.random() < 0.6 else None
        grown = list(range(next_id, next_id + 1 + int(rng.geometric(0.1))))
        next_id += len(grown)
        path = turns.get(talk, list(range(5))) + grown
        if talk is not None and len(path) < 120:
            turns[talk] = path
        prompts.append(path)
    blocks = np.array([len(path) for path in prompts])
    columns = Columns(
        np.arange(len(prompts), dtype=float), blocks * 16 - rng.integers(0, 16, len(prompts)), np.ones(len(prompts)),
        np.concatenate(prompts), np.concatenate([[0], np.cumsum(blocks)]),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=16)


def offs(exact, curve, capacities):
    """Rate -> how far the estimate is off at each capacity."""
    pairs = list(zip(curve.hits(capacities), exact.hits(capacities), strict=True))
    return {rate: np.array([abs(getattr(a, rate) - getattr(b, rate)) for a, b in pairs]) for rate in RATES}


def assert_within_bounds(trace, share, most):
    """Of all points and seeds at least 95 % are within the stated error, and none is off by more than `most`."""
    exact = hit_curve(trace)
    capacities, inside, worst = exact.capacities(20), [], 0.0
    for seed in range(8):
        curve = hit_curve(trace, sample=share, seed=seed)
        errors = curve.errors(capacities)
        for rate, off in offs(exact, curve, capacities).items():
            inside.append(off <= errors[rate] + 1e-12)
            worst = max(worst, off.max())
    assert np.mean(inside) >= 0.95
    assert worst <= most


def test_the_stated_error_holds(trace):
    assert_within_bounds(trace, 0.1, most=0.05)


def test_the_stated_error_holds_on_the_conversation_trace(shared):
    conversations = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    assert_within_bounds(conversations, 0.01, most=0.08)
    assert_within_bounds(conversations, 0.1, most=0.02)


def test_what_is_cold_is_known_to_a_group(trace):
    curve, exact = hit_curve(trace, sample=0.1), hit_curve(trace)
    most = exact.working_set
    assert curve.at(most).hit_blocks == pytest.approx(exact.at(most).hit_blocks, abs=80)  # one group of 8 / 0.1


def test_a_larger_sample_is_nearer(trace):
    exact = hit_curve(trace)
    capacities = exact.capacities(20)
    means = []
    for share in (0.02, 0.5):
        curves = [hit_curve(trace, sample=share, seed=seed) for seed in range(4)]
        means.append(np.mean([offs(exact, curve, capacities)["block_hit_rate"] for curve in curves]))
    assert means[1] < means[0] / 3


@pytest.mark.parametrize("every", [8, 9, 80, 807])
def test_samples_are_disjoint_and_one_of_each_group(every):
    sample = _sample_of(every * 50, every, seed=3)
    for number in range(SAMPLES):
        assert np.array_equal(np.flatnonzero(sample == number) // every, np.arange(50))


def test_one_seed_one_estimate(trace):
    once, again, other = (hit_curve(trace, sample=0.1, seed=seed).to_dict() for seed in (1, 1, 2))
    assert once == again != other


def test_estimates_stay_between_nothing_and_all(trace):
    hits = hit_curve(trace, sample=0.02).hits([0, 1, 10**9])
    assert all(0 <= getattr(hit, rate) <= 1 for hit in hits for rate in RATES)


@given(traces().filter(lambda trace: len(trace.hash_ids) > 0), st.floats(0.01, 0.99), st.integers(0, 5))
def test_no_trace_is_too_odd(odd, share, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "MIN_SAMPLE_BLOCKS", 0)
        curve = SampledCurve(odd, share, seed)
    capacities = range(odd.distinct + 1)
    assert all(0 <= getattr(hit, rate) <= 1 for hit in curve.hits(capacities) for rate in RATES)
    assert all(np.isfinite(off).all() for off in curve.errors(capacities).values())


@pytest.mark.parametrize("share", [0.0, -0.1, 1.0, 2.0, float("nan")])
def test_a_share_is_between_0_and_1(trace, share):
    with pytest.raises(UsageError, match="above 0 and below 1"):
        hit_curve(trace, sample=share)


def test_too_small_a_sample_is_refused(trace):
    with pytest.raises(UsageError, match="an estimate needs at least"):
        hit_curve(trace, sample=0.0001)
    with pytest.raises(UsageError, match="single requests"):
        SampledCurve(trace, 0.1).hits_per_request(5)


def test_split_mix_is_the_published_one():
    #  the first numbers of generators seeded with 0 and 1234567, as the authors' C program gives them
    assert split_mix(np.array([0, 1234567])).tolist() == [16294208416658607535, 6457827717110365317]
