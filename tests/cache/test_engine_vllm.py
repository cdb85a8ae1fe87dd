"""vLLM's cache and nano-vllm's: golden counts of vLLM's own code, what they do by hand-drawn cases, and plain lists."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import read
from kvtrace._base.errors import UsageError
from kvtrace.cache import engines
from kvtrace.cache.demand import block_demand
from kvtrace.cache.engines import vllm
from kvtrace.cache.layout import Drafting
from kvtrace.cache.policies.base import Context
from kvtrace.trace import unlimited_hits
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.reference import free_queue
from tests.strategies import traces

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/engine_vllm.json").read_text())
KINDS = {  # name -> how the engine is built, and its twin
    "vllm": (vllm.build, {}, {}),
    "vllm before May 2026": (vllm.build, {"free_order": "append"}, {"unhashed_first": False}),
    "nano-vllm": (vllm.build_nano_vllm, {}, {"unhashed_first": False, "newest_copy": True}),
}


def serve(trace, capacity, mode="block", schedule="serial", kind="vllm", drafting=None):
    """The engine after the whole trace; a schedule is "serial", "concurrency:N" or "open-loop:MS_PER_TOKEN"."""
    demand, (build, options, _) = block_demand(trace, mode, True, drafting), KINDS[kind]
    engine = build(demand, Context(demand.blocks, capacity, trace, demand), **options)
    engine.schedule(schedule.partition(":")[0], **plan(trace, schedule))
    engine.advance(len(trace))
    engine.close()
    return engine


def plan(trace, schedule):
    name, _, figure = schedule.partition(":")
    if name == "open-loop":
        return {"end": trace.timestamp + float(figure) * trace.output_length}
    return {"concurrency": int(figure or 1)}


def serve_slowly(trace, capacity, mode, schedule, kind="vllm", drafting=None):
    """(hits, evicted blocks, early frees) of the twin."""
    if drafting is not None and drafting.needs_next:
        return free_queue.serve(**named_by_tokens(trace, capacity, mode, schedule, drafting.tokens))
    demand = block_demand(trace, mode, True, drafting)
    requests = [
        free_queue.Request(
            path=demand.ids[demand.start[row] : demand.start[row] + demand.full[row]].tolist(),
            limit=int(demand.limit[row]),
            tail=int(demand.tail[row]),
            grown=list(range(demand.fresh[row], demand.fresh[row] + demand.grown[row])),
            grown_tail=int(demand.grown_tail[row]),
        )
        for row in range(len(trace))
    ]
    when = {"arrival": trace.timestamp} | plan(trace, schedule) | KINDS[kind][2]
    return free_queue.serve(requests, capacity, demand.grows, drops_last=drafting is not None, **when)


def named_by_tokens(trace, capacity, mode, schedule, slots):
    """The arguments of the twin where the name of a block is all tokens up to the one after it.

    A token is the id of its block; those without one, and the first token of an output, are of the request alone.
    """
    size, requests, number = trace.block_size, [], {}
    for row in range(len(trace)):
        ids = trace.prompt(row).tolist()
        prompt = len(ids) * size if mode == "block" else int(trace.input_length[row])
        cached = prompt + max(int(trace.output_length[row]) - 1, 0) if mode == "grow" else prompt
        tokens = np.repeat(ids, size).tolist()[:prompt]
        tokens += [("own", row, place) for place in range(len(tokens), cached + 1)]
        path = [number.setdefault(tuple(tokens[: end + 1]), len(number)) for end in range(size, cached + 1, size)]
        full, held = prompt // size, [-(-(part + slots) // size) if part else 0 for part in (prompt, cached)]
        requests.append(
            free_queue.Request(
                path[:full], max(prompt - 1, 0) // size, held[0] - full, path[full:], held[1] - cached // size
            )
        )
    when = {"arrival": trace.timestamp} | plan(trace, schedule)
    return {"requests": requests, "capacity": capacity, "grows": mode == "grow", **when}


def hits(*prompts, capacity, schedule="serial"):
    return serve(toy(*prompts), capacity, schedule=schedule).hits.tolist()


def trace_of(block_size, ids, input_length, output_length, timestamp=None):
    """A trace with true lengths; each prompt's ids are a string or a list."""
    paths = [[int(word) for word in path.split()] if isinstance(path, str) else path for path in ids]
    columns = Columns(
        np.array(range(len(paths)) if timestamp is None else timestamp, dtype=float),
        np.array(input_length), np.array(output_length),
        np.array([block for path in paths for block in path]), np.cumsum([0, *map(len, paths)]),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=block_size)


@pytest.mark.parametrize(
    ("mode", "schedule", "capacity", "hit_blocks", "early_frees"),
    [
        ("block", "serial", 1_000, 12_837, 0),
        ("block", "serial", 10_000, 60_971, 0),
        ("block", "serial", 300_000, 105_592, 0),
        ("token", "serial", 1_000, 12_988, 0),
        ("token", "serial", 10_000, 62_001, 0),
        ("token", "serial", 300_000, 105_592, 0),
        ("grow", "serial", 1_000, 12_878, 0),
        ("grow", "serial", 10_000, 61_238, 0),
        ("grow", "serial", 300_000, 105_592, 0),
        ("token", "open-loop:30", 1_000, 12_657, 2_059),
        ("token", "open-loop:30", 10_000, 62_785, 0),
        ("token", "open-loop:30", 300_000, 105_592, 0),
        ("token", "open-loop:100", 2_000, 14_235, 6_083),
        ("grow", "serial", 5_000, 32_849, 0),
        ("grow", "open-loop:30", 1_000, 12_595, 2_292),
        ("grow", "concurrency:16", 1_000, 12_833, 2),
    ],
)
def test_the_conversation_trace_hits_as_in_vllm(shared, mode, schedule, capacity, hit_blocks, early_frees):
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")
    engine = serve(trace, capacity, mode, schedule)
    assert (int(engine.hits.sum()), engine.early_frees) == (hit_blocks, early_frees)


@pytest.mark.parametrize(
    ("mode", "schedule", "capacity", "hit_blocks", "early_frees"),
    [
        ("grow", "serial", 1_000, 12_817, 0),
        ("grow", "serial", 5_000, 30_953, 0),
        ("token", "open-loop:30", 1_000, 12_656, 2_059),
        ("grow", "open-loop:30", 5_000, 30_706, 0),
        ("grow", "concurrency:16", 1_000, 12_817, 2),
    ],
)
def test_the_conversation_trace_hits_as_in_vllm_0_20_2(shared, mode, schedule, capacity, hit_blocks, early_frees):
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")
    engine = serve(trace, capacity, mode, schedule, "vllm before May 2026")
    assert (int(engine.hits.sum()), engine.early_frees) == (hit_blocks, early_frees)


@pytest.mark.parametrize(("capacity", "hit_blocks"), [(1_000, 12_837), (10_000, 60_971), (300_000, 105_592)])
def test_nano_vllm_hits_as_vllm_with_one_request_at_a_time(shared, capacity, hit_blocks):
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")
    assert serve(trace, capacity, kind="nano-vllm").hits.sum() == hit_blocks


def test_the_deepest_block_goes_first():
    #  0 1 2 is freed as 2 1 0, behind the one block that was never used: 3 4 takes that one and 2
    assert hits("0 1 2", "3 4", "0 1 5", capacity=4) == [0, 0, 2]


def test_the_last_token_is_always_computed():
    assert hits("0", "0", capacity=2) == [0, 0]
    whole = trace_of(2, ["0 1", "0 1"], [4, 4], [1, 1])
    partial = trace_of(2, ["0 1", "0 2"], [3, 3], [1, 1])
    assert serve(whole, 4, "token").hits.tolist() == serve(partial, 4, "token").hits.tolist() == [0, 1]


def test_a_block_that_is_computed_again_has_two_copies():
    #  0 1 | 0 1    1 lies twice, in the second and the third of four blocks
    #  2 3          takes the fourth, never used, and the first copy of 1; the second is found
    prompts = "0 1", "0 1", "2 3", "0 1 4"
    assert hits(*prompts, capacity=4) == [0, 1, 0, 2]
    assert hits(*prompts, capacity=3) == [0, 1, 0, 1]  # both copies are taken


def test_vllm_finds_the_first_copy_and_nano_vllm_the_newest():
    #  r0 holds 0 1 all the time; r1 makes a second copy of 1, which r2 takes once r1 has ended
    #  vLLM finds r0's copy again; nano-vllm had forgotten that one when the second was registered
    trace = trace_of(1, ["0 1", "0 1", "2 3", "0 1 4"], [2, 2, 2, 3], [10, 1, 1, 1])
    assert serve(trace, 4, schedule="open-loop:1").hits.tolist() == [0, 1, 0, 2]
    assert serve(trace, 4, schedule="open-loop:1", kind="nano-vllm").hits.tolist() == [0, 1, 0, 1]


def test_a_freed_block_without_a_hash_is_taken_next():
    #  three prompts of one token each: one block serves them all, unless it goes to the queue's end each time;
    #  then they take the two blocks that were never used, and 0
    trace = trace_of(2, ["0", "1", "2", "3", "0 4"], [2, 1, 1, 1, 3], [1] * 5)
    assert serve(trace, 3, "token").hits.tolist() == [0, 0, 0, 0, 1]
    for kind in ("vllm before May 2026", "nano-vllm"):
        assert serve(trace, 3, "token", kind=kind).hits.tolist() == [0, 0, 0, 0, 0]


def test_idle_blocks_that_are_hit_need_their_place_too():
    #  2 3 is live, 0 1 is free: 0 1 4 needs one new block, and both free ones are its own: 2 3 must end
    engine = serve(toy("0 1", "2 3", "0 1 4"), 4, schedule="concurrency:2")
    assert engine.hits.tolist() == [0, 0, 2] and engine.early_frees == 1


def test_blocks_that_are_hit_while_live_need_no_place():
    #  0 1 is held by two; the third block is the second request's own
    engine = serve(toy("0 1", "0 1 2"), 3, schedule="concurrency:2")
    assert engine.hits.tolist() == [0, 2] and engine.early_frees == 0


def test_where_all_is_held_the_oldest_is_freed_early():
    engine = serve(toy("0 1", "2 3", "4 5", "0 1"), 4, schedule="concurrency:3")
    assert engine.hits.tolist() == [0, 0, 0, 0] and engine.early_frees == 2


def test_an_early_free_may_bring_hits():
    #  2 frees 0 1, of which it takes 1: the lookup comes again, and 0 3 finds 0
    engine = serve(toy("0 1", "2", "0 3"), 2, schedule="concurrency:3")
    assert engine.hits.tolist() == [0, 0, 1] and engine.early_frees == 2


def test_an_output_takes_room_and_nobody_hits_it():
    #  blocks of two; three tokens, then three more are cached: the tail fills up and one block more
    #  2 3 takes those two, the deepest; then 0 4 takes 3
    trace = trace_of(2, ["0 1", "2 3", "0 4"], [3, 4, 3], [4, 1, 1])
    engine = serve(trace, 3, "grow")
    assert engine.hits.tolist() == [0, 0, 1] and engine.evictions == 3
    assert serve(trace, 3, "token").evictions == 1  # 2 3 takes what was never used and the tail, which had no hash


def test_a_tail_that_does_not_fill_up_has_no_hash():
    #  0 is one token, and one more is cached: half a block, the next to be taken, at no eviction
    trace = trace_of(4, ["0", "1", "2 3", "1 4"], [1, 4, 5, 5], [2, 1, 1, 1])
    assert serve(trace, 3, "grow").evictions == 0
    assert serve(trace, 3, "grow").hits.tolist() == [0, 0, 0, 1]


def test_growth_without_room_frees_the_oldest():
    #  0 1 lives, 2 is admitted beside it; its output wants two blocks more and one is free
    trace = trace_of(2, ["0 1", "2"], [4, 2], [1, 5])
    engine = serve(trace, 4, "grow", "concurrency:2")
    assert engine.hits.tolist() == [0, 0] and engine.early_frees == 1
    assert serve(trace, 5, "grow", "concurrency:2").early_frees == 0


kinds = st.sampled_from(list(KINDS))
modes = st.sampled_from(["block", "token", "grow"])
schedules = st.sampled_from(["serial", "concurrency:2", "concurrency:3", "open-loop:0.5", "open-loop:3"])


@given(traces(), modes, schedules, kinds, st.integers(0, 12))
def test_the_compiled_queue_equals_its_twin(trace, mode, schedule, kind, spare):
    capacity = int(max(1, block_demand(trace, mode).max_blocks.max())) + spare
    engine = serve(trace, capacity, mode, schedule, kind)
    found = engine.hits.tolist(), engine.evictions, engine.early_frees
    assert found == serve_slowly(trace, capacity, mode, schedule, kind)


@given(traces(), modes, schedules, st.sampled_from(["lookahead", "drop"]), st.integers(0, 9), st.integers(0, 12))
def test_with_a_drafter_the_compiled_queue_equals_its_twin(trace, mode, schedule, rule, tokens, spare):
    drafting = Drafting(rule, tokens)
    capacity = int(max(1, block_demand(trace, mode, True, drafting).max_blocks.max())) + spare
    engine = serve(trace, capacity, mode, schedule, drafting=drafting)
    found = engine.hits.tolist(), engine.evictions, engine.early_frees
    assert found == serve_slowly(trace, capacity, mode, schedule, drafting=drafting)


@given(traces(), modes, schedules, kinds)
def test_with_room_for_all_nothing_goes_and_all_but_a_last_block_is_hit(trace, mode, schedule, kind):
    demand = block_demand(trace, mode, recompute_last=True)
    engine = serve(trace, max(1, int(demand.max_blocks.sum())), mode, schedule, kind)
    assert engine.hits.tolist() == np.minimum(unlimited_hits(trace), demand.limit).tolist()
    assert engine.evictions == engine.early_frees == 0


@given(traces(), schedules, st.integers(0, 12))
def test_where_every_block_has_a_hash_the_free_order_is_one(trace, schedule, spare):
    capacity = int(max(1, block_demand(trace).max_blocks.max())) + spare
    new, old = (serve(trace, capacity, "block", schedule, kind) for kind in ("vllm", "vllm before May 2026"))
    assert (new.hits == old.hits).all() and new.evictions == old.evictions


def vector_trace(vector):
    names = ("block_size", "prompts", "input_length", "output_length", "timestamp")
    return trace_of(*(vector[name] for name in names))


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_vectors_of_vllm_itself_are_met_by_both(vector):
    trace = vector_trace(vector)
    for case in vector["cases"]:
        how = case["capacity"], case["mode"], case["schedule"]
        engine = serve(trace, *how)
        assert (engine.hits.tolist(), engine.early_frees) == (case["hits"], case["early_frees"])
        slow_hits, _, slow_early = serve_slowly(trace, *how)
        assert (slow_hits, slow_early) == (case["hits"], case["early_frees"])


def test_a_free_order_that_vllm_lacks_is_refused():
    demand = block_demand(toy("0"))
    with pytest.raises(UsageError, match="'random' is not a value of --free-order. Try prepend or append"):
        engines.build("vllm", demand, Context(demand.blocks, 1), "lru", free_order="random")


def test_a_capacity_that_does_not_hold_a_request_is_refused():
    with pytest.raises(UsageError, match="is too small for request 1 alone"):
        serve(toy("0", "0 1 2"), 2)
