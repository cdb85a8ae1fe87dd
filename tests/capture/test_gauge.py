"""The gauge of live traffic: its figures are those of `kvtrace curve` and of delivered hits, in one JSON object."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import UsageError
from kvtrace.analysis.curves import hit_curve
from kvtrace.analysis.delivered import delivered_hits
from kvtrace.capture.gauge import Gauge, StoreCounts
from kvtrace.ingest.encoding import Batch
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.analysis.test_live_curve import digests_of
from tests.strategies import traces

TRACE = toy("0 1", "2", "0 1 3", "4 5", "2", "0 1 3", block_size=16)


def batch_of(trace, first=0, stop=None, domain=None):
    """Rows of a trace as the batch of a digester."""
    rows = slice(first, len(trace) if stop is None else stop)
    offsets = trace.offsets[rows.start : rows.stop + 1]
    cached = None if trace.cached_tokens is None else trace.cached_tokens[rows]
    return Batch(
        time_ns=np.zeros(rows.stop - rows.start, np.int64), input_length=trace.input_length[rows],
        digests=digests_of(trace.hash_ids[offsets[0] : offsets[-1]]), offsets=offsets - offsets[0],
        cached_tokens=cached, domain=domain,
    )  # fmt: skip


def filled(trace, **options):
    gauge = Gauge(trace.block_size, **options)
    for row in range(len(trace)):
        gauge.add(batch_of(trace, row, row + 1), float(row))
    return gauge


def with_cached(trace, cached):
    return Trace.from_columns(replace_columns(trace, cached_tokens=np.array(cached)), block_size=trace.block_size)


@given(traces(min_block_size=2), st.integers(1, 30))
def test_the_curve_at_multiples_of_today_is_the_exact_one(trace, capacity):
    traffic = filled(trace, capacity_blocks=capacity).snapshot(0.0).since_start
    assert [point.factor for point in traffic.curve] == [0.5, 1, 2, 4]
    if not trace.hash_ids.size:
        assert traffic.possible.block_hit_rate is None
        return
    exact = hit_curve(trace)
    for point in traffic.curve:
        hits = exact.at(point.capacity_blocks)
        assert (point.hit_blocks, point.hit_tokens) == (hits.hit_blocks, hits.hit_tokens)
        assert point.block_hit_rate == pytest.approx(hits.block_hit_rate)
        assert point.token_hit_rate == pytest.approx(hits.token_hit_rate)
        assert point.request_hit_rate == pytest.approx(hits.request_hit_rate)
    assert traffic.working_set_blocks == trace.working_set
    assert sum(traffic.causes.values()) == pytest.approx(trace.input_length.sum())
    assert traffic.causes["hit"] == exact.at(capacity).hit_tokens


def test_causes_are_those_of_the_capacity_where_no_cached_tokens_are_known():
    window = filled(TRACE, capacity_blocks=2).snapshot(6.0).window
    # of 12 blocks, 6 are repeated: at ranks 2 and 3 in row 2, 6 in row 4, and 4, 5 and 6 in row 5
    assert window.causes == {"hit": 16, "evicted": 5 * 16, "first_use": 6 * 16}
    assert (window.causes_of, window.delivered) == ("capacity", None)
    assert window.blocks_for_90_percent == 6


def test_without_a_capacity_the_curve_is_of_the_working_set_and_there_are_no_causes():
    window = filled(TRACE).snapshot(6.0).window
    assert window.curve_of == "working_set"
    assert [point.capacity_blocks for point in window.curve] == [1, 2, 3, 6]
    assert window.curve[-1].token_hit_rate == window.possible.token_hit_rate == 0.5
    assert (window.causes, window.causes_of) == ({}, None)


def test_delivered_hits_are_of_the_requests_that_state_theirs():
    trace = with_cached(TRACE, [0, -1, 16, 0, -1, 32])
    traffic = filled(trace, capacity_blocks=2).snapshot(6.0).since_start
    expected = delivered_hits(trace).totals
    delivered = traffic.delivered
    assert (delivered.requests, delivered.prompt_tokens) == (expected["requests"], expected["tokens"])
    assert (delivered.cached_tokens, delivered.possible_tokens) == (48, expected["possible_tokens"])
    assert delivered.token_hit_rate == 48 / 160
    assert traffic.causes == {"hit": 48, "evicted": 80 - 48, "first_use": 160 - 80}
    assert traffic.causes_of == "delivered"


def test_tokens_that_a_service_had_beyond_what_is_possible_lower_first_use():
    trace = with_cached(toy("0 1", "0 1", block_size=16), [32, 32])
    assert filled(trace).snapshot(2.0).window.causes == {"hit": 64, "evicted": 0, "first_use": 0}


@given(traces(min_block_size=2), st.integers(3, 20), st.data())
def test_delivered_hits_with_a_near_list_and_a_whole_sample_are_exact(trace, near, data):
    cached = [data.draw(st.integers(-1, int(tokens))) for tokens in trace.input_length]
    trace = with_cached(trace, cached)
    delivered = filled(trace, near_blocks=near, sample=1.0).snapshot(0.0).since_start.delivered
    expected = delivered_hits(Trace.from_columns(replace_columns(trace, output_ids=None, output_offsets=None),
                                                 block_size=trace.block_size)).totals  # fmt: skip
    if not expected["requests"]:
        assert delivered is None
        return
    assert delivered.possible_tokens == pytest.approx(expected["possible_tokens"])
    assert delivered.cached_tokens == expected["delivered_tokens"]


def test_the_window_forgets_and_the_start_does_not():
    gauge = filled(TRACE, capacity_blocks=4, window_s=60, half_life_s=10)
    after = gauge.snapshot(200.0)
    assert (after.window.requests, after.since_start.requests) == (0, 6)
    assert after.decayed.requests == pytest.approx(sum(2 ** ((row - 200) / 10) for row in range(6)))
    assert after.window.possible.token_hit_rate is None and after.window.working_set_blocks == 0
    gauge.add(batch_of(TRACE, 0, 1), 201.0)
    assert gauge.snapshot(201.0).window.possible.token_hit_rate == 1.0  # the blocks are not forgotten


def test_domains_share_no_blocks():
    trace, gauge = toy("0 1", "0 1", block_size=16), Gauge(16)
    gauge.add(batch_of(trace, domain=np.array([[1, 2], [3, 4]], np.uint64)), 0.0)
    gauge.add(batch_of(trace, domain=np.array([[3, 4], [3, 4]], np.uint64)), 0.0)
    assert gauge.snapshot(0.0).window.possible.hit_blocks == 4


def test_a_snapshot_is_json_and_has_sizes_in_gib_if_the_model_is_known():
    gauge = filled(TRACE, capacity_blocks=4, kv_bytes_per_token=1 << 20)
    gauge.set_stores(first_stored=3, stored_again=2, removed=1)
    snapshot = gauge.snapshot(6.0)
    values = json.loads(json.dumps(snapshot.to_dict(), allow_nan=False))
    assert values["schema"] == 1 and values["window"]["curve"][1]["capacity_gib"] == 4 * 16 / 1024
    assert values["window"]["gib_for_90_percent"] == snapshot.window.blocks_for_90_percent * 16 / 1024
    assert snapshot.stores == StoreCounts(3, 2, 1)
    assert values["precision"] == {
        "sample": 0.01, "near_blocks": 6, "far_blocks": values["precision"]["far_blocks"],
        "exact_up_to_blocks": None, "reach_blocks": None,
    }  # fmt: skip
    assert filled(TRACE).snapshot(6.0).to_dict()["window"]["working_set_gib"] is None


def test_a_gauge_without_requests_has_a_snapshot():
    snapshot = Gauge(16, capacity_blocks=10).snapshot(5.0)
    assert snapshot.window.requests == 0 and snapshot.window.possible.token_hit_rate is None
    assert snapshot.window.blocks_for_90_percent is None
    json.dumps(snapshot.to_dict(), allow_nan=False)


def test_precision_says_how_far_hits_are_exact():
    trace = toy(*[str(block) for block in range(200)])
    precision = filled(trace, near_blocks=20, sample=0.5).snapshot(200.0).precision
    assert precision.exact_up_to_blocks == 20 and 20 <= precision.near_blocks <= 25
    assert 70 <= precision.far_blocks <= 130 and precision.reach_blocks is None
    only_near = filled(trace, near_blocks=20, sample=0.0).snapshot(200.0).precision
    assert only_near.reach_blocks == 20


def test_the_memory_that_it_states_does_not_depend_on_the_traffic():
    empty, full = Gauge(16), filled(TRACE)
    assert empty.snapshot(0.0).memory_bytes == full.snapshot(0.0).memory_bytes <= 64e6


@pytest.mark.parametrize("options", [{"capacity_blocks": 0}, {"factors": (1.0, 0.0)}, {"factors": (math.nan,)}])
def test_options_that_are_not_valid(options):
    with pytest.raises(UsageError):
        Gauge(16, **({"capacity_blocks": 5} | options))
