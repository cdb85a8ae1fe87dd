"""LMCache's store: what its own code says of small traces, what it does by hand-drawn cases, a plain list of keys."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import read
from kvtrace._base.errors import UsageError
from kvtrace.cache.core.pool import Chunks, Pool, PythonPolicy
from kvtrace.cache.demand import block_demand, parse_schedule
from kvtrace.cache.engines import lmcache
from kvtrace.cache.policies import make
from kvtrace.cache.policies.base import Context
from kvtrace.trace import unlimited_hits
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.conversion import fold
from kvtrace.trace.trace import Trace
from tests.reference import chunks as slow
from tests.reference import pool as slow_pool
from tests.reference.policies import mru
from tests.strategies import traces

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/engine_lmcache.json").read_text())
POLICIES = ("lru", "lfu", "fifo", "mru")


def run(engine, trace, schedule="serial"):
    plan = parse_schedule(schedule)
    engine.schedule(plan.kind, int(plan.value), plan.ends(trace))
    engine.advance(len(trace))
    engine.close()
    return engine


def serve(trace, capacity, policy="lru", watermark="off", mode="block", schedule="serial"):
    """The engine after the whole trace."""
    demand = block_demand(trace, mode)
    context = Context(demand.blocks, capacity, trace, demand)
    return run(lmcache.build(demand, context, policy, watermark=watermark), trace, schedule)


def hits(*prompts, capacity, gap_ms=1, **options):
    """Hit chunks: a block of the trace is one."""
    return serve(toy(*prompts, block_size=256, gap_ms=gap_ms), capacity, **options).hits.tolist()


def chunk_paths(trace, factor, mode="block"):
    """Each request's chunks, by their last blocks."""
    full = block_demand(trace, mode).full
    return [trace.prompt(row)[: full[row]][factor - 1 :: factor].tolist() for row in range(len(trace))]


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_a_new_root_goes_before_its_children():
    #  0 1 2   are put root first, so 0 is the least recent
    #  3       takes its place, and nobody finds 1 2
    assert hits("0 1 2", "3", "0 1 2", capacity=3) == [0, 0, 0]


def test_a_hit_makes_the_root_the_most_recent():
    #  0 1 2 is touched tail first: 3 takes 2
    assert hits("0 1 2", "0 1 2", "3", "0 1 2", capacity=3) == [0, 3, 0, 2]


def test_a_prompt_can_be_hit_to_its_last_token():
    assert hits("0", "0", capacity=1) == [0, 1]


def test_a_chunk_behind_a_gap_is_stored_twice_for_a_moment():
    #  3 takes the free place and 4 that of 0; 0 1 2 is no hit and takes three places, those of 1, 2 and 3
    engine = serve(toy("0 1 2", "3 4", "0 1 2", block_size=256), 4)
    assert engine.hits.tolist() == [0, 0, 0] and engine.residents().tolist() == [0, 1, 2, 4]
    assert engine.evictions == 4  # 1 and 2 went, though they were wanted


def test_what_exceeds_the_store_is_not_stored():
    #  five chunks in a store of three: 0 1 2 are stored, 3 4 are not; then 0 1 2 are hit, and 2 1 go for 3 4
    engine = serve(toy("0 1 2 3 4", "0 1 2 3 4", "0 1", block_size=256), 3)
    assert engine.hits.tolist() == [0, 3, 1]


def test_what_was_just_hit_may_go_for_the_rest_of_the_prompt():
    #  0 1 fills a store of two; 0 1 2 hits both, and 2 takes the place of 1, the less recent
    engine = serve(toy("0 1", "0 1 2", block_size=256), 2)
    assert engine.hits.tolist() == [0, 2] and engine.residents().tolist() == [0, 2]


def test_the_orders_differ():
    #  0 1 2 come twice, 3 once, in a store of four; then 4 needs a place
    #  lru takes 2, the least recent; fifo 0, the oldest; lfu 3, used once; mru 3, the newest
    left = {
        policy: serve(toy("0", "1", "2", "2", "1", "0", "3", "4", block_size=256), 4, policy).residents().tolist()
        for policy in POLICIES
    }
    assert left == {"lru": [0, 1, 3, 4], "fifo": [1, 2, 3, 4], "lfu": [0, 1, 2, 4], "mru": [0, 1, 2, 4]}


def test_mru_lets_a_hit_root_go_first():
    #  0 1 is hit; 2 then takes 0, which was touched last, and 1 can't be found
    assert hits("0 1", "0 1", "2", "0 1", capacity=2, policy="mru") == [0, 2, 0, 0]


def test_a_chunk_is_a_whole_group_of_blocks():
    #  blocks of 128: two make a chunk, and the third of a prompt is in none
    found = serve(toy("0 1 2", "0 1 2", "0 1 2 3", "0 1 2 3", "0 4", block_size=128), 8)
    assert found.hits.tolist() == [0, 2, 2, 4, 0]


def test_a_partial_chunk_is_not_stored():
    columns = Columns(np.arange(2.0), np.array([300, 300]), np.ones(2), np.array([0, 1, 0, 1]), np.array([0, 2, 4]))
    trace = Trace.from_columns(columns, block_size=256)
    assert serve(trace, 4, mode="token").hits.tolist() == [0, 1]
    assert serve(trace, 4, mode="block").hits.tolist() == [0, 2]  # there each block counts as a full one


def test_outputs_are_not_stored():
    trace = toy("0 1", "0 1", block_size=256)
    grown = Trace(trace.timestamp, trace.input_length, np.full(2, 999), trace.hash_ids, trace.offsets, block_size=256)
    assert serve(grown, 2, mode="grow").hits.tolist() == [0, 2]


def test_live_requests_hold_nothing():
    assert hits("0 1", "2 3", "4 5", capacity=2, schedule="concurrency:3") == [0, 0, 0]
    assert serve(toy("0 1", "2 3", block_size=256), 2, schedule="concurrency:2").early_frees == 0


# -- the watermark ---------------------------------------------------------------------------------------------------


def test_the_clock_evicts_a_fifth_at_four_fifths():
    #  0 ... 7 fill eight of ten places; a second later one of them goes, the tail, and then too little is in use
    prompts = "0 1 2 3 4 5 6 7", "0 1 2 3 4 5 6 7"
    assert hits(*prompts, capacity=10, watermark="on", gap_ms=999) == [0, 8]
    assert hits(*prompts, capacity=10, watermark="on", gap_ms=1000) == [0, 7]
    assert hits(*prompts, capacity=10, watermark="on", gap_ms=9000) == [0, 7]
    assert hits(*prompts, capacity=11, watermark="on", gap_ms=1000) == [0, 8]


def test_each_second_of_a_pause_evicts_while_four_fifths_are_in_use():
    #  ten of ten: 10 -> 8 -> 7
    engine = serve(toy("0 1 2 3 4 5 6 7 8 9", "10", block_size=256, gap_ms=5000), 10, watermark="on")
    assert engine.residents().tolist() == [0, 1, 2, 3, 4, 5, 6, 10] and engine.evictions == 3


def test_what_does_not_fit_is_not_stored_at_all():
    assert hits("0 1 2", "3 4", "0 1 2", "3 4", capacity=4, watermark="on") == [0, 0, 3, 0]
    assert hits("0 1 2", "3 4", "0 1 2", "3 4", capacity=5, watermark="on") == [0, 0, 3, 2]


def test_the_end_of_a_request_is_a_use():
    #  0 lives until after 1 has come and gone: it is the more recent, and the clock takes 1
    trace = toy("0", "1", "2", block_size=256, gap_ms=1000)
    outputs = np.array([3, 1, 1])
    trace = Trace(trace.timestamp, trace.input_length, outputs, trace.hash_ids, trace.offsets, block_size=256)
    assert serve(trace, 2, watermark="on", schedule="open-loop:600").residents().tolist() == [0, 2]
    assert serve(trace, 2, watermark="on").residents().tolist() == [1, 2]


# -- laws ------------------------------------------------------------------------------------------------------------

schedules = st.sampled_from(["serial", "concurrency:2", "concurrency:3", "open-loop:0.5", "open-loop:700"])
orders = st.sampled_from([*((policy, False) for policy in POLICIES), ("lru", True)])


@given(traces(outputs=False), orders, schedules, st.integers(1, 3), st.integers(1, 9), st.sampled_from([1, 300]))
def test_the_compiled_store_equals_its_twin(trace, order, schedule, factor, capacity, slower):
    policy, watermark = order
    trace = Trace(
        trace.timestamp * slower, trace.input_length, trace.output_length, trace.hash_ids, trace.offsets,
        block_size=trace.block_size,
    )  # fmt: skip
    demand, plan = block_demand(trace), parse_schedule(schedule)
    context = Context(demand.blocks, capacity * factor, trace, demand)
    engine = run(Chunks(context, demand, make(policy, context), factor, watermark), trace, schedule)
    wanted, evicted = slow.serve(
        chunk_paths(trace, factor), trace.timestamp.tolist(), capacity, policy, watermark, plan.kind, int(plan.value),
        plan.ends(trace),
    )  # fmt: skip
    assert (engine.hits.tolist(), engine.evictions) == ([hit * factor for hit in wanted], evicted * factor)


@given(st.integers(0, 1 << 32), st.integers(1, 3), st.integers(3, 40), orders)
def test_the_compiled_store_equals_its_twin_on_conversations(seed, factor, capacity, order):
    vector = made("", np.random.default_rng(seed), rows=60)
    trace, (policy, watermark) = vector_trace(vector), order
    demand = block_demand(trace)
    context = Context(demand.blocks, capacity * factor, trace, demand)
    engine = run(Chunks(context, demand, make(policy, context), factor, watermark), trace)
    wanted, evicted = slow.serve(chunk_paths(trace, factor), trace.timestamp.tolist(), capacity, policy, watermark)
    assert (engine.hits.tolist(), engine.evictions) == ([hit * factor for hit in wanted], evicted * factor)


@given(traces(), st.sampled_from(POLICIES), st.integers(1, 6), st.sampled_from(["block", "token"]))
def test_chunks_are_the_blocks_of_the_folded_trace(trace, policy, capacity, mode):
    trace = Trace(
        trace.timestamp, trace.input_length // trace.block_size * 64, trace.output_length, *full_blocks(trace),
        block_size=64,
    )  # fmt: skip
    folded = fold(trace, 4)
    demand = block_demand(
        folded, "token"
    )  # the folded trace has partial blocks at its prompts' ends, which make no chunk
    context = Context(demand.blocks, capacity, folded, demand)
    direct = serve(trace, 4 * capacity, policy, mode=mode)
    assert direct.hits.tolist() == (4 * run(lmcache.build(demand, context, policy), folded).hits).tolist()


def full_blocks(trace):
    """hash_ids and offsets of a trace without its partial blocks."""
    prompts = [trace.prompt(row)[: trace.full_blocks[row]].tolist() for row in range(len(trace))]
    number: dict = {}
    ids = [number.setdefault(block, len(number)) for prompt in prompts for block in prompt]
    return np.array(ids, dtype=np.int64), np.cumsum([0, *map(len, prompts)])


@given(traces(), orders, schedules)
def test_with_room_for_all_every_chunk_seen_before_hits(trace, order, schedule):
    demand, (policy, watermark) = block_demand(trace), order
    context = Context(demand.blocks, 2 * max(1, trace.distinct), trace, demand)
    engine = run(Chunks(context, demand, make(policy, context), 1, watermark), trace, schedule)
    assert engine.hits.tolist() == unlimited_hits(trace).tolist() and engine.evictions == 0


@given(traces(), st.sampled_from(POLICIES), st.integers(1, 6), schedules)
def test_without_the_watermark_the_schedule_changes_nothing(trace, policy, capacity, schedule):
    demand = block_demand(trace)
    found = []
    for one in ("serial", schedule):
        context = Context(demand.blocks, capacity, trace, demand)
        found.append(run(Chunks(context, demand, make(policy, context)), trace, one).hits.tolist())
    assert found[0] == found[1]


@given(traces().filter(lambda trace: len(trace.hash_ids)), schedules, st.booleans(), st.integers(0, 8))
def test_mru_in_the_founding_cache_equals_its_twin(trace, schedule, leaf_first, spare):
    demand, plan = block_demand(trace), parse_schedule(schedule)
    capacity = int(demand.max_blocks.max()) + spare
    cache = slow_pool.Pool(capacity, mru.MRU(), parent=demand.parent.tolist() if leaf_first else None)
    wanted = slow_pool.simulate(demand, cache, plan.kind, int(plan.value), plan.ends(trace))
    context = Context(demand.blocks, capacity, trace, demand)
    engine = run(Pool(context, demand, make("mru", context), leaf_first=leaf_first), trace, schedule)
    assert ((engine.hits.tolist(), engine.early_frees), engine.evictions) == (wanted, cache.evictions)


# -- LMCache's own code ----------------------------------------------------------------------------------------------


def drawn(name, prompts, gap_ms=1):
    paths = [[int(word) for word in prompt.split()] for prompt in prompts]
    return {"name": name, "prompts": paths, "timestamp": [row * gap_ms for row in range(len(paths))]}


def made(name, rng, rows):
    """A vector of conversations: turns repeat what was said, questions begin alike."""
    number, said, vector = {}, [()], drawn(name, [])
    for _ in range(rows):
        path = said[rng.integers(len(said))][: rng.integers(1, 12)]
        path += tuple(rng.integers(0, 3, size=rng.integers(0, 5)).tolist())
        path = path or (0,)
        said.append(path)
        vector["prompts"].append([number.setdefault(path[: i + 1], len(number)) for i in range(len(path))])
        vector["timestamp"].append(vector["timestamp"][-1] + int(rng.integers(0, 900)) if vector["timestamp"] else 0)
    return vector


def vector_trace(vector):
    """Blocks of 256 tokens: each is a chunk."""
    paths = vector["prompts"]
    lengths = np.array([len(path) for path in paths])
    ids = np.array([block for path in paths for block in path])
    columns = Columns(
        np.array(vector["timestamp"], dtype=float), lengths * 256, np.ones(len(paths)), ids, np.cumsum([0, *lengths])
    )
    return Trace.from_columns(columns, block_size=256)


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_vectors_of_lmcache_itself_are_met_by_both(vector):
    trace = vector_trace(vector)
    for case in vector["cases"]:
        policy, watermark, capacity = (case[name] for name in ("policy", "watermark", "capacity"))
        assert serve(trace, capacity, policy, watermark).hits.tolist() == case["hits"], case
        plain, _ = slow.serve(vector["prompts"], vector["timestamp"], capacity, policy, watermark == "on")
        assert plain == case["hits"]


def test_the_vectors_are_of_the_version_that_the_header_names():
    assert f"LMCache {VECTORS['version']}." in lmcache.__doc__


def test_counts_on_the_conversation_trace(shared):
    """Blocks of 512 tokens: a chunk is one."""
    trace = read(shared / "data/mooncake/conversation_trace.jsonl")
    found = {policy: [int(serve(trace, size, policy).hits.sum()) for size in (1000, 10000)] for policy in POLICIES}
    assert found == GOLDEN
    assert int(serve(trace, 300_000).hits.sum()) == 105_710
    assert int(serve(trace, 10_000, watermark="on").hits.sum()) == GOLDEN_WATERMARK


# LMCache's own code was asked for lru and lfu at 1,000, for fifo, mru and the watermark at 10,000: it says the same.
GOLDEN = {"lru": [12831, 60921], "lfu": [13871, 38013], "fifo": [12509, 52323], "mru": [6439, 10678]}
GOLDEN_WATERMARK = 47480

# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "block_size, capacity, policy, watermark, said",
    [
        (256, 1, "lfu", "on", "--watermark on supports --policy lru, not lfu"),
        (48, 9, "lru", "off", "block size of 48 does not divide"),
        (64, 3, "lru", "off", "capacity of 3 blocks does not hold a chunk of 4"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(block_size, capacity, policy, watermark, said):
    with pytest.raises(UsageError, match=said):
        serve(toy("0", block_size=block_size), capacity, policy, watermark)


def test_a_victim_is_checked():
    demand = block_demand(toy("0", "1", "2", block_size=256))
    context = Context(demand.blocks, 1, demand.trace, demand)
    engine = Chunks(context, demand, PythonPolicy(context, Stubborn()))
    with pytest.raises(UsageError, match="victim is a chunk that is not resident"):
        engine.advance(3)


class Stubborn(slow_pool.Lru):
    """Names block 0 for ever."""

    def victim(self):
        return 0

    def remove(self, block):
        pass
