"""Dynamo's own replay of agentic sessions on lanes, recorded: the same arrivals, first tokens and ends."""

import json

import numpy as np
import pytest

from kvtrace.cache.simulation import Setting
from kvtrace.serving.disaggregation import Disaggregation
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.schedulers.dynamo import DynamoScheduler
from kvtrace.serving.simulation import DynamoCost, closed_loop
from kvtrace.trace.columns import Columns
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT

VECTORS = json.loads((ROOT / "tests/vectors/dynamo_closed_loop.json").read_text(encoding="utf-8"))
PATH = ROOT / "tests/vectors/dynamo_lanes_apart.json"
APART = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {"version": "", "vectors": []}
COLUMNS = ("arrival", "first", "end", "reused", "prefill", "decode")


def trace_of_sessions(case):
    """The trace of a case, in blocks of 4 tokens."""
    columns = Columns(
        case["timestamp"], case["input_length"], case["output_length"], np.concatenate(case["prompts"]),
        np.cumsum([0, *map(len, case["prompts"])]), session=case["session"],
        dependencies=Dependencies.of(case["waits"]),
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=VECTORS["block_size"])


@pytest.mark.parametrize("case", VECTORS["cases"])
def test_the_closed_loop_is_that_of_dynamos_replay(case):
    setting = Setting(VECTORS["num_gpu_blocks"], engine="dynamo")
    done = closed_loop(trace_of_sessions(case), DynamoCost(), setting=setting, loop=ClosedLoop(case["lanes"]))
    for ours, theirs in ((done.arrival_s, "arrival_ms"), (done.first_s, "first_ms"), (done.ended_s, "end_ms")):
        assert np.allclose(1000 * ours, np.array(case[theirs])[done.row], rtol=0, atol=1e-4)  # 0.1 us
    assert np.array_equal(done.cached_tokens, np.array(case["reused_tokens"])[done.row])


def lanes_on_workers(case):
    """COLUMNS of each request of a case with prefill and decode workers, times in ms, in the order of its rows."""
    limits = {name: case[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
    apart = Disaggregation(*case["workers"], decode_capacity=case["decode_blocks"])
    done = closed_loop(
        trace_of_sessions(case), DynamoCost(), setting=Setting(case["num_gpu_blocks"], engine="dynamo"),
        loop=ClosedLoop(case["lanes"]), disaggregation=apart, scheduler=DynamoScheduler(**limits),
    )  # fmt: skip
    columns = [1000 * done.arrival_s, 1000 * done.first_s, 1000 * done.ended_s, done.cached_tokens, done.instance,
               done.decode_instance]  # fmt: skip
    rows = np.empty((len(done.row), len(columns)))
    rows[done.row] = np.array(columns, dtype=float).T
    return rows


def require_equal(case, expected, name=""):
    """Counts and workers are equal, and times within a microsecond."""
    ours, theirs = lanes_on_workers(case), np.array(expected, dtype=float)
    np.testing.assert_array_equal(ours[:, 3:], theirs[:, 3:], err_msg=name)
    np.testing.assert_allclose(ours[:, :3], theirs[:, :3], rtol=0, atol=1e-3, err_msg=name)


@pytest.mark.parametrize("vector", APART["vectors"], ids=range(len(APART["vectors"])))
def test_prefill_and_decode_workers_on_lanes_are_those_of_dynamos_replay(vector):
    require_equal(vector["case"], vector["requests"])
