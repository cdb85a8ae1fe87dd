"""The recency list of a stream: equal to its twin, and to the front of the list of the whole trace."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace._native.recency import MARKS, LiveRecency, sampled_positions, segments
from tests.reference import reuse as slow_reuse
from tests.reference.live_recency import LiveRecency as SlowRecency
from tests.strategies import traces

capacities, slots = st.integers(1, 12), st.integers(2, 12)


def keys_of(ids):
    """A key for each block; neighbours in the table, so that probe sequences meet and wrap around."""
    return np.asarray(ids, np.uint64) * np.uint64(3) + np.uint64(13)


def prompts_of(trace):
    return [trace.hash_ids[a:b].tolist() for a, b in zip(trace.offsets, trace.offsets[1:], strict=False)]


@given(traces(), capacities, slots, st.integers(1, 4))
def test_the_kernel_equals_its_twin(trace, capacity, slots, batch):
    fast, slow = LiveRecency(capacity, slots=slots), SlowRecency(capacity, slots)
    for first in range(0, len(trace), batch):
        rows = range(first, min(first + batch, len(trace)))
        offsets = trace.offsets[first : rows.stop + 1]
        runs, known = fast.runs(keys_of(trace.hash_ids[offsets[0] : offsets[-1]]), offsets - offsets[0])
        expected = [slow.request(prompts_of(trace)[row]) for row in rows]
        assert known[:2].T.tolist() == [[known, len(before)] for _, known, before in expected]
        assert runs.T.tolist() == [[row, *run] for row, (hits, _, _) in enumerate(expected) for run in hits]
        assert (fast.held, fast.dropped, fast.reach) == (len(slow.blocks), slow.dropped, slow.reach)


@given(traces(), capacities, slots)
def test_it_is_the_front_of_the_list_of_the_whole_trace(trace, capacity, slots):
    runs, rows = LiveRecency(capacity, slots=slots).runs(keys_of(trace.hash_ids), trace.offsets)
    near = {(row, depth + i): rank + i for row, blocks, rank, depth in runs.T for i in range(blocks)}
    places, depth = {}, [0] * len(trace)
    for row, _, _, rank in slow_reuse.places(prompts_of(trace)):
        places[row, depth[row]] = rank
        depth[row] += 1
    assert near == {place: rank for place, rank in places.items() if rank <= rows[1, place[0]]}


@given(traces())
def test_a_list_with_room_for_all_blocks_has_the_runs_of_the_whole_trace(trace):
    recency = LiveRecency(trace.distinct + int(trace.prompt_blocks.max()) + 1)
    runs, _ = recency.runs(keys_of(trace.hash_ids), trace.offsets)
    row, _, blocks, rank = segments(trace.hash_ids, trace.offsets, trace.distinct)
    assert runs[:3].tolist() == [row.tolist(), blocks.tolist(), rank.tolist()]
    assert not recency.dropped and recency.held == trace.working_set


@given(traces(), capacities, slots, st.integers(0, 2**64 - 1), st.floats(0.05, 1))
def test_it_counts_the_sampled_blocks_that_it_holds(trace, capacity, slots, seed, sample):
    recency, slow = LiveRecency(capacity, slots=slots, sample=sample, seed=seed), SlowRecency(capacity, slots)
    _, rows = recency.runs(keys_of(trace.hash_ids), trace.offsets)
    before = [slow.request(prompt)[2] for prompt in prompts_of(trace)]
    assert rows[2].tolist() == [len(sampled_positions(keys_of(blocks), sample, seed)) for blocks in before]
    assert recency.sampled == len(sampled_positions(keys_of(slow.blocks), sample, seed))


@given(traces(), capacities, slots, st.data())
def test_marks_count_the_distinct_blocks_used_since(trace, capacity, slots, data):
    recency, marked = LiveRecency(capacity, slots=slots), {}
    for row, prompt in enumerate(prompts_of(trace)):
        if data.draw(st.booleans()):
            number = data.draw(st.integers(0, 3))
            recency.mark(number)
            marked[number] = row
        recency.runs(keys_of(prompt), np.array([0, len(prompt)]))
        for number, first in marked.items():
            blocks, is_all = recency.used_since(number)
            distinct = len({block for prompt in prompts_of(trace)[first : row + 1] for block in prompt})
            assert blocks == distinct if is_all else blocks <= distinct
            assert is_all or recency.dropped


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=20), capacities, slots)
def test_prompts_that_are_no_forest_do_not_break_the_counts(prompts, capacity, slots):
    recency = LiveRecency(capacity, slots=slots)
    for prompt in prompts:
        recency.runs(keys_of(prompt), np.array([0, len(prompt)]))
        assert 0 <= recency.held <= recency.room
        recency.mark(0)
    blocks = {block for prompt in prompts for block in prompt}
    assert recency.held <= len(blocks)
    recency.runs(keys_of(sorted(blocks)), np.array([0, len(blocks)]))
    assert recency.held == min(len(blocks), capacity) if len(blocks) > capacity else recency.held <= len(blocks)


def test_a_request_longer_than_the_list_keeps_its_first_blocks():
    recency = LiveRecency(4)
    recency.runs(keys_of([50, 51]), np.array([0, 2]))
    recency.runs(keys_of(range(9)), np.array([0, 9]))
    runs, rows = recency.runs(keys_of([50, *range(9)]), np.array([0, 1, 10]))
    assert rows[0].tolist() == [0, 4] and runs.T.tolist() == [[1, 4, 2, 0]]


def test_a_long_stream_keeps_its_last_blocks():
    recency, rng = LiveRecency(1000), np.random.default_rng(1)
    keys = rng.integers(0, 2**64, 50_000, dtype=np.uint64)
    recency.runs(keys, np.arange(0, 50_001, 10))
    assert recency.dropped and 1000 <= recency.reach <= recency.held <= recency.room == 1250
    _, rows = recency.runs(keys[-1000:], np.arange(0, 1001, 10))
    assert rows[0].sum() == 1000


@pytest.mark.parametrize("share", [0.001, 0.01, 0.3])
def test_a_sample_has_its_share_of_the_keys(share):
    keys = np.arange(1_000_000, dtype=np.uint64)
    for seed in (0, 1):
        assert len(sampled_positions(keys, share, seed)) == pytest.approx(share * 1e6, abs=5 * (share * 1e6) ** 0.5)
    assert set(sampled_positions(keys, share)) <= set(sampled_positions(keys, 2 * share))


def test_arguments_that_are_not_valid():
    with pytest.raises(ValueError, match="capacity"):
        LiveRecency(0)
    with pytest.raises(ValueError, match="slots"):
        LiveRecency(1, slots=1)
    with pytest.raises(ValueError, match="inconsistent"):
        LiveRecency(1).runs(np.zeros(2, np.uint64), np.array([0, 3]))
    with pytest.raises(IndexError):
        LiveRecency(1).mark(MARKS)
