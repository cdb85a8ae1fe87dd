"""Dynamo's prefill and decode workers in simulated time: vectors of its replay, a plain twin, and a law."""

import json
import os
import random

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.disaggregated import DisaggregatedRun
from kvtrace.serving.disaggregation import Disaggregation
from kvtrace.serving.dynamo_workers import dynamo_workers
from kvtrace.serving.schedulers.dynamo import DynamoCost, DynamoScheduler
from kvtrace.serving.simulation import StepCost, open_loop
from kvtrace.trace.building import toy
from tests.conftest import ROOT, drawn
from tests.reference.dynamo_disaggregated import COLUMNS, serve
from tests.serving.scheduler_cases import apart_case, dynamo_case, trace_of

VECTORS = json.loads((ROOT / "tests/vectors/dynamo_disaggregated.json").read_text())
CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(200)))
TIMES = slice(COLUMNS.index("admitted"), COLUMNS.index("end") + 1)
COUNTS = [0, 1, 2, 11, 12]  # workers, tokens reused, preemptions


def trace_in_ms(case):
    """The trace of a case whose arrivals are milliseconds."""
    return trace_of(case | {"requests": [row | {"arrival": row["arrival"] / 1000} for row in case["requests"]]})


def served(case):
    """The columns of the twin, from our kernel; NaN for None. UsageError if the workers are stuck."""
    trace, names = trace_in_ms(case), ("prefill", "decode")
    schedulers = [DynamoScheduler(**case[name]["settings"]) for name in names]
    link = {}
    if "bandwidth" in case:
        link = {
            "kv_transfer_bandwidth": case["bandwidth"], "kv_transfer_bytes_per_token": case["bytes_per_token"],
            "kv_transfer_timing_mode": "destination_missing" if case["missing_only"] else "full_prompt",
        }  # fmt: skip
    workers, capacity = ([case[name][key] for name in names] for key in ("workers", "capacity"))
    apart = Disaggregation(*workers, decode_capacity=capacity[1], **link)
    setting = schedulers[0].setting_of(Setting(capacity[0], engine="dynamo"))
    winners = case.get("winners")
    built = dynamo_workers(
        trace, DynamoCost(), schedulers[0], setting, apart, case["router"],
        winners=winners and tuple(np.array(column, np.int32) for column in winners), decode_scheduler=schedulers[1],
    )  # fmt: skip
    built.serving.advance(len(trace))
    built.serving.close()
    run = DisaggregatedRun(**built.results(), trace=trace)
    first, second, moved = built.prefilled.outcomes, built.decoded.outcomes, built.serving.outcomes
    prefilled, ended = np.isfinite(run.prefilled_s), np.isfinite(run.ended_s)
    columns = [
        run.instance, run.decode_instance, first["cached"], first["started"],
        np.where(prefilled, first["ended"], np.nan), moved["reserved"], moved["activated"], second["started"],
        moved["released"], second["first"], np.where(ended, second["ended"], np.nan), first["preempted"],
        second["preempted"],
    ]  # fmt: skip
    return np.array(columns, dtype=float).T


def require_equal(case, expected, name, within_ms):
    counts, late_ms = compared(served(case), expected)
    assert not counts.any() and late_ms.max() <= within_ms, name


def compared(ours, expected):
    """Of each request, whether its counts differ, and the largest difference of its times in ms. None is no value.

    When the blocks of a prompt that is then rejected are released, the replay does not say.
    """
    ours, expected = ours.copy(), np.array(expected, dtype=float)[:, : len(COLUMNS)]
    first, released = COLUMNS.index("first"), COLUMNS.index("released")
    ours[np.isnan(expected[:, first]), released] = expected[np.isnan(expected[:, first]), released] = np.nan
    values = [np.where(np.isnan(rows[:, COUNTS]), [-1, -1, 0, 0, 0], rows[:, COUNTS]) for rows in (ours, expected)]
    times = [np.nan_to_num(rows[:, TIMES], nan=-1e9) for rows in (ours, expected)]
    return (values[0] != values[1]).any(axis=1), np.abs(times[0] - times[1]).max(axis=1)


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_workers_hits_and_times_are_those_of_the_replay(number):
    vector = VECTORS["vectors"][number]
    assert VECTORS["version"] == DynamoScheduler.version
    require_equal(vector["case"], vector["requests"], number, 1e-5)


def test_the_vectors_preempt_on_decode_workers_and_transfer_and_use_both_routers():
    cases = [vector["case"] for vector in VECTORS["vectors"]]
    assert {case["router"] for case in cases} == {"round-robin", "dynamo"}
    assert {case.get("missing_only") for case in cases} == {None, False, True}
    assert sum(request[12] for vector in VECTORS["vectors"] for request in vector["requests"]) > 5


def unfinished(requests):
    """The requests of the twin that have a worker and no end."""
    end, released = COLUMNS.index("end"), COLUMNS.index("released")
    rejected = [request[0] is None or (request[1] is None and request[released] is not None) for request in requests]
    return sum(request[end] is None and not out for request, out in zip(requests, rejected, strict=True))


def test_requests_take_the_workers_and_the_times_of_the_twin():
    stuck = preempted = 0
    for seed in range(CASES):
        case = apart_case(random.Random(seed))
        expected = serve(case)
        if left := unfinished(expected):
            stuck += 1
            with pytest.raises(UsageError, match=f"stuck with {left} requests"):
                served(case)
            continue
        require_equal(case, expected, f"seed {seed}", 0.0)
        preempted += sum(request[12] for request in expected)
    assert CASES // 4 < stuck < 3 * CASES // 4  # the cases are such that decode workers run out of blocks
    assert preempted


def test_the_twin_takes_the_times_of_the_replay():
    for number, vector in enumerate(VECTORS["vectors"]):
        counts, late_ms = compared(np.array(serve(vector["case"]), dtype=float), vector["requests"])
        assert not counts.any() and late_ms.max() < 1e-5, number


@pytest.mark.parametrize("workers", [1, 3])
def test_with_room_for_all_prefill_workers_hit_what_aggregated_ones_hit(workers):
    #  the link is instant, round robin sends both alike, and no output is a prompt later
    for seed in range(20):
        trace, setting = trace_of(dynamo_case(random.Random(seed))), Setting(100_000, engine="dynamo")
        together = open_loop(trace, DynamoCost(), setting=setting, instances=workers)
        apart = open_loop(trace, DynamoCost(), setting=setting, disaggregation=Disaggregation(workers, 2))
        assert apart.hit_blocks.tolist() == together.hit_blocks.tolist(), seed


def test_an_idle_pair_takes_a_prefill_step_a_transfer_and_decode_steps():
    row = {"arrival": 0.0, "ids": [0, 1], "tokens": 1024, "output": 3}
    trace, cost = trace_of({"block_size": 512, "requests": [row]}), DynamoCost()
    apart = Disaggregation(1, 1, kv_transfer_bandwidth=1e9, kv_transfer_bytes_per_token=100_000)
    run = open_loop(trace, cost, setting=Setting(10, engine="dynamo"), disaggregation=apart)
    prefill = cost.prefill_square_s * 1024**2 + cost.prefill_token_s * 1024 + cost.prefill_step_s
    assert run.prefilled_s == pytest.approx([prefill], abs=1e-8)
    assert run.transfer_end_s - run.transfer_begin_s == pytest.approx([1024 * 1e5 / 1e9], abs=1e-8)
    used = [tokens / 5120 for tokens in (1024, 1025, 1026)]
    steps = [cost.decode_square_s * u**2 + cost.decode_used_s * u + cost.decode_step_s for u in used]
    assert run.first_s - run.transfer_end_s == pytest.approx(steps[:1], abs=1e-8)
    assert run.ended_s - run.first_s == pytest.approx([sum(steps[1:])], abs=1e-8)
    assert run.released_s.tolist() == run.transfer_end_s.tolist()


def test_a_decode_worker_that_holds_a_prefix_needs_less_of_a_transfer():
    trace = toy("0 1", "0 1 2", block_size=16, gap_ms=5000.0)
    link = {"kv_transfer_bandwidth": 1e6, "kv_transfer_bytes_per_token": 1000}
    for mode, tokens in (("full_prompt", (32, 48)), ("destination_missing", (32, 16))):
        apart = Disaggregation(1, 1, **link, kv_transfer_timing_mode=mode)
        run = open_loop(trace, DynamoCost(), setting=Setting(9, engine="dynamo"), disaggregation=apart)
        assert run.transfer_end_s - run.transfer_begin_s == pytest.approx([n / 1000 for n in tokens], abs=1e-9)
        assert run.decode_hit_blocks.tolist() == [0, 2] and run.transfer_tokens == sum(tokens)


def test_the_result_states_both_kinds_of_workers():
    trace = toy("0 1", "0 1", "2", block_size=16, gap_ms=5000.0)
    apart = Disaggregation(2, 1, kv_transfer_latency_s=0.5)
    run = open_loop(trace, DynamoCost(), setting=Setting(9, engine="dynamo"), disaggregation=apart, timelines=True)
    values = run.to_dict()
    assert (values["prefill_workers"], values["decode_workers"], values["decode_router"]) == (2, 1, "round-robin")
    assert run.transfer_end_s - run.transfer_begin_s == pytest.approx([0.5] * 3) and values["decode_hit_blocks"] == 2
    assert len(run.busy_s) == len(run.timelines) == 3 and "2 prefill and 1 decode workers" in repr(run)
    columns = run.to_pandas()
    assert columns["decode_hit_blocks"].tolist() == [0, 2, 0] and columns["decode_instance"].tolist() == [0, 0, 0]


def test_what_is_not_simulated_is_refused():
    trace, setting = toy("0 1"), Setting(9, engine="dynamo")
    apart = Disaggregation(1, 1)
    with pytest.raises(UsageError, match="not simulated with engine reference"):
        open_loop(trace, StepCost(token_s=1.0), setting=Setting(9, engine="reference"), disaggregation=apart)
    with pytest.raises(UsageError, match="step times of their own"):
        open_loop(trace, StepCost(token_s=1.0), setting=setting, disaggregation=apart)
    with pytest.raises(UsageError, match="--instances"):
        open_loop(trace, DynamoCost(), setting=setting, disaggregation=apart, instances=2)
    with pytest.raises(UsageError, match="not both"):
        both = Disaggregation(1, 1, kv_transfer_bandwidth=1.0, kv_transfer_bytes_per_token=1, kv_transfer_latency_s=1.0)
        open_loop(trace, DynamoCost(), setting=setting, disaggregation=both)
    with pytest.raises(UsageError, match="each prompt"):
        local = Disaggregation(1, 1, max_local_prefill_length=100)
        open_loop(trace, DynamoCost(), setting=setting, disaggregation=local)
    with pytest.raises(UsageError, match="Multi-token prediction"):
        drafts = DynamoScheduler(aic_nextn=1)
        open_loop(trace, DynamoCost(), setting=setting, disaggregation=apart, scheduler=drafts)
    with pytest.raises(UsageError, match="need each other"):
        Disaggregation(prefill_workers=1)
    with pytest.raises(UsageError, match="need --prefill-workers"):
        Disaggregation(kv_transfer_bandwidth=1.0)
    with pytest.raises(UsageError, match="bytes-per-token"):
        open_loop(trace, DynamoCost(), setting=setting, disaggregation=Disaggregation(1, 1, kv_transfer_bandwidth=1.0))
