"""The compiled SGLang scheduler takes the steps of SGLang's own vectors, and of the plain twin on random cases."""

import json
import os
import random
from dataclasses import asdict, fields

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.demand import block_demand
from kvtrace.cache.simulation import Setting
from kvtrace.serving.core.requests import Requests
from kvtrace.serving.core.router import Router
from kvtrace.serving.core.serving import Serving
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.simulation import BatchLimits, StepCost, simulate_serving
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.clients.test_sglang_scheduler import drawn_case
from tests.conftest import ROOT
from tests.reference.sglang_scheduler import serve
from tests.serving.scheduler_cases import trace_of

VECTORS = json.loads((ROOT / "tests/vectors/scheduler_sglang.json").read_text())
CASES = int(os.environ.get("KVTRACE_EXAMPLES", 400))
OPTIONS = {one.name for one in fields(SglangScheduler)}


def scheduler_of(case):
    """The scheduler of a case; None if it does not support the case."""
    constants = {name.removeprefix("SGLANG_").lower(): value for name, value in case.get("env", {}).items()}
    settings = {name: value for name, value in case["settings"].items() if name in OPTIONS}
    try:
        return SglangScheduler(**settings, **constants, ignore_eos=case.get("ignore_eos", False))
    except UsageError:
        return None


def logged(case, scheduler):
    """The steps and the requests of a case in our kernel, as the twin states them."""
    rows = case["requests"]
    trace = trace_of(case)
    limit = np.array([row.get("limit", row["output"]) for row in rows])
    trace = Trace.from_columns(
        replace_columns(trace, extra=trace.extra | {"max_new_tokens": limit}),
        block_size=case["block_size"], tail="kept",
    )  # fmt: skip
    demand = block_demand(trace, "grow")
    requests = Requests(
        [row["arrival"] for row in rows], trace.input_length, trace.output_length, np.zeros(len(rows)),
        [row.get("priority", 0) for row in rows],
    )  # fmt: skip
    cache = scheduler.cache(demand, case["capacity"])
    cost = asdict(StepCost(**case["cost"]))
    instance = scheduler.instance(cache, requests, cost, prefetch=True, log=True)
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
    assert instance.steps == len(steps)
    assert cache.free + cache.evictable == cache.pages
    return steps, np.array([requests.outcomes[name] for name in names], dtype=float).T


def require_equal(case, expected, name):
    steps, requests = logged(case, scheduler_of(case))
    for number, (step, one) in enumerate(zip(steps, expected["steps"], strict=False)):
        assert step[1:] == one[1:], (name, number)
        assert step[0] is None or step[0] == pytest.approx(one[0], abs=1e-9), (name, number)
    assert len(steps) == len(expected["steps"]), name
    assert requests == pytest.approx(np.array(expected["requests"], dtype=float), abs=1e-9), name


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_the_steps_are_those_of_sglang(vector):
    assert VECTORS["version"] == SglangScheduler.version
    if scheduler_of(vector["case"]) is None:
        pytest.skip("preemption by priority is refused")
    require_equal(vector["case"], vector["served"], vector["name"])


def random_case(seed):
    """A case that the scheduler supports and that SGLang survives, with what the twin does; else None."""
    case = drawn_case(random.Random(seed))
    if case["settings"].get("enable_priority_scheduling"):
        case["settings"]["disable_priority_preemption"] = True
    if scheduler_of(case) is None:
        return None
    try:
        expected = serve(case)
    except MemoryError:
        return None
    if any(row[3] is None for row in expected["requests"]):
        return None  # max_plans ended it early
    return case, expected


def test_the_steps_are_those_of_the_twin():
    retracted, compared = 0, 0
    for seed in range(CASES):
        drawn = random_case(seed)
        if drawn is not None:
            case, expected = drawn
            require_equal(case, expected, f"seed {seed}: {case['settings']}")
            compared += 1
            retracted += sum(row[4] for row in expected["requests"])
    assert compared > CASES // 2 and retracted > CASES // 4  # the cases are such that pages run out
