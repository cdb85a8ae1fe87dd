"""Recordings of several data-parallel ranks, and the deployment that a recording states."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from kvtrace._base.errors import InputError, UsageError
from kvtrace.cli import commands
from kvtrace.report import validation_tables
from kvtrace.serving.calibration.calibration import Served
from kvtrace.serving.deployment import Deployment, Drafter
from kvtrace.serving.hardware import Roofline, gpu
from kvtrace.serving.instances import Timeline
from kvtrace.serving.models import model_shape
from kvtrace.serving.recordings import read_recording
from kvtrace.serving.recordings.recording import Gauges
from kvtrace.serving.recordings.settings import EngineSettings, sglang_settings, vllm_settings
from kvtrace.serving.validation import validate
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.serving.recorded import COST, SETTINGS, made_up, recorded
from tests.serving.test_recordings import sglang_requests

SERVED = Deployment("llama-3.1-8b", gpu="h100")
TWO = replace(SETTINGS, deployment=replace(SETTINGS.deployment, data_parallel_size=2), api_server_count=1)


def means(validation):
    """The errors of the means of TTFT, TPOT and E2E."""
    return [error.error for error in validation.errors if error.statistic == "mean"]


def test_two_ranks_are_two_instances_behind_the_balancer_and_far_from_one_engine():
    recording = recorded(trace=made_up(rate=24.0), settings=TWO)
    apart = validate(recording, COST)
    assert apart.run.instances == 2 and apart.run.router == "vllm-dp" and np.bincount(apart.run.instance).min() > 40
    assert means(apart) == pytest.approx([0, 0, 0], abs=1e-12)
    as_one = validate(replace(recording, settings=SETTINGS), COST)
    assert as_one.run.instances == 1 and means(as_one)[0] > 1.0
    table = validation_tables.tables(apart)[0]
    assert ("data-parallel ranks", "2, vllm-dp") in [tuple(row[:2]) for row in table.rows]


def test_the_state_of_ranks_is_their_sum():
    recording = recorded(trace=made_up(rate=24.0), settings=TWO)
    lines, moments = validate(recording, COST).run.timelines, np.array([0.0, 1.0, 2.0])
    gauges = Gauges(moments, np.array([0, 30, 40]), np.zeros(3, dtype=int), np.zeros(3))
    over_time = validate(replace(recording, gauges=gauges), COST).over_time
    expected = [line.at(moments) for line in lines]
    assert over_time["simulated_running"][:3] == sum(line.running for line in expected).tolist()
    assert over_time["simulated_kv_use"][:3] == (sum(line.blocks for line in expected) / 4000).tolist()
    assert Timeline.sum_at(lines[:1], moments).waiting.tolist() == expected[0].waiting.tolist()


def test_a_fit_sees_which_requests_are_on_a_rank():
    """The counts of decoding at the true costs: of two ranks apart they fit, of all requests together they do not."""
    recording = recorded(trace=made_up(rate=24.0), settings=TWO)
    shape = model_shape("llama-3.1-8b")
    rows, terms = np.ones(len(recording), dtype=bool), {name: value for name, value in vars(COST).items() if value}
    errors = []
    for settings in (TWO, SETTINGS):
        served = Served(replace(recording, settings=settings), Roofline(shape, gpu("h100"), 1), SERVED)
        times, used = served.decode_times(terms, rows)
        gaps = served.token_gaps(terms, rows)
        assert len(times.steps) == len(used) == len(recording) and times.ends.max() <= len(times.prompt_steps)
        errors.append([np.abs(times.errors(terms, used)).mean(), np.abs(gaps.errors(terms, gaps.steps(terms))).mean()])
    assert errors[0][0] < 0.02 < errors[1][0] and errors[0][1] < errors[1][1] / 2


KWARGS = {
    "model": "Qwen/Qwen3-30B-A3B", "tensor_parallel_size": 2, "data_parallel_size": 2, "enable_expert_parallel": True,
    "max_num_seqs": 128, "max_num_batched_tokens": 2048, "max_model_len": -1, "kv_cache_dtype": "fp8",
    "quantization": "fp8", "speculative_config": {"method": "deepseek_mtp", "num_speculative_tokens": 3},
    "kv_cache_memory_bytes": 40 << 30,
}  # fmt: skip


def test_the_deployment_of_vllm_is_read_from_its_arguments():
    settings = vllm_settings({"vllm_version": "0.19.0", "engine_kwargs": KWARGS, "kv_cache": {"num_gpu_blocks": 5001}})
    assert settings.deployment == Deployment(
        "Qwen/Qwen3-30B-A3B", "vllm", engine_version="0.19.0", tensor_parallel_size=2, data_parallel_size=2,
        max_num_seqs=128, enable_expert_parallel=True, max_num_batched_tokens=2048, kv_cache_dtype="fp8",
        weights_dtype="fp8",
        speculative=Drafter("mtp", 3), kv_cache_memory_bytes=40 << 30,
    )  # fmt: skip
    assert settings.blocks == 2500  # vLLM's front end adds the blocks of both ranks
    assert settings.ranks("vllm") == {"instances": 2, "router": "vllm-dp", "api_server_count": 1, "lockstep": True}
    names = [sentence.partition(":")[0] for sentence in settings.not_simulated]
    assert names == ["speculative_config"]


def test_the_resolved_configuration_of_vllm_counts_where_it_is_stated():
    resolved = {
        "cache_config": {"num_gpu_blocks": 100, "block_size": 32, "enable_prefix_caching": False},
        "parallel_config": {"tensor_parallel_size": 1, "data_parallel_size": 1, "pipeline_parallel_size": 2},
        "scheduler_config": {"policy": "priority", "enable_chunked_prefill": False, "max_num_seqs": 64},
        "model_config": {"enforce_eager": True, "max_model_len": 4096}, "lora_config": {"max_loras": 1},
    }  # fmt: skip
    settings = vllm_settings({"engine_kwargs": {"max_num_seqs": 9, "block_size": 16}, "resolved_config": resolved})
    assert settings.deployment == Deployment(
        block_size=32, pipeline_parallel_size=2, max_num_seqs=64, max_model_len=4096, enforce_eager=True
    )
    assert settings.scheduler == {"policy": "priority"} and not settings.prefix_caching
    starts = ["pipeline_parallel_size", "enable_chunked_prefill", "enable_lora", "enforce_eager"]
    assert [sentence.split()[0].rstrip(":") for sentence in settings.not_simulated] == starts


def test_the_balancer_of_another_process_is_refused():
    settings = vllm_settings({"engine_kwargs": {"data_parallel_size": 4, "data_parallel_external_lb": True}})
    with pytest.raises(UsageError, match="the balancer external_lb of vllm is not simulated"):
        settings.ranks("vllm")


def test_a_size_that_is_no_number_is_an_error():
    with pytest.raises(InputError, match=r"meta.json: data_parallel_size is not a whole number from 1 on."):
        vllm_settings({"engine_kwargs": {"data_parallel_size": 1.5}})


SERVER = {
    "model_path": "m", "version": "0.5.23", "tp_size": 8, "dp_size": 4, "ep_size": 8, "enable_dp_attention": True,
    "max_running_requests": 64, "chunked_prefill_size": -1, "page_size": 1, "max_total_num_tokens": 4096,
    "load_balance_method": "total_tokens", "speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4,
    "schedule_policy": "lpm", "mem_fraction_static": 0.8, "kv_cache_dtype": "fp8_e4m3", "scheduler_recv_interval": 10,
}  # fmt: skip


def test_the_deployment_of_sglang_is_what_its_server_states():
    settings = sglang_settings(SERVER)
    assert settings.deployment == Deployment(
        "m", "sglang", engine_version="0.5.23", tensor_parallel_size=2, data_parallel_size=4,
        enable_expert_parallel=True, kv_cache_dtype="fp8_e4m3", block_size=1, speculative=Drafter("eagle", 4),
        gpu_memory_utilization=0.8, enable_dp_attention=True,
        max_num_seqs=16, balancer="total_tokens",
    )  # fmt: skip
    newer = SERVER | {"dp_size": 1, "attn_dp_size": 4}  # as 0.5.23 resolves it
    assert sglang_settings(newer) == settings
    assert settings.blocks_of(16) == 256
    assert settings.scheduler == {"schedule_policy": "lpm", "page_size": 1, "scheduler_recv_interval": 10}
    assert settings.ranks("sglang")["router"] == "sglang-total-tokens"
    assert settings.ranks("vllm")["router"] == "vllm-dp"
    names = [sentence.partition(":")[0] for sentence in settings.not_simulated]
    assert names == ["speculative_algorithm"]


def test_ranks_of_a_model_with_experts_are_in_lockstep():
    plain = EngineSettings(Deployment(data_parallel_size=2))
    expert = vllm_settings({"engine_kwargs": {"data_parallel_size": 2, "enable_expert_parallel": True}})
    assert [plain.ranks("vllm", has_experts=experts)["lockstep"] for experts in (False, True)] == [False, True]
    assert expert.ranks("vllm")["lockstep"] and not expert.ranks("sglang")["lockstep"]
    assert sglang_settings(SERVER).ranks("sglang")["lockstep"]
    assert EngineSettings().ranks("vllm", has_experts=True) == {}


def test_a_request_log_of_sglang_names_the_ranks(tmp_path):
    folder = sglang_requests(tmp_path)
    assert read_recording(folder).settings.ranks("sglang") == {}
    rows = [json.loads(line) for line in folder.read_text().splitlines()]
    for number, row in enumerate(rows):
        if row["event"] == "request.finished":
            row["out"]["meta_info"]["dp_rank"] = number % 3
    folder.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_recording(folder).settings.ranks("sglang")["instances"] == 3


def test_blocks_of_another_size_hold_as_many_tokens():
    recording = replace(recorded(), settings=EngineSettings(Deployment(block_size=512), blocks=65))
    assert recording.setting().capacity == 65 * 32 - 1  # of 16 tokens; one stays free


def test_without_prefix_caching_nothing_hits():
    trace = made_up(rows=40)
    ids = np.concatenate([np.arange(blocks) for blocks in trace.prompt_blocks])  # each prompt begins a longer one
    shared = Trace.from_columns(replace_columns(trace, hash_ids=ids), block_size=16, tail="kept")
    for caching in (True, False):
        recording = recorded(trace=shared, settings=replace(SETTINGS, prefix_caching=caching))
        assert recording.states_blocks and (validate(recording, COST).run.cached_tokens.sum() > 0) == caching


def folder_of(path, recording, kwargs):
    """A recording as vLLM's benchmark writes it."""
    rows = zip(
        recording.arrival_s, recording.first_s, recording.ended_s, recording.trace.input_length.tolist(),
        recording.trace.output_length.tolist(), strict=True,
    )  # fmt: skip
    names = ("queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks")
    (path / "requests.jsonl").write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    (path / "meta.json").write_text(json.dumps({"engine_kwargs": kwargs, "kv_cache": {"num_gpu_blocks": 4002}}))
    return path


def test_validate_warns_of_what_is_not_simulated_and_of_options_that_contradict(tmp_path):
    kwargs = {"max_num_seqs": 32, "max_num_batched_tokens": 1024, "data_parallel_size": 2, "tensor_parallel_size": 2,
              "enable_expert_parallel": True, "enforce_eager": True}  # fmt: skip
    together = replace(TWO, has_experts=True)
    folder = folder_of(tmp_path, recorded(trace=made_up(rate=24.0), settings=together), kwargs)
    recording = read_recording(folder)
    assert recording.settings.blocks == 2001 and means(validate(recording, COST)) == pytest.approx([0, 0, 0], abs=1e-9)
    command = ["validate", str(folder), "--model", "qwen3-30b-a3b", "--gpu", "h100", "--engine", "vllm"]
    result = CliRunner().invoke(commands, command, catch_exceptions=False)
    assert "enforce_eager: the costs of --gpu are those of an engine with CUDA graphs." in result.stderr
    assert result.exit_code == 0 and "--engine" not in result.stderr
    for words, sentence in (
        (["--gpus", "1"], "--gpus 1 contradicts LOG, which has 2. Leave it out."),
        (["--tp", "4"], "--tensor-parallel-size 4 contradicts LOG, which has 2. Leave it out."),
    ):
        result = CliRunner().invoke(commands, [*command, *words])
        assert sentence in str(result.exception)
