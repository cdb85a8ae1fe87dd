"""Reuse distances and the hit curve: equal to a list that is looked through, and to a simulated LRU cache."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._native import recency as kernel
from kvtrace.analysis.curves import PiecewiseLinear, hit_curve
from kvtrace.analysis.reuse import find_segments, reuse_distances, reuse_times
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.hits import count_hits, unlimited_hits
from kvtrace.trace.trace import Trace
from tests.reference import lru, tiers
from tests.reference import reuse as slow
from tests.strategies import traces

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/curve.json").read_text())


def prompts_of(trace):
    return [trace.prompt(row).tolist() for row in range(len(trace))]


def has_blocks(trace):
    return len(trace.hash_ids) > 0


@given(traces())
def test_segments_equal_their_twin(trace):
    found = find_segments(trace)
    assert np.array([found.row, found.last_row, found.blocks, found.rank]).T.tolist() == slow.segments(
        prompts_of(trace)
    )


def test_a_block_is_as_far_as_the_blocks_used_since():
    #  0 1 | 2 | 0 3:  when 0 is wanted again, 2 and it lie in front: rank 2;  then 0 3 2 1 from the front
    found = find_segments(toy("0 1", "2", "0 3", "0 1"))
    assert list(zip(found.row, found.last_row, found.blocks, found.rank, strict=True)) == [
        (2, 0, 1, 2), (3, 2, 1, 1), (3, 0, 1, 4)]  # fmt: skip


@given(traces().filter(has_blocks))
def test_the_curve_passes_through_every_simulation(trace):
    curve = hit_curve(trace)
    for capacity in range(curve.longest, curve.working_set + 2):
        hits = np.array(lru.hits(prompts_of(trace), capacity), dtype=np.int64)
        wanted, found = count_hits(trace, hits).to_dict(), curve.at(capacity).to_dict()
        assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12)
        assert np.array_equal(curve.hits_per_request(capacity), hits)


@given(traces().filter(has_blocks))
def test_room_for_all_is_unlimited_and_no_capacity_loses_hits(trace):
    curve = hit_curve(trace)
    assert curve.at(curve.working_set).hit_blocks == unlimited_hits(trace).sum()
    counts = [curve.at(capacity).hit_blocks for capacity in range(curve.working_set + 1)]
    assert counts == sorted(counts)


@given(st.integers(1, 40))
def test_the_kernels_table_grows(rows):
    #  prompts of one block each, all found: more segments than were made room for at first
    ids, offsets = np.zeros(rows, dtype=np.int64), np.arange(rows + 1)
    assert len(kernel.segments(ids, offsets, 1)[0]) == rows - 1


@given(traces().filter(has_blocks))
def test_a_second_tier_hits_what_the_first_lets_go(trace):
    curve = hit_curve(trace)
    first = curve.longest
    for second in range(curve.working_set + 1):
        found = np.array(tiers.hits(prompts_of(trace), first, second)).sum(axis=0)
        both, alone = curve.at(first + second).hit_blocks, curve.at(first).hit_blocks
        assert found.tolist() == [alone, both - alone]


@given(traces(), st.integers(0, 20))
def test_what_lives_so_long_after_its_last_use_is_hit_within_that_time(trace, limit_ms):
    last_use, hits = {}, 0
    for row, prompt in enumerate(prompts_of(trace)):
        now, is_leading = trace.timestamp[row], True
        for block in prompt:
            is_leading = is_leading and now - last_use.get(block, -np.inf) <= limit_ms
            hits += is_leading
        last_use |= dict.fromkeys(prompt, now)
    gap_ms, counts = reuse_times(trace)
    assert counts[gap_ms <= limit_ms].sum() == hits


@given(traces())
def test_distances_count_every_reference_found(trace):
    distances, counts = reuse_distances(trace)
    places = [rank - 1 for _, _, _, rank in slow.places(prompts_of(trace))]
    assert np.repeat(distances, counts).tolist() == sorted(places)


def test_partial_blocks_count_their_own_tokens():
    #  blocks of four; the second prompt is six tokens, its tail the first's: 4 + 2 tokens hit
    trace = Trace.from_columns(Columns([0.0, 1.0], [6, 6], [1, 1], [0, 1, 0, 1], [0, 2, 4]), block_size=4)
    assert [hits.hit_tokens for hits in hit_curve(trace).hits([0, 1, 2])] == [0, 4, 6]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vectors(vector):
    trace = toy(*vector["prompts"])
    found, curve = find_segments(trace), hit_curve(trace)
    assert np.array([found.row, found.last_row, found.blocks, found.rank]).T.tolist() == vector["segments"]
    hits = curve.hits([int(capacity) for capacity in vector["hit_blocks"]])
    assert [hit.hit_blocks for hit in hits] == list(vector["hit_blocks"].values())


def test_sums_that_pass_64_bits_come_back():
    #  starts so large that weight * start wraps: the ramp rises all the same
    start, weight = np.array([1 << 40, 1 << 41]), np.full((1, 2), 1 << 30)
    ramps = PiecewiseLinear(start, start + 8, weight)
    assert ramps.at(np.array([(1 << 40) + 1, 1 << 45])).tolist() == [[2 << 30, 16 << 30]]


def test_nothing_to_reuse_is_said():
    for trace in (Trace.from_columns(Columns([], [], [], [], [0]), block_size=1), toy("", "")):
        with pytest.raises(kvtrace.InputError, match="no hash_ids"):
            hit_curve(trace)


def test_a_curve_as_a_dictionary():
    found = hit_curve(toy("0 1", "2", "0 1", block_size=16)).to_dict([1, 3], kv_bytes_per_token=10)
    assert (found["schema"], found["longest"], found["working_set"]) == (1, 2, 3)
    first, last = found["points"]
    assert (first["exact"], last["exact"], last["share"], last["hit_blocks"]) == (False, True, 1.0, 2)
    assert (last["capacity_tokens"], last["capacity_bytes"], found["unlimited"]["hit_tokens"]) == (48, 480, 32)


def test_ids_that_are_no_forest_have_no_curve():
    loose = Trace.from_columns(Columns([0.0], [3], [1], [0, 1, 0], [0, 3]), block_size=1)
    with pytest.raises(kvtrace.InputError, match="do not form a forest"):
        hit_curve(loose)
    with pytest.raises(ValueError):
        kernel.segments(np.array([5]), np.array([0, 1]), 1)


def test_the_conversation_trace_as_measured_elsewhere(shared):
    curve = hit_curve(kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl"))
    assert [curve.at(capacity).hit_blocks for capacity in (1_000, 10_000, 300_000)] == [12847, 61046, 105710]


def test_times_to_live_as_measured_elsewhere(shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    gap_ms, counts = reuse_times(trace)
    hits = [int(counts[gap_ms <= 1000 * seconds].sum()) for seconds in (1, 60, 300, 3600)]
    assert hits == [10852, 29821, 83010, 105710]
