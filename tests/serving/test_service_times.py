"""Service times of requests that are alone: those of the simulation of serving, where no request waits."""

from dataclasses import fields

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.calibration.costs import roofline_cost
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.hardware.roofline import roofline_of
from kvtrace.serving.service_times import ServiceModel, service_model
from kvtrace.serving.simulation import BatchLimits, StepCost, open_loop
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace

BLOCK = 16
LIMITS = BatchLimits(step_tokens=8192, requests=256)


def alone(prompts, outputs, shared):
    """Requests of one after the other; the first `shared` blocks of all prompts are the same."""
    ids, offsets, fresh = [], [0], shared
    for prompt in prompts:
        blocks = -(-int(prompt) // BLOCK)
        own = max(0, blocks - shared)
        ids += [*range(min(blocks, shared)), *range(fresh, fresh + own)]
        fresh += own
        offsets.append(len(ids))
    columns = Columns(np.arange(len(prompts)) * 1e7, prompts, outputs, ids, offsets)
    return Trace.from_columns(columns, block_size=BLOCK)


@pytest.mark.parametrize("engine", ["reference", "vllm"])
@pytest.mark.parametrize(
    ("model", "gpu"), [("llama-3.1-8b", "h100"), ("gpt-oss-20b", "h100"), ("qwen3-30b-a3b", "h200")]
)
def test_a_request_alone_takes_what_the_simulation_takes(model, gpu, engine):
    rng = np.random.default_rng(7)
    prompts, outputs = rng.integers(1, 40_000, 30), rng.integers(1, 2_000, 30)
    trace = alone(prompts, outputs, shared=600)
    cost = roofline_cost(roofline_of(Deployment(model, gpu=gpu)))
    done = open_loop(trace, cost, setting=Setting(100_000, engine=engine, mode="grow"), limits=LIMITS)
    times = service_model(model, gpu).milliseconds(done.cached_tokens, prompts, outputs)
    assert np.abs(times - 1000 * (done.ended_s - trace.timestamp / 1000)).max() <= 0.51  # of a whole millisecond


@pytest.mark.parametrize("seed", range(8))
def test_every_term_counts(seed):
    rng = np.random.default_rng(seed)
    prompts, outputs = rng.integers(1, 20_000, 20), rng.integers(1, 300, 20)
    scales = {"expert_share": 1.0, "window_tokens": 9000.0, "graph_tokens": 512.0, "bulk_exchange_tokens": 900.0,
              "launch_s": 0.2, "pair_s": 1e-9,
              "attention_pair_s": 1e-9, "window_pair_s": 1e-9, "front_delay_s": 1.0}  # fmt: skip
    drawn = {one.name: rng.choice([0.0, rng.uniform(0, scales.get(one.name, 1e-4))]) for one in fields(StepCost)}
    cost, trace = StepCost(**drawn), alone(prompts, outputs, shared=600)
    done = open_loop(trace, cost, setting=Setting(100_000, mode="grow"), limits=LIMITS)
    times = ServiceModel(cost, {}).milliseconds(done.cached_tokens, prompts, outputs)
    assert np.abs(times - 1000 * done.e2e_s).max() <= 0.51  # of a whole millisecond


def test_the_steps_of_a_request_add_up():
    #  2 prompt tokens are not cached: 2 s; then two steps that read 4 and 5 tokens: 0.5 + 0.4 and 0.5 + 0.5
    model = ServiceModel(StepCost(token_s=0.1, step_s=0.5, read_s=0.1, overhead_s=0.0), {})
    prompt, output = np.array([3]), np.array([3])
    assert model.milliseconds(np.array([1]), prompt, output).tolist() == [1000 * (0.6 + 0.9 + 1.0)]
    assert model.milliseconds(np.array([3]), prompt, np.array([1])).tolist() == [700.0]  # the last is computed again
    assert model.milliseconds(np.array([0]), np.array([0]), np.array([0])).tolist() == [0.0]


def test_a_model_needs_a_gpu_or_costs():
    with pytest.raises(UsageError, match="--service-time needs --gpu or --costs"):
        service_model("llama-3.1-8b")
    with pytest.raises(UsageError, match="--service-time needs --gpu or --costs"):
        service_model("llama-3.1-8b", "h100", costs="costs.json")


def test_only_public_names_are_stated():
    assert service_model("llama-3.1-8b", "h100").about == {
        "costs": "roofline", "model": "llama-3.1-8b", "gpu": "h100", "gpus": 1,
    }  # fmt: skip
