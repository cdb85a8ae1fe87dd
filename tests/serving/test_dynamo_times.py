"""Dynamo's mocked engines and its router in simulated time: vectors of its replay, and a plain twin."""

import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting
from kvtrace.serving.instances import simulate_instances
from kvtrace.serving.schedulers.dynamo import DynamoCost, DynamoScheduler
from kvtrace.serving.simulation import BatchLimits, StepCost, open_loop
from kvtrace.trace.building import toy
from tests.conftest import ROOT, drawn
from tests.reference.dynamo_times import serve
from tests.serving.scheduler_cases import dynamo_case, trace_of

VECTORS = json.loads((ROOT / "tests/vectors/dynamo_times.json").read_text())
CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(200)))
NAMES = ("instance", "cached", "started", "first", "ended", "preempted")


def served(trace, capacity, scheduler, workers, router, winner=None, fleet=None, ranks=1):
    """The outcomes in our kernel, one row a request, and the ties; `winner` has the worker that wins each tie."""
    from kvtrace.serving.core.instance import Requests
    from kvtrace.serving.core.serving import DynamoRouter, Serving
    from kvtrace.serving.instances import make_router

    setting = scheduler.setting_of(Setting(capacity, engine="dynamo"))
    demand = block_demand(trace, *setting.demand_options)
    requests = Requests(trace.timestamp / 1000, *scheduler.lengths(trace), demand.max_blocks)
    spans = None if fleet is None else fleet.spans(workers)
    caches = [scheduler.engine(setting, demand, ()) for _ in range(len(spans) if spans else workers)]
    terms = DynamoCost().terms(capacity * trace.block_size)
    instances = replace(scheduler, dp_size=ranks).workers(caches, requests, terms, prefetch=True)
    if router == "dynamo":
        chooser = DynamoRouter(caches, requests, demand.blocks, trace.block_size, 0, winner)
    else:
        chooser = make_router(trace, router, caches)
    if spans is not None:
        chooser.change_fleet(workers, *spans.events)
    run = Serving(instances, chooser, requests, capacity)
    run.advance(len(trace))
    run.close()
    return np.array([requests.outcomes[name] for name in NAMES], dtype=float).T, getattr(chooser, "ties", 0)


def require_equal(case, expected, name, fleet=None):
    """The replay rounds each step to a nanosecond, so its times differ by less than a microsecond."""
    expected = np.array(expected, dtype=float)
    scheduler = DynamoScheduler(**case["settings"])
    winner = expected[:, 0].astype(np.int32)
    ours, ties = served(
        trace_of(case),
        case["capacity"],
        scheduler,
        case["workers"],
        case["router"],
        winner,
        fleet,
        case.get("ranks", 1),
    )
    assert ours[:, [0, 1, 5]].tolist() == expected[:, [0, 1, 5]].tolist(), name
    assert ours[:, 2:5] == pytest.approx(expected[:, 2:5], abs=1e-6), name
    return ties


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_workers_hits_times_and_preemptions_are_those_of_the_replay(number):
    vector = VECTORS["vectors"][number]
    assert VECTORS["version"] == DynamoScheduler.version
    require_equal(vector["case"], vector["requests"], number)


def test_the_vectors_preempt_and_tie_and_use_both_routers():
    cases = [vector["case"] for vector in VECTORS["vectors"]]
    assert {case["router"] for case in cases} == {"round-robin", "dynamo"}
    assert sum(request[5] for vector in VECTORS["vectors"] for request in vector["requests"]) > len(cases)


def in_seconds(case):
    """A case with the arrivals of its trace, and Dynamo's cost."""
    trace = trace_of(case)
    rows = [row | {"arrival": at} for row, at in zip(case["requests"], trace.timestamp / 1000, strict=True)]
    return case | {"requests": rows, "cost": DynamoCost().terms(case["capacity"] * case["block_size"])}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("router", ["round-robin", "dynamo"])
def test_requests_take_the_workers_and_the_times_of_the_twin(router, ranks):
    preempted = tied = 0
    for seed in range(CASES):
        case = dynamo_case(random.Random(seed)) | {"router": router, "ranks": ranks}
        case["workers"] *= ranks
        name, scheduler = f"seed {seed}: {case['settings']}", DynamoScheduler(**case["settings"])
        ours, ties = served(trace_of(case), case["capacity"], scheduler, case["workers"], router, ranks=ranks)
        expected = np.array(serve(in_seconds(case)), dtype=float)
        assert ours[:, [0, 1, 5]].tolist() == expected[:, [0, 1, 5]].tolist(), name
        assert ours[:, 2:5] == pytest.approx(expected[:, 2:5], abs=1e-9), name
        preempted += int(expected[:, 5].sum())
        tied += ties
    assert preempted > CASES // 2  # the cases are such that blocks run out
    assert router == "round-robin" or tied > CASES // 4


def test_the_twin_takes_the_times_of_the_replay():
    for number, vector in enumerate(VECTORS["vectors"]):
        case, expected = vector["case"], np.array(vector["requests"], dtype=float)
        if case["router"] == "round-robin":  # the replay draws its own ties
            twin = np.array(serve(in_seconds(case)), dtype=float)
            assert twin[:, [0, 1, 5]].tolist() == expected[:, [0, 1, 5]].tolist(), number
            assert twin[:, 2:5] == pytest.approx(expected[:, 2:5], abs=1e-6), number


def seconds(tokens):
    cost = DynamoCost()
    return cost.prefill_square_s * tokens**2 + cost.prefill_token_s * tokens + cost.prefill_step_s


def test_prompt_tokens_are_counted_by_whole_number_means():
    #  30, 45 and 61 tokens: the mean is 45.33, so the step takes as long as one of 135 tokens
    trace = trace_of({
        "block_size": 64,
        "requests": [
            {"arrival": 0.0, "ids": [row], "tokens": tokens, "output": 1, "priority": 0}
            for row, tokens in enumerate([30, 45, 61])
        ],
    })  # fmt: skip
    done = open_loop(trace, DynamoCost(), setting=Setting(9, engine="dynamo"))
    assert done.ttft_s == pytest.approx(seconds(135), abs=1e-12)


def test_a_decode_step_costs_no_more_than_that_of_a_full_cache():
    #  they share 3 blocks of 8 tokens: 66 and 68 tokens of context in a cache of 7 x 8
    rows = [{"arrival": 0.0, "ids": [0, 1, 2, 3], "tokens": 32, "output": 3, "priority": 0} for _ in range(2)]
    done = open_loop(trace_of({"block_size": 8, "requests": rows}), DynamoCost(), setting=Setting(7, engine="dynamo"))
    full = DynamoCost().decode_square_s + DynamoCost().decode_used_s + DynamoCost().decode_step_s
    assert done.ended_s - done.first_s == pytest.approx(2 * full, abs=1e-12)


def test_a_request_goes_to_its_prefix_when_the_step_that_computes_it_has_ended():
    #  2,048 tokens wait on the first worker and would hit there: a tie, if the router knew of them before the step ends
    for gap_ms, same in ((10.0, False), (1000.0, True)):
        trace = toy("0 1 2 3", "0 1 2 3 4", block_size=512, gap_ms=gap_ms)
        for seed in range(20):
            done = open_loop(
                trace, DynamoCost(), setting=Setting(9, engine="dynamo"), instances=2, router="dynamo", router_seed=seed
            )
            assert (done.instance[0] == done.instance[1]) == same


def test_ties_are_drawn_and_a_seed_repeats_them():
    def chosen(seed):
        setting = Setting(9, engine="dynamo")
        done = open_loop(toy("0"), DynamoCost(), setting=setting, instances=4, router="dynamo", router_seed=seed)
        return int(done.instance[0])

    draws = [chosen(seed) for seed in range(400)]
    assert draws == [chosen(seed) for seed in range(400)]
    assert all(60 < count < 140 for count in np.bincount(draws, minlength=4))


def test_the_engine_decides_the_scheduler():
    setting, trace = Setting(9, engine="dynamo"), toy("0 1", "2 3")
    done = open_loop(trace, StepCost(token_s=1.0), setting=setting)
    assert done.scheduler == DynamoScheduler() and done.to_dict()["scheduler"] == "dynamo 1.6.1"
    limited = open_loop(trace, StepCost(token_s=1.0), setting=setting, limits=BatchLimits(3, 1))
    assert limited.scheduler == DynamoScheduler(max_num_batched_tokens=3, max_num_seqs=1)


def test_wrong_options_are_refused():
    with pytest.raises(UsageError, match="at least 1"):
        DynamoScheduler(max_num_seqs=0)
    with pytest.raises(UsageError, match="--engine dynamo"):
        open_loop(toy("0"), DynamoCost(), setting=Setting(9), scheduler=DynamoScheduler())
    with pytest.raises(UsageError, match="simulation in time"):
        simulate_instances(toy("0"), 2, "dynamo", setting=Setting(9))
