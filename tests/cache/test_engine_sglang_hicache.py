"""SGLang's HiCache: what its own code says, what it does by hand-drawn cases, laws, and a tree of plain lists."""

import json
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache import simulate, simulate_tiers
from kvtrace.cache.core.hicache import StoragePool
from kvtrace.cache.demand import block_demand
from kvtrace.cache.engines import sglang
from kvtrace.cache.policies.base import Context
from kvtrace.cache.simulation import Setting
from kvtrace.cache.tiers import Tier
from kvtrace.serving import explain
from kvtrace.serving.core.serving import Fleet
from kvtrace.serving.instances import anywhere_hits, make_router, simulate_instances
from kvtrace.serving.misses.cures import cures_of
from kvtrace.trace import unlimited_hits
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.cache.test_engine_sglang import POLICIES, made, plan, requests_of, vector_trace
from tests.reference import radix, sglang_hicache

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/engine_sglang_hicache.json").read_text())
MODES, SCHEDULES = ("block", "token", "grow"), ("serial", "open-loop:0.5", "open-loop:4", "concurrency:2")
WRITE_POLICIES = tuple(sglang_hicache.THRESHOLD)
HOW = (  # what a case says beside its trace
    "mode", "schedule", "policy", "capacity", "host", "write_policy", "storage", "prefetch_tokens", "instances",
)  # fmt: skip


def serve(trace, case):
    """(hits of each request by source, early frees, evicted blocks) of the engine; instances take turns."""
    demand = block_demand(trace, case["mode"], recompute_last=True)
    pool = StoragePool(demand.blocks, case["storage"]) if case["storage"] else None
    engines = [
        sglang.build_hicache(
            demand, Context(demand.blocks, case["capacity"], trace, demand), case["host"], case["policy"],
            hicache_write_policy=case["write_policy"], pool=pool, prefetch_tokens=case["prefetch_tokens"],
        )
        for _ in range(case["instances"])
    ]  # fmt: skip
    kind, _, figure = case["schedule"].partition(":")
    for engine in engines:
        engine.schedule(kind, **plan(trace, kind, figure))
    if len(engines) == 1:
        engines[0].advance(len(trace))
        engines[0].close()
    else:
        fleet = Fleet(engines, make_router(trace, "round-robin", engines), trace.input_length)
        fleet.advance(len(trace))
        fleet.close()
    lower = sum(engine.tier_hits for engine in engines)
    hits = np.zeros((3, len(trace)), dtype=int)
    hits[0] = sum(engine.hits for engine in engines) - lower.sum(0)
    hits[1 : 1 + len(lower)] = lower
    return (
        hits.T.tolist(), sum(engine.early_frees for engine in engines),
        [engine.evictions for engine in engines],
    )  # fmt: skip


def serve_slowly(trace, case):
    """The same of the twin."""
    requests, grows = requests_of(trace, case["mode"], case["policy"])
    kind, _, figure = case["schedule"].partition(":")
    when = {"arrival": trace.timestamp.tolist(), **plan(trace, kind, figure)}
    pool = sglang_hicache.Pool(case["storage"]) if case["storage"] else None
    size, least = trace.block_size, case["prefetch_tokens"]
    caches = [
        sglang_hicache.HiCache(case["capacity"], case["host"], case["policy"], case["write_policy"], size, pool, least)
        for _ in range(case["instances"])
    ]
    turns = [row % len(caches) for row in range(len(trace))]
    hits, early = radix.run(caches, turns, requests, grows, **when)
    return [list(hit) for hit in hits], early, [cache.evictions for cache in caches]


class WatchedCache(sglang_hicache.HiCache):
    """The twin, which notes how far a request's path is in the trees and pools of all instances (`caches`)."""

    def admit(self, row, request):
        path = request.path[: request.limit]
        trees = {cache: leading_in(cache.root, path) for cache in self.caches}
        own, at = trees[self], max(trees.values())
        pools = [cache.pool for cache in self.caches if cache.pool and (at > own or cache.pool is not self.pool)]
        run = max((pool.leading(path[at:]) for pool in pools), default=0)
        least = max(-(-self.prefetch_tokens // self.block_tokens), 1)
        self.seen.setdefault(row, at + run if run >= least else at)
        return super().admit(row, request)


def leading_in(node, path):
    """How many blocks of a path the nodes below a node have."""
    child = node.children.get(path[0]) if path else None
    if child is None:
        return 0
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(child.run, path, strict=False)))
    return same + (leading_in(child, path[same:]) if same == len(child.run) else 0)


@pytest.mark.parametrize("scope", ["rank", "host", "cluster"])
@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
def test_what_other_instances_have_is_that_of_the_twin(scope, write_policy):
    for seed in range(6):
        rng = np.random.default_rng([seed, 7])
        trace = vector_trace(made("", rng, rows=60, block_size=int(rng.choice([96, 128, 256]))))
        capacity, host, size = int(block_demand(trace).max_blocks.max()) + 2, int(rng.integers(3, 30)), 60
        setting = Setting(1, engine="sglang", engine_options=(("hicache_write_policy", write_policy),))
        tiers = Tier("device", capacity), Tier("host", host), Tier("pool", size, scope=scope)
        done = simulate_instances(
            trace, 4, setting=setting, tiers=tiers, schedule="serial", instances_per_host=2 if scope == "host" else None
        )
        pools = [sglang_hicache.Pool(size) for _ in range(4)]
        group = {"rank": 1, "host": 2, "cluster": 4}[scope]
        caches = [
            WatchedCache(capacity, host, "lru", write_policy, trace.block_size, pools[number // group])
            for number in range(4)
        ]
        seen = {}
        for cache in caches:
            cache.caches, cache.seen = caches, seen
        requests, grows = requests_of(trace, "block", "lru")
        when = {"arrival": trace.timestamp.tolist(), **plan(trace, "serial", "")}
        hits, _ = radix.run(caches, [row % 4 for row in range(len(trace))], requests, grows, **when)
        assert done.hit_blocks.tolist() == [sum(hit) for hit in hits]
        expected = [max(seen[row], sum(hits[row])) for row in range(len(trace))]
        assert anywhere_hits(done).tolist() == expected
        explained = explain(
            trace, tiers=tiers, instances=4, engine="sglang", schedule="serial", hicache_write_policy=write_policy,
            instances_per_host=2 if scope == "host" else None,
        )  # fmt: skip
        assert sum(explained.totals.values()) == trace.input_length.sum()


def test_explain_names_what_another_host_has():
    one = toy("0 1 2", "0 1 2")
    trace = Trace.from_columns(replace_columns(one, input_length=one.input_length * 256), block_size=256)
    tiers = [Tier("device", 3), Tier("host", 8)]
    explained = explain(trace, tiers=tiers, instances=2, engine="sglang", schedule="serial")
    # the second instance has nothing; the last block of a prompt is computed in any case
    assert {cause: tokens for cause, tokens in explained.totals.items() if tokens} == {
        "other_tier": 512, "rounding": 256, "first_use": 768,
    }  # fmt: skip
    tiers = [*tiers, Tier("pool", 9)]
    explained = explain(trace, tiers=tiers, instances=2, engine="sglang", schedule="serial")
    cure = cures_of(explained)["shared_tiers"]
    assert explained.totals["other_tier"] == cure.tokens == 512 and "pool=...@cluster" in cure.advice


def drawn_case(trace, rng, *, storage):
    """A case of a trace."""
    schedule = SCHEDULES[rng.integers(len(SCHEDULES))]
    mode = MODES[rng.integers(len(MODES))]
    spare = int(rng.integers(0, 15))
    return {
        "mode": mode, "schedule": schedule,
        "policy": POLICIES[rng.integers(len(POLICIES))] if rng.random() < 0.5 else "lru",
        "capacity": int(block_demand(trace, mode).max_blocks.max()) + spare,
        "host": int(rng.integers(2, 60 if rng.random() < 0.7 else 12)),
        "write_policy": WRITE_POLICIES[rng.integers(len(WRITE_POLICIES))],
        "storage": int(rng.integers(3, 80)) if storage else None,
        "prefetch_tokens": int(rng.integers(1, 12)),
        "instances": 1 if schedule.startswith("concurrency") or not storage else int(rng.integers(1, 4)),
    }  # fmt: skip


def drawn_vector(name, rng):
    return made(name, rng, rows=int(rng.integers(20, 60)), block_size=int(rng.integers(1, 7)))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("storage", [False, True], ids=["two tiers", "three tiers"])
def test_the_compiled_tiers_equal_their_twin(seed, storage):
    rng = np.random.default_rng([seed, storage])
    for number in range(5):
        trace = vector_trace(drawn_vector(str(number), rng))
        case = drawn_case(trace, rng, storage=storage)
        assert serve(trace, case) == serve_slowly(trace, case), case


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_vectors_of_sglang_itself_are_met_by_both(vector):
    trace, case = vector_trace(vector), vector["case"]
    found = vector["hits"], vector["early_frees"], vector["evicted"]
    assert serve(trace, case) == found
    assert serve_slowly(trace, case) == found


def hits(*prompts, tiers, write_policy="write_through", block_size=16):
    """The hit blocks of each request by tier, one request at a time."""
    one = toy(*prompts)
    trace = Trace.from_columns(replace_columns(one, input_length=one.input_length * block_size), block_size=block_size)
    setting = Setting(1, engine="sglang", engine_options=(("hicache_write_policy", write_policy),))
    done = simulate_tiers(trace, dict(zip(("device", "host", "storage"), tiers, strict=False)), setting=setting)
    return done.tier_hits.T.tolist()


def test_a_prompt_is_copied_at_once_and_loaded_back():
    #  2 3 evicts 0 1, which the host has; 1 is computed again, as the last block of its prompt
    assert hits("0 1", "2 3", "0 1", tiers=(2, 8)) == [[0, 0], [0, 0], [0, 1]]


def test_selective_copies_what_two_requests_had_on_the_device():
    assert hits("0 1", "2 3", "0 1", tiers=(2, 8), write_policy="write_through_selective")[2] == [0, 0]
    assert hits("0 1", "0 1", "2 3", "0 1", tiers=(2, 8), write_policy="write_through_selective")[3] == [0, 1]


def test_write_through_fills_the_host_with_copies_of_the_device():
    #  a host of 2 holds 0 1 as long as the device does, so 2 3 finds no room in it; one of 6 drops 0 1 for 4 5 6 7
    prompts = "0 1", "2 3", "4 5 6 7", "2 3"
    assert hits(*prompts, tiers=(4, 2))[3] == [0, 0]
    assert hits(*prompts, tiers=(4, 6))[3] == [0, 1]


def test_write_back_copies_at_eviction():
    #  2 3 pushes 0 1 to the host; with write_through its own copy pushes 0 1 out
    prompts = "0 1", "2 3", "0 1"
    assert hits(*prompts, tiers=(2, 2), write_policy="write_back")[2] == [0, 1]
    assert hits(*prompts, tiers=(2, 2))[2] == [0, 0]


def test_fewer_than_ten_tokens_are_computed_again():
    assert hits("0 1 2", "3 4 5", "0 1 2", tiers=(3, 8), block_size=5)[2] == [0, 2]
    assert hits("0 1 2", "3 4 5", "0 1 2", tiers=(3, 8), block_size=4)[2] == [0, 0]


def test_what_the_host_has_lost_comes_from_storage():
    #  the copy of 3 4 5 pushes out that of 0 1 2; 256 tokens or more are fetched, if the host has room
    prompts = "0 1 2", "3 4 5", "0 1 2"
    assert hits(*prompts, tiers=(3, 5, 9), block_size=128)[2] == [0, 0, 2]
    assert hits(*prompts, tiers=(3, 5, 9), block_size=64)[2] == [0, 0, 0]
    assert hits(*prompts, tiers=(3, 3, 9), block_size=128)[2] == [0, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_written_through_lru_tiers_are_nested(seed):
    # the device hits what it hits without a host, and all tiers hit at most what a cache as large as the host hits
    trace = vector_trace(made("", np.random.default_rng(seed), rows=60, block_size=16))
    capacity = int(block_demand(trace).max_blocks.max()) + 3
    setting = Setting(1, engine="sglang")
    done = simulate_tiers(trace, {"device": capacity, "host": 10_000}, setting=setting)
    everything = simulate(trace, 10_000, engine="sglang")
    assert done.hit_blocks.tolist() == everything.hit_blocks.tolist()
    assert int(done.tier_hits[0].sum()) <= int(everything.hit_blocks.sum())


@pytest.mark.parametrize("router", ["round-robin", "kv-aware", "sticky"])
@pytest.mark.parametrize("seed", range(3))
def test_with_an_unlimited_pool_all_prefixes_hit_under_any_router(router, seed):
    trace = vector_trace(made("", np.random.default_rng(seed), rows=60, block_size=256))
    capacity = int(block_demand(trace).max_blocks.max())
    tiers = Tier("device", capacity), Tier("host", 10_000), Tier("pool", 10_000, scope="cluster")
    setting = Setting(1, engine="sglang")
    done = simulate_instances(trace, 3, router, setting=setting, schedule="serial", tiers=tiers)
    limit = block_demand(trace, recompute_last=True).limit
    assert done.hit_blocks.tolist() == np.minimum(unlimited_hits(trace), limit).tolist()
    assert done.sources.hits.sum(0).tolist() == done.hit_blocks.tolist()


@pytest.mark.parametrize("write_policy", WRITE_POLICIES)
@pytest.mark.parametrize("scope", ["rank", "host", "cluster"])
def test_blocks_are_conserved_on_each_link(write_policy, scope):
    trace = vector_trace(made("", np.random.default_rng(7), rows=80, block_size=256))
    capacity = int(block_demand(trace).max_blocks.max())
    tiers = Tier("device", capacity), Tier("host", capacity + 9), Tier("pool", 30, scope=scope)
    setting = Setting(1, engine="sglang", engine_options=(("hicache_write_policy", write_policy),))
    done = simulate_instances(trace, 4, setting=setting, tiers=tiers, instances_per_host=2, schedule="serial")
    _, host, pool = done.sources.traffic
    for moved in (host, pool):
        assert moved.stored == moved.evicted + moved.resident
    assert host.loaded == int(done.sources.hits[1:].sum())
    assert pool.loaded >= int(done.sources.hits[2].sum())
    assert pool.resident <= 30 * {"rank": 4, "host": 2, "cluster": 1}[scope]


REFUSED = [
    ({"exclusive": False}, {}, "--inclusive is not an option of SGLang's tiers"),
    ({}, {"engine_options": (("tree", "radix"),)}, "SGLang's older tree has no host memory"),
    ({}, {"policy": "sieve"}, "Engine sglang does not support policy 'sieve'"),
    ({"tiers": {"a": 9, "b": 9, "c": 9, "d": 9}}, {}, "SGLang has three tiers at most"),
]


@pytest.mark.parametrize(("options", "setting", "message"), REFUSED)
def test_tiers_that_sglang_lacks_are_refused(options, setting, message):
    options = {"tiers": {"a": 9, "b": 9}, **options}
    built = Setting(1, engine="sglang", **setting)
    with pytest.raises(UsageError, match=message):
        simulate_tiers(toy("0 1"), options.pop("tiers"), built.policy, setting=built, **options)


def test_a_shared_pool_needs_a_host_above_it():
    tiers = Tier("device", 9), Tier("pool", 9, scope="cluster")
    with pytest.raises(UsageError, match="SGLang brings the blocks of pool=...@cluster to host memory first"):
        simulate_instances(toy("0 1"), 2, setting=Setting(1, engine="sglang"), tiers=tiers)


def test_a_write_policy_needs_a_host():
    with pytest.raises(UsageError, match="--hicache-write-policy needs host memory"):
        simulate(toy("0"), 1, engine="sglang", hicache_write_policy="write_back")
