"""Instances of vLLM that share a tier take the steps that vLLM takes: a plain twin, vectors of vLLM's own, and laws."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from kvtrace._base.errors import KvtraceError, UsageError
from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting
from kvtrace.serving.core.instance import Requests
from kvtrace.serving.core.interleaved import InterleavedServing
from kvtrace.serving.core.serving import Router
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import StepCost, Tier, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT, drawn
from tests.reference.vllm_tiers import serve
from tests.serving.scheduler_cases import options_of, pool_case, setting_of, tiers_of, trace_of

VECTORS = json.loads((ROOT / "tests/vectors/scheduler_vllm_pools.json").read_text())
CASES = drawn(200)


def served(case):
    """What our kernel does in a case, as the twin states it."""
    from dataclasses import asdict

    trace, (cost, scheduler) = trace_of(case), options_of(case)
    setting = scheduler.setting_of(setting_of(case))
    demand = block_demand(trace, *setting.demand_options)
    rows = case["requests"]
    requests = Requests(
        [row["arrival"] for row in rows], *scheduler.lengths(trace), scheduler.needs(demand, setting),
        [row["priority"] for row in rows],
    )  # fmt: skip
    placed = np.array([row["instance"] for row in rows])
    count = int(placed.max()) + 1
    engines = scheduler.engines(setting, demand, tiers_of(case), count, count)
    instances = [scheduler.instance(engine, requests, asdict(cost), prefetch=True, log=True) for engine in engines]
    router = Router(engines, "sticky", placed, trace.input_length, trace.block_size)
    run = InterleavedServing(instances, router, requests, case["capacity"])
    run.advance(len(trace))
    run.close()
    outcomes = requests.outcomes
    answer = []
    for number, (instance, engine) in enumerate(zip(instances, engines, strict=True)):
        mine = np.flatnonzero(placed == number)
        of_row = {row: i for i, row in enumerate(mine.tolist())}
        steps = [
            [begin if i == 0 else None, [[of_row[row], done + i, chunk] for row, done, chunk in parts],
             sorted(of_row[row] for row in preempted)]
            for begin, times, parts, preempted in instance.log
            for i in range(times)
        ]  # fmt: skip
        columns = [outcomes[name] for name in ("cached", "started", "first", "ended", "preempted")]
        columns += [engine.tier_hits.sum(axis=0), engine.tier_hits[1]]
        answer.append((steps, np.array(columns, dtype=float).T[mine]))
    return answer, engines[0].lower.pool


def require_equal(case, expected, name):
    instances, pool = served(case)
    for (steps, requests), one in zip(instances, expected["instances"], strict=True):
        assert [step[1:] for step in steps] == [step[1:] for step in one["steps"]], name
        for step, other in zip(steps, one["steps"], strict=True):
            assert step[0] is None or step[0] == pytest.approx(other[0], abs=1e-9), name
        assert requests == pytest.approx(np.array(one["requests"], dtype=float).reshape(-1, 7), abs=1e-9), name
    moved = np.array([one["moved"] for one in expected["instances"]]).sum(axis=0)
    assert [pool.read, pool.written] == moved.tolist(), name


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_the_steps_are_those_of_vllm(number):
    vector = VECTORS["vectors"][number]
    assert VECTORS["version"] == VllmScheduler.version
    require_equal(vector["case"], vector["served"], number)
    assert json.loads(json.dumps(serve(vector["case"]))) == vector["served"]


def test_the_steps_are_those_of_the_twin():
    from_pool = stuck = 0
    for seed in range(CASES):
        case = pool_case(random.Random(seed))
        expected = serve(case)
        if expected["instances"] is None:
            stuck += 1
            with pytest.raises(KvtraceError, match="Give the tier above the pool more blocks"):
                served(case)
            continue
        require_equal(case, expected, f"seed {seed}")
        from_pool += sum(row[6] for one in expected["instances"] for row in one["requests"])
    assert from_pool > CASES and stuck < CASES / 20


POOL = Tier("pool", 1000, fetch_seconds=0.01, store_seconds=0.001, scope="cluster", latency_s=0.005)
DRAM = Tier("dram", 100, fetch_seconds=0.001)


def in_time(trace, *tiers, capacity=8, instances=2, **options):
    return open_loop(
        trace, StepCost(token_s=0.01), setting=Setting(capacity, engine="vllm"), tiers=tiers, instances=instances,
        **options,
    )  # fmt: skip


def test_an_instance_reads_what_another_one_has_written():
    #  round-robin: the second instance gets the same prompt ten seconds later
    trace = toy("0 1 2", "0 1 2", block_size=10, gap_ms=10_000.0)
    alone, shared = in_time(trace, DRAM), in_time(trace, DRAM, POOL)
    assert alone.hit_blocks.tolist() == [0, 0] and shared.hit_blocks.tolist() == [0, 3]
    assert shared.lower_tier_hits.tolist() == [[0, 0], [0, 3]]
    #  it asks, gets the answer a ms later, reads three blocks, loads them, and computes the last token
    assert shared.ttft_s[1] == pytest.approx(0.001 + 0.035 + 0.003 + 0.01, abs=4e-3)


def test_a_pool_of_each_host_is_not_one_of_the_cluster():
    trace = toy("0 1", "2 3", "0 1", "0 1", block_size=10, gap_ms=10_000.0)
    hits = {
        scope: in_time(trace, DRAM, replace(POOL, scope=scope), instances=4, instances_per_host=2).hit_blocks.tolist()
        for scope in ("rank", "host", "cluster")
    }
    assert hits == {"rank": [0] * 4, "host": [0, 0, 0, 2], "cluster": [0, 0, 2, 2]}


def test_two_instances_share_the_link_of_the_pool():
    #  both get the first instance's prompt at once; each reads two blocks of 1 s
    times = [0, 10_000, 20_000, 20_000]
    columns = replace_columns(toy("0 1", "2", "0 1", "0 1", block_size=10), timestamp=np.array(times, dtype=float))
    trace = Trace.from_columns(columns, block_size=10)
    slow = replace(POOL, fetch_seconds=1.0, latency_s=0.0)
    done = in_time(trace, DRAM, slow, instances=4)
    assert done.lower_tier_hits[1].tolist() == [0, 0, 2, 2]
    assert done.ttft_s[2:] == pytest.approx([2.0, 4.0], abs=0.05)


def test_blocks_are_conserved_on_the_links_of_the_pool():
    for seed in range(CASES // 4):
        case = pool_case(random.Random(seed))
        if serve(case)["instances"] is None:
            continue
        instances, pool = served(case)
        assert pool.written == pool.blocks + pool.evictions
        assert pool.read >= sum(requests[:, 6].sum() for _, requests in instances)


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ([replace(DRAM, scope="host")], "belongs to one instance"), ([DRAM, replace(POOL, policy="arc")], "by lru"),
        ([DRAM, replace(POOL, copies="on-eviction")], "writes through"), ([DRAM, POOL, POOL], "two lower tiers"),
        ([DRAM, replace(POOL, peers=True)], "does not model"), ([DRAM, replace(POOL, capacity=0)], "at least 1 block"),
    ],
)  # fmt: skip
def test_tiers_that_vllm_does_not_have_are_refused(tiers, message):
    with pytest.raises(UsageError, match=message):
        in_time(toy("0", block_size=10), *tiers)
