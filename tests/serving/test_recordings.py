"""Recordings: each format gives the times that were measured, and each fault one clear sentence."""

import json

import numpy as np
import pytest

from kvtrace import InputError, UsageError
from kvtrace.serving.recordings import RECORDINGS, read_recording
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace

ROWS = 24
STEPS = range(ROWS)


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def vllm_requests(folder, first=0.5, ended=1.5):
    """Requests one second apart on a clock of its own; the last one comes first in the file."""
    rows = [
        {
            "request_id": f"bench-{i}", "input_toks": 10 + i, "output_toks": 5, "arrival_time": 1e9 + i,
            "queued_ts": 700.0 + i, "scheduled_ts": 700.1 + i, "first_token_ts": 700.0 + first + i,
            "last_token_ts": 700.0 + ended + i,
        }
        for i in reversed(STEPS)
    ]  # fmt: skip
    lines(folder / "requests.jsonl", rows)
    kwargs = {"max_num_seqs": 64, "max_num_batched_tokens": 2048, "tensor_parallel_size": 2}
    meta = {"model": "m", "engine_kwargs": kwargs, "kv_cache": {"num_gpu_blocks": 100, "block_size": 32}}
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def vllm_bench(folder, **changes):
    result = {
        "backend": "vllm", "model_id": "m", "start_times": [700.0 + i for i in STEPS], "ttfts": [0.5] * ROWS,
        "itls": [[0.25] * 4] * ROWS, "input_lens": [10 + i for i in STEPS], "output_lens": [5] * ROWS,
        "errors": [""] * ROWS, "generated_texts": ["secret"] * ROWS,
    }  # fmt: skip
    path = folder / "result.json"
    path.write_text(json.dumps({name: value for name, value in {**result, **changes}.items() if value is not None}))
    return path


def sglang_bench(folder):
    result = json.loads(vllm_bench(folder).read_text())
    del result["model_id"]
    result["server_info"] = {"model_path": "m", "max_running_requests": 64}
    older = {**result, "ttfts": [9.0] * ROWS}
    return lines(folder / "result.jsonl", [older, result])


def sglang_requests(folder, **changes):
    """As SGLang 0.5.23 logs requests; level 0 leaves out texts."""
    rows = [
        {
            "timestamp": "2031-03-04T05:06:07.000008", "event": "request.finished", "rid": f"r{i}",
            "obj": {"rid": f"r{i}", "stream": True, "log_metrics": True},
            "out": {"meta_info": {
                "id": f"r{i}", "finish_reason": {"type": "length", "length": 5}, "prompt_tokens": 10 + i,
                "completion_tokens": 5, "cached_tokens": 4, "dp_rank": None, "e2e_latency": 1.5, "queue_time": 0.1,
                "request_received_ts": 1_900_000_000.0 + i, "first_token_latency": 0.5,
                "request_finished_ts": 1_900_000_001.5 + i, "decode_throughput": 4.0,
            } | changes},
        }
        for i in STEPS
    ]  # fmt: skip
    received = {"timestamp": "2031-03-04T05:06:07", "event": "request.received", "rid": "r0", "obj": {"rid": "r0"}}
    return lines(folder / "requests.log", [received, *rows])


def aiperf(folder):
    def metric(value, unit):
        return {"value": value, "unit": unit}

    rows = [
        {
            "metadata": {"benchmark_phase": "profiling", "request_start_ns": 1_900_000_000_000_000_000 + i * 10**9},
            "metrics": {
                "time_to_first_token": metric(500.0, "ms"), "request_latency": metric(1500.0, "ms"),
                "input_sequence_length": metric(10 + i, "tokens"), "output_sequence_length": metric(5, "tokens"),
            },
            "error": None,
        }
        for i in STEPS
    ]  # fmt: skip
    warm = {**rows[0], "metadata": {"benchmark_phase": "warmup", "request_start_ns": 0}}
    return lines(folder / "profile_export.jsonl", [warm, *rows])


def litellm(folder, **changes):
    rows = [
        {
            "call_type": "acompletion", "status": "success", "startTime": f"2031-03-04T05:06:{i:02d}Z",
            "completionStartTime": f"2031-03-04T05:06:{i:02d}.500Z", "endTime": f"2031-03-04T05:06:{i + 1:02d}.500Z",
            "prompt_tokens": 10 + i, "completion_tokens": 5, "messages": "secret", **changes,
        }
        for i in STEPS
    ]  # fmt: skip
    return lines(folder / "calls.jsonl", rows)


FILES = {"vllm-requests": vllm_requests, "sglang-bench": sglang_bench, "vllm-bench": vllm_bench, "aiperf": aiperf,
         "litellm": litellm, "sglang-requests": sglang_requests}  # fmt: skip


def test_each_format_has_a_case():
    assert FILES.keys() == RECORDINGS.keys()


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_detected_and_its_times_count_from_the_first_arrival(tmp_path, name):
    recording = read_recording(FILES[name](tmp_path))
    assert (recording.format, len(recording), recording.left_out) == (name, ROWS, 0)
    np.testing.assert_allclose(recording.arrival_s, STEPS, atol=1e-6)
    np.testing.assert_allclose(recording.first_s, np.array(STEPS) + 0.5, atol=1e-6)
    np.testing.assert_allclose(recording.ended_s, np.array(STEPS) + 1.5, atol=1e-6)
    assert recording.trace.input_length.tolist() == [10 + i for i in STEPS]
    assert recording.trace.output_length.tolist() == [5] * ROWS


def test_the_settings_of_the_engine_decide_the_scheduler_and_the_cache(tmp_path):
    recording = read_recording(vllm_requests(tmp_path))
    assert recording.settings.deployment.tensor_parallel_size == 2
    assert (recording.scheduler().max_num_seqs, recording.scheduler().max_num_batched_tokens) == (64, 2048)
    assert recording.setting().capacity == 99  # vLLM never uses one of its blocks
    assert recording.trace.block_size == 32


def test_blocks_come_from_a_trace_in_the_order_of_the_file(tmp_path):
    lengths = np.array([10 + i for i in reversed(STEPS)])
    ids = np.arange(ROWS) // 2  # requests 0 and 1 of the file have the same block
    trace = Trace.from_columns(
        Columns(np.arange(ROWS), lengths, np.full(ROWS, 5), ids, np.arange(ROWS + 1)), block_size=64
    )
    recording = read_recording(vllm_requests(tmp_path), trace=trace)
    assert recording.trace.hash_ids[-1] == recording.trace.hash_ids[-2] != recording.trace.hash_ids[-3]
    with pytest.raises(UsageError, match="the trace has 23"):
        read_recording(tmp_path, trace=trace[1:])


def test_requests_that_failed_are_left_out_and_counted(tmp_path):
    errors = ["timeout"] + [""] * (ROWS - 1)
    recording = read_recording(vllm_bench(tmp_path, errors=errors))
    assert (len(recording), recording.left_out) == (ROWS - 1, 1)
    assert recording.arrival_s[0] == 0


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        (lambda folder: vllm_requests(folder, first=-0.5), "first token before their arrival. The times are of"),
        (lambda folder: vllm_requests(folder, ended=0.25), "end before their first token"),
        (lambda folder: vllm_requests(folder, ended=5e6), "more than 30 days"),
        (lambda folder: vllm_bench(folder, start_times=None), "lacks start_times. Run vllm bench serve with"),
        (lambda folder: vllm_bench(folder, ttfts=[0.5]), "have different lengths"),
        (lambda folder: vllm_bench(folder, errors=["x"] * 5 + [""] * 19), "19 requests with times, 5 that failed"),
        (lambda folder: litellm(folder, completionStartTime=None), "lacks completionStartTime"),
        (lambda folder: sglang_requests(folder, first_token_latency=None), "lacks first_token_latency"),
        (lambda folder: sglang_requests(folder, e2e_latency=-1.0), "end before their first token"),
        (lambda folder: lines(folder / "other.jsonl", [{"secret": 1}]), "serving/calibrate.md"),
        (
            lambda folder: lines(folder / "requests.jsonl", [{"queued_ts": 5.0, "first_token_ts": 6.0, "secret": 1}]),
            "lacks last_token_ts, input_toks, output_toks. Its rows must have queued_ts,",
        ),
    ],
)  # fmt: skip
def test_a_fault_is_one_sentence_without_content(tmp_path, path, sentence):
    with pytest.raises(InputError) as failure:
        read_recording(path(tmp_path))
    assert sentence in str(failure.value) and "\n" not in str(failure.value) and "secret" not in str(failure.value)


def test_calls_that_did_not_stream_are_left_out(tmp_path):
    rows = [json.loads(line) for line in litellm(tmp_path).read_text().splitlines()]
    rows[3]["completionStartTime"] = rows[3]["endTime"]
    rows[4]["status"] = "failure"
    assert read_recording(lines(tmp_path / "calls.jsonl", rows)).left_out == 2


def test_a_server_log_of_sglang_has_queues_and_hits_and_aborted_requests(tmp_path):
    recording = read_recording(sglang_requests(tmp_path))
    assert recording.settings.deployment.engine == "sglang" and recording.cached_tokens.tolist() == [4] * ROWS
    np.testing.assert_allclose(recording.scheduled_s, recording.arrival_s + 0.1, atol=1e-6)
    rows = [json.loads(line) for line in (tmp_path / "requests.log").read_text().splitlines()]
    rows[3]["out"]["meta_info"]["finish_reason"] = {"type": "abort", "message": "secret"}
    assert read_recording(lines(tmp_path / "requests.log", rows)).left_out == 1
    with pytest.raises(InputError, match="no event request.finished. Start the server with"):
        read_recording(lines(tmp_path / "requests.log", rows[:1]))


def test_a_benchmark_of_sglang_that_sends_all_at_once_needs_no_start_times(tmp_path):
    """SGLang 0.5.23 saves no start times, and its rate without a limit is `Infinity`, which is not JSON."""
    result = json.loads(sglang_bench(tmp_path).read_text().splitlines()[-1])
    del result["start_times"]
    path = lines(tmp_path / "result.jsonl", [result | {"request_rate": float("inf"), "max_concurrency": None}])
    assert "Infinity" in path.read_text()
    recording = read_recording(path)
    assert recording.arrival_s.tolist() == [0.0] * ROWS and recording.settings.deployment.max_num_seqs == 64
    for limited in ({"request_rate": 4.0}, {"request_rate": float("inf"), "max_concurrency": 8}):
        with pytest.raises(InputError, match="lacks start_times. Run sglang.bench_serving with"):
            read_recording(lines(tmp_path / "result.jsonl", [result | limited]))


def test_the_file_of_requests_stands_for_its_folder(tmp_path):
    folder = vllm_requests(tmp_path)
    one, other = read_recording(folder), read_recording(folder / "requests.jsonl")
    assert one.settings == other.settings and one.first_s.tolist() == other.first_s.tolist()
