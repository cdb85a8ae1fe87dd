"""An overload: more work arrives than the instances serve. Loads below, near and above what they serve."""

import json

import numpy as np
import pytest

import kvtrace
from kvtrace.cache.simulation import Setting
from kvtrace.cli import run
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.overload import FEWEST_REQUESTS
from kvtrace.serving.planning.plan_runs import replace_times, served
from kvtrace.serving.planning.plan_target import PlanTarget
from kvtrace.serving.run_options import TimeSetup
from kvtrace.serving.simulation import BatchLimits, StepCost, closed_loop, open_loop
from kvtrace.trace.building import toy
from tests.serving.session_forests import random_forest

COST = StepCost(token_s=0.01)  # a block of 100 tokens takes a second
ALONE = BatchLimits(requests=1)  # at once, so that an instance serves exactly one request a second


def requests(count, gap_s, *, seed=None, blocks=1):
    """Prompts of their own, by default of a second each; with a seed their gaps are exponential."""
    trace = toy(
        *(" ".join(str(blocks * i + b) for b in range(blocks)) for i in range(count)), block_size=100, gap_ms=1.0
    )
    gaps = np.ones(count) if seed is None else np.random.default_rng(seed).exponential(size=count)
    return replace_times(trace, 1.0) if gap_s is None else at(trace, np.cumsum(gaps) * gap_s * 1000)


def at(trace, milliseconds):
    from kvtrace.trace.columns import replace_columns
    from kvtrace.trace.trace import Trace

    columns = replace_columns(trace, timestamp=milliseconds)
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail, meta=trace.meta)


def load_of(trace, instances=1, router="round-robin"):
    return open_loop(trace, COST, instances=instances, router=router, setting=Setting(1000), limits=ALONE).overload


@pytest.mark.parametrize("load", [0.1, 0.5, 0.9, 0.99, 1.0])
def test_a_load_that_is_served_is_no_overload(load):
    assert load_of(requests(300, 1 / load)) is None


@pytest.mark.parametrize("load", [1.05, 1.2, 2.0, 5.0])
def test_a_load_above_what_is_served_is_measured(load):
    found = load_of(requests(300, 1 / load))
    assert found is not None and found.instances == 1 and found.load == pytest.approx(load, rel=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_wait_in_a_steady_service_and_grow_in_an_overload(seed):
    assert load_of(requests(400, 1 / 0.8, seed=seed)) is None
    found = load_of(requests(400, 1 / 1.5, seed=seed))
    assert found is not None and found.load == pytest.approx(1.5, rel=0.15)


def test_the_load_of_instances_is_that_of_each():
    found = load_of(requests(600, 1 / 4), 2)
    assert found is not None and found.instances == 2 and found.load == pytest.approx(2.0, rel=0.02)
    assert load_of(requests(600, 1 / 4), 5) is None


def test_one_instance_of_two_may_be_overloaded():
    # two requests of every three are of one conversation, which `sticky` keeps on one instance
    prompts = [f"0 1 {100 + i}" if i % 3 else f"{1000 + i} {2000 + i} {3000 + i}" for i in range(450)]
    trace = toy(*prompts, block_size=100, gap_ms=1000.0)
    cost, setting = StepCost(token_s=0.02), Setting(3)  # no more memory than for one request
    found = open_loop(trace, cost, instances=2, router="sticky", setting=setting, limits=ALONE).overload
    assert found is not None and found.instances <= 2 and found.load > 1.02
    sentence = type(found)(found.load, 1).sentence(2)
    assert sentence.startswith("Overload: the load of 1 of 2 instances is ") and "kvtrace plan" in sentence


def test_too_few_requests_tell_nothing_and_longer_prompts_are_no_overload():
    assert load_of(requests(FEWEST_REQUESTS - 1, 0.1)) is None and load_of(requests(FEWEST_REQUESTS, 0.1)) is not None
    growing = toy(*(" ".join(str(1000 * i + b) for b in range(1 + i // 20)) for i in range(200)), block_size=100,
                  gap_ms=20_000.0)  # fmt: skip
    assert load_of(growing) is None
    assert load_of(requests(0, None)) is None


def test_a_peak_that_is_worked_off_is_no_overload():
    arrivals = np.sort(np.concatenate([np.arange(300) * 2.0, 100 + np.arange(60) * 0.2])) * 1000
    assert load_of(at(requests(360, 1.0), arrivals)) is None


def test_a_closed_loop_has_no_overload():
    trace = random_forest(5, sessions=40)
    assert closed_loop(trace, COST, loop=ClosedLoop(4), setting=Setting(1000), limits=ALONE).overload is None


def test_simulate_states_an_overload_in_a_sentence_and_in_json(tmp_path, capsys):
    trace = requests(120, 1.0, blocks=40)
    for name, gap in (("much", 0.01), ("little", 10.0)):
        kvtrace.write(at(trace, np.arange(len(trace)) * gap * 1000), tmp_path / name)
    call = ["--block-size", "100", "--model", "llama-3.1-8b", "--gpu", "l4", "--capacity", "500", "--no-gap", "-q"]
    assert run(["simulate", str(tmp_path / "much"), *call]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "times what this instance serves. Waiting grows without end: TTFT is not that of a steady service" in text
    assert run(["simulate", str(tmp_path / "little"), *call]) == 0
    assert "Overload" not in capsys.readouterr().out
    for name, is_over in (("much", True), ("little", False)):
        assert run(["simulate", str(tmp_path / name), *call, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["results"]
        assert ("overload" in row) == is_over
        assert not is_over or (row["overload"]["load"] > 1 and row["overload"]["instances"] == 1)


def test_on_conversations_the_load_is_the_time_that_all_of_them_take_at_once(shared):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")[:1750]
    one = PlanTarget().on(TimeSetup(deployment=Deployment("llama-3.1-8b", gpu="h100"))).run(512)
    at_once = served(replace_times(trace, 1e-6), one).makespan_s
    load = at_once / (np.ptp(trace.timestamp) / 1000)
    found = served(trace, one).overload
    assert found is not None and found.load == pytest.approx(load, rel=0.05) and load > 2
    assert served(trace, one.changed(instances=4)).overload is None
