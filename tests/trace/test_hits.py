"""Hits in a cache that never evicts, and the three rates."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.hits import count_hits, exact_sum, unlimited_hits
from kvtrace.trace.trace import Trace
from tests.strategies import traces


def test_a_hit_is_the_leading_run_of_blocks_seen_before():
    #  0 1 2 | 0 1 3 hits 0 1 | 4 hits nothing | 0 1 3 5 hits 0 1 3
    assert unlimited_hits(toy("0 1 2", "0 1 3", "4", "0 1 3 5")).tolist() == [0, 2, 0, 3]


def test_a_seen_block_after_an_unseen_one_is_no_hit():
    loose = Trace.from_columns(Columns([0.0, 1.0], [2, 2], [1, 1], [0, 1, 2, 1], [0, 2, 4]), block_size=1)
    assert unlimited_hits(loose).tolist() == [0, 0]


def test_the_three_rates_differ():
    #  4 blocks of which 0 hit; 1 block of which 1 hits: blocks 1/5, requests (0 + 1)/2, tokens 4 of 18
    trace = Trace([0.0, 1.0], [14, 4], [1, 1], [0, 1, 2, 3, 0], [0, 4, 5], block_size=4)
    hits = count_hits(trace, unlimited_hits(trace))
    assert (hits.block_hit_rate, hits.request_hit_rate, hits.token_hit_rate) == (1 / 5, 1 / 2, 4 / 18)


def test_a_tail_that_hits_counts_its_own_tokens():
    trace = Trace([0.0, 1.0], [6, 6], [1, 1], [0, 1, 0, 1], [0, 2, 4], block_size=4)
    assert count_hits(trace, unlimited_hits(trace)).hit_tokens == 6


def test_outputs_can_count_as_cached():
    #  prompt 0, output block 1;  then a prompt 0 1 2: an engine that keeps outputs hits 1 too
    trace = Trace([0.0, 1.0], [4, 12], [4, 1], [0, 0, 1, 2], [0, 1, 4],
                  output_ids=[1], output_offsets=[0, 1, 1], block_size=4)  # fmt: skip
    assert unlimited_hits(trace).tolist() == [0, 1]
    assert unlimited_hits(trace, outputs=True).tolist() == [0, 2]


def test_requests_without_blocks_have_no_rate():
    trace = Trace([0.0, 1.0], [0, 4], [1, 1], [0], [0, 0, 1], block_size=4)
    hits = count_hits(trace, unlimited_hits(trace))
    assert (hits.requests, hits.requests_with_blocks, hits.request_hit_rate) == (2, 1, 0.0)
    empty = Trace([], [], [], [], [0], block_size=4)
    assert count_hits(empty, unlimited_hits(empty)).to_dict()["token_hit_rate"] == 0.0


@given(traces(outputs=False, unknown_outputs=True))
def test_without_eviction_every_block_misses_once(trace):
    hits = count_hits(trace, unlimited_hits(trace))
    assert hits.blocks - hits.hit_blocks == trace.distinct


@given(traces(outputs=True, unknown_outputs=True))
def test_cached_outputs_never_lose_a_hit(trace):
    assert (unlimited_hits(trace, outputs=True) >= unlimited_hits(trace)).all()


@given(traces(unknown_outputs=True), traces())
def test_counts_add_up(a, b):
    both = count_hits(a, unlimited_hits(a)) + count_hits(b, unlimited_hits(b))
    assert both.requests == len(a) + len(b) and both.blocks == len(a.hash_ids) + len(b.hash_ids)


def test_the_conversation_trace_as_measured_elsewhere(shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    hits = count_hits(trace, unlimited_hits(trace))
    assert (hits.blocks, hits.hit_blocks, trace.distinct) == (288_500, 105_710, 182_790)
    assert round(hits.token_hit_rate, 5) == 0.37362 and round(hits.block_hit_rate, 5) == 0.36641
    assert np.isclose(hits.request_hit_rate, 0.38425808746366197, rtol=0, atol=1e-15)


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(1, 2**31)), max_size=50))
def test_shares_add_up_to_the_float_of_math_fsum(pairs):
    shares = np.array([min(hits, blocks) / blocks for hits, blocks in pairs])
    assert float(exact_sum(shares)) == math.fsum(shares.tolist())
