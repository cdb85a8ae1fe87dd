"""The loop of instances that affect each other: as `Serving` if they do not, and events between their turns."""

import random

import numpy as np
import pytest

from kvtrace.cache.simulation import Setting
from kvtrace.serving.instances import InstanceGroup
from kvtrace.serving.schedulers import scheduler_of
from kvtrace.serving.schedulers.base import BatchLimits
from kvtrace.serving.schedulers.dynamo import DynamoCost
from kvtrace.serving.simulation import StepCost
from tests.serving.scheduler_cases import dynamo_case, trace_of

NAMES = ("instance", "cached", "preempted", "started", "first", "ended")
COST = StepCost(token_s=1e-4, pair_s=1e-8, step_s=0.004, read_s=1e-6, overhead_s=0.001)


def run_of(case, engine, router, *, interleaved):
    """The outcomes of a case on three instances, and the simulation."""
    from kvtrace.serving.core.interleaved import InterleavedServing
    from kvtrace.serving.core.serving import Serving

    trace = trace_of(case)
    scheduler = scheduler_of(engine, BatchLimits(16 * case["settings"]["max_num_batched_tokens"], 8))
    setting = scheduler.setting_of(Setting(case["capacity"] + 4, engine=engine))
    cost = DynamoCost() if engine == "dynamo" else COST
    fleet = InstanceGroup(cost, setting, scheduler, 3, router, 0, (), prefetch=True, timelines=False)
    deployed = fleet.deploy(trace)
    kind = InterleavedServing if interleaved else Serving
    run = kind(deployed.instances, deployed.router, deployed.requests, setting.capacity)
    run.advance(len(trace))
    run.close()
    outcomes = deployed.requests.outcomes
    return np.array([outcomes[name] for name in NAMES], dtype=float).T, run


@pytest.mark.parametrize("router", ["round-robin", "kv-aware", "dynamo"])
@pytest.mark.parametrize("engine", ["dynamo", "vllm", "sglang", "reference"])
def test_instances_that_do_not_affect_each_other_run_as_in_serving(engine, router):
    for seed in range(15):
        case = dynamo_case(random.Random(seed))
        alone, _ = run_of(case, engine, router, interleaved=False)
        together, run = run_of(case, engine, router, interleaved=True)
        assert np.nan_to_num(together[:, :3]).tolist() == np.nan_to_num(alone[:, :3]).tolist(), seed
        assert together[:, 3:] == pytest.approx(alone[:, 3:], abs=1e-9, nan_ok=True), seed
        assert run.turns > 0


def test_steps_are_taken_together_up_to_the_turn_of_another_instance():
    #  two requests that decode for long: one instance alone takes few turns, and each of two waits for the other
    rows = [{"arrival": 0.0, "ids": [row], "tokens": 16, "output": 400, "priority": 0} for row in range(3)]
    case = {"block_size": 16, "capacity": 100, "requests": rows, "settings": {"max_num_batched_tokens": 64}}
    _, together = run_of(case, "dynamo", "round-robin", interleaved=True)
    _, alone = run_of(case | {"requests": rows[:1]}, "dynamo", "round-robin", interleaved=True)
    assert alone.turns < 5 < 400 < together.turns
