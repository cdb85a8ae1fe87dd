"""The compiled SGLang scheduler over HiCache's host memory takes the steps of SGLang itself, and of the plain twin."""

import json
import os
import random
from dataclasses import asdict

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting
from kvtrace.cache.tiers import Tier
from kvtrace.serving.core.instance import Requests
from kvtrace.serving.core.serving import Router, Serving
from kvtrace.serving.simulation import StepCost, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT, drawn
from tests.reference import sglang_hicache_scheduler, sglang_scheduler
from tests.reference.sglang_hicache import THRESHOLD
from tests.serving.scheduler_cases import sglang_case
from tests.serving.test_sglang_kernel import limited_trace, scheduler_of

VECTORS = json.loads((ROOT / "tests/vectors/scheduler_sglang_hicache.json").read_text())
CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(200)))


def hosted_case(rng):
    """A case of random requests, settings and host memory that SGLang serves to its end; None if it would not."""
    case = sglang_case(rng)
    page, step_s = case["settings"]["page_size"], max(case["cost"]["step_s"], 10 * case["cost"]["token_s"])
    case |= {
        "host": page * rng.randint(1, max(2, 2 * case["capacity"] // page)), "write_policy": rng.choice([*THRESHOLD]),
        "load_s": rng.choice([0, 0.1, 1, 3]) * step_s / 20, "store_s": rng.choice([0, 0.1, 1, 3]) * step_s / 20,
        "core": rng.choice(["rust", "python"]),
    }  # fmt: skip
    try:
        sglang_scheduler.serve(case)
        answer = sglang_hicache_scheduler.serve(case)
    except MemoryError:
        return None
    return case if all(row[3] is not None for row in answer["requests"]) else None


def logged(case):
    """The steps, the requests and the loaded blocks of a case in our kernel, as the twin states them."""
    rows, trace, scheduler = case["requests"], limited_trace(case), scheduler_of(case)
    demand = block_demand(trace, "grow")
    requests = Requests(
        [row["arrival"] for row in rows], trace.input_length, trace.output_length, np.zeros(len(rows)),
        [row.get("priority", 0) for row in rows],
    )  # fmt: skip
    size = case["block_size"]
    tier = Tier("dram", case["host"] // size, case["load_s"] * size, case["store_s"] * size)
    cache = scheduler.cache(demand, case["capacity"], tier, case["write_policy"])
    instance = scheduler.instance(cache, requests, asdict(StepCost(**case["cost"])), prefetch=True, log=True)
    router = Router([cache], "round-robin", np.zeros(len(trace), np.int64), trace.input_length, trace.block_size)
    run = Serving([instance], router, requests, case["capacity"])
    run.advance(len(trace))
    run.close()
    steps = [
        [begin if i == 0 else None, kind, [[row, before + i, count] for row, before, count in parts], sorted(gone)]
        for begin, times, kind, parts, gone in instance.log
        for i in range(times)
    ]
    names = ("cached", "started", "first", "ended", "preempted")
    return steps, np.array([requests.outcomes[name] for name in names], dtype=float).T, cache.tier_hits[0]


def require_equal(case, expected, name):
    steps, requests, loaded = logged(case)
    for number, (step, one) in enumerate(zip(steps, expected["steps"], strict=False)):
        assert step[1:] == one[1:], (name, number)
        assert step[0] is None or step[0] == pytest.approx(one[0], abs=1e-9), (name, number)
    assert len(steps) == len(expected["steps"]), name
    assert requests == pytest.approx(np.array(expected["requests"], dtype=float), abs=1e-9), name
    size = case["block_size"]
    blocks = [
        row[0] // size - (row[0] - tokens) // size
        for row, tokens in zip(expected["requests"], expected["loaded"], strict=True)
    ]
    assert loaded.tolist() == blocks, name


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_vectors_of_sglang_itself_are_met_by_both(vector):
    assert sglang_hicache_scheduler.serve(vector["case"]) == vector["served"]
    require_equal(vector["case"], vector["served"], vector["name"])


def test_the_kernel_takes_the_steps_of_its_twin():
    rng = random.Random(41)
    for number in range(CASES):
        case = hosted_case(rng)
        if case is None or case["host"] % case["block_size"]:  # a Tier has whole blocks
            continue
        require_equal(case, sglang_hicache_scheduler.serve(case), f"case {number}: {case}")


REFUSED = [
    ({"tiers": [Tier("dram", 9), Tier("ssd", 9), Tier("pool", 9)]}, {}, "SGLang has three tiers at most"),
    ({"tiers": [Tier("dram", 9, scope="cluster")]}, {}, "host memory, dram, belongs to one instance"),
    ({"tiers": [Tier("dram", 9)], "instances": 2, "lockstep": True}, {}, "Ranks in lockstep are not modelled"),
    ({}, {"engine_options": (("hicache_write_policy", "write_back"),)}, "--hicache-write-policy needs host memory"),
]


@pytest.mark.parametrize(("options", "setting", "message"), REFUSED)
def test_what_is_not_modelled_is_refused(options, setting, message):
    cost = StepCost(1e-3, 1e-6, 0.01, 1e-5, 0.0)
    with pytest.raises(UsageError, match=message):
        open_loop(toy("0 1"), cost, setting=Setting(9, engine="sglang", **setting), **options)


def test_a_second_conversation_loads_what_the_first_one_left():
    #  16 tokens a block: 2 3 evicts 0 1 from the device, and 0 comes back from the host before its pass ends
    one = toy("0 1", "2 3", "0 1", gap_ms=10_000)
    trace = Trace.from_columns(replace_columns(one, input_length=one.input_length * 16), block_size=16)
    cost = StepCost(1e-3, 0.0, 0.01, 0.0, 0.0)
    done = open_loop(trace, cost, setting=Setting(4, engine="sglang"), tiers=[Tier("dram", 9, 2.0)])
    assert done.lower_tier_hits.tolist() == [[0, 0, 1]]
    assert (done.first_s - done.started_s).round(3).tolist() == [0.032, 0.032, 2.0]
