"""vLLM's scheduler takes the steps that vLLM takes: its own vectors, and a plain twin on random cases."""

import json
import os
import random

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting
from kvtrace.serving.instances import Timeline
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import BatchLimits, StepCost, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT, drawn
from tests.reference.vllm_scheduler import serve
from tests.serving.scheduler_cases import more_terms, options_of, setting_of, tiers_of, trace_of, vllm_case

VECTORS = json.loads((ROOT / "tests/vectors/scheduler_vllm.json").read_text())
CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(400)))


def served(case, timer=None):
    """The instance, the requests and the cache of a case, after our kernel has served it."""
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
    cache = scheduler.engine(setting, demand, tiers_of(case))
    instance = scheduler.instance(cache, requests, asdict(cost), prefetch=True, log=True)
    instance.watch()
    instance.step_timer = timer
    router = Router([cache], "round-robin", np.zeros(len(trace), np.int64), trace.input_length, trace.block_size)
    run = Serving([instance], router, requests, case["capacity"])
    run.advance(len(trace))
    run.close()
    return instance, requests, cache


def logged(case):
    """The steps and the requests of a case in our kernel, as the twin states them."""
    instance, requests, cache = served(case)
    steps = [
        [begin if i == 0 else None, [[row, done + i, chunk] for row, done, chunk in parts], sorted(preempted)]
        for begin, times, parts, preempted in instance.log
        for i in range(times)
    ]
    names = ("cached", "started", "first", "ended", "preempted")
    columns = [requests.outcomes[name] for name in names] + ([cache.tier_hits[0]] if "tier" in case else [])
    return steps, np.array(columns, dtype=float).T, Timeline.of(instance.timeline)


def require_equal(case, expected, name):
    steps, requests, _ = logged(case)
    assert [step[1:] for step in steps] == [step[1:] for step in expected["steps"]], name
    for step, one in zip(steps, expected["steps"], strict=True):
        assert step[0] is None or step[0] == pytest.approx(one[0], abs=1e-9), name
    assert requests == pytest.approx(np.array(expected["requests"], dtype=float), abs=1e-9), name


def require_steps_of_vllm(vectors, number):
    """Our kernel takes the steps of a vector."""
    vector = vectors["vectors"][number]
    assert vectors["version"] == VllmScheduler.version
    require_equal(vector["case"], vector["served"], number)


def require_twin(vectors, serve):
    """A twin takes the steps of all vectors."""
    for vector in vectors["vectors"]:
        assert json.loads(json.dumps(serve(vector["case"]))) == vector["served"]


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_the_steps_are_those_of_vllm(number):
    require_steps_of_vllm(VECTORS, number)


def test_the_twin_takes_the_steps_of_vllm_too():
    require_twin(VECTORS, serve)


def test_the_steps_are_those_of_the_twin():
    preempted = 0
    for seed in range(CASES):
        case = vllm_case(random.Random(seed))
        if seed % 2:
            case["cost"] |= more_terms(random.Random(seed))
        expected = serve(case)
        require_equal(case, expected, f"seed {seed}: {case['settings']}")
        preempted += sum(len(step[2]) for step in expected["steps"])
    assert preempted > CASES  # the cases are such that blocks run out


def test_the_time_line_has_the_state_of_each_step():
    for seed in range(CASES):
        case, states = vllm_case(random.Random(seed)), []
        serve(case, states)
        begin, *expected = np.array(states, dtype=float).T
        line = logged(case)[2]
        states = line.at(begin + 1e-9)  # of equal times in another order of sums
        assert np.array([states.running, states.waiting, states.blocks]).tolist() == np.array(expected).tolist(), seed
        assert [line.running[-1], line.waiting[-1], line.blocks[-1]] == [0, 0, 0]


def test_a_preempted_request_is_computed_again_from_what_is_cached():
    #  blocks of one token, 1 s a token: both run until the third block is needed; the second gives way
    columns = replace_columns(toy("0 1", "2 3", gap_ms=0.0), output_length=np.array([3, 3]))
    trace = Trace.from_columns(columns, block_size=1)
    scheduler = VllmScheduler(async_scheduling=False)
    done = open_loop(trace, StepCost(token_s=1.0), setting=Setting(5, engine="vllm"), scheduler=scheduler)
    assert done.preemptions.tolist() == [0, 1] and done.to_dict()["preemptions"] == 1
    assert done.recomputed_tokens.sum() == done.to_dict()["recomputed_tokens"] > 0
    assert done.to_dict()["scheduler"] == "vllm 0.33.0" and done.to_dict()["steps"] == sum(done.steps)


def test_the_engine_decides_the_scheduler_and_limits_are_its_own():
    trace = toy("0 1", "2 3", gap_ms=0.0)
    cost, setting = StepCost(token_s=1.0), Setting(9, engine="vllm")
    assert open_loop(trace, cost, setting=setting).scheduler == VllmScheduler()
    limited = open_loop(trace, cost, setting=setting, limits=BatchLimits(3, 1))
    assert limited.scheduler == VllmScheduler(max_num_batched_tokens=3, max_num_seqs=1)
    assert open_loop(trace, cost, setting=Setting(9)).scheduler.name == "reserve"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 0}, "at least 1"), ({"watermark": 1.0}, "below 1"),
        ({"long_prefill_token_threshold": -1}, "at least 0"), ({"policy": "lifo"}, "fcfs or priority"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        VllmScheduler(**options)


def test_limits_beside_a_scheduler_are_refused():
    with pytest.raises(UsageError, match="not both"):
        open_loop(
            toy("0"), StepCost(1.0), setting=Setting(9, engine="vllm"), limits=BatchLimits(), scheduler=VllmScheduler()
        )


def test_it_needs_vllms_cache():
    with pytest.raises(UsageError, match="--engine vllm"):
        open_loop(toy("0"), StepCost(1.0), setting=Setting(9), scheduler=VllmScheduler())


def test_a_program_that_executes_the_steps_sets_their_times():
    # the timer states the cost again: each step goes through it, also those that only decode
    preempted = 0
    for seed in range(60):
        case = vllm_case(random.Random(seed))
        case["cost"] |= {"pair_s": 0.0, "read_s": 0.0}
        executed = []

        def timer(begin, parts, cost=case["cost"], executed=executed):
            executed.append(begin)
            return max(cost["token_s"] * sum(chunk for _, _, chunk, _ in parts), cost["step_s"]) + cost["overhead_s"]

        (instance, requests, _), (plain, expected, _) = served(case, timer), served(case)
        for name, values in expected.outcomes.items():
            np.testing.assert_allclose(requests.outcomes[name], values, atol=1e-9, rtol=0, err_msg=f"{seed} {name}")
        assert (
            executed == sorted(executed)
            and instance.steps == plain.steps == len(executed)
            and instance.busy == pytest.approx(plain.busy)
        )
        preempted += int(expected.outcomes["preempted"].sum())
    assert preempted > 60
