"""TensorRT-LLM's cache: what it does by hand-drawn cases, and the plain pool that defines it."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import read
from kvtrace._base.errors import InputError
from kvtrace.cache.demand import MODES, block_demand, parse_schedule
from kvtrace.cache.engines import tensorrt_llm
from kvtrace.cache.policies.base import Context
from kvtrace.trace import unlimited_hits
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.trace import Trace
from tests.reference import pool as slow
from tests.strategies import traces

SCHEDULES = st.sampled_from(["serial", "concurrency:2", "concurrency:3", "open-loop:0.5", "open-loop:2"])
UNSAID = 35  # the priority of who says none


def serve(trace, capacity, policy="lru", mode="block", schedule="serial"):
    """The engine after the whole trace."""
    demand, plan = block_demand(trace, mode, recompute_last=True), parse_schedule(schedule)
    engine = tensorrt_llm.build(demand, Context(demand.blocks, capacity, trace, demand), policy)
    engine.schedule(plan.kind, int(plan.value), plan.ends(trace))
    engine.advance(len(trace))
    engine.close()
    return engine


def hits(*prompts, capacity, policy="lru", priorities=None, gap_ms=1, schedule="serial"):
    trace = toy(*prompts, gap_ms=gap_ms)
    return serve(with_priorities(trace, priorities), capacity, policy, schedule=schedule).hits.tolist()


def with_priorities(trace, priorities):
    if priorities is None:
        return trace
    columns = replace_columns(trace, extra={"priority": np.array(priorities)})
    return Trace.from_columns(columns, block_size=trace.block_size)


class Priority:
    """Least priority first, then least recently used, of one request the deepest: by looking at every block."""

    def __init__(self, context):
        self.context, self.idle, self.rank = context, set(), {}
        self.asked = [UNSAID if value is None else value for value in context.trace.extra["priority"].tolist()]
        self.depth = np.empty(context.blocks)
        for row in range(len(context.trace)):
            self.depth[context.trace.prompt(row)] = np.arange(len(context.trace.prompt(row)))

    def insert(self, block):
        row = self.context.request
        self.rank[block] = self.asked[row], row, -self.depth[block]

    def use(self, block):
        self.idle.discard(block)
        self.insert(block)

    def release(self, block):
        self.idle.add(block)

    def victim(self):
        return min(self.idle, key=lambda block: self.rank[block])

    def remove(self, block):
        self.idle.remove(block)


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_the_last_token_is_always_computed():
    assert hits("0", "0", "0 1", capacity=2) == [0, 0, 1]


def test_the_leaf_of_the_longest_unused_prompt_goes_first():
    #  0 1 2 fills three of four places; 3 4 takes the fourth, and 2
    assert hits("0 1 2", "3 4", "0 1 5", capacity=4) == [0, 0, 2]


def test_a_low_priority_goes_before_older_blocks():
    #  0 1 asks for 80, 2 3 for nothing: 4 5 takes 3 and 2, though 0 1 is older
    prompts = "0 1", "2 3", "4 5", "0 1 6"
    assert hits(*prompts, capacity=4, policy="priority", priorities=[80, None, 35, 35]) == [0, 0, 0, 2]
    assert hits(*prompts, capacity=4) == [0, 0, 0, 0]


def test_a_block_takes_the_priority_of_its_last_request():
    #  0 1 came with 80, and again with 0: it goes before 2 3
    prompts = "0 1 2", "3 4", "0 1 2", "5 6", "3 4 7"
    assert hits(*prompts, capacity=5, policy="priority", priorities=[80, 35, 0, 35, 35]) == [0, 0, 2, 0, 2]
    assert hits(*prompts, capacity=5, policy="priority", priorities=[80, 35, 80, 35, 35]) == [0, 0, 2, 0, 0]


def test_a_parent_never_goes_before_its_child():
    #  0 is shared: 0 1 asks for 90, then 0 2 for 5. Of 0 1 2, only 1 and 2 are leaves: 2 goes, then 0 must wait for 1
    prompts = "0 1", "0 2", "3 4", "0 1 5"
    assert hits(*prompts, capacity=4, policy="priority", priorities=[90, 5, 35, 35]) == [0, 1, 0, 2]


def test_a_priority_lasts_so_long():
    #  0 1 asks for 100 and 2 3 for nothing. 4 5 comes 2 s after 0 1: with 1 s to last 0 1 goes, as the least recent
    prompts = "0 1", "2 3", "4 5", "0 1 6"
    options = {"capacity": 4, "priorities": [100, 35, 35, 35], "gap_ms": 1000}
    assert hits(*prompts, policy="priority:10s", **options) == [0, 0, 0, 2]
    assert hits(*prompts, policy="priority:1s", **options) == [0, 0, 0, 0]


def test_where_all_is_live_the_oldest_is_freed_early():
    engine = serve(toy("0 1", "2 3", "4 5", "0 1"), 4, schedule="concurrency:3")
    assert engine.hits.tolist() == [0, 0, 0, 0] and engine.early_frees == 2


# -- laws ------------------------------------------------------------------------------------------------------------


@given(traces().filter(lambda trace: len(trace.hash_ids)), st.sampled_from(MODES), SCHEDULES, st.integers(0, 8))
def test_lru_equals_the_plain_pool_in_which_no_parent_goes_first_anyway(trace, mode, schedule, spare):
    demand, plan = block_demand(trace, mode, recompute_last=True), parse_schedule(schedule)
    capacity = max(1, int(demand.max_blocks.max())) + spare
    cache = slow.Pool(capacity, slow.Lru())
    wanted = slow.simulate(demand, cache, plan.kind, int(plan.value), plan.ends(trace))
    engine = serve(trace, capacity, "lru", mode, schedule)
    assert (engine.hits.tolist(), engine.early_frees) == wanted
    assert engine.evictions == cache.evictions


priorities = st.lists(st.sampled_from([0, 20, 35, 36, 100, None]), min_size=12, max_size=12)


@given(traces().filter(lambda trace: len(trace.hash_ids)), priorities, SCHEDULES, st.integers(0, 8))
def test_priority_equals_the_plain_pool_with_leaves_first(trace, wanted, schedule, spare):
    trace = with_priorities(trace, wanted[: len(trace)])
    demand, plan = block_demand(trace, recompute_last=True), parse_schedule(schedule)
    capacity = max(1, int(demand.max_blocks.max())) + spare
    context = Context(demand.blocks, capacity, trace, demand)
    cache = slow.Pool(capacity, Priority(context), parent=demand.parent.tolist())
    wanted = slow.simulate(demand, cache, plan.kind, int(plan.value), plan.ends(trace), context)
    engine = serve(trace, capacity, "priority", schedule=schedule)
    assert (engine.hits.tolist(), engine.early_frees) == wanted


@given(traces(), SCHEDULES, st.integers(0, 8))
def test_equal_priorities_are_lru_one_request_at_a_time(trace, schedule, spare):
    trace = with_priorities(trace, [UNSAID] * len(trace))
    capacity = max(1, int(block_demand(trace).max_blocks.max())) + spare
    assert (serve(trace, capacity, "priority").hits == serve(trace, capacity).hits).all()


@given(traces(), SCHEDULES)
def test_with_room_for_all_nothing_goes_and_all_but_a_last_block_is_hit(trace, schedule):
    demand = block_demand(trace, recompute_last=True)
    engine = serve(trace, trace.distinct + 1, schedule=schedule)
    assert engine.hits.tolist() == np.minimum(unlimited_hits(trace), demand.limit).tolist()
    assert engine.evictions == engine.early_frees == 0


# -- figures of our own ----------------------------------------------------------------------------------------------


def test_vectors_of_a_made_trace_are_met():
    """Nobody but us says so: a change shows."""
    vector = json.loads((Path(__file__).parents[1] / "vectors/engine_sglang.json").read_text())["vectors"][-1]
    paths = vector["prompts"]
    columns = Columns(
        np.array(vector["timestamp"], dtype=float), np.array(vector["input_length"]), np.array(vector["output_length"]),
        np.array([block for path in paths for block in path]), np.cumsum([0, *map(len, paths)]),
        extra={"priority": 35 + 10 * np.array(vector["priority"])},
    )  # fmt: skip
    trace = Trace.from_columns(columns, block_size=vector["block_size"])
    found = {}
    for how in FIGURES:
        engine = serve(trace, 30, *how)
        found[how] = int(engine.hits.sum()), engine.evictions
    assert found == FIGURES


FIGURES = {  # policy, mode, schedule -> hit and evicted blocks
    ("lru", "block", "serial"): (113, 70),
    ("lru", "token", "serial"): (118, 35),
    ("lru", "grow", "serial"): (104, 123),
    ("lru", "grow", "concurrency:3"): (98, 131),
    ("priority", "block", "serial"): (119, 63),
    ("priority", "token", "serial"): (120, 33),
    ("priority", "grow", "serial"): (108, 118),
    ("priority", "grow", "concurrency:3"): (102, 126),
}


def test_counts_on_the_conversation_trace(shared):
    """One block in 288,500 more than vLLM, which computes a prompt's last block into a second copy."""
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")
    assert [int(serve(trace, size).hits.sum()) for size in (1000, 10000, 300000)] == [12837, 60972, 105592]


def test_priorities_are_needed_and_checked():
    with pytest.raises(InputError, match="needs a trace with the column priority"):
        hits("0", capacity=1, policy="priority")
    with pytest.raises(InputError, match="row 1: the priority is not a number from 0 to 100"):
        hits("0", "1", capacity=1, policy="priority", priorities=[35, 101])
