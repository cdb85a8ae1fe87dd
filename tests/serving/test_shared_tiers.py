"""Tiers that instances share, request by request: their twin, and the laws that they keep."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import UsageError
from kvtrace.cache import Tier, simulate, simulate_tiers
from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting
from kvtrace.serving import explain, simulate_all, simulate_instances
from kvtrace.serving.fleet_schedule import FleetChange, FleetSchedule
from kvtrace.serving.instances import anywhere_hits
from kvtrace.serving.misses.cures import cures_of
from kvtrace.serving.routers import ROUTERS, TIMED
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.reference import shared_tiers as slow
from tests.reference.misses import causes
from tests.reference.policies.lru import LRU
from tests.strategies import traces

routers = st.sampled_from(sorted(set(ROUTERS) - set(TIMED)))
schedules = st.sampled_from(["serial", "open-loop:3"])
policies = st.sampled_from(["lru", "fifo", "sieve", "s3fifo", "arc", "lfu", "slru", "2q", "pgdsf"])
copies = st.sampled_from(["on-eviction", "write-back", "write-through"])


def longest(trace):
    return max(1, int(trace.prompt_blocks.max(initial=1)))


def pooled(trace, instances, router, tiers, schedule="serial", policy="lru", **options):
    setting = Setting(1, policy=policy, mode=options.pop("mode", "block"))
    return simulate_instances(trace, instances, router, setting=setting, schedule=schedule, tiers=tiers, **options)


@st.composite
def lower_tiers(draw, block_size):
    """One to three lower tiers, in the order of their scopes."""
    scopes = sorted(draw(st.lists(st.integers(0, 2), min_size=1, max_size=3)))
    tiers = []
    for number, scope in enumerate(scopes):
        chunk = draw(st.sampled_from([1, 1, 2, 3]))
        tiers.append(
            Tier(
                f"tier{number}", draw(st.integers(chunk, 9)), scope=("rank", "host", "cluster")[scope],
                copies="write-through" if chunk > 1 else draw(copies), peers=draw(st.booleans()),
                block_tokens=chunk * block_size if chunk > 1 else None,
            )
        )  # fmt: skip
    return tiers


def twin(trace, demand, setting, tiers, instances, per_host, assigned):
    """The twin's tiers after a run, and the sources of each request's hits."""
    groups = {"rank": 1, "host": per_host, "cluster": instances}
    first, *lower = tiers
    firsts = [slow.First(first.capacity, LRU()) if first.capacity else slow.Nothing() for _ in range(instances)]
    chains, places = [[] for _ in range(instances)], []
    for number, tier in enumerate(lower):
        straight = number == 0 and first.capacity == 0
        kind = "move" if tier.copies == "on-eviction" and tier.scope == "rank" else tier.copies
        kind = "write-through" if straight else "write-back" if kind == "on-eviction" else kind
        chunk = (tier.block_tokens or trace.block_size) // trace.block_size
        made = [slow.Place(tier.capacity // chunk, kind, chunk) for _ in range(-(-instances // groups[tier.scope]))]
        places.append(made)
        for instance in range(instances):
            chains[instance].append(made[instance // groups[tier.scope]])
    model = slow.Tiers(firsts, chains, places, [tier.peers for tier in lower])
    ends = setting.schedule.ends(trace) if setting.schedule.kind != "serial" else None
    return model, slow.simulate(demand, model, assigned, ends)


@given(st.data(), traces(outputs=False), st.integers(1, 4), routers, schedules, st.sampled_from(["block", "grow"]))
def test_shared_tiers_do_what_their_twin_does(data, trace, instances, router, schedule, mode):
    demand = block_demand(trace, mode)
    first = data.draw(st.sampled_from([0, int(demand.max_blocks.max()) + data.draw(st.integers(0, 3))]))
    tiers = [Tier("hbm", first), *data.draw(lower_tiers(trace.block_size))]
    per_host = data.draw(st.integers(1, 3))
    done = pooled(trace, instances, router, tiers, schedule, mode=mode, instances_per_host=per_host)
    model, sources = twin(trace, demand, done.setting, tiers, instances, per_host, done.instance.tolist())
    assert done.hit_blocks.tolist() == [len(run) for run in sources]
    assert anywhere_hits(done).tolist() == model.elsewhere
    for number, made in enumerate(model.tiers):
        hits = [sum(any(place is each for each in made) for place in run) for run in sources]
        assert done.sources.hits[number + 1].tolist() == hits
        moved = done.sources.traffic[number + 1]
        assert moved.loaded == sum(place.loaded for place in made)
        assert moved.stored == sum(place.stored * place.chunk for place in made)
        assert moved.evicted == sum(place.evicted * place.chunk for place in made)


# -- laws ------------------------------------------------------------------------------------------------------------


@given(traces(outputs=False), st.integers(1, 4), routers, schedules, policies, copies, st.booleans())
def test_a_shared_tier_of_size_0_is_none(trace, instances, router, schedule, policy, way, peers):
    setting = Setting(longest(trace) + 2, policy=policy)
    alone = simulate_instances(trace, instances, router, setting=setting, schedule=schedule)
    tiers = [Tier("hbm", longest(trace) + 2), Tier("pool", 0, scope="cluster", copies=way, peers=peers)]
    done = pooled(trace, instances, router, tiers, schedule, policy)
    assert done.hit_blocks.tolist() == alone.hit_blocks.tolist() and done.evictions == alone.evictions
    assert done.instance.tolist() == alone.instance.tolist()


@given(traces(outputs=False), st.integers(1, 4), routers, policies, copies, st.integers(0, 5))
def test_without_first_tiers_a_pool_is_one_cache_over_all_lookups(trace, instances, router, policy, way, extra):
    capacity = longest(trace) + extra
    tiers = [Tier("hbm", 0), Tier("pool", capacity, scope="cluster", copies=way)]
    done = pooled(trace, instances, router, tiers, policy=policy)
    one = simulate(trace, capacity, policy)
    assert done.hit_blocks.tolist() == one.hit_blocks.tolist() and done.evictions == one.evictions


@given(traces(outputs=False), st.integers(1, 4), routers, st.integers(0, 3), st.sampled_from(["reference", "vllm"]))
def test_an_unlimited_pool_has_all_prefix_hits_under_any_router(trace, instances, router, extra, engine):
    setting = Setting(1, engine=engine)
    tiers = [Tier("hbm", longest(trace) + extra), Tier("pool", 10**6, scope="cluster", copies="write-through")]
    done = simulate_instances(trace, instances, router, setting=setting, schedule="serial", tiers=tiers)
    unlimited = simulate(trace, 10**6, engine=engine)
    assert done.hit_blocks.tolist() == unlimited.hit_blocks.tolist()


@given(st.data(), traces(outputs=False), st.integers(1, 4), routers, schedules, policies)
def test_blocks_are_conserved_on_each_link(data, trace, instances, router, schedule, policy):
    tiers = [Tier("hbm", longest(trace)), *data.draw(lower_tiers(trace.block_size))]
    done = pooled(trace, instances, router, tiers, schedule, policy)
    assert done.sources.hits.sum(0).tolist() == done.hit_blocks.tolist()
    for tier, hits, moved in zip(tiers, done.sources.hits, done.sources.traffic, strict=True):
        assert moved.stored == moved.evicted + moved.moved + moved.resident
        assert moved.peers_loaded <= moved.loaded and moved.resident <= instances * tier.capacity
        if tier.name != "hbm":
            assert moved.loaded == hits.sum() if tier.block_tokens is None else moved.loaded >= hits.sum()


@given(traces(outputs=False), policies, st.integers(0, 3), st.integers(1, 5), st.integers(1, 5))
def test_exclusive_tiers_of_one_instance_are_the_engine_of_exclusive_tiers(trace, policy, extra, second, third):
    sizes = {"hbm": longest(trace) + extra, "dram": second, "ssd": third}
    old = simulate_tiers(trace, sizes, policy)
    tiers = [Tier(name, size, copies="on-eviction" if name != "hbm" else None) for name, size in sizes.items()]
    new = pooled(trace, 1, "round-robin", tiers, policy=policy)
    assert new.sources.hits.tolist() == old.tier_hits.tolist() and new.evictions == old.evictions


@given(traces(outputs=False), policies, st.integers(1, 4), st.integers(1, 4))
def test_tiers_of_one_instance_that_are_written_through_are_inclusive(trace, policy, second, third):
    sizes = {"hbm": longest(trace), "dram": longest(trace) + second, "ssd": longest(trace) + second + third}
    old = simulate_tiers(trace, sizes, policy, exclusive=False)
    tiers = [Tier("hbm", sizes["hbm"]), Tier("dram", sizes["dram"], copies="write-through"), Tier("ssd", sizes["ssd"])]
    new = pooled(trace, 1, "round-robin", tiers, policy=policy, inclusive=True)
    if policy == "lru":  # of others, a block may be in a lower tier alone below one that is in the first
        assert new.sources.hits.tolist() == old.tier_hits.tolist()
    assert (new.hit_blocks >= old.hit_blocks).all()


@given(traces(outputs=False), st.integers(2, 4), routers, st.integers(1, 9))
def test_peers_that_hold_everything_are_a_pool(trace, instances, router, extra):
    ranks = [Tier("hbm", longest(trace)), Tier("dram", 10**6, copies="write-through", peers=True)]
    pool = [Tier("hbm", longest(trace)), Tier("pool", 10**6, scope="cluster", copies="write-through")]
    apart, together = (pooled(trace, instances, router, tiers) for tiers in (ranks, pool))
    assert apart.hit_blocks.tolist() == together.hit_blocks.tolist()


@pytest.mark.parametrize("first", [0, 3_000])
def test_a_pool_of_many_blocks_is_one_cache_over_all_lookups(first):
    """State beyond a processor's cache is prefetched."""
    rng = np.random.default_rng(1)
    starts = rng.integers(0, 30_000, 40_000) * 8  # 30,000 paths of 8 blocks
    _, first_use, place = np.unique(starts, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first_use))[place]
    ids = (number[:, None] * 8 + np.arange(8)).ravel()
    columns = Columns(np.arange(40_000.0), np.full(40_000, 8), np.full(40_000, 1), ids, np.arange(0, 320_001, 8))
    trace = Trace.from_columns(columns, block_size=1)
    done = pooled(trace, 4, "round-robin", [Tier("hbm", first), Tier("pool", 50_000, scope="cluster")])
    one = simulate(trace, 50_000)
    assert done.evictions == one.evictions
    assert (done.hit_blocks >= one.hit_blocks).all() if first else done.hit_blocks.tolist() == one.hit_blocks.tolist()


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_a_pool_serves_what_another_instance_has_computed():
    trace = toy("0 1", "0 1", "0 1")
    done = pooled(trace, 2, "round-robin", [Tier("hbm", 2), Tier("pool", 9, scope="cluster")])
    assert done.sources.hits.tolist() == [[0, 0, 2], [0, 2, 0]]
    assert done.sources.to_list()[1] == {
        "name": "pool", "capacity": 9, "hit_blocks": 2, "scope": "cluster", "copies": "write-through",
        "loaded_blocks": 2, "peers_loaded_blocks": 0, "stored_blocks": 2, "evicted_blocks": 0,
    }  # fmt: skip


def test_instances_of_a_host_share_its_tier_and_those_of_another_host_do_not():
    trace = toy("0 1", "0 1", "0 1", "0 1")
    done = pooled(trace, 4, "round-robin", [Tier("hbm", 2), Tier("dram", 9, scope="host")], instances_per_host=2)
    assert done.sources.hits.tolist() == [[0, 0, 0, 0], [0, 2, 0, 2]]


def test_a_pool_of_chunks_stores_whole_chunks_only():
    trace = toy("0 1 2", "0 1 2 3", block_size=16)
    done = pooled(trace, 2, "round-robin", [Tier("hbm", 4), Tier("pool", 8, scope="cluster", block_tokens=32)])
    assert done.sources.hits.tolist() == [[0, 0], [0, 2]]
    assert done.sources.traffic[1].stored == 4  # 0 1, and 2 3


def test_write_back_stores_what_leaves_the_gpu_and_keeps_what_is_read():
    trace = toy("0 1", "2 3", "0 1", "2 3", "0 1")
    exclusive, back = (
        pooled(trace, 1, "round-robin", [Tier("hbm", 2), Tier("dram", 9, copies=way)])
        for way in ("on-eviction", "write-back")
    )
    assert exclusive.hit_blocks.tolist() == back.hit_blocks.tolist() == [0, 0, 2, 2, 2]
    assert exclusive.sources.traffic[1].stored == 8 and back.sources.traffic[1].stored == 4


@pytest.mark.parametrize(
    ("tiers", "options", "message"),
    [
        ([Tier("hbm", 2), Tier("pool", 9, scope="cluster"), Tier("dram", 9, scope="host")], {}, "Put it above"),
        ([Tier("hbm", 2, scope="host"), Tier("pool", 9)], {}, "The first tier does not model hbm=...@host"),
        ([Tier("hbm", 2), Tier("pool", 9, latency_s=1e-5)], {}, "does not model pool=...@10us"),
        ([Tier("hbm", 2), Tier("pool", 9, block_tokens=24)], {"block_size": 16}, "not whole blocks of the trace"),
        ([Tier("hbm", 2), Tier("pool", 1, block_tokens=32)], {"block_size": 16}, "does not hold a block of 32"),
        ([Tier("hbm", 2), Tier("pool", 9, block_tokens=32, copies="write-back")], {"block_size": 16}, "needs write"),
        ([Tier("hbm", 2), Tier("pool", 9, policy="belady")], {}, "belady is an upper bound"),
        ([Tier("hbm", 2), Tier("pool", -1)], {}, "0 blocks or more"),
        ([Tier("hbm", 1), Tier("pool", 9)], {}, "does not hold the longest request"),
    ],
)
def test_tiers_that_do_not_fit_are_refused(tiers, options, message):
    trace = toy("0 1", "0 1", **options)
    with pytest.raises(UsageError, match=message):
        pooled(trace, 2, "round-robin", tiers)


def test_an_engine_that_passes_nothing_on_needs_write_through():
    trace, tiers = toy("0 1", "0 1"), [Tier("hbm", 2), Tier("dram", 9)]
    with pytest.raises(UsageError, match="dram=...@write-through, or --engine reference"):
        simulate_instances(trace, 2, setting=Setting(1, engine="vllm"), tiers=tiers)
    done = simulate_instances(trace, 2, setting=Setting(1, engine="vllm"), tiers=tiers, inclusive=True)
    assert done.sources.tiers[1].copies == "write-through"


def test_simulate_all_has_tiers_with_instances():
    trace = toy("0 1", "0 1", "0 1")
    (run,) = simulate_all(trace, tiers=[Tier("hbm", 2), Tier("pool", 9, scope="cluster")], instances=2).runs
    assert run.to_dict()["tiers"][1]["hit_blocks"] == 2


def test_explain_names_what_a_request_cannot_reach():
    trace, tiers = toy("0 1", "6 7", "2 3", "0 1", "0 1"), [Tier("hbm", 2), Tier("dram", 2)]
    explained = explain(trace, tiers=tiers, instances=2, schedule="serial")
    # 2 3 moves 0 1 to the dram of the first instance; the second one does not find it there, the first one does
    assert {cause: tokens for cause, tokens in explained.totals.items() if tokens} == {
        "hit": 2, "other_tier": 2, "first_use": 6,
    }  # fmt: skip
    assert explained.tiers == {"hbm": 0, "dram": 2}
    cure = cures_of(explained)["shared_tiers"]
    assert cure.tokens == 2 and "dram=...@peers" in cure.advice


def test_explain_refuses_tiers_of_instances_that_are_gone():
    trace, tiers = toy("0 1", "0 1", gap_ms=2000), [Tier("hbm", 2), Tier("pool", 9, scope="cluster")]
    fleet = FleetSchedule((FleetChange(1.0, drain=(0,)),))
    with pytest.raises(UsageError, match="does not support --tiers with --fleet"):
        explain(trace, tiers=tiers, instances=2, fleet=fleet)


@given(st.data(), traces(outputs=False), st.integers(1, 3), routers, schedules)
def test_causes_add_up_with_shared_tiers(data, trace, instances, router, schedule):
    tiers = [Tier("hbm", longest(trace)), *data.draw(lower_tiers(trace.block_size))]
    explained = explain(trace, tiers=tiers, instances=instances, router=router, schedule=schedule)
    assert sum(explained.totals.values()) == trace.input_length.sum()
    assert sum(explained.tiers.values()) == explained.totals["hit"]
    done, demand = explained.simulation, block_demand(trace)
    in_tiers = anywhere_hits(done).tolist()
    expected = causes(trace, done, demand.limit, full=demand.full, in_tiers=in_tiers)
    assert {name: tokens.tolist() for name, tokens in explained.causes.tokens.items()} == expected
    if all(tier.scope == "cluster" for tier in tiers[1:]) and instances == 1:
        assert explained.totals["other_tier"] == 0
