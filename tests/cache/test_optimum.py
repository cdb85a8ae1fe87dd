"""The offline optimum over runs of blocks does what the engine with the policy belady does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace.analysis.reuse import find_segments
from kvtrace.cache.core.pool import retained
from kvtrace.cache.demand import Optimum, block_demand
from kvtrace.cache.simulation import Setting, build, run
from kvtrace.trace.building import toy
from tests.strategies import traces


def by_engine(trace, capacity):
    """Hit blocks of each request, and evictions: the plain way, block by block."""
    demand = block_demand(trace)
    engine = build(Setting(capacity, "belady"), demand)
    engine.advance(len(demand))
    hits = engine.hits.tolist()
    engine.close()
    return hits, engine.evictions


@given(traces(), st.integers(1, 20))
def test_runs_give_the_hits_and_evictions_of_the_engine(trace, capacity):
    done = run(Setting(capacity, "belady"), trace)
    assert (done.hit_blocks.tolist(), done.evictions) == by_engine(trace, capacity)


@pytest.mark.parametrize(("capacity", "hits"), [(1, [0, 0, 0, 1]), (2, [0, 0, 0, 2]), (3, [0, 0, 1, 2])])
def test_the_deepest_block_of_the_farthest_queue_leaves_first(capacity, hits):
    #  after "2" the cache wants 0 and 1 for request 3 and 2 for request 2: request 2 comes first, then 0, then 1
    trace = toy("0 1", "2", "2", "0 1") if capacity == 3 else toy("0 1", "2", "3", "0 1")
    assert Optimum.of(trace).hit_blocks(capacity).tolist() == hits


def test_known_segments_give_the_same_runs():
    trace = toy("0 1 2", "0 3", "0 1 2", "0 3 4")
    one, other = Optimum.of(trace), Optimum.of(trace, find_segments(trace))
    assert one.next_row.tolist() == other.next_row.tolist() and one.first.tolist() == other.first.tolist()


def test_progress_counts_each_request_once():
    served = []
    run(Setting(2, "belady"), toy("0 1", "2", "0 1"), on_progress=served.append)
    assert sum(served) == 3


@pytest.mark.parametrize(
    ("next_row", "blocks", "first"), [([3], [1], [0, 1, 1]), ([-1], [1], [0, 1, 1]), ([1], [1, 1], [0, 1, 1])]
)
def test_runs_that_do_not_fit_the_requests_are_refused(next_row, blocks, first):
    with pytest.raises(ValueError, match="next_row"):
        retained(np.array(next_row, np.int32), np.array(blocks, np.int32), np.array(first), 1)


@pytest.mark.parametrize("capacity", [200, 5_000, 50_000])
def test_runs_give_the_hits_of_the_engine_on_a_real_trace(shared, capacity):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    done = run(Setting(capacity, "belady"), trace)
    assert (done.hit_blocks.tolist(), done.evictions) == by_engine(trace, capacity)
