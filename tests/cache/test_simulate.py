"""Simulation of the reference engine: equal to its plain twin, to the curve, and to the counts of the facts page."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.analysis.curves import hit_curve
from kvtrace.cache.core.pool import Pool, PythonPolicy
from kvtrace.cache.demand import MODES, block_demand, parse_schedule
from kvtrace.cache.engines import ENGINES
from kvtrace.cache.policies import POLICIES, make
from kvtrace.cache.policies.base import Context
from kvtrace.cache.setup import CacheSetup
from kvtrace.cache.simulation import Setting, build, simulate, simulate_settings
from kvtrace.cache.tiered import simulate_tiers
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.hits import unlimited_hits
from kvtrace.trace.trace import Trace
from tests.docs import ROOT
from tests.reference import pool as slow
from tests.reference import tiers as slow_tiers
from tests.strategies import traces

SCHEDULES = st.sampled_from(
    ["serial", "concurrency:1", "concurrency:2", "concurrency:3", "open-loop:0", "open-loop:0.5", "open-loop:2"]
)


def hits(*prompts, capacity, **options):
    return simulate(toy(*prompts), capacity, **options).hit_blocks.tolist()


def has_blocks(trace):
    return len(trace.hash_ids) > 0


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_a_parent_outlives_its_child():
    #  0 1 2      fills a cache of three
    #  3          evicts 2, the leaf, not 0
    assert hits("0 1 2", "3", "0 1", capacity=3) == [0, 0, 2]


def test_a_block_in_use_is_not_evicted():
    #  0 1 and 2 are live in a cache of three;  3 needs room, and 0 1, admitted first, is freed early: 1 goes
    found = simulate(toy("0 1", "2", "3", "0 1"), 3, schedule="concurrency:3")
    assert found.hit_blocks.tolist() == [0, 0, 0, 1]
    assert found.early_frees == 2  # 1 comes back: 2 is freed early for it


def test_idle_counting_bounds_the_pool_alone():
    #  0 1 and 2 3 are both live: four blocks in a cache of one idle block, and 0 is shared while it is live
    found = simulate(toy("0 1", "2 3", "0 1"), 1, schedule="concurrency:3", capacity_counts="idle")
    assert found.hit_blocks.tolist() == [0, 0, 2]
    #  one at a time: of 0 1 the pool of one keeps 0
    assert hits("0 1", "0 1", capacity=1, capacity_counts="idle") == [0, 1]


def test_a_timed_request_ends_as_another_arrives():
    #  0 lives from 0 to 2 ms;  1 comes at 1 ms, when a cache of one has no room: 0 is freed early
    trace = toy("0", "1")
    assert simulate(trace, 1, schedule="open-loop:2").early_frees == 1
    assert simulate(trace, 1, schedule="open-loop:1").early_frees == 0


def test_a_partial_block_takes_room_and_has_no_name():
    trace = kvtrace.Trace([0.0, 1.0], [3, 3], [1, 1], [0, 1, 0, 1], [0, 2, 4], block_size=2)
    assert simulate(trace, 2).hit_blocks.tolist() == [0, 2]
    assert simulate(trace, 2, mode="token").hit_blocks.tolist() == [0, 1]
    with pytest.raises(UsageError, match="needs 2"):
        simulate(trace, 1, mode="token")


def test_an_output_takes_room_under_names_of_its_own():
    #  blocks of two: 2 tokens in and 4 out, of which 3 are cached: one more full block, and one token in another
    trace = kvtrace.Trace([0.0, 1.0], [2, 2], [4, 4], [0, 0], [0, 1, 2], block_size=2)
    demand = block_demand(trace, "grow")
    assert (
        demand.grown.tolist() == [1, 1]
        and demand.grown_tail.tolist() == [1, 1]
        and demand.max_blocks.tolist() == [3, 3]
    )
    assert demand.parent.tolist() == [-1, 0, 0]
    done = simulate(trace, 3, mode="grow")
    assert done.hit_blocks.tolist() == [0, 1] and done.evictions == 1  # the first one's own block goes


# -- laws ------------------------------------------------------------------------------------------------------------


@given(traces().filter(has_blocks), st.data())
def test_it_equals_its_twin(trace, data):
    mode, counts = data.draw(st.sampled_from(MODES)), data.draw(st.sampled_from(["total", "idle"]))
    which, schedule = data.draw(st.sampled_from(["flat", "leaf-first"])), data.draw(SCHEDULES)
    demand = block_demand(trace, mode)
    least = int(demand.max_blocks.max()) if counts == "total" else 1
    capacity = data.draw(st.integers(max(least, 1), least + 8))
    done = simulate(trace, capacity, mode=mode, schedule=schedule, capacity_counts=counts, pool=which)
    plan = parse_schedule(schedule)
    cache = slow.Pool(capacity, slow.Lru(), counts == "total")
    wanted = slow.simulate(demand, cache, plan.kind, int(plan.value), plan.ends(trace))
    assert (done.hit_blocks.tolist(), done.early_frees) == wanted
    assert done.evictions == cache.evictions


@given(traces().filter(has_blocks), st.booleans(), st.booleans(), SCHEDULES)
def test_a_python_policy_sees_what_a_compiled_one_sees(trace, total, leaf_first, schedule):
    """Every call that a policy gets is the twin's, in the twin's order."""

    class Noted(slow.Lru):
        def __init__(self):
            super().__init__()
            self.calls = []

    def noting(verb):
        def call(self, *block):
            self.calls.append((verb, *block))
            return getattr(slow.Lru, verb)(self, *block)

        return call

    for verb in ("insert", "use", "release", "victim", "remove"):
        setattr(Noted, verb, noting(verb))
    demand, plan = block_demand(trace), parse_schedule(schedule)
    capacity = int(demand.max_blocks.max()) + 1
    context, ours, theirs = Context(demand.blocks, capacity, trace, demand), Noted(), Noted()
    engine = Pool(context, demand, PythonPolicy(context, ours), total, leaf_first)
    engine.schedule(plan.kind, int(plan.value), plan.ends(trace))
    engine.advance(len(demand))
    engine.close()
    cache = slow.Pool(capacity, theirs, total, demand.parent.tolist() if leaf_first else None)
    found = slow.simulate(demand, cache, plan.kind, int(plan.value), plan.ends(trace))
    assert ours.calls == theirs.calls and (engine.hits.tolist(), engine.early_frees) == found


@given(traces().filter(has_blocks))
def test_the_curve_is_the_simulation_at_every_capacity(trace):
    curve = hit_curve(trace)
    for capacity in range(curve.longest, curve.working_set + 2):
        assert np.array_equal(simulate(trace, capacity).hit_blocks, curve.hits_per_request(capacity))


ORDERS = [
    row.example or name for name, row in POLICIES.items() if not row.bound and not row.sessions and name != "priority"
]


@given(
    traces().filter(has_blocks),
    st.sampled_from(ORDERS),
    st.sampled_from(ENGINES["reference"].options["pool"]),
    st.integers(0, 6),
    SCHEDULES,
)
def test_belady_is_never_beaten_and_room_for_all_is_unlimited(trace, policy, pool, more, schedule):
    capacity = int(trace.prompt_blocks.max()) + more
    best = simulate(trace, capacity, "belady").hits.hit_blocks
    assert simulate(trace, capacity, policy, pool=pool, schedule=schedule).hits.hit_blocks <= best
    if not policy.startswith("ttl"):
        found = simulate(trace, trace.distinct, policy, pool=pool)
        assert np.array_equal(found.hit_blocks, simulate(trace, 1, "unlimited").hit_blocks)


@given(traces().filter(has_blocks), st.sampled_from(ORDERS), st.sampled_from(["total", "idle"]), SCHEDULES)
def test_a_parent_outlives_its_children_under_leaf_first(trace, policy, counts, schedule):
    demand = block_demand(trace)
    setting = Setting(
        int(demand.max_blocks.max()), policy, schedule=parse_schedule(schedule),
        engine_options=(("capacity_counts", counts), ("pool", "leaf-first")),
    )  # fmt: skip
    engine = build(setting, demand)
    for _ in range(len(demand)):
        engine.advance(1)
        there = set(engine.residents().tolist())
        assert all(demand.parent[block] in there for block in there if demand.parent[block] >= 0)


@given(traces(outputs=False).filter(has_blocks))
def test_room_for_all_is_unlimited(trace):
    seen = unlimited_hits(trace)
    assert np.array_equal(simulate(trace, trace.distinct + 1).hit_blocks, seen)
    assert np.array_equal(simulate(trace, 1, "unlimited").hit_blocks, seen)


@given(traces().filter(has_blocks), st.integers(1, 5), st.integers(0, 8))
def test_any_concurrency_hits_as_one_at_a_time_while_nothing_is_freed_early(trace, active, more):
    capacity = int(trace.prompt_blocks.max()) + more
    done = simulate(trace, capacity, schedule=f"concurrency:{active}")
    if not done.early_frees:
        assert np.array_equal(done.hit_blocks, simulate(trace, capacity).hit_blocks)


@given(traces().filter(has_blocks))
def test_no_request_loses_hits_as_the_cache_grows(trace):
    before = np.zeros(len(trace), dtype=np.int64)
    for capacity in range(int(trace.prompt_blocks.max()), trace.distinct + 1):
        found = simulate(trace, capacity).hit_blocks
        assert (found >= before).all()
        before = found


@given(traces().filter(has_blocks), st.integers(1, 8), SCHEDULES)
def test_exclusive_tiers_are_their_twin_and_one_cache_of_the_sum(trace, second, schedule):
    first = int(trace.prompt_blocks.max())
    found = simulate_tiers(trace, {"hbm": first, "dram": second}).tier_hits
    prompts = [trace.prompt(row).tolist() for row in range(len(trace))]
    assert found.T.tolist() == [list(pair) for pair in slow_tiers.hits(prompts, first, second)]
    curve = hit_curve(trace)
    assert np.array_equal(found.sum(0), curve.hits_per_request(first + second))


@given(traces().filter(has_blocks), st.integers(1, 8))
def test_an_inclusive_tier_adds_what_its_own_size_adds(trace, more):
    first = int(trace.prompt_blocks.max())
    found = simulate_tiers(trace, {"hbm": first, "dram": first + more}, exclusive=False).tier_hits
    curve = hit_curve(trace)
    assert np.array_equal(found[0], curve.hits_per_request(first))
    assert np.array_equal(found.sum(0), curve.hits_per_request(first + more))


@given(traces().filter(has_blocks))
def test_a_sweep_is_its_simulations_whatever_the_threads(trace):
    longest = int(trace.prompt_blocks.max())
    settings = CacheSetup([longest, longest + 2], ["lru", "unlimited"]).settings()
    for threads in (1, 3):
        for setting, done in zip(settings, simulate_settings(trace, settings, threads=threads), strict=True):
            alone = simulate(trace, setting.capacity, setting.policy)
            assert done.setting == setting and np.array_equal(done.hit_blocks, alone.hit_blocks)


def test_warm_up_and_windows_count_parts_of_the_same_hits():
    done = simulate(toy("0 1", "0 1", "0 1", "0 1", gap_ms=60), 2)
    assert done.hits.hit_blocks == 6
    assert simulate(toy("0 1", "0 1", "0 1", "0 1"), 2, warm_up=2).hits.hit_blocks == 4
    assert [(window["start_ms"], window["hit_blocks"]) for window in done.over_time(100)] == [(0.0, 2), (100.0, 4)]


# -- tables and vectors -----------------------------------------------------------------------------------------------


def test_each_case_of_the_vectors():
    vectors = json.loads((ROOT / "tests/vectors/policies.json").read_text())
    written = vectors["trace"]
    prompts = [[int(word) for word in prompt.split()] for prompt in written["prompts"]]
    lengths = np.array([len(prompt) for prompt in prompts])
    columns = Columns(
        np.array(written["timestamp"]), lengths * 16, np.ones(len(prompts)),
        np.array([block for prompt in prompts for block in prompt]), np.concatenate([[0], np.cumsum(lengths)]),
        session=np.array(written["session"]),
        extra={"priority": np.array(written["priority"]), "stop": np.array(written["stop"])},
    )  # fmt: skip
    trace = Trace.from_columns(columns, block_size=16)
    for case in vectors["cases"]:
        done = simulate(trace, case["capacity"], case["policy"], pool=case["pool"])
        assert done.hit_blocks.tolist() == case["hit_blocks"], case["policy"]


# -- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, said",
    [
        ({"capacity": 0}, "--capacity must be at least 1 block"),
        ({"capacity": 1}, "request 0 needs 2 blocks"),
        ({"policy": "best"}, "'best' is not a policy"),
        ({"policy": "lru:3"}, "has no parameter"),
        ({"policy": "json:Nothing"}, "Module 'json' has no class 'Nothing'"),
        ({"policy": "no_such_module:Lru"}, "neither a policy nor a Python module"),
        ({"policy": "json:JSONDecoder"}, "lacks insert, use, release, victim, remove"),
        ({"engine": "best"}, "'best' is not an engine"),
        ({"mode": "word"}, "'word' is not a mode"),
        ({"schedule": "concurrency:0"}, "is not a schedule"),
        ({"schedule": "open-loop:-1"}, "is not a schedule"),
        ({"capacity_counts": "all"}, "'all' is not a value of --capacity-counts"),
        ({"pool": "deep"}, "'deep' is not a value of --pool"),
        ({"engine": "lmcache", "watermark": "yes"}, "'yes' is not a value of --watermark. Try off or on"),
        ({"free_order": "append"}, "reference does not have the option --free-order"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(options, said):
    with pytest.raises(UsageError, match=said):
        simulate(toy("0 1", "2"), **({"capacity": 2} | options))


class Stubborn(slow.Lru):
    """Names a block that is pinned."""

    def use(self, block):
        pass


class Lost(slow.Lru):
    def victim(self):
        return 10**6


class Wordy(slow.Lru):
    def victim(self):
        return "0"


class Failing(slow.Lru):
    def release(self, block):
        raise ZeroDivisionError("in a user's policy")


@pytest.mark.parametrize(
    "name, said", [("Stubborn", "block 0, which is pinned"), ("Lost", "does not exist"), ("Wordy", "returned a str")]
)
def test_a_victim_is_checked(name, said):
    with pytest.raises(UsageError, match=said):
        simulate(toy("0", "1", "0 2", "0 3"), 2, f"{__name__}:{name}")


def test_what_a_policy_raises_comes_out_as_it_is():
    with pytest.raises(ZeroDivisionError, match="in a user's policy"):
        simulate(toy("0"), 1, f"{__name__}:Failing")


def test_an_unchained_trace_is_refused():
    trace = kvtrace.Trace([0.0, 1.0], [2, 2], [1, 1], [0, 1, 2, 1], [0, 2, 4], block_size=1)
    with pytest.raises(kvtrace.InputError, match="--chain"):
        simulate(trace, 4)


def test_the_self_check_finds_a_pool_that_lost_a_pin():
    trace = toy("0 1", "0 2")
    demand = block_demand(trace)
    context = Context(demand.blocks, 3, trace, demand)

    class Slips(Pool):
        def self_check(self):
            return "a pin was lost"

    engine = Slips(context, demand, make("lru", context))
    engine.advance(2)
    with pytest.raises(kvtrace.KvtraceError, match="a pin was lost"):
        engine.close()


# -- the facts page --------------------------------------------------------------------------------------------------

GOLDEN = [  # policy, options -> hit blocks at 1,000, 10,000 and 300,000
    ("lru", {}, (12847, 61046, 105710)),
    ("lru", {"pool": "leaf-first"}, (12847, 61046, 105710)),
    ("lru", {"schedule": "open-loop:30", "capacity_counts": "idle"}, (14807, 64314, 105710)),
    ("unlimited", {}, (105710, 105710, 105710)),
    ("belady", {}, (55019, 105710, 105710)),
    ("lfu", {"pool": "leaf-first"}, (13871, 38004, 105710)),
    ("fifo", {"pool": "leaf-first"}, (12842, 60852, 105710)),
    ("lfu-da", {"pool": "leaf-first", "capacity_counts": "idle"}, (13404, 48728, 105710)),
    ("lfu-da", {"pool": "leaf-first"}, (13330, 48728, 105710)),
    ("lru", {"engine": "vllm"}, (12837, 60971, 105592)),
    ("lru", {"engine": "nano-vllm"}, (12837, 60971, 105592)),
    ("lru", {"engine": "vllm", "mode": "token"}, (12988, 62001, 105592)),
    ("lru", {"engine": "vllm", "mode": "grow"}, (12878, 61238, 105592)),
    ("lru", {"engine": "vllm", "mode": "token", "schedule": "open-loop:30"}, (12657, 62785, 105592)),
    ("lru", {"engine": "sglang"}, (12821, 59583, 105592)),
    ("lru", {"engine": "sglang", "mode": "token", "schedule": "open-loop:30"}, (12657, 62258, 105592)),
    ("lfu", {"engine": "sglang"}, (13865, 37966, 105592)),
    ("fifo", {"engine": "sglang"}, (12817, 60654, 105592)),
    ("fifo", {"engine": "sglang", "tree": "radix"}, (12821, 60772, 105592)),
]


@pytest.fixture(scope="module")
def conversations(shared):
    return kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")


@pytest.mark.parametrize("policy, options, wanted", GOLDEN)
def test_counts_on_the_conversation_trace(conversations, policy, options, wanted):
    found = [simulate(conversations, capacity, policy, **options) for capacity in (1000, 10000, 300000)]
    assert tuple(done.hits.hit_blocks for done in found) == wanted


@pytest.mark.parametrize("limit, wanted", [("1s", 10852), ("60s", 29821), ("300s", 83010), ("3600s", 105710)])
def test_time_to_live_on_the_conversation_trace(conversations, limit, wanted):
    assert simulate(conversations, 300_000, f"ttl:{limit}").hits.hit_blocks == wanted


def test_early_frees_on_the_conversation_trace(conversations):
    for engine in ("vllm", "sglang"):
        done = simulate(conversations, 1000, engine=engine, mode="token", schedule="open-loop:30")
        assert done.early_frees == 2059


def test_two_tiers_on_the_conversation_trace(conversations):
    curve = hit_curve(conversations)
    found = simulate_tiers(conversations, {"hbm": 5000, "dram": 50000}).tier_hits.sum(1).tolist()
    assert found == [curve.at(5000).hit_blocks, curve.at(55000).hit_blocks - curve.at(5000).hit_blocks]
    assert found == [32260, 70950]
