"""The compiled SGLang scheduler takes the steps of SGLang's own vectors, and of the plain twin on random cases."""

import json
import os
import random
from dataclasses import asdict, fields

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.demand import block_demand
from kvtrace.cache.layout import Drafting
from kvtrace.cache.simulation import Setting
from kvtrace.serving.core.instance import Requests
from kvtrace.serving.core.serving import Router, Serving
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.simulation import BatchLimits, StepCost, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT, drawn
from tests.reference.sglang_scheduler import serve
from tests.serving.scheduler_cases import more_terms, sglang_case, trace_of

VECTORS = json.loads((ROOT / "tests/vectors/scheduler_sglang.json").read_text())
CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(400)))
OPTIONS = {one.name for one in fields(SglangScheduler)}


def scheduler_of(case):
    """The scheduler of a case."""
    constants = {name.removeprefix("SGLANG_").lower(): value for name, value in case.get("env", {}).items()}
    settings = {name: value for name, value in case["settings"].items() if name in OPTIONS}
    return SglangScheduler(**settings, **constants, ignore_eos=case.get("ignore_eos", False))


def limited_trace(case):
    """The trace of a case, with the largest output of each request."""
    trace, limit = trace_of(case), np.array([row.get("limit", row["output"]) for row in case["requests"]])
    columns = replace_columns(trace, extra=trace.extra | {"max_new_tokens": limit})
    return Trace.from_columns(columns, block_size=case["block_size"], tail="kept")


def logged(case, scheduler):
    """The steps and the requests of a case in our kernel, as the twin states them."""
    rows = case["requests"]
    trace = limited_trace(case)
    demand = block_demand(trace, "grow", drafting=Drafting("bigram") if case.get("bigram") else None)
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
    require_equal(vector["case"], vector["served"], vector["name"])


def random_case(seed):
    """A case, with what the twin does; None where SGLang ends, or goes on for ever."""
    case = sglang_case(random.Random(seed))
    if seed % 2:
        case["cost"] = case["cost"] | more_terms(random.Random(seed))
    try:
        expected = serve(case)
    except MemoryError:
        return None
    return None if any(row[3] is None for row in expected["requests"]) else (case, expected)


def test_the_steps_are_those_of_the_twin():
    retracted, compared = 0, 0
    for seed in range(CASES):
        drawn = random_case(seed)
        if drawn is not None:
            case, expected = drawn
            require_equal(case, expected, f"seed {seed}: {case['settings']}")
            compared += 1
            retracted += sum(row[4] for row in expected["requests"])
    assert compared > 0.9 * CASES and retracted > CASES // 4  # the cases are such that pages run out


def two_requests():
    """Prompts of three and four tokens, outputs of six, in pages of one token."""
    columns = replace_columns(toy("0 1 2", "3 4 5 6", gap_ms=0.0), output_length=np.array([6, 6]))
    return Trace.from_columns(columns, block_size=1)


def test_a_retracted_request_is_computed_again_with_its_outputs():
    # four decode steps of both fill 15 pages; the longer prompt gives way, and its 4 + 5 tokens are computed again
    scheduler = SglangScheduler(disable_overlap_schedule=True, schedule_conservativeness=0.01)
    cost, setting = StepCost(token_s=1.0), Setting(15, engine="sglang")
    done = open_loop(two_requests(), cost, setting=setting, scheduler=scheduler)
    assert done.preemptions.tolist() == [0, 1] and done.recomputed_tokens.tolist() == [0, 9]
    assert done.to_dict()["scheduler"] == "sglang 0.5.23"


def test_the_engine_decides_the_scheduler_and_limits_are_its_own():
    cost, setting = StepCost(token_s=1.0), Setting(99, engine="sglang")
    assert open_loop(two_requests(), cost, setting=setting).scheduler == SglangScheduler()
    limited = open_loop(two_requests(), cost, setting=setting, limits=BatchLimits(3, 1))
    assert limited.scheduler == SglangScheduler(chunked_prefill_size=3, max_running_requests=1)


def test_a_prompt_that_does_not_fit_is_rejected_and_an_output_is_cut():
    # SGLang takes a prompt of less than the capacity less a page: of 5 pages 3 tokens are taken, 4 are not; beside
    # three tokens there is room for no more outputs, so that the first token is the last
    cost, scheduler = StepCost(token_s=1.0), SglangScheduler(disable_overlap_schedule=True)
    done = open_loop(two_requests(), cost, setting=Setting(5, engine="sglang"), scheduler=scheduler)
    assert np.isnan(done.ended_s).tolist() == [False, True]


def test_pages_may_be_smaller_than_blocks():
    # blocks of 4 tokens, prompts of 2 and 1 blocks: with pages of a token 3 of 4 tokens hit, with pages of 4 none
    columns = replace_columns(toy("0 1", "0", gap_ms=9e6), input_length=np.array([8, 4]))
    trace, setting = Trace.from_columns(columns, block_size=4), Setting(9, engine="sglang")
    for page, hits in ((1, 3), (4, 0), (None, 0)):
        scheduler = SglangScheduler(page_size=page)
        done = open_loop(trace, StepCost(token_s=1.0), setting=setting, scheduler=scheduler)
        assert done.cached_tokens.tolist() == [0, hits]


@pytest.mark.parametrize("router", ["least-loaded", "kv-aware", "lmetric", "overlap"])
def test_routers_see_its_load_and_its_cache(router):
    trace = toy("0 1", "2 3", "0 1", "2 3", gap_ms=1.0)
    done = open_loop(trace, StepCost(token_s=1.0), setting=Setting(99, engine="sglang"), instances=2, router=router)
    assert done.rejected == 0 and sum(done.busy_s) > 0


def test_a_pool_that_is_too_small_for_a_chunk_ends_the_simulation_as_it_ends_sglang():
    # three requests decode beside the chunks of a prompt of 40 tokens, which was admitted as if they ended soon
    prompts = ["0 1 2", "3 4 5", "6 7 8", " ".join(str(one) for one in range(9, 49))]
    columns = replace_columns(toy(*prompts), output_length=np.array([60, 60, 60, 1]))
    columns = replace_columns(columns, timestamp=np.array([0.0, 0.0, 0.0, 1500.0]))
    trace = Trace.from_columns(columns, block_size=1)
    scheduler = SglangScheduler(
        disable_overlap_schedule=True, schedule_conservativeness=0.01, enable_mixed_chunk=True,
        chunked_prefill_size=8, max_running_requests=5,
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"SGLang 0\.5\.23 would end"):
        open_loop(trace, StepCost(0.0, step_s=1.0), setting=Setting(75, engine="sglang"), scheduler=scheduler)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunked_prefill_size": 0}, "at least 1, or -1"), ({"max_running_requests": 0}, "at least 1"),
        ({"schedule_policy": "lof"}, "fcfs or lpm"), ({"retraction_policy": "age"}, "length or priority"),
        ({"schedule_conservativeness": float("nan")}, "at least 0, and finite"), ({"page_size": 0}, "at least 1"),
        ({"retract_decode_steps": -1}, "at least 0"),
        ({"enable_mixed_chunk": True, "chunked_prefill_size": 8}, "above max_running_requests"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        SglangScheduler(**options)


def test_chunks_are_whole_pages():
    scheduler = SglangScheduler(chunked_prefill_size=100, page_size=64)
    with pytest.raises(UsageError, match="multiple of the page size, 64"):
        open_loop(toy("0"), StepCost(1.0), setting=Setting(9, engine="sglang"), scheduler=scheduler)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (Setting(9, engine="sglang", engine_options=(("tree", "radix"),)), "unified tree"),
        (Setting(9), "--engine sglang"), (Setting(9, engine="sglang", policy="mru"), "Try lru"),
    ],
)  # fmt: skip
def test_it_needs_sglangs_cache(setting, message):
    with pytest.raises(UsageError, match=message):
        open_loop(toy("0"), StepCost(1.0), setting=setting, scheduler=SglangScheduler())
