"""Data-parallel ranks in lockstep: vLLM's own vectors, plain twins on random cases, and laws."""

import json
import os
import random
from collections import Counter
from dataclasses import asdict

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting
from kvtrace.cli import run
from kvtrace.serving.core.instance import Requests
from kvtrace.serving.core.serving import Router, Serving
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.schedulers import SglangScheduler, VllmScheduler
from kvtrace.serving.simulation import StepCost, Tier, closed_loop, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import COMPLETION, SEQUENCE, dependencies_between
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT, drawn
from tests.reference import sglang_lockstep, vllm_lockstep
from tests.serving.balancer_cases import served as balanced
from tests.serving.scheduler_cases import hybrid_case, options_of, setting_of, sglang_case, trace_of, vllm_case
from tests.serving.test_routers_in_time import requests
from tests.serving.test_sglang_kernel import limited_trace, scheduler_of

CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(300)))


PATH = ROOT / "tests/vectors/lockstep.json"
VECTORS = json.loads(PATH.read_text()) if PATH.exists() else {}  # missing only while it is written for the first time


def lockstep_case(rng, case):
    """A case of tests/clients/vllm_lockstep.py, or sglang_lockstep.py."""
    case["cost"] |= {
        "expert_token_s": rng.random() * 1e-3, "expert_step_s": rng.random() * 0.01,
        "expert_share": rng.choice([0.03, 0.25, 1.0]),
    }  # fmt: skip
    return case | {"ranks": rng.choice([2, 2, 3, 4])}


def drawn_cases(engine, seeds):
    """Random cases; those that SGLang's schedulers do not end are left out."""
    for seed in seeds:
        rng = random.Random(seed)
        if engine == "vllm":
            yield lockstep_case(rng, hybrid_case(rng) if seed % 4 == 3 else vllm_case(rng))
            continue
        case = lockstep_case(rng, sglang_case(rng))
        try:
            expected = sglang_lockstep.serve(case)
        except MemoryError:  # SGLang 0.5.23 ends: a chunk goes on although nothing is free
            continue
        if all(row[3] is not None for row in expected["requests"]):  # else it goes on for ever
            yield {name: value for name, value in case.items() if name != "max_plans"}


def vllm_served(case):
    """What our kernel says of a case, as the twin states it."""
    trace, (cost, scheduler) = trace_of(case), options_of(case)
    setting = scheduler.setting_of(setting_of(case))
    demand = block_demand(trace, *setting.demand_options)
    engines = [scheduler.engine(setting, demand, ()) for _ in range(case["ranks"])]
    needs = scheduler.needs(demand, setting)
    ranks, requests = served(case, trace, (*scheduler.lengths(trace), needs), scheduler, engines, cost)
    return {
        "steps": [[[begin, parts, sorted(gone)] for begin, _, parts, gone in rank.log] for rank in ranks],
        "dummies": [rank.dummies for rank in ranks], "reports": [rank.reports for rank in ranks], "requests": requests,
    }  # fmt: skip


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
    for rank in ranks:
        rank.listen()
    router = Router(engines, "round-robin", np.zeros(len(trace), np.int64), trace.input_length, trace.block_size)
    simulation = Serving(ranks, router, requests, case["capacity"])
    simulation.advance(len(trace))
    simulation.close()
    names = ("cached", "started", "first", "ended", "preempted")
    return ranks, np.array([requests.outcomes[name] for name in names], dtype=float).T


def require_equal(found, expected, name):
    assert found["dummies"] == expected["dummies"], name
    for mine, theirs in zip(found["steps"], expected["steps"], strict=True):
        assert [step[1:] for step in mine] == [step[1:] for step in theirs], name
        assert [step[0] for step in mine] == pytest.approx([step[0] for step in theirs], abs=1e-9), name
    for mine, theirs in zip(found.get("reports", ()), expected.get("reports", ()), strict=False):
        assert [len(row) for row in mine] == [len(row) for row in theirs], name
        assert np.concatenate(mine or [[]]) == pytest.approx(np.concatenate(theirs or [[]]), abs=1e-9), name
    assert found["requests"] == pytest.approx(np.array(expected["requests"], dtype=float), abs=1e-9), name


TWINS = {"vllm": vllm_lockstep.serve, "sglang": sglang_lockstep.serve}
SERVED = {"vllm": vllm_served, "sglang": sglang_served}
ENGINES = pytest.mark.parametrize("engine", ["vllm", "sglang"])


@ENGINES
def test_ranks_take_the_steps_of_the_engine(engine):
    assert len(VECTORS[engine]["vectors"]) == 8
    for vector in VECTORS[engine]["vectors"]:
        require_equal(SERVED[engine](vector["case"]), vector["served"], vector["case"])
        require_equal(TWINS[engine](vector["case"]), vector["served"], vector["case"])


@ENGINES
def test_ranks_take_the_steps_of_the_twin(engine):
    compared = 0
    for case in drawn_cases(engine, range(CASES)):
        require_equal(SERVED[engine](case), TWINS[engine](case), f"{case['ranks']} {case['settings']}")
        compared += 1
    assert compared > 0.9 * CASES


def test_the_balancer_of_ranks_in_lockstep_chooses_as_vllm_does():
    assert len(VECTORS["balancer"]) == 6
    for vector in VECTORS["balancer"]:
        assert balanced(vector["case"])["instance"] == vector["instance"]


# ---- laws

SCHEDULERS = {"vllm": VllmScheduler(), "sglang": SglangScheduler(chunked_prefill_size=8000)}
COST = StepCost(token_s=1e-4, step_s=0.01, read_s=1e-6, overhead_s=0.001)


def ran(engine, trace, cost=COST, ranks=2, **options):
    """A run of ranks in lockstep, or of instances with lockstep=False."""
    options = {"lockstep": True, "instances": ranks, "scheduler": SCHEDULERS[engine]} | options
    return open_loop(trace, cost, setting=Setting(5000, engine=engine), **options)


def burst(outputs, at=0.0):
    """Requests of 20 tokens that share nothing."""
    return requests(*((at, f"{2 * number} {2 * number + 1}", output) for number, output in enumerate(outputs)))


@ENGINES
def test_no_step_of_a_rank_begins_within_one_of_another_and_no_token_is_lost(engine):
    for case in drawn_cases(engine, range(CASES, CASES + 40)):
        found = SERVED[engine](case)
        begins = np.unique(np.concatenate([[step[0] for step in steps] for steps in found["steps"]]))
        assert np.diff(begins).min(initial=1) > 1e-7  # equal begins are equal to the last bit
        computed = Counter()
        for part in (part for steps in found["steps"] for step in steps for part in step[-2]):
            computed[part[0]] += part[2]
        for number, row in enumerate(case["requests"]):
            cached, *_, preempted = found["requests"][number]
            more = computed[number] - (row["tokens"] + row["output"] - 1 - cached)
            assert preempted or more == 0 or (more == 1 and "limit" in row)  # the step after a stop token has begun


@ENGINES
def test_equal_ranks_are_as_one_alone(engine):
    two, one = ran(engine, burst([5, 5, 9, 9, 12, 12])), ran(engine, burst([5, 9, 12]), ranks=1)
    for name in ("started_s", "first_s", "ended_s"):
        assert getattr(two, name).reshape(3, 2) == pytest.approx(np.repeat(getattr(one, name), 2).reshape(3, 2))
    assert two.steps[0] == two.steps[1] == one.steps[0]


@ENGINES
def test_a_long_prompt_holds_up_the_other_rank(engine):
    #  rank 1 gets a prompt of 1,000 tokens at 0.1 s: 0.1 s of computing, in which rank 0 gets one token
    trace = requests((0, "0", 40), (100, " ".join(str(number) for number in range(1, 101)), 2))
    alone, together = (ran(engine, trace, lockstep=lockstep) for lockstep in (False, True))
    longer = together.ended_s[0] - alone.ended_s[0]
    assert 0.09 < longer < 0.13
    assert alone.busy_s[0] < together.busy_s[0] == together.busy_s[1]


@ENGINES
def test_experts_compute_the_tokens_of_all_ranks_on_the_gpus_of_all(engine):
    #  experts alone take time: two tokens a step on twice the GPUs take as long as one on half of them
    cost = StepCost(token_s=0, expert_token_s=0.01)
    one, two = ran(engine, burst([10]), cost, ranks=1), ran(engine, burst([10, 10]), cost)
    assert two.ended_s == pytest.approx(np.repeat(one.ended_s, 2))
    half = ran(engine, burst([10]), cost)  # the other rank's tokens are missing, but for vLLM's dummy one
    assert half.ended_s[0] < 0.6 * one.ended_s[0] + 0.01 * 9


def test_ranks_of_vllm_stop_at_a_step_in_16_and_the_next_request_waits_for_a_dummy_step():
    #  a request of 3 tokens: 3 steps, then dummy ones up to the 16th, which nobody needs; each takes 11 ms or more
    early = ran("vllm", burst([3]))
    assert early.steps == (3, 0)
    assert early.busy_s[0] == early.busy_s[1] == early.makespan_s == pytest.approx(3 * 0.011, rel=0.1)
    assert ran("vllm", requests((0, "0 1", 3), (400, "2 3", 3))).started_s[1] == 0.4
    late = ran("vllm", requests((0, "0 1", 3), (60, "2 3", 3)))
    alone = ran("vllm", requests((0, "0 1", 3), (60, "2 3", 3)), lockstep=False)
    assert alone.started_s[1] == 0.06
    assert 0.06 < late.started_s[1] <= 0.06 + 3 * 0.012  # the steps that its rank has begun to wait for


@ENGINES
@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_the_closed_loop_serves_as_the_open_one_with_its_arrivals(engine, lanes):
    trace = burst([4, 9, 2, 30, 7, 7, 12, 3, 5, 20, 6, 1])
    count = len(trace)
    waits = dependencies_between(
        np.array([count - 1]), np.array([count - 2]), np.array([COMPLETION]), np.array([SEQUENCE]), np.zeros(1), count
    )
    columns = replace_columns(trace, dependencies=waits)
    trace = Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail)
    options = {"lockstep": True, "instances": 2, "scheduler": SCHEDULERS[engine], "router": "least-loaded"}
    setting = Setting(5000, engine=engine)
    closed = closed_loop(trace, COST, loop=ClosedLoop(lanes), setting=setting, **options)
    again = open_loop(closed.trace, COST, setting=setting, **options)
    assert closed.instance.tolist() == again.instance.tolist()
    for name in ("started_s", "first_s", "ended_s"):
        assert getattr(closed, name) == pytest.approx(getattr(again, name), abs=1e-6)
    assert not np.isnan(closed.ended_s).any()


def test_what_has_no_ranks_in_lockstep_says_so():
    with pytest.raises(UsageError, match="no ranks in lockstep"):
        open_loop(burst([2]), COST, setting=Setting(50), instances=2, lockstep=True)
    with pytest.raises(UsageError, match="lower tiers"):
        ran("vllm", burst([2]), tiers=[Tier("dram", 10, 1e-3)])


@pytest.mark.parametrize(
    ("words", "together"),
    [
        (["--model", "qwen3-30b-a3b", "--data-parallel-size", "2"], True),
        (["--model", "llama-3.1-8b", "--data-parallel-size", "2"], False),
        (["--model", "qwen3-30b-a3b", "--instances", "2"], False),
        (["--serve", "sglang serve --model-path qwen3-30b-a3b --tp 2 --dp 2 --enable-dp-attention"], True),
        (["--serve", "sglang serve --model-path qwen3-30b-a3b --tp 1 --dp 2"], False),
    ],
)
def test_the_deployment_decides(words, together, capsys, tmp_path):
    trace = toy("0 1", "2 3", block_size=16)
    columns = replace_columns(trace, output_length=np.array([40, 3]))
    kvtrace.write(Trace.from_columns(columns, block_size=16), tmp_path / "t.jsonl")
    where = ["--gpu", "h200", "--capacity", "4000", "--json", "--quiet"]
    assert run(["simulate", str(tmp_path / "t.jsonl"), *where, *words]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    busy = result["utilisation"]
    assert (max(busy) == pytest.approx(min(busy))) == together
