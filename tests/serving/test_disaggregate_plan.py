"""The plan of prefill and decode on different workers."""

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.planning.disaggregate import SplitRuns, disaggregate_plan
from kvtrace.serving.planning.plan_target import PlanTarget
from kvtrace.serving.planning.planning import plan
from kvtrace.serving.run_options import TimeSetup
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace


def load(count, gap_ms, outputs):
    """Requests of 4,096 tokens that share nothing."""
    prompts = [" ".join(str(8 * row + block) for block in range(8)) for row in range(count)]
    trace = toy(*prompts, block_size=512, gap_ms=gap_ms)
    columns = replace_columns(trace, output_length=np.full(count, outputs))
    return Trace.from_columns(columns, block_size=512, tail=trace.tail)


def planned(**target):
    deployment = Deployment("llama-3.1-8b", gpu="h100")
    return PlanTarget(disaggregate=True, **target).on(TimeSetup(deployment=deployment))


def test_a_short_tpot_needs_workers_of_two_kinds():
    """Instances compute prompts of others between two tokens of a request; a decode worker never does."""
    result = disaggregate_plan(load(100, 70.0, 100), planned(ttft_s=2.0, tpot_s=0.0105))
    assert result.pays and result.best is not None and result.aggregated is not None
    assert (result.best.prefill_workers, result.best.decode_workers, result.aggregated.workers) == (1, 1, 3)
    assert result.sentence == (
        "Disaggregate: 1 prefill and 1 decode worker meet TTFT 2 s and TPOT 10.5 ms at p90 where 3 instances are needed"
    )


def test_a_long_tpot_keeps_them_together():
    result = disaggregate_plan(load(60, 500.0, 50), planned(ttft_s=2.0, tpot_s=0.2))
    assert result.pays is False and result.aggregated is not None and result.aggregated.workers == 1
    assert result.sentence.startswith("Keep prefill and decode together")


def test_what_is_best_is_the_smallest_of_a_full_search():
    target = planned(ttft_s=1.5, tpot_s=0.012)
    trace = load(50, 120.0, 80)
    best = disaggregate_plan(trace, target).best
    runs = SplitRuns(trace, target)
    meeting = [p + d for p in range(1, 5) for d in range(1, 5) if runs.at(p, d).meets]
    assert best is not None and best.workers == min(meeting)


def test_a_slow_link_costs_ttft():
    trace = load(30, 300.0, 20)
    fast, slow = (SplitRuns(trace, planned(ttft_s=2.0, tpot_s=0.1, kv_transfer_bandwidth=rate)) for rate in (5e10, 1e9))
    assert slow.at(1, 1).ttft_s > fast.at(1, 1).ttft_s


def test_the_plan_has_the_part():
    deployment = Deployment("llama-3.1-8b", gpu="h100")
    target = PlanTarget(routers=("round-robin",), disaggregate=True, tpot_s=0.05)
    result = plan(load(20, 500.0, 20), deployment, target).to_dict()["disaggregate"]
    assert result["pays"] is False and result["curve"]


def test_options_need_each_other():
    with pytest.raises(UsageError, match="--disaggregate and --tpot"):
        PlanTarget(disaggregate=True)
    with pytest.raises(UsageError, match="--disaggregate and --tpot"):
        PlanTarget(tpot_s=0.03)
    with pytest.raises(UsageError, match="needs --disaggregate"):
        PlanTarget(kv_transfer_bandwidth=1e9)
