"""`explain`: causes add up, vanish under their own cure, and agree with a plain twin."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.cache.demand import block_demand
from kvtrace.cache.engines import ENGINES
from kvtrace.cache.layout import CacheGroup, CacheLayout
from kvtrace.cache.simulation import Setting, simulate
from kvtrace.cache.tiered import simulate_tiers
from kvtrace.serving.instances import simulate_instances
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.misses.causes import CAUSES, causes_of, lifetime_ms
from kvtrace.serving.misses.explanation import explain
from kvtrace.serving.routers import ROUTERS
from kvtrace.serving.schedulers.base import Tier
from kvtrace.serving.simulation import StepCost, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import fields_of, replace_columns
from kvtrace.trace.trace import Trace
from tests.conftest import drawn
from tests.reference import misses as twin
from tests.serving.session_forests import random_forest
from tests.strategies import traces

UNLIMITED = 1 << 16
LARGE = st.sampled_from([24, 40, UNLIMITED])
TIMED = ("reference", "vllm", "sglang", "dynamo")
SLOW = StepCost(token_s=0.4)  # so that requests overlap; traces have gaps of some milliseconds


@st.composite
def forests(draw, domains=False):
    """Random traces in which prompts repeat more often, with arrivals some seconds apart."""
    trace = draw(traces(outputs=False))
    rows = np.array(draw(st.lists(st.integers(0, len(trace) - 1), min_size=4, max_size=24)))
    columns = trace.take(rows)
    gaps = draw(st.lists(st.integers(0, 5000), min_size=len(rows), max_size=len(rows)))
    columns.timestamp = np.cumsum(gaps).astype(float)
    columns = replace_columns(columns, parent=None, session=None)
    if domains:
        columns.domain = np.array(draw(st.lists(st.integers(-1, 2), min_size=len(rows), max_size=len(rows))))
    return Trace.from_columns(columns, block_size=trace.block_size)


def assert_as_twin(run, trace=None):
    """The causes of a run, after they were compared with the twin's and with the hits of the run."""
    trace, own = run.trace if trace is None else trace, run.trace
    causes = causes_of(run, trace)
    demand = block_demand(own, *run.setting.demand_options)
    chunk = 1 if run.setting.bound else max(1, ENGINES[run.setting.engine].chunk_tokens // own.block_size)
    ttl_ms = lifetime_ms(run.setting.policy)
    plain = twin.causes(
        trace, run, demand.limit.tolist(), full=demand.full.tolist(), chunk=chunk,
        ttl_ms=None if np.isinf(ttl_ms) else ttl_ms,
    )  # fmt: skip
    assert {name: tokens.tolist() for name, tokens in causes.tokens.items()} == plain
    assert (sum(causes.tokens.values()) == own.input_length).all()
    assert causes.tokens["hit"].sum() == run.hits.hit_tokens
    assert (sum(causes.tiers.values()) == causes.tokens["hit"]).all()
    blocks, tokens = causes.evicted.recovered
    assert (tokens[-1] if len(tokens) else 0) == causes.tokens["evicted"].sum()
    assert (np.diff(blocks) > 0).all() and (np.diff(tokens) > 0).all()
    return {name: int(tokens.sum()) for name, tokens in causes.tokens.items()}


@given(
    forests(), st.sampled_from(sorted(ENGINES)), st.sampled_from(["block", "token", "grow"]),
    st.sampled_from(["serial", "open-loop:300", "concurrency:3"]), LARGE,
)  # fmt: skip
@settings(max_examples=drawn(300))
def test_causes_of_every_engine_mode_and_schedule_add_up(trace, engine, mode, schedule, capacity):
    capacity = max(capacity, 256 // trace.block_size) if engine == "lmcache" else capacity
    try:
        run = simulate(trace, capacity, engine=engine, mode=mode, schedule=schedule)
    except UsageError:  # the block size does not divide a chunk, or a request does not fit
        return
    totals = assert_as_twin(run)
    assert totals["other_instance"] == totals["other_domain"] == totals["expired"] == totals["in_flight"] == 0
    assert capacity < UNLIMITED or totals["evicted"] == 0


@given(forests(domains=True), st.sampled_from(["split", "merge", "shared:3"]), LARGE)
def test_merged_domains_leave_no_token_to_another_domain(trace, view, capacity):
    run = simulate(trace, capacity, domains=view)
    totals = assert_as_twin(run, trace)
    assert view != "merge" or totals["other_domain"] == 0
    alone = simulate(Trace(**fields_of(replace_columns(trace, domain=None)), block_size=trace.block_size), UNLIMITED)
    assert sum(totals[name] for name in CAUSES if name != "first_use") == alone.hits.hit_tokens


@given(forests(), st.sampled_from(["block", "token"]), st.integers(0, 9000), LARGE, st.booleans())
def test_only_a_time_to_live_lets_blocks_expire(trace, mode, limit_ms, capacity, in_time):
    policy = f"ttl:{limit_ms}ms"
    if in_time:
        run = open_loop(trace, SLOW, setting=Setting(capacity, policy, mode=mode))
    else:
        run = simulate(trace, capacity, policy, mode=mode)
    totals = assert_as_twin(run)
    assert capacity < UNLIMITED or totals["evicted"] == 0
    assert assert_as_twin(simulate(trace, capacity, mode=mode))["expired"] == 0


@given(forests(), st.sampled_from([name for name in ROUTERS if name != "dynamo"]), st.integers(1, 3), LARGE)
def test_one_instance_leaves_no_token_to_another_instance(trace, router, instances, capacity):
    try:
        run = simulate_instances(trace, instances, router, setting=Setting(capacity))
    except UsageError:  # a router that works in time only
        return
    totals = assert_as_twin(run)
    assert instances > 1 or totals["other_instance"] == 0
    assert capacity < UNLIMITED or totals["evicted"] == 0


@given(forests(), st.sampled_from(TIMED), st.integers(1, 3), st.sampled_from([8, 24, UNLIMITED]))
@settings(max_examples=drawn(300))
def test_simulations_in_time_add_up_and_without_a_limit_nothing_is_evicted(trace, engine, instances, capacity):
    assume(engine != "sglang" or trace.block_size in (1, 2, 4))  # its prefills are multiples of a page
    run = open_loop(trace, SLOW, setting=Setting(capacity, engine=engine), instances=instances)
    totals = assert_as_twin(run)
    assert instances > 1 or totals["other_instance"] == 0
    assert capacity < UNLIMITED or totals["evicted"] == totals["not_served"] == 0


@given(forests(), st.integers(1, 30), st.booleans())
def test_tiers_share_the_hits(trace, more, exclusive):
    first = max(8, int(trace.prompt_blocks.max()))
    run = simulate_tiers(trace, {"hbm": first, "dram": first + more}, exclusive=exclusive)
    assert_as_twin(run)
    tiers = causes_of(run).tiers
    assert list(tiers) == ["hbm", "dram"]
    assert {name: int(tokens.sum()) for name, tokens in tiers.items()}.keys() == {"hbm", "dram"}
    assert assert_as_twin(simulate_tiers(trace, {"hbm": first, "dram": UNLIMITED}, exclusive=exclusive))["evicted"] == 0


@given(forests(), st.integers(1, 3))
def test_tiers_in_time_share_the_hits(trace, instances):
    first = max(8, int(trace.prompt_blocks.max()))
    tier = Tier("dram", UNLIMITED, 0.01)
    for engine in ("reference", "vllm"):
        setting = Setting(first, engine=engine)
        run = open_loop(trace, SLOW, setting=setting, tiers=(tier,), instances=instances)
        assert_as_twin(run)
        assert list(causes_of(run).tiers) == ["hbm", "dram"]


@given(forests())
def test_block_size_1_without_the_last_token_rule_leaves_no_rounding(trace):
    columns = replace_columns(trace)
    columns.input_length = trace.prompt_blocks.copy()
    single = Trace.from_columns(columns, block_size=1)
    assert assert_as_twin(simulate(single, UNLIMITED, mode="token"))["rounding"] == 0


def test_requests_in_flight_are_not_hits_of_sglang():
    """Two equal prompts at the same time: the second one computes again what the first one computes."""
    trace = toy("0 1 2 3", "0 1 2 3 4", gap_ms=0)
    run = open_loop(trace, StepCost(token_s=1.0), setting=Setting(64, engine="sglang"))
    assert assert_as_twin(run) == {**dict.fromkeys(CAUSES, 0), "in_flight": 4, "first_use": 5}


def test_a_request_that_does_not_fit_is_not_served():
    trace = toy("0 1 2 3", "0 1", "0 1 2 3", gap_ms=1e6)
    run = open_loop(trace, SLOW, setting=Setting(3))
    assert assert_as_twin(run) == {**dict.fromkeys(CAUSES, 0), "not_served": 8, "first_use": 2}


def test_evicted_blocks_state_how_many_blocks_they_missed():
    """Blocks 0 and 1 are the third and fourth most recent ones when they return: two blocks more would hold both."""
    causes = causes_of(simulate(toy("0 1", "2 3", "0 1"), 2))
    assert [values.tolist() for values in causes.evicted.recovered] == [[1, 2], [1, 2]]


@given(traces(outputs=False))
def test_the_blocks_that_lru_needs_more_are_exact(trace):
    """With one request at a time, LRU with as many blocks more hits just the tokens that `recovered` states."""
    capacity = max(1, int(trace.prompt_blocks.max()))
    run = simulate(trace, capacity)
    blocks, tokens = causes_of(run).evicted.recovered
    for more, recovered in zip(blocks.tolist(), tokens.tolist(), strict=True):
        assert simulate(trace, capacity + more).hits.hit_tokens == run.hits.hit_tokens + recovered


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("instances", [1, 2])
@given(trace=forests())
@settings(max_examples=drawn(60))
def test_cache_groups_round_and_evict(engine, instances, trace):
    """Windows: what the groups cannot resume at any capacity is rounding, and the rest is evicted.

    One request at a time: windows of requests that overlap are free later, which counts as evicted.
    """
    size = trace.block_size
    groups = (CacheGroup("full", 1, size), CacheGroup("window", 1, size, 2 * size))
    layout = CacheLayout(groups, second_ratio=1.0 if engine == "sglang" else 0.0)
    setting = Setting(UNLIMITED // 16, engine=engine, mode="token", layout=layout)
    if instances > 1:
        run = simulate_instances(trace, instances, setting=setting, schedule="serial")
    else:
        run = simulate(trace, setting.capacity, engine=engine, mode="token", layout=layout)
    causes = causes_of(run)
    assert (sum(causes.tokens.values()) == trace.input_length).all()
    assert causes.tokens["evicted"].sum() == 0
    assert instances > 1 or causes.tokens["other_instance"].sum() == 0


def test_windows_sessions_and_requests_add_up():
    trace = toy("0 1", "0 2", "0 1 3", "4", gap_ms=60)
    columns = replace_columns(trace, session=[0, 1, 0, -1])
    done = explain(Trace(**fields_of(columns), block_size=1), 3)
    windows, sessions = done.over_time(100), done.by_session()
    for groups in (windows, sessions):
        assert sum(one["tokens"] for one in groups) == done.tokens == 8
        assert {name: sum(one["causes"][name] for one in groups) for name in CAUSES} == done.totals
    assert [one["start_ms"] for one in windows] == [0, 100]
    assert [(one["session"], one["requests"]) for one in sessions] == [(-1, 1), (0, 2), (1, 1)]
    rows = done.to_arrow()
    assert {name: sum(rows[name].to_pylist()) for name in CAUSES} == done.totals


def test_the_warm_up_is_left_out_of_totals():
    done = explain(toy("0 1", "0 1"), 2, warm_up=1)
    assert done.tokens == 2 and done.totals["hit"] == 2 and done.possible_tokens == 2


def test_a_closed_loop_is_explained_in_order_of_its_lookups():
    trace = random_forest(1)
    done = explain(trace, UNLIMITED, cost=SLOW, loop=ClosedLoop(lanes=2))
    assert sum(done.totals.values()) == done.tokens
    assert done.totals["evicted"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "Give either a capacity or tiers"),
        ({"capacity": 9, "tiers": {"hbm": 9, "dram": 20}}, "Give either a capacity or tiers"),
        ({"capacity": 9, "ttl": "5m", "policy": "arc"}, "cannot be combined with 'arc'"),
        ({"capacity": 9, "ttl": "soon"}, "ttl"),
        ({"capacity": 9, "router": "sticky"}, "--router needs --instances"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        explain(toy("0 1", "0 1"), **options)


@pytest.mark.parametrize(
    ("capacity", "engine", "hit_blocks"),
    [
        (1000, "vllm", 12837), (10000, "vllm", 60971), (300000, "vllm", 105592),
        (1000, "sglang", 12821), (10000, "sglang", 59583), (300000, "sglang", 105592),
        (1000, "reference", 12847), (10000, "reference", 61046), (300000, "reference", 105710),
    ],
)  # fmt: skip
def test_causes_of_the_conversation_trace_agree_with_the_engines_own_hit_counts(shared, capacity, engine, hit_blocks):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    done = explain(trace, capacity, engine=engine)
    assert done.simulation.hits.hit_blocks == hit_blocks
    totals = done.totals
    assert totals["hit"] + totals["evicted"] + totals["first_use"] + totals["rounding"] == done.tokens == 144_793_823
    assert totals["first_use"] == 90_695_412  # all but the 105,710 blocks that any cache can hit
    assert totals["rounding"] == (0 if engine == "reference" else 35_307)
    assert capacity < 300_000 or totals["evicted"] == 0


def test_an_instance_without_requests_has_cache_groups_too():
    layout = CacheLayout((CacheGroup("full", 1, 1), CacheGroup("window", 1, 1, 2)))
    done = explain(toy("0 1 2", "0 1 2"), 40, engine="vllm", layout=layout, instances=3)
    assert done.totals["other_instance"] > 0 and sum(done.totals.values()) == 6
