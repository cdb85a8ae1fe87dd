"""Dynamo's own replay of agentic sessions on lanes, recorded: the same arrivals, first tokens and ends."""

import json

import numpy as np
import pytest

from kvtrace.cache.simulation import Setting
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.simulation import DynamoCost, closed_loop
from kvtrace.trace.columns import Columns
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT

VECTORS = json.loads((ROOT / "tests/vectors/dynamo_closed_loop.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", VECTORS["cases"])
def test_the_closed_loop_is_that_of_dynamos_replay(case):
    columns = Columns(
        case["timestamp"], case["input_length"], case["output_length"], np.concatenate(case["prompts"]),
        np.cumsum([0, *map(len, case["prompts"])]), session=case["session"],
        dependencies=Dependencies.of(case["waits"]),
    )  # fmt: skip
    trace = Trace.from_columns(columns, block_size=VECTORS["block_size"])
    setting = Setting(VECTORS["num_gpu_blocks"], engine="dynamo")
    done = closed_loop(trace, DynamoCost(), setting=setting, loop=ClosedLoop(case["lanes"]))
    for ours, theirs in ((done.arrival_s, "arrival_ms"), (done.first_s, "first_ms"), (done.ended_s, "end_ms")):
        assert np.allclose(1000 * ours, np.array(case[theirs])[done.row], rtol=0, atol=1e-4)  # 0.1 us
    assert np.array_equal(done.cached_tokens, np.array(case["reused_tokens"])[done.row])
