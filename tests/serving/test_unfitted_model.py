"""The unfitted model against recordings of vLLM on real GPUs: the errors are those of docs/serving/models.md."""

from pathlib import Path

import numpy as np
import pytest

from kvtrace.cache.simulation import Setting
from kvtrace.serving.calibration.costs import step_cost
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.hardware import Roofline, gpu
from kvtrace.serving.hardware.room import kv_room
from kvtrace.serving.latencies import TARGETS, Latencies, errors_of
from kvtrace.serving.models import model_shape
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import open_loop
from tests.serving.measured import BLOCKS, FOLDERS, LIMITS, measured

MANUAL = Path(__file__).parents[2] / "docs/serving/models.md"
MODEL = model_shape("llama-3.1-8b")


@pytest.fixture(scope="module")
def recordings(shared):
    """GPU -> recording."""
    return {name: measured(shared, name) for name in FOLDERS}


def errors(recordings, name, cost, blocks=None):
    """The relative error in % of mean, p50 and p90 of TTFT, and of mean TPOT and E2E; vLLM keeps one of its blocks."""
    recording, (step_tokens, requests) = recordings[name], LIMITS[name]
    scheduler = VllmScheduler(max_num_batched_tokens=step_tokens, max_num_seqs=requests)
    setting = Setting((blocks or BLOCKS[name]) - 1, engine="vllm")
    run = open_loop(recording.trace, cost, setting=setting, scheduler=scheduler)
    lengths = recording.trace.output_length
    simulated = Latencies.of(recording.arrival_s, run.first_s, run.ended_s, lengths)
    measured = Latencies.of(recording.arrival_s, recording.first_s, recording.ended_s, lengths)
    return 100 * np.array([error.error for error in errors_of(measured, simulated, TARGETS)])


def test_nothing_fitted_the_mean_ttft_is_within_20_percent(recordings):
    for name in FOLDERS:
        assert abs(errors(recordings, name, step_cost(Roofline(MODEL, gpu(name))))[0]) < 20


def test_the_sensitivities_are_those_of_the_manual(recordings):
    manual = " ".join(MANUAL.read_text(encoding="utf-8").split())

    def ttft(**changed):
        return [
            f"{errors(recordings, name, step_cost(Roofline(MODEL, gpu(name), **changed)))[0]:+.1f} %"
            for name in FOLDERS
        ]

    assert f"TTFT is {' and '.join(ttft(attention_bandwidth_share=0.8))}; at 53 %," in manual
    assert f"at 53 %, {' and '.join(ttft(attention_bandwidth_share=0.53))}." in manual
    assert f"a step it is {' and '.join(ttft(step_overhead_s=0.0003))}." in manual
    workstation = errors(recordings, "rtx-pro-6000-server", step_cost(Roofline(MODEL, gpu("rtx-pro-6000"))))
    assert f"TTFT is {-workstation[0]:.1f} % too short, E2E {-workstation[4]:.1f} %" in manual


def blocks_left(name):
    """The blocks of a server with vLLM 0.33.0 and with the recorded 0.19.0."""
    for version in ("0.33.0", "0.19.0"):
        tokens, requests = LIMITS[name]
        yield kv_room(Deployment(
            "llama-3.1-8b", gpu=name, engine_version=version, gpu_memory_utilization=0.9,
            max_num_batched_tokens=tokens, max_num_seqs=requests,
        )).blocks  # fmt: skip


def test_the_memory_left_for_kv_is_that_of_the_manual():
    manual = MANUAL.read_text(encoding="utf-8")
    for name, recorded in BLOCKS.items():
        new, old = blocks_left(name)
        line = f"|`{name}`|{recorded:,}|{old:,} ({100 * (old / recorded - 1):+.1f} %)|"
        assert f"{line}{new:,} ({100 * (new / recorded - 1):+.1f} %)|" in manual


def test_with_its_own_blocks_the_mean_ttft_is_that_of_the_manual(recordings):
    manual = " ".join(MANUAL.read_text(encoding="utf-8").split())
    stated = []
    for name in FOLDERS:
        _, old = blocks_left(name)
        stated.append(f"{errors(recordings, name, step_cost(Roofline(MODEL, gpu(name))), old)[0]:+.1f} %")
    assert (
        f"With its own number of blocks, counted as vLLM 0.19.0 does, the mean TTFT is {stated[0]} and {stated[1]}"
        in manual
    )


def test_what_the_experts_are_worth_is_in_the_manual():
    roofline = Roofline(model_shape("qwen3-30b-a3b"), gpu("rtx-pro-6000"))
    alone, many = (1000 * float(roofline.decode_step_s(batch, 500 * batch)) for batch in (1, 128))
    manual = " ".join(MANUAL.read_text(encoding="utf-8").split())
    assert f"takes {alone:.1f} ms with one request and {many:.1f} ms with 128" in manual
