"""Tiers below Dynamo's mocked workers in simulated time: vectors of its replay, a plain twin, and laws."""

import json
import os
import random

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting
from kvtrace.serving.instances import make_router
from kvtrace.serving.schedulers.dynamo import DynamoCost
from kvtrace.serving.simulation import Tier, open_loop
from kvtrace.trace.building import toy
from tests.conftest import ROOT, drawn
from tests.reference.dynamo_tiers import serve
from tests.serving.scheduler_cases import dynamo_tier_case, dynamo_tiers_of, trace_of
from tests.serving.test_dynamo_times import in_seconds

VECTORS = json.loads((ROOT / "tests/vectors/dynamo_tiers.json").read_text())
CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(200)))
NAMES = ("instance", "cached", "started", "first", "ended", "preempted")
COUNTS, TIMES = [0, 1, 5, 6], [2, 3, 4]


def served(trace, case, winner=None):
    """The outcomes in our kernel, one row a request, with the tokens from the tier; `winner` wins each tie."""
    from kvtrace.serving.core.dynamo import SharedTierServing
    from kvtrace.serving.core.instance import Requests
    from kvtrace.serving.core.serving import DynamoRouter, Serving

    scheduler, tiers = dynamo_tiers_of(case)
    setting = scheduler.setting_of(Setting(case["capacity"], engine="dynamo"))
    demand = block_demand(trace, *setting.demand_options)
    requests = Requests(trace.timestamp / 1000, *scheduler.lengths(trace), scheduler.needs(demand, setting))
    caches = scheduler.engines(setting, demand, tiers, case["workers"], 1)
    terms = DynamoCost().terms(case["capacity"] * trace.block_size)
    instances = scheduler.workers(caches, requests, terms, prefetch=True)
    if case["router"] == "dynamo":
        chooser = DynamoRouter(caches, requests, demand.blocks, trace.block_size, 0, winner)
    else:
        chooser = make_router(trace, "round-robin", caches)
    shared = any(tier.scope == "cluster" for tier in tiers)
    kind = SharedTierServing if shared else Serving
    run = kind(instances, chooser, requests, case["capacity"])
    run.advance(len(trace))
    run.close()
    hits = [cache.tier_hits[0] for cache in caches] if tiers else [np.zeros(len(trace), dtype=int)]
    loaded = sum(hits) * trace.block_size
    return np.array([*(requests.outcomes[name] for name in NAMES), loaded], dtype=float).T


def require_equal(case, expected, name, abs_s=1e-6):
    """The replay rounds each step to a nanosecond, so its times differ by less than a microsecond."""
    expected = np.array(expected, dtype=float)
    ours = served(trace_of(case), case, expected[:, 0].astype(np.int32))
    assert ours[:, COUNTS].tolist() == expected[:, COUNTS].tolist(), name
    assert ours[:, TIMES] == pytest.approx(expected[:, TIMES], abs=abs_s), name


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_workers_hits_by_source_and_times_are_those_of_the_replay(number):
    vector = VECTORS["vectors"][number]
    require_equal(vector["case"], vector["requests"], number)


def test_the_vectors_load_from_both_scopes_under_both_routers():
    seen = {
        (vector["case"]["host"]["scope"], vector["case"]["router"])
        for vector in VECTORS["vectors"]
        if any(request[6] for request in vector["requests"])
    }
    assert len(seen) == 4


def test_the_kernel_takes_the_times_of_the_twin():
    stopped = loaded = 0
    for seed in range(CASES):
        case = dynamo_tier_case(random.Random(seed))
        expected = serve(in_seconds(case))
        if any(request[4] is None for request in expected):  # loaded requests hold all blocks: the replay stops, too
            stopped += 1
            with pytest.raises(UsageError, match="none|any of them"):
                served(trace_of(case), case)
            continue
        require_equal(case, expected, f"seed {seed}", 1e-9)
        loaded += sum(request[6] > 0 for request in expected)
    assert loaded > CASES and stopped < CASES // 20


def test_the_twin_takes_the_times_of_the_replay():
    for number, vector in enumerate(VECTORS["vectors"]):
        expected = np.array(vector["requests"], dtype=float)
        twin = np.array(serve(in_seconds(vector["case"]), winner=expected[:, 0]), dtype=float)
        assert twin[:, COUNTS].tolist() == expected[:, COUNTS].tolist(), number
        assert twin[:, TIMES] == pytest.approx(expected[:, TIMES], abs=1e-6), number


def run(trace, capacity, *tiers, **options):
    setting = Setting(capacity, engine="dynamo")
    return open_loop(trace, DynamoCost(), setting=setting, tiers=tiers, **options)


def test_a_prompt_that_the_cache_has_lost_is_loaded_from_the_tier():
    trace = toy("0 1 2 3", "4 5 6 7", "0 1 2 3 8", block_size=16, gap_ms=1000.0)
    done = run(trace, 6, Tier("dram", 100, fetch_seconds=0.001))
    assert done.lower_tier_hits.tolist() == [[0, 0, 2]]  # its first two blocks are still cached
    assert done.started_s[2] == pytest.approx(2.0 + 2 * 0.001, abs=1e-9)


def test_what_one_worker_stored_another_one_loads_if_they_share_the_tier():
    trace = toy("0 1 2 3", "0 1 2 3 4", block_size=16, gap_ms=1000.0)
    for scope, hits in (("cluster", [[0, 4]]), ("rank", [[0, 0]])):
        done = run(trace, 9, Tier("pool", 100, scope=scope), instances=2)
        assert done.instance.tolist() == [0, 1] and done.lower_tier_hits.tolist() == hits


def test_tiers_that_dynamo_does_not_have_are_refused():
    trace = toy("0 1")
    for tier in (Tier("a", 9, scope="host"), Tier("a", 9, policy="arc"), Tier("a", 9, copies="on-eviction")):
        with pytest.raises(UsageError, match="Dynamo"):
            run(trace, 9, tier)
    with pytest.raises(UsageError, match="one lower tier"):
        run(trace, 9, Tier("a", 9), Tier("b", 9))
    with pytest.raises(UsageError, match="at least 1 block"):
        run(trace, 9, Tier("a", 0))
    with pytest.raises(UsageError, match="at least 0"):
        run(trace, 9, scheduler=dynamo_tiers_of({"settings": {"worker_fetch_seconds": -1.0}})[0])
