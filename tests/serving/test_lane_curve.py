"""The planner's lanes: the largest number of sessions at once for which the target holds."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.serving.deployment import Deployment
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.planning.plan_runs import served
from kvtrace.serving.planning.plan_target import PlanTarget
from kvtrace.serving.planning.sizing import lanes_plan, most_lanes
from kvtrace.serving.run_options import TimeSetup
from kvtrace.serving.simulation import closed_loop
from tests.serving.session_forests import random_forest

TIME = TimeSetup(deployment=Deployment("llama-3.1-8b", gpu="h100"))
TRACE = random_forest(5, sessions=12)


@given(st.integers(0, 300), st.integers(1, 200))
def test_bisection_finds_the_largest_number(limit, largest):
    tried = []

    def meets(lanes):
        tried.append(lanes)
        return lanes <= limit

    assert most_lanes(meets, largest) == (min(limit, largest) or None)
    assert max(tried) <= largest and len(tried) <= 2 * largest.bit_length() + 2


@pytest.fixture
def few_lanes(monkeypatch):
    """A plan tries at most 64 lanes."""
    monkeypatch.setattr("kvtrace.serving.planning.sizing.MAX_LANES", 64)


def test_the_lanes_of_a_plan_are_those_of_simulations(few_lanes):
    loop = ClosedLoop(duration_s=20.0)
    for ttft_s in (0.029, 0.06):
        planned = PlanTarget(ttft_s=ttft_s, quantile=0.5, loop=loop).on(TIME)
        part, blocks = lanes_plan(TRACE, planned), planned.capacity(TRACE.block_size)
        for point in part.curve:
            lanes = replace(loop, lanes=point.lanes)
            run = served(TRACE, replace(planned.run(TRACE.block_size), loop=lanes))
            setting, cost = planned.setting(blocks), planned.time.cost
            again = closed_loop(TRACE, cost, setting=setting, limits=planned.limits, loop=lanes)
            assert point.sessions_per_hour == run.sessions_completed * 180.0 == again.sessions_completed * 180.0
            assert point.meets == (point.ttft_s <= ttft_s)
        assert part.lanes is None or part.best.meets
        assert (part.lanes == 64) == (ttft_s == 0.06)  # all lanes meet the second target


def test_a_plan_says_if_even_one_lane_misses():
    part = lanes_plan(TRACE, PlanTarget(ttft_s=1e-6, loop=ClosedLoop()).on(TIME))
    assert part.lanes is None and part.best is None and part.reason.startswith("Even one session alone has a TTFT of")


def test_the_open_loop_has_no_lanes():
    assert lanes_plan(TRACE, PlanTarget().on(TIME)) is None


@pytest.mark.parametrize("words", [["--duration", "1m", "--warm-up", "1"], ["--start-inside", "--seed", "3"]])
def test_the_command_plans_lanes(few_lanes, monkeypatch, capsys, words):
    from kvtrace.cli import run
    from kvtrace.formats import reading

    monkeypatch.setattr(reading, "read", lambda *_, **__: TRACE)
    command = ["plan", "trace.jsonl", "--model", "llama-3.1-8b", "--router", "sticky", "--loop", "closed", *words]
    assert run([*command, "--json"]) == 0
    lanes = json.loads(capsys.readouterr().out)["lanes"]
    assert lanes["lanes"] >= 1 and lanes["best"]["lanes"] == lanes["lanes"]
    assert run(command) == 0
    assert "at once on one instance: a time to first token of 2 s" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize(("words", "message"), [
    (["--loop", "closed", "--lanes", "4"], "kvtrace plan finds the number of lanes."),
    (["--warm-up", "3"], "--warm-up and --seed need --loop closed."),
    (["--idle-cap", "3s"], "--idle-cap needs --loop closed."),
])  # fmt: skip
def test_bad_uses_of_the_command(capsys, words, message):
    from kvtrace.cli import run

    assert run(["plan", "trace.jsonl", "--model", "llama-3.1-8b", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
