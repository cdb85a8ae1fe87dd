"""SGLang's cache: golden counts of its own code, what it does by hand-drawn cases, and a tree of plain lists."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import read
from kvtrace._base.errors import UsageError
from kvtrace.cache.core.radix import ORDERS
from kvtrace.cache.demand import block_demand
from kvtrace.cache.engines import sglang
from kvtrace.cache.policies.base import Context
from kvtrace.trace import unlimited_hits
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.trace import Trace
from tests.reference import radix
from tests.strategies import traces

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/engine_sglang.json").read_text())
POLICIES = tuple(ORDERS)


def serve(trace, capacity, policy="lru", mode="block", schedule="serial", tree="unified", drafting=None):
    """The engine after the whole trace; a schedule is "serial", "concurrency:N" or "open-loop:MS_PER_TOKEN"."""
    demand = block_demand(trace, mode, True, drafting)
    engine = sglang.build(demand, Context(demand.blocks, capacity, trace, demand), policy, tree=tree)
    kind, _, figure = schedule.partition(":")
    engine.schedule(kind, **plan(trace, kind, figure))
    engine.advance(len(trace))
    engine.close()
    return engine


def plan(trace, kind, figure):
    if kind == "open-loop":
        return {"end": trace.timestamp + float(figure) * trace.output_length}
    return {"concurrency": int(figure or 1)}


def requests_of(trace, mode, policy):
    """(The twin's requests, whether outputs are cached)."""
    demand = block_demand(trace, mode, recompute_last=True)
    wanted = sglang.priorities(trace) if policy == "priority" else np.zeros(len(trace), dtype=int)
    requests = [
        radix.Request(
            path=demand.ids[demand.start[row] : demand.start[row] + demand.full[row]].tolist(),
            limit=int(demand.limit[row]),
            tail=int(demand.tail[row]),
            grown=list(range(demand.fresh[row], demand.fresh[row] + demand.grown[row])),
            grown_tail=int(demand.grown_tail[row]),
            priority=int(wanted[row]),
        )
        for row in range(len(trace))
    ]
    return requests, demand.grows


def serve_slowly(trace, capacity, policy, mode, schedule, tree="unified"):
    """(hits, evicted blocks, early frees) of the twin."""
    requests, grows = requests_of(trace, mode, policy)
    kind, _, figure = schedule.partition(":")
    when = plan(trace, kind, figure)
    when |= {"arrival": trace.timestamp.tolist(), "unified": tree == "unified"}
    return radix.serve(requests, capacity, policy, grows, **when)


def hits(*prompts, capacity, policy="lru", schedule="serial", tree="unified"):
    return serve(toy(*prompts), capacity, policy, schedule=schedule, tree=tree).hits.tolist()


def prompts_of(tokens, outputs, *ids, priority=0):
    """A trace of blocks of two tokens with true lengths, each prompt's ids a string."""
    paths = [[int(word) for word in prompt.split()] for prompt in ids]
    columns = Columns(
        np.arange(len(paths), dtype=float), np.array(tokens), np.array(outputs),
        np.array([block for path in paths for block in path]), np.cumsum([0, *map(len, paths)]),
        extra={"priority": np.full(len(paths), priority)},
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=2)


def drawn(name, prompts, priority=()):
    """A vector of full blocks of one token, one prompt a string."""
    paths = [[int(word) for word in prompt.split()] for prompt in prompts]
    rows = len(paths)
    return {
        "name": name, "block_size": 1, "prompts": paths, "timestamp": list(range(rows)),
        "input_length": [len(path) for path in paths], "output_length": [1 + row % 3 for row in range(rows)],
        "priority": list(priority),
    }  # fmt: skip


def made(name, rng, rows, block_size):
    """A vector of conversations: turns repeat what was said, questions begin alike, prompts end anywhere."""
    number, said, vector = {}, [()], drawn(name, [])
    vector["block_size"] = block_size
    for row in range(rows):
        path = said[rng.integers(len(said))][: rng.integers(1, 12)]
        path += tuple(rng.integers(0, 3, size=rng.integers(0, 4)).tolist())
        said.append(path)
        tail = int(rng.integers(0, block_size))
        names = [path[: i + 1] for i in range(len(path))] + ([(path, row)] if tail or not path else [])
        tail = tail or (not path)
        vector["prompts"].append([number.setdefault(each, len(number)) for each in names])
        vector["input_length"].append(len(path) * block_size + int(tail))
        vector["output_length"].append(int(rng.integers(1, 4 * block_size)))
        vector["timestamp"].append((vector["timestamp"] or [0])[-1] + int(rng.integers(0, 6)))
        vector["priority"].append(int(rng.integers(-1, 3)))
    return vector


def vector_trace(vector):
    paths = vector["prompts"]
    columns = Columns(
        np.array(vector["timestamp"], dtype=float), np.array(vector["input_length"]), np.array(vector["output_length"]),
        np.array([block for path in paths for block in path]), np.cumsum([0, *map(len, paths)]),
        extra={"priority": np.array(vector["priority"])},
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=vector["block_size"])


@pytest.mark.parametrize(
    ("policy", "mode", "schedule", "capacity", "hit_blocks", "early_frees", "tree"),
    [
        ("lru", "block", "serial", 1_000, 12_821, 0, "unified"),
        ("lru", "block", "serial", 10_000, 59_583, 0, "unified"),
        ("lru", "block", "serial", 300_000, 105_592, 0, "unified"),
        ("lru", "token", "open-loop:30", 1_000, 12_657, 2_059, "unified"),
        ("lru", "token", "open-loop:30", 10_000, 62_258, 0, "unified"),
        ("lru", "token", "open-loop:30", 300_000, 105_592, 0, "unified"),
        ("lfu", "block", "serial", 1_000, 13_865, 0, "unified"),
        ("lfu", "block", "serial", 10_000, 37_966, 0, "unified"),
        ("fifo", "block", "serial", 1_000, 12_817, 0, "unified"),
        ("fifo", "block", "serial", 1_000, 12_821, 0, "radix"),
        ("fifo", "block", "serial", 10_000, 60_654, 0, "unified"),
        ("fifo", "block", "serial", 10_000, 60_772, 0, "radix"),
        ("lru", "block", "serial", 10_000, 59_583, 0, "radix"),
    ],
)
def test_the_conversation_trace_hits_as_in_sglang(
    shared, policy, mode, schedule, capacity, hit_blocks, early_frees, tree
):
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")
    engine = serve(trace, capacity, policy, mode, schedule, tree)
    assert (int(engine.hits.sum()), engine.early_frees) == (hit_blocks, early_frees)


def test_a_split_refreshes_the_part_that_did_not_match():
    #  0 1 2 3 | 4 5     one node each
    #  0 1               leaves 2 3 as a node of its own, used just now
    #  6 7               evicts 4 5, though nobody asked for 2 3 since
    assert hits("0 1 2 3", "4 5", "0 1", "6 7", "0 1 2 3", capacity=7) == [0, 0, 1, 0, 3]


def test_whole_nodes_go_and_free_more_than_was_asked():
    #  3 4 lacks one block; 0 1 2 is one node and goes with all three
    assert hits("0 1 2", "3 4", "0 1", capacity=4) == [0, 0, 0]


def test_a_parent_never_goes_before_its_child():
    #  0 -> 1, 2:  mru takes 2, the newest leaf, for 3 4; the root 0 is as new and stays
    assert hits("0 1", "0 2", "3 4", "0 1 5", capacity=4, policy="mru") == [0, 1, 0, 2]


def test_a_parent_becomes_a_leaf_when_its_last_child_goes():
    #  0 -> 1, 2:  3 4 5 6 needs the room of all three: 1, then 2, then 0
    engine = serve(toy("0 1", "0 2", "3 4 5 6"), 4)
    assert engine.evictions == 3 and engine.residents().tolist() == [3, 4, 5, 6]


def test_a_request_counts_once_and_two_requests_protect():
    #  0 1 came twice, 2 3 once, though each is inserted at admission and at its end: slru lets 2 3 go, lru 0 1
    prompts = "0 1", "0 1", "2 3", "4 5", "0 1 6"
    assert hits(*prompts, capacity=4, policy="slru") == [0, 1, 0, 0, 2]
    assert hits(*prompts, capacity=4) == [0, 1, 0, 0, 0]


def test_lfu_keeps_what_more_requests_passed_through():
    #  0 1 came three times and 2 3 twice, later: lfu lets 2 3 go
    prompts = "0 1", "0 1", "0 1", "2 3", "2 3", "4 5", "0 1 6"
    assert hits(*prompts, capacity=4, policy="lfu") == [0, 1, 1, 0, 1, 0, 2]
    assert hits(*prompts, capacity=4) == [0, 1, 1, 0, 1, 0, 0]


def test_a_split_makes_the_upper_part_new_in_the_older_tree():
    #  0 1 2 comes first, but 0 and 1 are split off after 3 4; fifo lets 2 go for 6 7
    #  for 8 goes 1, as old as 0 1 2; in the older tree 3 4 goes, since 1 was created by the split
    prompts = "0 1 2", "3 4", "0 1", "6 7", "8", "0 1 9"
    assert hits(*prompts, capacity=6, policy="fifo") == [0, 0, 1, 0, 0, 1]
    assert hits(*prompts, capacity=6, policy="fifo", tree="radix") == [0, 0, 1, 0, 0, 2]


def test_filo_lets_the_newest_go():
    #  2 3 came last and makes room for 4 5
    assert hits("0 1", "2 3", "4 5", "0 1", capacity=4, policy="filo") == [0, 0, 0, 1]


def test_a_lock_keeps_a_path():
    #  three live: 6 7 finds the paths of 2 3 and 4 5 locked, and takes 0 1, whose request ended just now
    assert hits("0 1", "2 3", "4 5", "6 7", "2 3", capacity=6, schedule="concurrency:3") == [0, 0, 0, 0, 1]


def test_where_all_is_locked_the_oldest_is_freed_early():
    engine = serve(toy("0 1", "2 3", "4 5", "0 1"), 4, schedule="concurrency:3")
    assert engine.hits.tolist() == [0, 0, 0, 0] and engine.early_frees == 2


def test_a_block_that_is_computed_again_is_kept_once():
    #  the second 0 1 may hit 0 only: 1 is computed again into the third block, which is free again at once
    engine = serve(toy("0 1", "0 1", "2"), 3)
    assert engine.residents().tolist() == [0, 1, 2] and engine.evictions == 0


def test_a_copy_needs_room_though_not_for_long():
    engine = serve(toy("0 1", "0 1"), 2)
    assert engine.hits.tolist() == [0, 1] and engine.evictions == 1


def test_a_partial_block_takes_room_until_its_request_ends():
    trace = prompts_of([3, 3, 3], [1, 1, 1], "0 1", "2 3", "0 4")
    assert serve(trace, 3, mode="token").evictions == 0  # 0, 2 and a tail
    assert serve(trace, 2, mode="token").hits.tolist() == [0, 0, 0]


def test_under_priority_a_prompt_outlives_its_output():
    #  r0's output is a node of priority 0, its prompt of priority 1: r2 takes the output, r3 the newer prompt of r1
    trace = prompts_of([2, 2, 2, 2, 3], [3, 1, 1, 1, 1], "0", "1", "2", "3", "0 4")
    assert serve(trace, 3, "priority", "grow").hits.tolist() == [0, 0, 0, 0, 1]
    assert serve(trace, 3, "lru", "grow").hits.tolist() == [0, 0, 0, 0, 0]


def test_low_priorities_go_first():
    trace = replace_columns(toy("0 1", "2 3", "4 5", "0 1"), extra={"priority": np.array([1, 0, None, 5])})
    trace = Trace.from_columns(trace, block_size=1)
    assert serve(trace, 4, "priority").hits.tolist() == [0, 0, 0, 1]
    assert serve(trace, 4).hits.tolist() == [0, 0, 0, 0]


def test_a_split_passes_the_priority_on():
    #  0 1 2 asks for 2 and 0 3 for 0: the node 0 that both share has 2 still
    #  6 7 8 9 takes 3, then what has 2, the oldest first: 1 2 and 4 5, not 0
    prompts = "0 1 2", "0 3", "4 5", "0 3", "6 7 8 9", "0 10"
    columns = replace_columns(toy(*prompts), extra={"priority": np.array([2, 0, 2, 0, 3, 0])})
    trace = Trace.from_columns(columns, block_size=1)
    assert serve(trace, 6, "priority").hits.tolist() == [0, 1, 0, 1, 0, 1]


modes = st.sampled_from(["block", "token", "grow"])
schedules = st.sampled_from(["serial", "concurrency:2", "concurrency:3", "open-loop:0.5", "open-loop:3"])


trees = st.sampled_from(["unified", "radix"])
kinds = {"mode": modes, "schedule": schedules, "policy": st.sampled_from(POLICIES), "tree": trees}


@given(traces(), st.integers(0, 12), st.data(), st.fixed_dictionaries(kinds))
def test_the_compiled_tree_equals_its_twin(trace, spare, data, kind):
    wanted = st.lists(st.integers(-1, 2), min_size=len(trace), max_size=len(trace))
    columns = replace_columns(trace, extra={"priority": np.array(data.draw(wanted))})
    require_equal_to_twin(Trace.from_columns(columns, block_size=trace.block_size), spare, kind)


@given(st.integers(0, 1 << 32), st.integers(1, 4), st.integers(0, 40), st.fixed_dictionaries(kinds))
def test_the_compiled_tree_equals_its_twin_on_conversations(seed, block_size, spare, kind):
    vector = made("", np.random.default_rng(seed), rows=40, block_size=block_size)
    require_equal_to_twin(vector_trace(vector), spare, kind)


def require_equal_to_twin(trace, spare, kind):
    """Hits of each request, evicted blocks and early frees, with so many blocks more than the longest request holds."""
    capacity = int(max(1, block_demand(trace, kind["mode"]).max_blocks.max())) + spare
    engine = serve(trace, capacity, **kind)
    found = engine.hits.tolist(), engine.evictions, engine.early_frees
    assert found == serve_slowly(trace, capacity, **kind)


@given(traces(), st.sampled_from([name for name in POLICIES if name != "priority"]))
def test_with_room_for_all_every_order_hits_all_but_a_last_block(trace, policy):
    limit = block_demand(trace, recompute_last=True).limit
    engine = serve(trace, trace.distinct + 1, policy)
    assert engine.hits.tolist() == np.minimum(unlimited_hits(trace), limit).tolist()
    assert engine.evictions == 0


@given(traces())
def test_blocks_in_the_end_are_resident_or_free(trace):
    capacity = int(max(1, block_demand(trace).max_blocks.max()))
    residents = serve(trace, capacity).residents()
    assert len(residents) <= capacity and len(set(residents.tolist())) == len(residents)


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_vectors_of_sglang_itself_are_met_by_both(vector):
    trace = vector_trace(vector)
    for case in vector["cases"]:
        how = case["capacity"], case["policy"], case["mode"], case["schedule"], case["tree"]
        engine = serve(trace, *how)
        assert (engine.hits.tolist(), engine.early_frees) == (case["hits"], case["early_frees"])
        slow_hits, _, slow_early = serve_slowly(trace, *how)
        assert (slow_hits, slow_early) == (case["hits"], case["early_frees"])


def test_an_order_that_sglang_lacks_is_refused():
    with pytest.raises(UsageError, match="SGLang has no eviction policy 'sieve'. Try lru, "):
        serve(toy("0"), 1, "sieve")


def test_priorities_that_are_not_there_are_asked_for():
    with pytest.raises(UsageError, match="The trace has no column 'priority'"):
        serve(toy("0"), 1, "priority")


@pytest.mark.parametrize("column", [np.array([0.5]), np.array(["high"]), np.array([None, "high"], dtype=object)[1:]])
def test_priorities_that_are_no_whole_numbers_are_refused(column):
    trace = Trace.from_columns(replace_columns(toy("0"), extra={"priority": column}), block_size=1)
    with pytest.raises(UsageError, match="must hold whole numbers"):
        serve(trace, 1, "priority")


def test_a_capacity_that_does_not_hold_a_request_is_refused():
    with pytest.raises(UsageError, match="is too small for request 1 alone"):
        serve(toy("0", "0 1 2"), 2)
