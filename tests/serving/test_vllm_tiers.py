"""Instances of vLLM that share a tier take the steps that vLLM takes: a plain twin, vectors of vLLM's own, and laws."""

import random

import numpy as np
import pytest

from kvtrace.cache.demand import block_demand
from kvtrace.serving.core.instance import Requests
from kvtrace.serving.core.interleaved import InterleavedServing
from kvtrace.serving.core.serving import Router
from tests.conftest import drawn
from tests.reference.vllm_tiers import serve
from tests.serving.scheduler_cases import options_of, pool_case, setting_of, tiers_of, trace_of

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
    instances = [
        scheduler.instance(engine, requests, asdict(cost), prefetch=True, log=True) for engine in engines
    ]
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
        assert requests == pytest.approx(np.array(one["requests"], dtype=float), abs=1e-9), name
    moved = np.array([one["moved"] for one in expected["instances"]]).sum(axis=0)
    assert [pool.read, pool.written] == moved.tolist(), name


def test_the_steps_are_those_of_the_twin():
    from_pool = stuck = 0
    for seed in range(CASES):
        case = pool_case(random.Random(seed))
        expected = serve(case)
        if expected["instances"] is None:  # vLLM promotes blocks for ever
            stuck += 1
            continue
        require_equal(case, expected, f"seed {seed}")
        from_pool += sum(row[6] for one in expected["instances"] for row in one["requests"])
    assert from_pool > CASES and stuck < CASES / 20
