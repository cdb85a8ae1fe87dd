"""FIFO, LFU, SIEVE, S3-FIFO, ARC: each equals its plain twin, and does what its paper says on cases drawn by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.cache.core.pool import Pool, PythonPolicy
from kvtrace.cache.demand import block_demand
from kvtrace.cache.policies.adaptive import ARC, S3FIFO
from kvtrace.cache.policies.base import Context
from kvtrace.cache.policies.classic import FIFO, LFU, Sieve
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.reference.policies import arc, fifo, lfu, s3fifo, sieve
from tests.strategies import traces

PAIRS = {
    "fifo": (FIFO, fifo.FIFO), "lfu": (LFU, lfu.LFU), "sieve": (Sieve, sieve.Sieve),
    "s3fifo": (S3FIFO, s3fifo.S3FIFO), "arc": (ARC, arc.ARC),
}  # fmt: skip
each_pair = pytest.mark.parametrize("compiled, slow", PAIRS.values(), ids=PAIRS.keys())


def singles(blocks):
    """A trace of one-block requests: these blocks, numbered anew."""
    numbers: dict = {}
    ids = np.array([numbers.setdefault(block, len(numbers)) for block in blocks], dtype=np.int64)
    one = np.ones(len(ids), dtype=np.int64)
    columns = Columns(np.arange(len(ids)) * 10.0, one, 0 * one, ids, np.arange(len(ids) + 1))
    return Trace.from_columns(columns, block_size=1)


def served(trace, make, capacity, mode="block", total=True, leaf_first=False, schedule=("serial", 1), slow_down=1.0):
    """Hits of each request, and the engine, or the message where the capacity does not hold a request."""
    demand = block_demand(trace, mode)
    context = Context(demand.blocks, capacity, trace, demand)
    engine = Pool(context, demand, make(context), total=total, leaf_first=leaf_first)
    engine.schedule(*schedule, trace.timestamp + slow_down * trace.output_length)
    try:
        engine.advance(len(trace))
    except UsageError as error:
        return str(error), engine
    engine.close()
    return engine.hits.tolist(), engine


def one_each(blocks):
    """A prompt a block."""
    return blocks.split()


def hits(*prompts, capacity, policy, **how):
    return served(toy(*prompts), policy, capacity, **how)[0]


@each_pair
@given(
    trace=traces(), capacity=st.integers(1, 24), mode=st.sampled_from(["block", "token", "grow"]), total=st.booleans(),
    leaf_first=st.booleans(),
    schedule=st.sampled_from([("serial", 1), ("concurrency", 2), ("concurrency", 3), ("open-loop", 1)]),
)  # fmt: skip
def test_a_compiled_order_equals_its_twin(compiled, slow, trace, capacity, mode, total, leaf_first, schedule):
    found, engine = served(trace, compiled, capacity, mode, total, leaf_first, schedule)
    wanted, twin = served(
        trace, lambda context: PythonPolicy(context, slow(context)), capacity, mode, total,
        leaf_first and not engine.policy.keeps_parents, schedule,
    )  # fmt: skip
    assert found == wanted
    assert (engine.evictions, engine.early_frees) == (twin.evictions, twin.early_frees)
    assert engine.residents().tolist() == twin.residents().tolist()


@each_pair
@given(blocks=st.lists(st.integers(0, 30), min_size=1, max_size=300), capacity=st.integers(1, 25))
def test_a_compiled_order_equals_its_twin_on_one_block_requests(compiled, slow, blocks, capacity):
    trace = singles(blocks)
    found, engine = served(trace, compiled, capacity)
    wanted, twin = served(trace, lambda context: PythonPolicy(context, slow(context)), capacity)
    assert found == wanted and engine.residents().tolist() == twin.residents().tolist()


@each_pair
def test_a_line_that_is_closed_up_and_grown_keeps_its_order(compiled, slow):
    blocks = np.random.default_rng(7).zipf(1.2, 12_000) % 4_000
    for capacity in (300, 2_100):  # the log of arrivals begins with 1,024 places
        trace = singles(blocks.tolist())
        found, engine = served(trace, compiled, capacity)
        wanted, twin = served(trace, lambda context: PythonPolicy(context, slow(context)), capacity)
        assert found == wanted and engine.evictions == twin.evictions > 100


class LFUByUse(lfu.LFU):
    """LFU's twin for a leaf-first pool, where `release` may come late: recent is what was wanted last."""

    def __init__(self, context):
        super().__init__(context)
        self.context, self.wanted, self.clock = context, {}, 0

    def insert(self, block):
        super().insert(block)
        self.clock += 1
        self.wanted[block] = (self.context.request, -self.clock)

    def use(self, block):
        super().use(block)
        self.clock += 1
        self.wanted[block] = (self.context.request, -self.clock)

    def release(self, block):
        self.released[block] = self.wanted[block]

    def remove(self, block):
        super().remove(block)
        del self.wanted[block]


@given(traces(), st.integers(1, 24), st.booleans())
def test_lfu_in_a_flat_pool_is_lfu_leaf_first(trace, capacity, total):
    flat = served(trace, LFU, capacity, total=total)
    leaf_first = served(trace, lambda context: PythonPolicy(context, LFUByUse(context)), capacity, "block", total, True)
    assert flat[0] == leaf_first[0]
    assert flat[1].residents().tolist() == leaf_first[1].residents().tolist()


@given(
    traces(), st.integers(1, 24), st.sampled_from([("serial", 1), ("concurrency", 3), ("open-loop", 1)]), st.booleans()
)
def test_under_lfu_no_block_outlives_its_parent(trace, capacity, schedule, total):
    demand = block_demand(trace, "block")
    context = Context(demand.blocks, capacity, trace, demand)
    engine = Pool(context, demand, LFU(context), total=total)
    engine.schedule(*schedule, trace.timestamp + trace.output_length)
    longest = demand.full.max(initial=0)
    for _ in range(len(trace) if longest <= capacity or not total else 0):
        engine.advance(1)
        resident = set(engine.residents().tolist())
        assert {demand.parent[block] for block in resident} <= resident | {-1}


@each_pair
def test_what_is_fetched_ahead_changes_nothing(compiled, slow):
    trace = singles((np.random.default_rng(7).zipf(1.2, 5_000) % 2_000).tolist())
    demand = block_demand(trace, "block")
    found = []
    for blocks in (demand.blocks, 1 << 18):  # only where there are many blocks is their state fetched ahead
        context = Context(blocks, 300, trace, demand)
        engine = Pool(context, demand, compiled(context))
        engine.advance(len(trace))
        engine.close()
        found.append((engine.hits.tolist(), engine.residents().tolist()))
    assert found[0] == found[1]


@each_pair
def test_a_cache_of_one_block_holds_the_last_one_wanted(compiled, slow):
    assert hits("0", "0", "1", "0", "0", capacity=1, policy=compiled) == [0, 1, 0, 0, 1]


@each_pair
def test_room_for_all_evicts_nothing(compiled, slow):
    found, engine = served(toy("0 1 2", "0 3", "0 1 2 4", "5"), compiled, 6)
    assert found == [0, 1, 3, 0] and engine.evictions == 0


def test_fifo_forgets_the_root_first_and_leaf_first_keeps_it():
    #  0 1 2    fills a cache of three
    #  3        evicts the oldest: 0 in a flat pool, 2 where a parent may not go
    assert hits("0 1 2", "3", "0 1", capacity=3, policy=FIFO) == [0, 0, 0]
    assert hits("0 1 2", "3", "0 1", capacity=3, policy=FIFO, leaf_first=True) == [0, 0, 2]


def test_fifo_takes_no_notice_of_hits_and_a_pinned_block_keeps_its_place():
    #  0, 1, 0 fill a cache of two; 2 evicts 0 though it was hit last
    assert hits("0", "1", "0", "2", "0", capacity=2, policy=FIFO) == [0, 0, 1, 0, 0]
    #  three places, two requests live: 0 is wanted and pinned when 3 comes, which evicts 1;
    #  when 4 comes 0 is free and the oldest still: it goes, and 2 stays
    found = hits(*one_each("0 1 2 0 3 4 2"), capacity=3, policy=FIFO, schedule=("concurrency", 2))
    assert found == [0, 0, 0, 1, 0, 0, 1]


def test_lfu_counts_what_was_wanted_while_pinned_and_forgets_counts_with_the_block():
    #  0 0 0 | 1 | 2 | 0 1:  0 is used three times; 2 evicts 1, used once; 1 comes back with a count of one
    assert hits("0", "0", "0", "1", "2", "0", "1", capacity=2, policy=LFU) == [0, 1, 1, 0, 0, 1, 0]
    #  0 is wanted by two live requests: two uses, so that 3 evicts 1, which was released later
    found = hits(*one_each("0 0 1 2 3 0"), capacity=3, policy=LFU, schedule=("concurrency", 2))
    assert found == [0, 1, 0, 0, 0, 1]
    #  1 was used twice, went, and came back: one use again, so 2, used twice, stays
    assert hits(*one_each("0 0 0 1 1 2 2 2 1 3 2"), capacity=2, policy=LFU) == [0, 1, 1, 0, 1, 0, 1, 1, 0, 0, 1]


def test_sieve_keeps_a_hit_block_where_it_stands_and_its_hand_goes_on():
    #  0 1 2 fill a cache of three, 0 is hit: the hand passes 0 and takes 1 for 3; its mark is gone now
    #  it goes on at 2, for 4, then 3, for 5: 0 is behind the hand
    found = hits(*one_each("0 1 2 0 3 4 5 0"), capacity=3, policy=Sieve)
    assert found == [0, 0, 0, 1, 0, 0, 0, 1]


def test_the_hand_of_sieve_begins_again_when_it_took_the_newest():
    #  a cache of two: 0 and 1, both hit: the hand clears both, takes 0 for 2, then 1 for 3; 2, hit, is passed,
    #  and 3, the newest, goes for 4. The hand begins again with 2, which is not marked now, and takes it for 5
    assert hits(*one_each("0 1 0 1 2 3 2 4 5 2 4"), capacity=2, policy=Sieve) == [0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0]


def test_s3fifo_lets_what_was_wanted_once_go_before_main():
    #  capacity 10: small has one place, main nine; 0 joins small and 1 ... 9 main, as nothing was evicted yet
    #  10 evicts 0, which leaves a ghost; 11 evicts 10; 0 comes back into main, whose oldest, 1, was not hit
    scan = [*range(10), 10, 11]
    found, engine = served(singles([*scan, 0]), S3FIFO, 10)
    assert found == [0] * 13
    assert engine.residents().tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]  # 0 came for 11, of small
    _, engine = served(singles([*scan, 0, 12]), S3FIFO, 10)
    assert engine.residents().tolist() == [0, 2, 3, 4, 5, 6, 7, 8, 9, 12]  # main holds ten, more than nine: 1 goes


def test_s3fifo_moves_from_small_to_main_after_two_hits():
    #  capacity 10: 0 in small. Hit twice, it moves to main when room is wanted: main has ten, and its oldest, 1, goes
    for wanted, gone in ((1, 0), (2, 1)):
        _, engine = served(singles([*range(10), *[0] * wanted, 10]), S3FIFO, 10)
        assert engine.residents().tolist() == [block for block in range(11) if block != gone]


def test_the_share_of_s3fifos_small_line_is_a_parameter():
    trace = singles(list(range(10)) * 3)
    for share in (0.001, 0.5, 0.999):
        found, engine = served(trace, lambda context, share=share: S3FIFO(context, share), 6)
        slow = lambda context, share=share: PythonPolicy(context, s3fifo.S3FIFO(context, share))  # noqa: E731
        wanted, twin = served(trace, slow, 6)
        assert found == wanted and engine.residents().tolist() == twin.residents().tolist()


def test_arc_keeps_what_was_wanted_twice_through_a_scan():
    #  a cache of two: 0 is wanted twice and in T2; 1, 2, 3 pass through T1, whose target is 0
    assert hits(*one_each("0 0 1 2 3 0"), capacity=2, policy=ARC) == [0, 1, 0, 0, 0, 1]


def test_arcs_ghosts_move_its_target():
    #  a cache of two: T2 = 0, T1 = 1; 2 takes 1's place, B1 = 1. 1 comes back: the target rises to 1, |T1| = 1 is
    #  no greater, so T2's 0 goes for it, and B2 = 0. T1 = 2, T2 = 1; 0 comes back from B2: the target falls to 0,
    #  and T1's 2 goes: 1 is still there
    assert hits(*one_each("0 0 1 2 1 0 1"), capacity=2, policy=ARC) == [0, 1, 0, 0, 0, 0, 1]
    assert hits(*one_each("0 0 1 2 1 2"), capacity=2, policy=ARC) == [0, 1, 0, 0, 0, 1]


def test_the_conversation_trace_gives_the_published_counts(shared):
    path = shared / "data/mooncake/conversation_trace.jsonl"
    if not path.exists():
        pytest.skip("the conversation trace is not there")
    trace = kvtrace.read(path)
    golden = {FIFO: (12842, 60852), LFU: (13871, 38004)}
    for policy, counts in golden.items():
        for capacity, count in zip((1_000, 10_000), counts, strict=True):
            assert sum(served(trace, policy, capacity, leaf_first=True)[0]) == count
            if policy is LFU:
                assert sum(served(trace, policy, capacity)[0]) == count
