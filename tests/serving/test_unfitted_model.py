"""The unfitted model against recordings of vLLM on real GPUs: the errors are those of docs/serving/serving-model.md."""

from pathlib import Path

import numpy as np
import pytest

from kvtrace.cache.simulation import Setting
from kvtrace.serving.hardware import Roofline, gpu, model_shape
from kvtrace.serving.hardware.roofline import LIBRARY_BYTES
from kvtrace.serving.latencies import TARGETS, Latencies, errors_of
from kvtrace.serving.plan_runs import step_cost
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import StepCost, simulate_serving
from tests.serving.measured import BLOCKS, FOLDERS, LIMITS, measured

MANUAL = Path(__file__).parents[2] / "docs/serving/serving-model.md"
PAGE = 16  # tokens of a block
MODEL = model_shape("llama-3.1-8b")


@pytest.fixture(scope="module")
def recordings(shared):
    """GPU -> recording."""
    return {name: measured(shared, name) for name in FOLDERS}


def errors(recordings, name, cost, blocks=None):
    """The relative error in % of mean, p50 and p90 of TTFT, and of mean TPOT and E2E; vLLM keeps one of its blocks."""
    one, (step_tokens, requests) = recordings[name], LIMITS[name]
    scheduler = VllmScheduler(max_num_batched_tokens=step_tokens, max_num_seqs=requests)
    setting = Setting((blocks or BLOCKS[name]) - 1, engine="vllm")
    run = simulate_serving(one.trace, cost, setting=setting, scheduler=scheduler)
    lengths = one.trace.output_length
    simulated = Latencies.of(one.arrival_s, run.first_s, run.ended_s, lengths)
    found = errors_of(Latencies.of(one.arrival_s, one.first_s, one.ended_s, lengths), simulated, TARGETS)
    return 100 * np.array([error.error for error in found])


def steps(name):
    """The step costs of the table in the manual, from the model of before to the present one."""
    device, pair, kv, weights = gpu(name), MODEL.flops_per_pair, MODEL.kv_bytes_per_token, MODEL.weight_bytes
    active = 2 * MODEL.active_parameters
    flops, bandwidth = 0.5 * device.flops, 0.8 * device.bandwidth
    yield StepCost(active / flops, pair / flops, weights / bandwidth, kv / bandwidth, 0.002)
    flops, bandwidth = device.matmul_share * device.flops, device.bandwidth_share * device.bandwidth
    yield StepCost(active / flops, pair / flops, weights / bandwidth, kv / bandwidth, 0.002)
    layers, weights = 2 * MODEL.matrix_parameters / flops, MODEL.matrix_bytes / bandwidth
    alone = 0.002 + MODEL.head_bytes / bandwidth
    yield StepCost(layers, pair / flops, weights, kv / bandwidth, alone)
    for read_s in (kv / bandwidth, kv / (0.66 * device.bandwidth)):
        yield StepCost(layers, step_s=weights, overhead_s=alone, attention_pair_s=pair / flops, attention_read_s=read_s)
    yield step_cost(Roofline(MODEL, device))


def test_the_errors_of_each_step_are_those_of_the_manual(recordings):
    both = [np.concatenate(row) for row in zip(*(
        [errors(recordings, name, cost) for cost in steps(name)] for name in FOLDERS
    ), strict=True)]  # fmt: skip
    section = MANUAL.read_text(encoding="utf-8").split("## Against recordings")[1].split("Read these errors")[0]
    rows = [line.split("|")[2:-1] for line in section.splitlines() if "%" in line and line.startswith("| ")]
    stated = [[float(cell.replace("%", "")) for cell in cells] for cells in rows if "peak FLOP" not in cells[0]]
    assert np.array(stated) == pytest.approx(np.array(both), abs=0.051)


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
    short, long = (figure.strip("+-") for figure in ttft())
    assert f"is {short} too short on an RTX PRO 6000 and {long} too long on an RTX 4090" in manual
    workstation = errors(recordings, "rtx-pro-6000-server", step_cost(Roofline(MODEL, gpu("rtx-pro-6000"))))
    assert f"TTFT is {-workstation[0]:.1f} % too short, E2E {-workstation[4]:.1f} %" in manual


def rooms(name):
    """The blocks of a server with vLLM 0.33.0 and with the recorded 0.19.0, which did not count CUDA graphs."""
    for engine_bytes in (None, LIBRARY_BYTES):
        given = {} if engine_bytes is None else {"engine_bytes": engine_bytes}
        yield Roofline(MODEL, gpu(name), **given).capacity_tokens(*LIMITS[name]) // PAGE


def test_the_room_for_kv_is_that_of_the_manual():
    manual = MANUAL.read_text(encoding="utf-8")
    for name, recorded in BLOCKS.items():
        new, old = rooms(name)
        line = f"| `{name}` | {recorded:,} | {old:,} ({100 * (old / recorded - 1):+.1f} %) |"
        assert f"{line} {new:,} ({100 * (new / recorded - 1):+.1f} %) |" in manual


def test_with_its_own_room_the_mean_ttft_is_that_of_the_manual(recordings):
    manual = " ".join(MANUAL.read_text(encoding="utf-8").split())
    stated = []
    for name in FOLDERS:
        _, old = rooms(name)
        stated.append(f"{errors(recordings, name, step_cost(Roofline(MODEL, gpu(name))), old)[0]:+.1f} %")
    assert (
        f"With its own number of blocks, counted as vLLM 0.19.0 does, the mean TTFT is {stated[0]} and {stated[1]}"
        in manual
    )
