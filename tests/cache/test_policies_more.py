"""Policies that look at time, cost or the future: each equals its plain twin, and the bounds are bounds."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace.cache.core.pool import Pool, PythonPolicy
from kvtrace.cache.demand import block_demand
from kvtrace.cache.policies.adaptive import LFUDA, PGDSF
from kvtrace.cache.policies.base import Context
from kvtrace.cache.policies.classic import LRU, SLRU, TTL, Belady, Mooncake, Priority
from kvtrace.cache.policies.learned import Workload
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.conftest import drawn
from tests.reference.policies import belady, lfu_da, mooncake, pgdsf, priority, slru, ttl, workload
from tests.strategies import traces

POLICIES = {
    "slru": (SLRU, slru.SLRU, st.none() | st.sampled_from([0.0, 0.3, 0.5, 1.0])),
    "lfu-da": (LFUDA, lfu_da.LFUDA, st.none()),
    "ttl": (TTL, ttl.TTL, st.sampled_from([0.0, 1.0, 3.0, 7.0, float("inf")])),
    "mooncake": (Mooncake, mooncake.Mooncake, st.none() | st.sampled_from([0.0, 2.0, 9.0])),
    "priority": (Priority, priority.Priority, st.none() | st.sampled_from([0.0, 2.0, 6.0])),
    "pgdsf": (PGDSF, pgdsf.PGDSF, st.none() | st.sampled_from([1, 5])),
    "workload": (Workload, workload.Workload, st.none() | st.sampled_from([1.0, 60_000.0])),
    "belady": (Belady, belady.Belady, st.none()),
}
KEEPS_PARENTS = ["slru", "ttl", "belady"]  # by their order alone: leaf-first is flat


def run(
    trace,
    policy,
    capacity,
    parameter=None,
    *,
    mode="block",
    total=True,
    leaf_first=False,
    schedule=("serial",),
    rows=None,
):
    """The pool after a trace went through it, and the policy in it."""
    demand = block_demand(trace, mode)
    context = Context(demand.blocks, capacity, trace, demand)
    made = policy(context) if parameter is None else policy(context, parameter)
    if not isinstance(made, (SLRU, LFUDA, TTL, Mooncake, Priority, PGDSF, Workload, Belady, LRU)):
        made = PythonPolicy(context, made)
    pool = Pool(context, demand, made, total=total, leaf_first=leaf_first)
    pool.schedule(*schedule)
    pool.advance(len(trace) if rows is None else rows)
    pool.close()
    return pool


def hits(trace, policy, capacity, parameter=None, **how):
    return run(trace, policy, capacity, parameter, **how).hits.tolist()


def with_columns(trace, **extra):
    columns = replace_columns(trace, extra={name: np.array(values) for name, values in extra.items()})
    return Trace.from_columns(columns, block_size=trace.block_size)


@st.composite
def labelled(draw):
    """A trace with what the policies look at, now and then missing."""
    trace = draw(traces(outputs=False))
    rows = len(trace)
    extra = {"priority": draw(st.lists(st.sampled_from([0, 20, 35, 50, 100, None]), min_size=rows, max_size=rows))}
    if draw(st.booleans()):
        extra["type"] = draw(st.lists(st.sampled_from(["text", "file"]), min_size=rows, max_size=rows))
    if draw(st.booleans()):
        extra["turn"] = draw(st.lists(st.integers(1, 12), min_size=rows, max_size=rows))
    return with_columns(trace, **extra)


@st.composite
def agents(draw):
    """A trace of sessions with what policies with hints look at, now and then missing."""
    trace = draw(labelled())
    rows = len(trace)
    extra = dict(trace.extra)
    if draw(st.booleans()):
        del extra["priority"]
    if draw(st.booleans()):
        extra["agent"] = np.array(draw(st.lists(st.sampled_from([0, 1, None]), min_size=rows, max_size=rows)))
    if draw(st.booleans()):
        stops = st.sampled_from(["tool_use", "end_turn", "stop", "", None])
        extra["stop"] = np.array(draw(st.lists(stops, min_size=rows, max_size=rows)))
    session = np.array(draw(st.lists(st.integers(-1, 3), min_size=rows, max_size=rows)))
    session[:1] = 0
    columns = replace_columns(trace, session=session, parent=None, extra=extra)
    return Trace.from_columns(columns, block_size=trace.block_size)


def how_to_run(draw, trace, mode):
    """A capacity that holds each request, and the switches."""
    least = int(block_demand(trace, mode).max_blocks.max(initial=1))
    total = draw(st.booleans())
    end = trace.timestamp + draw(st.sampled_from([0.0, 0.5, 4.0])) * trace.output_length
    return {
        "capacity": max(draw(st.integers(least, least + 6)) if total else draw(st.integers(1, least + 6)), 1),
        "total": total,
        "leaf_first": draw(st.booleans()),
        "schedule": draw(st.sampled_from([("serial",), ("concurrency", 2), ("concurrency", 4), ("open-loop", 1, end)])),
    }


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None)
@given(labelled(), st.sampled_from(["block", "token", "grow"]), st.data())
def test_the_compiled_policy_does_what_its_plain_twin_does(name, trace, mode, data):
    compiled, twin, parameters = POLICIES[name]
    how = how_to_run(data.draw, trace, mode)
    if name in KEEPS_PARENTS:
        how["leaf_first"] = False  # the pool runs them flat; a twin can't say so
    parameter = data.draw(parameters)
    fast, plain = (run(trace, policy, parameter=parameter, mode=mode, **how) for policy in (compiled, twin))
    assert fast.hits.tolist() == plain.hits.tolist()
    assert fast.residents().tolist() == plain.residents().tolist()
    assert (fast.evictions, fast.early_frees) == (plain.evictions, plain.early_frees)


@pytest.mark.parametrize("name", KEEPS_PARENTS)
@settings(deadline=None)
@given(labelled(), st.sampled_from(["block", "grow"]), st.data())
def test_no_block_outlives_its_parent_in_a_flat_pool(name, trace, mode, data):
    compiled, _, parameters = POLICIES[name]
    how = how_to_run(data.draw, trace, mode) | {"leaf_first": False}
    parameter, parent = data.draw(parameters), block_demand(trace, mode).parent
    for rows in range(len(trace) + 1):
        pool = run(trace, compiled, parameter=parameter, mode=mode, rows=rows, **how)
        assert pool.policy.keeps_parents
        resident = set(pool.residents().tolist())
        assert all(parent[block] in resident for block in resident if parent[block] >= 0)


# -- belady: the upper bound --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "belady"])
@settings(deadline=None)
@given(labelled(), st.data())
def test_belady_is_never_beaten(name, trace, data):
    compiled, _, parameters = POLICIES[name]
    how = how_to_run(data.draw, trace, "block") | {"schedule": ("serial",)}
    best = sum(hits(trace, Belady, how["capacity"], total=False))
    assert sum(hits(trace, compiled, parameter=data.draw(parameters), **how)) <= best


@settings(deadline=None, max_examples=drawn(50))
@given(traces(outputs=False).filter(lambda trace: len(trace) <= 6 and trace.distinct <= 8), st.integers(1, 4))
def test_belady_is_the_best_of_all_choices_of_what_to_keep(trace, capacity):
    prompts = [trace.prompt(row).tolist() for row in range(len(trace))]

    seen: dict = {}

    def memo(row, kept):
        if (row, kept) not in seen:
            seen[row, kept] = plain(row, kept)
        return seen[row, kept]

    def plain(row, kept):
        if row == len(prompts):
            return 0
        hit = 0
        while hit < len(prompts[row]) and prompts[row][hit] in kept:
            hit += 1
        there = sorted(set(prompts[row]) | kept)
        size = min(capacity, len(there))  # more is never worse
        return hit + max(memo(row + 1, frozenset(choice)) for choice in combinations(there, size))

    assert sum(hits(trace, Belady, capacity, total=False)) == memo(0, frozenset())


def test_belady_keeps_the_nearest_next_use_and_need_not_keep_what_was_just_used():
    #  0   1   2   0   1    with room for two: 2 is never used again, so it is let go at once
    trace = toy("0", "1", "2", "0", "1")
    assert hits(trace, Belady, 2, total=False) == [0, 0, 0, 1, 1]
    assert hits(trace, LRU, 2) == [0, 0, 0, 0, 0]


def test_belady_keeps_the_shallower_of_blocks_that_one_request_uses_next():
    assert hits(toy("0 1 2", "3", "0 1 2"), Belady, 2, total=False) == [0, 0, 2]


# -- hand-drawn cases --------------------------------------------------------------------------------------------


def test_slru_protects_what_was_hit_from_a_scan():
    #  0 0 is protected; 1 2 3 pass through what is left of three blocks; then 0 hits where LRU lost it
    trace = toy("0", "0", "1", "2", "3", "0")
    assert hits(trace, SLRU, 3, 0.5) == [0, 1, 0, 0, 0, 1]
    assert hits(trace, LRU, 3) == [0, 1, 0, 0, 0, 0]


@given(labelled(), st.integers(0, 6))
def test_slru_with_nothing_protected_is_lru(trace, more):
    capacity = max(int(trace.prompt_blocks.max()), 1) + more
    assert hits(trace, SLRU, capacity, 0.0) == hits(trace, LRU, capacity)


def test_lfu_da_lets_old_fame_fade():
    # 0 has key 3. Of what comes once, each evicts the one before and starts where that was: 1, 2, 3 have keys 1, 2, 3;
    # when 4 comes, 0 is no better than 3, and the less recent. By count alone it would stay for ever
    once = [str(block) for block in range(1, 5)]
    assert hits(toy("0", "0", "0", *once[:3], "0"), LFUDA, 2)[-1] == 1
    assert hits(toy("0", "0", "0", *once, "0"), LFUDA, 2)[-1] == 0


def test_ttl_still_hits_when_the_gap_equals_the_limit():
    trace = toy("0", "0", "0", gap_ms=60.0)
    assert hits(trace, TTL, 9, 60.0) == [0, 1, 1]
    assert hits(trace, TTL, 9, 59.0) == [0, 0, 0]


def test_ttl_slides_with_each_use():
    #  at 0, 40, 80 ms: the last is 80 after the first and 40 after the second
    assert hits(toy("0", "0", "0", gap_ms=40.0), TTL, 9, 50.0) == [0, 1, 1]


@given(labelled(), st.integers(0, 6))
def test_ttl_without_a_limit_is_lru(trace, more):
    capacity = max(int(trace.prompt_blocks.max()), 1) + more
    assert hits(trace, TTL, capacity, float("inf")) == hits(trace, LRU, capacity)


def test_priority_goes_before_recency():
    #  1 asks for less than 0 and goes first, though it is more recent
    trace = with_columns(toy("0", "1", "2", "0"), priority=[80, 10, None, 35])
    assert hits(trace, Priority, 2) == [0, 0, 0, 1]


def test_a_priority_falls_back_when_its_duration_is_over():
    #  0 asks for 80 for 2 ms; when 2 comes, 2 ms later, it is a 35 like 1, and the least recent
    trace = with_columns(toy("0", "1", "2", "1"), priority=[80, 35, 35, 35])
    assert hits(trace, Priority, 2, 2.0) == [0, 0, 0, 1]
    assert hits(trace, Priority, 2, 2.1) == [0, 0, 0, 0]


def test_a_low_priority_falls_back_upwards():
    trace = with_columns(toy("0", "1", "2", "1"), priority=[35, 10, 35, 35])
    assert hits(trace, Priority, 2) == [0, 0, 0, 0]
    assert hits(trace, Priority, 2, 1.0) == [0, 0, 0, 1]


@given(labelled(), st.integers(0, 6))
def test_equal_priorities_are_lru(trace, more):
    capacity = max(int(trace.prompt_blocks.max()), 1) + more
    same = with_columns(trace, priority=[50] * len(trace))
    assert hits(same, Priority, capacity) == hits(trace, LRU, capacity)


def test_a_trace_without_priorities_says_so():
    with pytest.raises(InputError, match="needs a trace with the column priority"):
        hits(toy("0"), Priority, 1)


@pytest.mark.parametrize("value", [101, -1, "high"])
def test_a_priority_out_of_range_names_its_row_and_not_its_value(value):
    trace = with_columns(toy("0", "1"), priority=np.array([1, value], dtype=object))
    with pytest.raises(InputError, match=r"row 1: the priority is not a number from 0 to 100\."):
        hits(trace, Priority, 2)


def test_pgdsf_keeps_what_is_deep_and_dear():
    # E = 1 token: a block costs 2 + 2 depth + 1 = 3, 5, 7. Room for three: 3 evicts 0, the cheapest, if flat,
    # and 2, the only leaf, if leaf-first
    trace = toy("0 1 2", "3", "0 1 2")
    assert hits(trace, PGDSF, 3, 1) == [0, 0, 0]
    assert hits(trace, PGDSF, 3, 1, leaf_first=True) == [0, 0, 2]


def test_pgdsf_counts_uses():
    #  0 was used twice (priority 6), 1 once (3): 2 evicts 1
    assert hits(toy("0", "0", "1", "2", "0"), PGDSF, 2, 1) == [0, 1, 0, 0, 1]


def test_workload_learns_which_kind_comes_back():
    # "a" comes back each time, "b" never: when 6 needs room, the least recent is of kind a, and a block of kind b goes
    prompts = ["0", "1", "0", "2", "0", "3", "0", "4", "5", "6", "0"]
    kinds = ["a", "b", "a", "b", "a", "b", "a", "b", "b", "b", "a"]
    trace = with_columns(toy(*prompts), type=kinds)
    assert hits(trace, Workload, 3)[-1] == 1
    assert hits(trace, LRU, 3)[-1] == 0


@given(traces(outputs=False), st.integers(0, 6))
def test_workload_with_one_category_is_lru(trace, more):
    capacity = max(int(trace.prompt_blocks.max()), 1) + more
    alone = Trace.from_columns(replace_columns(trace, session=None, parent=None), block_size=trace.block_size)
    assert hits(alone, Workload, capacity) == hits(trace, LRU, capacity)


# -- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy, parameter",
    [(SLRU, 1.5), (SLRU, float("nan")), (TTL, -1.0), (TTL, float("nan")), (PGDSF, 0), (Workload, 0.0)],
)
def test_a_parameter_that_makes_no_sense_is_refused(policy, parameter):
    with pytest.raises(UsageError, match="Try "):
        hits(toy("0"), policy, 1, parameter)


@pytest.mark.parametrize("policy", [PGDSF, Workload, Belady])
def test_a_policy_that_looks_at_the_trace_is_not_for_a_live_cache(policy):
    with pytest.raises(UsageError, match="which a live cache does not have"):
        policy(Context(4, 2))


# -- the public trace --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def conversation(shared):
    return kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")


@pytest.mark.parametrize("capacity, expected", [(1_000, 55_019), (10_000, 105_710), (300_000, 105_710)])
def test_belady_hits_as_often_as_the_offline_optimum(conversation, capacity, expected):
    assert sum(hits(conversation, Belady, capacity, total=False)) == expected


@pytest.mark.parametrize("limit_s, expected", [(1, 10_852), (60, 29_821), (300, 83_010), (3_600, 105_710)])
def test_ttl_without_a_capacity_hits_as_the_gaps_say(conversation, limit_s, expected):
    assert sum(hits(conversation, TTL, 300_000, limit_s * 1000.0)) == expected


@pytest.mark.parametrize("capacity, expected", [(1_000, 13_404), (10_000, 48_728)])
def test_lfu_da_with_a_pool_of_idle_leaves_hits_as_an_independent_model_does(conversation, capacity, expected):
    assert sum(hits(conversation, LFUDA, capacity, total=False, leaf_first=True)) == expected
