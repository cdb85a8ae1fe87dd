"""The compiled SGLang scheduler over HiCache with a storage backend takes the steps of SGLang itself."""

import json
import os
import random
from dataclasses import asdict, replace

import numpy as np
import pytest

from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting
from kvtrace.cache.tiers import Tier
from kvtrace.serving.core.dynamo import SharedTierServing
from kvtrace.serving.core.instance import Requests
from kvtrace.serving.core.serving import Router
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.simulation import StepCost, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT, drawn
from tests.reference import sglang_storage_scheduler
from tests.serving.storage_cases import fits_blocks, is_served, storage_case
from tests.serving.test_sglang_kernel import limited_trace, scheduler_of

CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(200)))
VECTORS = json.loads((ROOT / "tests/vectors/scheduler_sglang_storage.json").read_text())


def scheduler_with(case):
    """The scheduler of a case, with the options of its storage."""
    storage = case["storage"]
    return replace(
        scheduler_of(case), hicache_storage_prefetch_policy=storage["policy"],
        prefetch_threshold=storage["prefetch_threshold"], prefetch_timeout_base=storage["timeout_base"],
        prefetch_timeout_per_ki_token=storage["timeout_per_ki_token"],
        hicache_storage_prefetch_retry_poll_interval=storage["retry_interval"],
        hicache_storage_prefetch_retry_max_attempts=storage["retry_attempts"],
    )  # fmt: skip


def serve(case):
    """For each instance its steps; for each request its times, and its blocks from the host and the storage."""
    rows, trace, scheduler = case["requests"], limited_trace(case), scheduler_with(case)
    demand, size, storage = block_demand(trace, "grow"), case["block_size"], case["storage"]
    requests = Requests(
        [row["arrival"] for row in rows], trace.input_length, trace.output_length, np.zeros(len(rows)),
        [row.get("priority", 0) for row in rows],
    )  # fmt: skip
    host = Tier("dram", case["host"] // size, case["load_s"] * size, case["store_s"] * size)
    instances = 1 + max(row["instance"] for row in rows)
    caches = [scheduler.cache(demand, case["capacity"], host, case["write_policy"]) for _ in range(instances)]
    blocks = storage["capacity"] * case["settings"]["page_size"] // size
    pool = Tier("pool", blocks, storage["fetch_s"] * size, storage["store_s"] * size, latency_s=storage["latency_s"])
    scheduler.attach_storage(caches, pool, storage["batch"])
    cost = asdict(StepCost(**case["cost"]))
    built = [scheduler.instance(cache, requests, cost, prefetch=True, log=True) for cache in caches]
    keys = np.array([row["instance"] for row in rows], dtype=np.int64)
    router = Router(caches, "sticky", keys, trace.input_length, trace.block_size)
    run = SharedTierServing(built, router, requests, case["capacity"])
    run.advance(len(trace))
    run.close()
    names = ("cached", "started", "first", "ended", "preempted")
    outcomes = np.array([requests.outcomes[name] for name in names], dtype=float).T
    return [instance.log for instance in built], outcomes, sum(cache.tier_hits for cache in caches)


def require_equal(case, expected, name):
    logs, outcomes, hits = serve(case)
    size = case["block_size"]
    for number, (log, one) in enumerate(zip(logs, expected["instances"], strict=True)):
        own = [at for at, row in enumerate(case["requests"]) if row["instance"] == number]
        steps = [
            [begin if i == 0 else None, kind, [[own.index(row), b + i, count] for row, b, count in parts],
             sorted(own.index(row) for row in gone)]
            for begin, times, kind, parts, gone in log
            for i in range(times)
        ]  # fmt: skip
        for at, (step, other) in enumerate(zip(steps, one["steps"], strict=False)):
            assert step[1:] == other[1:], (name, number, at)
            assert step[0] is None or step[0] == pytest.approx(other[0], abs=1e-9), (name, number, at)
        assert len(steps) == len(one["steps"]), (name, number)
        real = np.array([row[:5] for row in one["requests"]], dtype=float)
        assert outcomes[own] == pytest.approx(real, abs=1e-9), (name, number)
        stored = [row[6] // size for row in one["requests"]]
        if case["settings"]["page_size"] % size == 0:  # else a page may begin within a block
            assert hits[1, own].tolist() == stored, (name, number)


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_vectors_of_sglang_itself_are_met_by_both(vector):
    assert sglang_storage_scheduler.serve(vector["case"]) == vector["served"]
    require_equal(vector["case"], vector["served"], vector["name"])


def test_a_prompt_of_another_instance_comes_from_the_storage():
    #  a block of 16 tokens takes 1 ms to compute a token, and nothing to fetch
    one = toy("0 1 2 3", "0 1 2 3", gap_ms=10_000)
    trace = Trace.from_columns(replace_columns(one, input_length=one.input_length * 16), block_size=16)
    pool = Tier("pool", 99, scope="cluster")
    done = open_loop(
        trace, StepCost(1e-3), setting=Setting(9, engine="sglang"), tiers=[Tier("dram", 9), pool], instances=2,
        scheduler=SglangScheduler(prefetch_threshold=16),
    )  # fmt: skip
    assert done.lower_tier_hits.tolist() == [[0, 0], [0, 3]]
    assert (done.first_s - done.started_s).round(3).tolist() == [0.064, 0.016]


def test_the_kernel_takes_the_steps_of_its_twin():
    rng, stored, fetched = random.Random(43), 0, 0
    for number in range(CASES):
        case = storage_case(rng)
        if case is None or not fits_blocks(case):
            continue
        try:
            expected = sglang_storage_scheduler.serve(case)
        except MemoryError:
            continue
        if not is_served(expected):
            continue
        require_equal(case, expected, f"case {number}: {json.dumps(case)}")
        stored += 1
        fetched += sum(row[6] for one in expected["instances"] for row in one["requests"])
    assert CASES < 100 or (stored > CASES // 4 and fetched > 0)
