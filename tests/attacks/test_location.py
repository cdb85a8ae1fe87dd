"""An attacker who knows one request's time and lengths finds its row under exact, and less often under strict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace.privacy.checks.anonymity import alone_near
from kvtrace.privacy.profiles import PROFILES
from kvtrace.privacy.releases import release
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.privacy.senders import ROWS
from tests.reference.location import located


def trace(rows):
    """A trace of (time, input length, output length), block size 16, where nothing is shared."""
    times, inputs, outputs = (np.array(values) for values in zip(*sorted(rows), strict=True))
    offsets = np.concatenate([[0], np.cumsum(-(-inputs // 16))])
    return Trace.from_columns(Columns(times * 1.0, inputs, outputs, np.arange(offsets[-1]), offsets), block_size=16)


def share(whole, profile):
    """The share of a trace's requests that are found in its release."""
    done = release(whole, PROFILES[profile]).trace
    rows = zip(done.timestamp.tolist(), done.input_length.tolist(), done.output_length.tolist(), strict=True)
    return located(list(rows)) / len(whole)


def test_a_request_is_alone_until_its_lengths_are_rounded():
    #  three requests in ten seconds, of lengths that blocks of 16 and powers of two make equal
    whole = trace([(0, 33, 60), (4000, 40, 64), (9000, 47, 70)])
    assert [share(whole, profile) for profile in ("exact", "standard", "strict")] == [1, 1, 0]


def test_equal_lengths_hide_a_request_from_minutes_away_only():
    assert share(trace([(0, 40, 5), (60_000, 40, 5)]), "exact") == 0
    assert share(trace([(0, 40, 5), (60_001, 40, 5)]), "exact") == 1


def test_a_time_that_is_rounded_down_still_tells_the_request_to_who_knows_it():
    assert share(trace([(59_000, 40, 5), (400_000, 41, 5)]), "strict") == 1


requests = st.lists(st.tuples(st.integers(0, 500_000), st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=25)


@given(requests)
def test_nobody_is_found_who_was_hidden_before_lengths_were_rounded_alone(rows):
    whole = trace(rows)
    rounded = PROFILES["exact"].__class__("strict", round_input="block", round_output="pow2")
    done = release(whole, rounded).trace
    coarse = list(zip(done.timestamp.tolist(), done.input_length.tolist(), done.output_length.tolist(), strict=True))
    assert located(coarse) / len(whole) <= share(whole, "exact")


@given(requests, st.sampled_from(ROWS))
def test_the_audits_figure_is_the_attackers(rows, profile):
    whole = trace(rows)
    done = release(whole, PROFILES[profile]).trace
    _, group = np.unique(np.stack([done.input_length, done.output_length]), axis=1, return_inverse=True)
    assert alone_near(group.ravel(), done.timestamp, 60_000) == share(whole, profile)


@pytest.fixture(scope="module")
def mooncake(shared):
    return kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")


def test_on_a_real_trace_strict_hides_most_requests(mooncake):
    found = {profile: share(mooncake, profile) for profile in ROWS}
    assert found["exact"] == pytest.approx(0.998, abs=0.001)
    assert found["standard"] == pytest.approx(0.998, abs=0.001)  # exact lengths tell: docs/privacy/privacy.md says so
    assert found["strict"] == pytest.approx(0.227, abs=0.005)
