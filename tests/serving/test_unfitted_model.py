"""The unfitted model against recordings of vLLM on real GPUs: the errors are those of docs/serving/serving-model.md."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kvtrace.cache.simulation import Setting
from kvtrace.serving.hardware import Roofline, gpu, model_shape
from kvtrace.serving.plan_runs import step_cost
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import StepCost, simulate_serving
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace

MANUAL = Path(__file__).parents[2] / "docs/serving/serving-model.md"
PAGE = 16  # tokens of a block
MODEL = model_shape("llama-3.1-8b")
RECORDINGS = {  # GPU -> folder, blocks that requests can use (vLLM keeps one), requests at once
    "rtx-pro-6000-server": ("RTXPRO6000_Llama-3.1-8B", 35_912, 128),
    "rtx-4090": ("RTX4090_Llama-3.1-8B", 2_587, 256),
}


@pytest.fixture(scope="module")
def recordings(shared):
    """GPU -> trace, and the times of its requests as they were recorded."""
    folder = shared / "data/measured"
    if not folder.is_dir():
        pytest.skip("no recordings in the shared data")
    with gzip.open(folder / "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz") as file:
        prompts = [json.loads(line)["input_tok_ids"] for line in file]
    return {name: recording(folder / where / "requests.jsonl", prompts) for name, (where, *_) in RECORDINGS.items()}


def recording(path, prompts):
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    order = sorted(range(len(rows)), key=lambda row: rows[row]["queued_ts"])
    column = {key: np.array([rows[row][key] for row in order]) for key in rows[0] if key != "request_id"}
    begin = column["queued_ts"].min()
    chains = [blocks_of(prompts[row][: rows[row]["input_toks"]]) for row in order]
    numbers = {}  # a block with all before it -> id
    ids = [numbers.setdefault(block, len(numbers)) for chain in chains for block in chain]
    offsets = np.cumsum([0, *map(len, chains)])
    columns = Columns(
        (column["queued_ts"] - begin) * 1000, column["input_toks"], column["output_toks"], np.array(ids), offsets
    )
    trace = Trace.from_columns(columns, block_size=PAGE, tail="kept")
    return trace, column["first_token_ts"] - begin, column["last_token_ts"] - begin


def blocks_of(tokens):
    """Each block of a prompt as the tokens up to its end."""
    return [tuple(tokens[: start + PAGE]) for start in range(0, len(tokens), PAGE)]


def errors(recordings, name, cost):
    """The relative error in % of mean, p50 and p90 of TTFT, and of mean TPOT and E2E."""
    trace, first, ended = recordings[name]
    _, blocks, requests = RECORDINGS[name]
    scheduler = VllmScheduler(max_num_batched_tokens=2048, max_num_seqs=requests)
    done = simulate_serving(trace, cost, setting=Setting(blocks, engine="vllm"), scheduler=scheduler)
    simulated, measured = (statistics(trace, *times) for times in ((done.first_s, done.ended_s), (first, ended)))
    return 100 * (simulated / measured - 1)


def statistics(trace, first, ended):
    arrival, several = trace.timestamp / 1000, trace.output_length > 1
    ttft = first - arrival
    tpot = (ended - first)[several] / (trace.output_length[several] - 1)
    return np.array(
        [ttft.mean(), np.quantile(ttft, 0.5), np.quantile(ttft, 0.9), tpot.mean(), (ended - arrival).mean()]
    )


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
        [errors(recordings, name, cost) for cost in steps(name)] for name in RECORDINGS
    ), strict=True)]  # fmt: skip
    section = MANUAL.read_text(encoding="utf-8").split("## Against recordings")[1].split("Read these errors")[0]
    rows = [line.split("|")[2:-1] for line in section.splitlines() if "%" in line and line.startswith("| ")]
    stated = [[float(cell.replace("%", "")) for cell in cells] for cells in rows if "peak FLOP" not in cells[0]]
    assert np.array(stated) == pytest.approx(np.array(both), abs=0.051)


def test_nothing_fitted_the_mean_ttft_is_within_20_percent(recordings):
    for name in RECORDINGS:
        assert abs(errors(recordings, name, step_cost(Roofline(MODEL, gpu(name))))[0]) < 20


def test_the_sensitivities_are_those_of_the_manual(recordings):
    manual = " ".join(MANUAL.read_text(encoding="utf-8").split())

    def ttft(**changed):
        return [
            f"{errors(recordings, name, step_cost(Roofline(MODEL, gpu(name), **changed)))[0]:+.1f} %"
            for name in RECORDINGS
        ]

    assert f"TTFT is {' and '.join(ttft(attention_bandwidth_share=0.8))}; at 53 %," in manual
    assert f"at 53 %, {' and '.join(ttft(attention_bandwidth_share=0.53))}." in manual
    assert f"a step it is {' and '.join(ttft(step_overhead_s=0.0003))}." in manual
    short, long = (figure.strip("+-") for figure in ttft())
    assert f"is {short} too short on an RTX PRO 6000 and {long} too long on an RTX 4090" in manual
    workstation = errors(recordings, "rtx-pro-6000-server", step_cost(Roofline(MODEL, gpu("rtx-pro-6000"))))
    assert f"TTFT is {-workstation[0]:.1f} % too short, E2E {-workstation[4]:.1f} %" in manual


def test_the_room_for_kv_is_that_of_the_manual():
    manual = MANUAL.read_text(encoding="utf-8")
    for name, (_, blocks, _) in RECORDINGS.items():
        room = Roofline(MODEL, gpu(name)).kv_capacity_tokens // PAGE
        assert f"{room:,} " in manual and f"({100 * (room / (blocks + 1) - 1):+.1f} %)" in manual
