"""vLLM's scheduler with cache groups takes the steps that vLLM takes: its own vectors, and a plain twin."""

import json
import os
import random

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.layout import CacheGroup, CacheLayout
from kvtrace.cache.simulation import Setting
from kvtrace.serving.run import simulate_all
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import StepCost, Tier, open_loop
from kvtrace.trace.building import toy
from tests.conftest import ROOT, drawn
from tests.reference.vllm_grouped_scheduler import serve
from tests.serving.scheduler_cases import hybrid_case
from tests.serving.test_vllm_scheduler import logged, require_equal, require_steps_of_vllm, require_twin

VECTORS = json.loads((ROOT / "tests/vectors/scheduler_vllm_hybrid.json").read_text())
CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(200)))


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_the_steps_are_those_of_vllm(number):
    require_steps_of_vllm(VECTORS, number)


def test_the_twin_takes_the_steps_of_vllm_too():
    require_twin(VECTORS, serve)


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


def window(size=1, width=2):
    return CacheLayout((CacheGroup("window", 1, size, width),))


def test_a_window_serves_a_prompt_that_is_longer_than_the_cache():
    #  blocks of one token; a window of 2 needs 1 block behind the step's token, and vLLM reserves one more
    trace, one_token = toy("0 1 2 3 4 5"), VllmScheduler(1, 1, async_scheduling=False)
    cost = StepCost(token_s=1.0)
    served = [
        open_loop(trace, cost, setting=Setting(3, engine="vllm", layout=layout), scheduler=one_token)
        for layout in (None, window())
    ]
    assert [done.rejected for done in served] == [1, 0]
    assert served[1].first_s.tolist() == [6.0]


def test_the_hits_of_a_window_are_its_last_blocks():
    #  the second prompt resumes where the first ended, after a cache of 4 blocks has lost all but the last of them
    trace = toy("0 1 2 3 4", "0 1 2 3 4 5", gap_ms=60_000.0)
    setting = Setting(4, engine="vllm", layout=window())
    done = open_loop(
        trace, StepCost(token_s=1.0), setting=setting, scheduler=VllmScheduler(1, 1, async_scheduling=False)
    )
    assert done.cached_tokens.tolist() == [0, 4] and done.hit_blocks.tolist() == [0, 4]


def test_full_attention_as_a_layout_is_full_attention():
    trace, cost = toy("0 1", "0 1 2", "0 1"), StepCost(token_s=1.0)
    layout = CacheLayout((CacheGroup("full", 4, trace.block_size),))
    plain, grouped = (open_loop(trace, cost, setting=Setting(4, engine="vllm", layout=one)) for one in (None, layout))
    assert plain.setting == grouped.setting and plain.ended_s.tolist() == grouped.ended_s.tolist()


def test_every_simulation_takes_a_layout():
    run = simulate_all(
        toy("0 1", "0 1"), [4], engines=["vllm"], cost=StepCost(1.0), layouts={"vllm": window()}, gap=False
    ).runs[0]
    assert run.setting.layout == window()
    assert simulate_all(toy("0 1", "0 1"), [4], engines=["vllm"], layouts={"vllm": window()}).optima == []


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("sglang", {}, "Engine sglang does not support cache groups"),
        ("dynamo", {}, "Engine dynamo does not support cache groups"),
        ("reference", {}, "Engine reference does not support cache groups"),
        ("vllm", {"router": "dynamo", "instances": 2}, "--router dynamo counts blocks of full attention"),
        ("vllm", {"router": "kv-aware", "instances": 2}, "--router kv-aware counts blocks of full attention"),
        ("vllm", {"tiers": [Tier("dram", 9, 0.1)]}, "Lower tiers do not support cache groups"),
    ],
)
def test_what_cannot_hold_cache_groups_is_refused(engine, options, message):
    with pytest.raises(UsageError, match=message):
        open_loop(toy("0 1", "0 1"), StepCost(1.0), setting=Setting(9, engine=engine, layout=window()), **options)


def test_a_layout_that_vllm_refuses_is_refused_in_time_too():
    for layout, options, message in (
        (window(size=3), (), "do not divide"),
        (window(), (("free_order", "append"),), "older vLLM"),
    ):
        setting = Setting(9, engine="vllm", layout=layout, engine_options=options)
        with pytest.raises(UsageError, match=message):
            open_loop(toy("0 1", block_size=2), StepCost(1.0), setting=setting)


@pytest.mark.parametrize("router", ["round-robin", "overlap", "least-loaded", "lmetric", "sticky"])
def test_several_instances_serve_a_hybrid_model(router):
    trace = toy("0 1 2", "0 1 2 3", "0 1 2", "4 5", gap_ms=20_000.0)
    setting = Setting(9, engine="vllm", layout=window())
    done = open_loop(trace, StepCost(1.0), setting=setting, instances=2, router=router)
    assert done.rejected == 0 and done.cached_tokens.sum() > 0
