"""vLLM's scheduler with cache groups takes the steps that vLLM takes: its own vectors, and a plain twin."""

import json
import os
import random

import numpy as np
import pytest

from kvtrace.serving.schedulers.vllm import VllmScheduler
from tests.conftest import ROOT
from tests.reference.vllm_grouped_scheduler import serve
from tests.serving.scheduler_cases import hybrid_case
from tests.serving.test_vllm_scheduler import logged, require_equal

VECTORS = json.loads((ROOT / "tests/vectors/scheduler_vllm_hybrid.json").read_text())
CASES = int(os.environ.get("KVTRACE_EXAMPLES", 200))


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_the_steps_are_those_of_vllm(number):
    vector = VECTORS["vectors"][number]
    assert VECTORS["version"] == VllmScheduler.version
    require_equal(vector["case"], vector["served"], number)


def test_the_twin_takes_the_steps_of_vllm_too():
    for vector in VECTORS["vectors"]:
        assert json.loads(json.dumps(serve(vector["case"]))) == vector["served"]


def test_the_vectors_have_each_kind_of_group_and_both_ways_to_schedule():
    cases = [vector["case"] for vector in VECTORS["vectors"]]
    assert {group["kind"] for case in cases for group in case["groups"]} == {"full", "window", "chunk", "state"}
    assert {bool(case["settings"].get("async")) for case in cases} == {True, False}
    assert sum(bool(step[2]) for vector in VECTORS["vectors"] for step in vector["served"]["steps"]) > len(cases)


def test_the_steps_are_those_of_the_twin():
    preempted = hits = 0
    for seed in range(CASES):
        case = hybrid_case(random.Random(seed))
        expected = serve(case)
        require_equal(case, expected, f"seed {seed}: {case['groups']}, {case['settings']}")
        preempted += sum(len(step[2]) for step in expected["steps"])
        hits += sum(request[0] > 0 for request in expected["requests"])
    assert preempted > CASES and hits > CASES  # the cases are such that blocks run out and prefixes are shared


def test_the_time_line_has_the_state_of_each_step():
    for seed in range(CASES // 4):
        case, states = hybrid_case(random.Random(seed)), []
        serve(case, states)
        begin, *expected = np.array(states, dtype=float).T
        line = logged(case)[2]
        states = line.at(begin + 1e-9)  # of equal times in another order of sums
        assert np.array([states.running, states.waiting, states.blocks]).tolist() == np.array(expected).tolist(), seed
        assert [line.running[-1], line.waiting[-1], line.blocks[-1]] == [0, 0, 0]
