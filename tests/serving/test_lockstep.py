"""Data-parallel ranks in lockstep: vLLM's own vectors, plain twins on random cases, and laws."""

import json
import os
import random

import numpy as np
import pytest

from kvtrace.cache.demand import block_demand
from tests.conftest import ROOT, drawn
from tests.reference import vllm_lockstep
from tests.serving.scheduler_cases import options_of, setting_of, trace_of, vllm_case

CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(300)))


def lockstep_case(rng):
    """A case of tests/clients/vllm_lockstep.py."""
    case = vllm_case(rng)
    case["cost"] |= {
        "expert_token_s": rng.random() * 1e-3, "expert_step_s": rng.random() * 0.01,
        "expert_share": rng.choice([0.03, 0.25, 1.0]),
    }  # fmt: skip
    return case | {"ranks": rng.choice([1, 2, 2, 3, 4])}


def served(case):
    """What our kernel says of a case, as the twin states it."""
    from dataclasses import asdict

    from kvtrace.serving.core.instance import Requests
    from kvtrace.serving.core.serving import Router, Serving

    trace, (cost, scheduler) = trace_of(case), options_of(case)
    setting = scheduler.setting_of(setting_of(case))
    demand = block_demand(trace, *setting.demand_options)
    rows = case["requests"]
    requests = Requests(
        [row["arrival"] for row in rows], *scheduler.lengths(trace), scheduler.needs(demand, setting),
        [row["priority"] for row in rows],
    )  # fmt: skip
    engines = [scheduler.engine(setting, demand, ()) for _ in range(case["ranks"])]
    ranks = scheduler.ranks(engines, requests, asdict(cost), log=True)
    router = Router(engines, "round-robin", np.zeros(len(trace), np.int64), trace.input_length, trace.block_size)
    run = Serving(ranks, router, requests, case["capacity"])
    run.advance(len(trace))
    run.close()
    names = ("cached", "started", "first", "ended", "preempted")
    return {
        "steps": [[[begin, parts, sorted(gone)] for begin, _, parts, gone in rank.log] for rank in ranks],
        "dummies": [rank.dummies for rank in ranks],
        "requests": np.array([requests.outcomes[name] for name in names], dtype=float).T.tolist(),
    }


def require_equal(found, expected, name):
    assert found["dummies"] == expected["dummies"], name
    for mine, theirs in zip(found["steps"], expected["steps"], strict=True):
        assert [step[1:] for step in mine] == [step[1:] for step in theirs], name
        assert [step[0] for step in mine] == pytest.approx([step[0] for step in theirs], abs=1e-9), name
    assert np.array(found["requests"]) == pytest.approx(np.array(expected["requests"], dtype=float), abs=1e-9), name


def test_the_steps_are_those_of_the_twin():
    for seed in range(CASES):
        case = lockstep_case(random.Random(seed))
        require_equal(served(case), vllm_lockstep.serve(case), f"seed {seed}: {case['ranks']} {case['settings']}")
