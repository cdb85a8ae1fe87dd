"""Data-parallel ranks in lockstep: vLLM's own vectors, plain twins on random cases, and laws."""

import json
import os
import random
from dataclasses import asdict

import numpy as np
import pytest

from kvtrace.cache.demand import block_demand
from kvtrace.serving.core.instance import Requests
from kvtrace.serving.core.serving import Router, Serving
from kvtrace.serving.simulation import StepCost
from tests.conftest import ROOT, drawn
from tests.reference import sglang_lockstep, vllm_lockstep
from tests.serving.scheduler_cases import options_of, setting_of, sglang_case, trace_of, vllm_case
from tests.serving.test_sglang_kernel import limited_trace, scheduler_of

CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(300)))


def lockstep_case(rng, case):
    """A case of tests/clients/vllm_lockstep.py, or sglang_lockstep.py."""
    case["cost"] |= {
        "expert_token_s": rng.random() * 1e-3, "expert_step_s": rng.random() * 0.01,
        "expert_share": rng.choice([0.03, 0.25, 1.0]),
    }  # fmt: skip
    return case | {"ranks": rng.choice([1, 2, 2, 3, 4])}


def vllm_served(case):
    """What our kernel says of a case, as the twin states it."""
    trace, (cost, scheduler) = trace_of(case), options_of(case)
    setting = scheduler.setting_of(setting_of(case))
    demand = block_demand(trace, *setting.demand_options)
    engines = [scheduler.engine(setting, demand, ()) for _ in range(case["ranks"])]
    needs = scheduler.needs(demand, setting)
    ranks, requests = served(case, trace, (*scheduler.lengths(trace), needs), scheduler, engines, cost)
    steps = [[[begin, parts, sorted(gone)] for begin, _, parts, gone in rank.log] for rank in ranks]
    return {"steps": steps, "dummies": [rank.dummies for rank in ranks], "requests": requests}


def sglang_served(case):
    """What our kernel says of a case, as the twin states it."""
    trace, scheduler = limited_trace(case), scheduler_of(case)
    demand = block_demand(trace, "grow")
    engines = [scheduler.cache(demand, case["capacity"]) for _ in range(case["ranks"])]
    lengths = (trace.input_length, trace.output_length, np.zeros(len(trace)))
    ranks, requests = served(case, trace, lengths, scheduler, engines, StepCost(**case["cost"]))
    steps = [[[begin, kind, parts, sorted(gone)] for begin, _, kind, parts, gone in rank.log] for rank in ranks]
    return {"steps": steps, "dummies": [rank.dummies for rank in ranks], "requests": requests}


def served(case, trace, lengths, scheduler, engines, cost):
    """The ranks after our kernel has served a case, and the outcome of each request."""
    rows = case["requests"]
    requests = Requests([row["arrival"] for row in rows], *lengths, [row.get("priority", 0) for row in rows])
    ranks = scheduler.ranks(engines, requests, asdict(cost), log=True)
    router = Router(engines, "round-robin", np.zeros(len(trace), np.int64), trace.input_length, trace.block_size)
    run = Serving(ranks, router, requests, case["capacity"])
    run.advance(len(trace))
    run.close()
    names = ("cached", "started", "first", "ended", "preempted")
    return ranks, np.array([requests.outcomes[name] for name in names], dtype=float).T


def require_equal(found, expected, name):
    assert found["dummies"] == expected["dummies"], name
    for mine, theirs in zip(found["steps"], expected["steps"], strict=True):
        assert [step[1:] for step in mine] == [step[1:] for step in theirs], name
        assert [step[0] for step in mine] == pytest.approx([step[0] for step in theirs], abs=1e-9), name
    assert found["requests"] == pytest.approx(np.array(expected["requests"], dtype=float), abs=1e-9), name


def test_vllm_ranks_take_the_steps_of_the_twin():
    for seed in range(CASES):
        rng = random.Random(seed)
        case = lockstep_case(rng, vllm_case(rng))
        require_equal(vllm_served(case), vllm_lockstep.serve(case), f"seed {seed}: {case['ranks']} {case['settings']}")


def test_sglang_ranks_take_the_steps_of_the_twin():
    compared = 0
    for seed in range(CASES):
        rng = random.Random(seed)
        case = lockstep_case(rng, sglang_case(rng))
        try:
            expected = sglang_lockstep.serve(case)
        except MemoryError:  # SGLang 0.5.23 ends: a chunk goes on although nothing is free
            continue
        if all(row[3] is not None for row in expected["requests"]):  # else SGLang goes on for ever
            require_equal(sglang_served(case), expected, f"seed {seed}: {case['ranks']} {case['settings']}")
            compared += 1
    assert compared > 0.9 * CASES
