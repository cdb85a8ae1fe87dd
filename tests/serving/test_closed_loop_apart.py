"""Prefill and decode workers in a closed loop: the twin's arrivals, and the times of the open loop on them."""

from dataclasses import replace

import numpy as np
import pytest

from kvtrace.cache.simulation import Setting
from kvtrace.serving.disaggregation import Disaggregation
from kvtrace.serving.simulation import BatchLimits, DynamoCost, open_loop
from tests.serving.session_forests import random_forest
from tests.serving.test_closed_loop import COST, FRONT, LOOPS, closed, fitting, opened, twin_of

LINK = {"kv_transfer_bandwidth": 4096.0, "kv_transfer_bytes_per_token": 64}  # transfers of some steps
APART = Disaggregation(2, 2, **LINK)
ENGINES = {
    "vllm": {"setting": Setting(60, engine="vllm"), "limits": BatchLimits(30, 5), "disaggregation": APART},
    "vllm, some local": {
        "setting": Setting(60, engine="vllm"), "disaggregation": replace(APART, max_local_prefill_length=8)
    },
    "sglang": {"setting": Setting(400, engine="sglang"), "disaggregation": APART},
    "dynamo": {"setting": Setting(90, engine="dynamo"), "disaggregation": Disaggregation(1, 2, **LINK)},
}  # fmt: skip


def case_of(engine, number, seed):
    """A trace, the loop, its costs, and how it is served; None for a trace without dependencies."""
    trace = random_forest(100 * number + seed)
    if not len(trace.dependencies.row):
        return None
    cost = DynamoCost() if engine == "dynamo" else FRONT if seed % 2 else COST
    return trace, fitting(trace, LOOPS[number]), cost, ENGINES[engine]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("number", range(len(LOOPS)))
def test_requests_arrive_as_the_twin_says(number, engine):
    for seed in range(3):
        case = case_of(engine, number, seed)
        if case is None:
            continue
        trace, loop, cost, how = case
        done = closed(trace, loop, cost, **how)
        twin, keys = twin_of(trace, loop, done, cost)
        assert [request for request, _ in twin.arrivals] == keys
        assert [at for _, at in twin.arrivals] == pytest.approx(done.arrival_s.tolist(), abs=1e-9)
        assert [twin.on[play] for play in range(len(twin.on))] == done.plays.lane.tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_open_loop_serves_the_same_arrivals_in_the_same_time(engine):
    for number in range(len(LOOPS)):
        case = case_of(engine, number, 1)
        if case is None:
            continue
        trace, loop, cost, how = case
        done = closed(trace, loop, cost, **how)
        again = open_loop(done.trace, cost, **how) if engine == "dynamo" else opened(done, cost, **how)
        for name in ("instance", "decode_instance", "hit_blocks", "decode_hit_blocks", "preemptions"):
            assert np.array_equal(getattr(again, name), getattr(done, name)), name
        for name in ("started_s", "prefilled_s", "transfer_end_s", "ready_s", "first_s", "ended_s"):
            np.testing.assert_allclose(getattr(again, name), getattr(done, name), rtol=0, atol=1e-9, err_msg=name)


def test_the_times_of_transfers_leave_out_the_warm_up():
    trace = random_forest(3, sessions=9)
    done = closed(trace, fitting(trace, replace(LOOPS[1], warm_up=2)), **ENGINES["vllm"])
    assert 0 < done.warm_up < len(done.trace)
    assert len(done.handoff_s) == len(done.ttft_s) == len(done.trace) - done.warm_up
    assert done.to_dict()["loop"]["lanes"] == done.loop.lanes
