"""A validation: a recording of our own simulation has no error, and known changes have the errors of a hand count."""

import json
from dataclasses import replace

import numpy as np
import pytest

import kvtrace
from kvtrace import InputError, UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.report.validation_tables import tables, warnings
from kvtrace.serving.calibration.costs import step_cost
from kvtrace.serving.hardware import Roofline, gpu, roofline_of
from kvtrace.serving.hardware.room import kv_room
from kvtrace.serving.instances import Timeline
from kvtrace.serving.models import model_shape
from kvtrace.serving.recordings import read_recording
from kvtrace.serving.recordings.recording import EngineSettings, Gauges, RequestTimes, read_gauges, recording_of
from kvtrace.serving.schedulers import DynamoScheduler, SglangScheduler, VllmScheduler
from kvtrace.serving.simulation import StepCost, open_loop
from kvtrace.serving.validation import validate
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.trace import Trace
from tests.conftest import ROOT
from tests.serving.recorded import COST, recorded

MADE_UP = ROOT / "examples/recording"
MANUAL = ROOT / "docs/serving/calibrate.md"
REAL = {"rtx-pro-6000-server": "RTXPRO6000_Llama-3.1-8B", "rtx-4090": "RTX4090_Llama-3.1-8B"}
LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
SECOND = StepCost(token_s=0.0, overhead_s=1.0)  # each step takes one second


def alone(rows=20, gap_ms=10_000.0, scheduled=True):
    """Requests that never meet: 32 prompt tokens in two blocks, and 3 output tokens, in three steps of one second."""
    trace = toy(*(f"{2 * row} {2 * row + 1}" for row in range(rows)), gap_ms=gap_ms, block_size=16)
    trace = Trace.from_columns(replace_columns(trace, output_length=np.full(rows, 3)), block_size=16)
    arrival = trace.timestamp / 1000
    times = RequestTimes(
        arrival, arrival + 1, arrival + 3, trace.input_length, trace.output_length, arrival if scheduled else None
    )
    settings = EngineSettings(blocks=11, scheduler={"async_scheduling": False})
    return recording_of(times, name="made", trace=trace, settings=settings)


def errors_of(done):
    return {f"{one.latency} {one.statistic}": one.error for one in done.errors}


# ---- errors


def test_a_recording_of_the_simulation_has_no_error_and_the_same_order():
    done = validate(recorded(), COST)
    assert list(errors_of(done)) == [
        f"{latency} {name}" for latency in LATENCIES for name in ("mean", "p50", "p90", "p95", "p99")
    ]
    assert all(abs(one.error) < 1e-9 and abs(one.low) < 1e-9 and abs(one.high) < 1e-9 for one in done.errors)
    assert done.rank_correlation == pytest.approx(dict.fromkeys(LATENCIES, 1.0))
    values = done.to_dict()
    assert values["requests_per_s"] == pytest.approx(values["simulated_requests_per_s"])
    assert values["output_tokens_per_s"] == pytest.approx(values["simulated_output_tokens_per_s"])


def test_measured_times_that_are_doubled_are_an_error_of_minus_half():
    one = recorded()
    arrival = one.arrival_s
    slow = replace(one, first_s=arrival + 2 * (one.first_s - arrival), ended_s=arrival + 2 * (one.ended_s - arrival))
    done = validate(slow, COST)
    assert list(errors_of(done).values()) == pytest.approx([-0.5] * 15)
    assert all(one.low == pytest.approx(-0.5) == one.high for one in done.errors)
    assert done.rank_correlation == pytest.approx(dict.fromkeys(LATENCIES, 1.0))


def test_single_requests_by_hand():
    done = validate(alone(), SECOND)
    # the prompt takes a step of 1 s, two more tokens take two
    assert [done.simulated.ttft_s[0], done.simulated.tpot_s[0], done.simulated.e2e_s[0]] == [1.0, 1.0, 3.0]
    assert list(errors_of(done).values()) == pytest.approx([0.0] * 15)
    assert done.rank_correlation == dict.fromkeys(LATENCIES)  # all requests take equal times
    values = done.to_dict()
    assert values["requests_per_s"] == values["simulated_requests_per_s"] == 20 / 193  # the last one ends at 193 s
    assert values["capacity"] == 10 and values["step_cost"]["overhead_s"] == 1.0


def test_the_order_of_the_requests_turned_around_is_a_rank_correlation_of_minus_one():
    one = alone()
    places = np.arange(20)
    slow_first = replace(one, ended_s=one.arrival_s + 3 + 0.1 * places[::-1])
    cost = validate(slow_first, SECOND)
    changed = replace(cost, run=replace(cost.run, ended_s=one.arrival_s + 3 + 0.2 * places))
    assert changed.rank_correlation["e2e_s"] == pytest.approx(-1.0)


def test_only_requests_after_the_warm_up_count():
    one = alone()
    late = np.arange(20) >= 10
    done = validate(replace(one, ended_s=one.ended_s + 3 * ~late), SECOND, warm_up=10)
    assert list(errors_of(done).values()) == pytest.approx([0.0] * 15) and done.to_dict()["warm_up"] == 10
    with pytest.raises(UsageError, match="--warm-up leaves none of the 20 requests"):
        validate(one, SECOND, warm_up=20)


def test_outputs_of_one_token_have_no_tpot():
    one = alone()
    short = replace(one, trace=Trace.from_columns(replace_columns(one.trace, output_length=np.ones(20)), block_size=16))
    done = validate(short, SECOND)
    assert {one.latency for one in done.errors} == {"ttft_s", "e2e_s"}
    assert done.rank_correlation["tpot_s"] is None and np.isnan(done.per_request()["tpot_s"]).all()


# ---- the engine over time


def test_the_engine_over_time_by_hand():
    gauges = Gauges(np.array([0.5, 2.5, 5.0]), np.array([1, 1, 0]), np.zeros(3, int), np.array([0.2, 0.3, 0.0]))
    done = validate(replace(alone(), gauges=gauges), SECOND)
    state = done.over_time
    # two blocks for the prompt, a third one for the first output token; after 3 s the request has ended
    assert state["seconds"][:3] == [0.5, 2.5, 5.0] and state["simulated_kv_blocks"][:3] == [2, 3, 0]
    assert state["simulated_running"][:3] == [1, 1, 0] == state["running"][:3]
    assert state["simulated_kv_use"][:3] == pytest.approx([0.2, 0.3, 0.0])
    assert state["seconds"][-1] >= 193 and state["running"][3:] == [0] * (len(state["running"]) - 3)


@pytest.mark.parametrize("scheduled", [True, False])
def test_without_gauges_requests_are_counted_from_their_times(scheduled):
    done = validate(alone(scheduled=scheduled), SECOND)
    state = done.over_time
    assert state["running"] == state["simulated_running"] and state["waiting"] == state["simulated_waiting"]
    assert state["kv_use"] is None and max(state["waiting"]) == (0 if scheduled else 1)


def test_an_unknown_size_of_the_cache_has_no_share():
    done = validate(replace(alone(), settings=EngineSettings(scheduler={"async_scheduling": False})), SECOND)
    assert done.capacity is None and done.over_time["simulated_kv_use"] is None
    assert max(done.over_time["simulated_kv_blocks"]) == 3 and "KV cache is not known" in " ".join(warnings(done))
    assert validate(done.recording, SECOND, capacity=10).capacity == 10


@pytest.mark.parametrize("engine", ["vllm", "sglang", "reference"])
def test_a_time_line_holds_all_requests_in_order(engine):
    trace = recorded().trace
    run = open_loop(trace, COST, setting=Setting(4000, engine=engine), timelines=True)
    (line,) = run.timelines
    assert (np.diff(line.seconds) > 0).all() and line.running[-1] == line.waiting[-1] == line.blocks[-1] == 0
    assert line.blocks.max() <= 4000 and line.running.max() > 1
    # at a time between two steps, a request runs from its admission to its end
    moments = (line.seconds[1:] + line.seconds[:-1]) / 2
    active = [((run.started_s <= moment) & (run.ended_s > moment)).sum() for moment in moments]
    off = np.abs(line.at(moments).running - active)  # overlap: what a step gives is known a step later
    assert off.mean() < 0.25 and off.max() <= 8
    assert open_loop(trace, COST, setting=Setting(4000, engine=engine)).timelines == ()


def test_a_time_line_counts_the_tokens_of_sglangs_requests():
    run = open_loop(
        alone().trace, SECOND, setting=Setting(10, engine="sglang"),
        scheduler=SglangScheduler(disable_overlap_schedule=True), timelines=True,
    )  # fmt: skip
    assert run.timelines[0].at(np.array([0.5, 2.5, 5.0])).blocks.tolist() == [2, 3, 0]


def test_a_time_line_without_rows_is_empty():
    assert Timeline.of([]).at(np.array([1.0])).running.tolist() == [0]


# ---- recordings


def test_the_example_has_gauges_settings_and_cached_tokens():
    recording = read_recording(MADE_UP)
    assert len(recording) == 80 and recording.settings.blocks == 1201 and recording.cached_tokens is not None
    done = validate(recording, step_cost(Roofline(model_shape("llama-3.1-8b"), gpu("h100"))))
    assert recording.gauges is not None and recording.gauges.kv_use is not None
    assert done.to_dict()["cached_tokens"] == 0 and done.to_dict()["simulated_preemptions"] > 0
    # steps 12 % slower than simulated
    assert errors_of(done)["tpot_s mean"] == pytest.approx(1 / 1.12 - 1, abs=0.03)
    assert errors_of(done)["ttft_s mean"] < -0.4


def test_rows_of_the_file_stay_known(tmp_path):
    rows = (MADE_UP / "requests.jsonl").read_text().splitlines()
    (tmp_path / "requests.jsonl").write_text("\n".join(rows[::-1]) + "\n")
    assert validate(read_recording(tmp_path), SECOND).per_request()["row"].tolist() == list(range(79, -1, -1))


def test_a_gauge_that_did_not_work_is_left_out(tmp_path):
    path = tmp_path / "timeseries.csv"
    path.write_text("t,running,waiting,kv_cache_pct\n1,2,0,0.0\n2,0,0,0.0\n")
    assert read_gauges(path).kv_use is None
    path.write_text("t,running,waiting\n1,2,0\n2,0,0\n")
    assert read_gauges(path).kv_use is None
    path.write_text("t,running,waiting,kv_cache_pct\n1,2,0,12.5\n2,0,0,0.0\n")
    assert read_gauges(path).kv_use.tolist() == [0.125, 0.0]


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        ("timeseries.csv", "running", "run", "lacks one of the columns t, running, waiting"),
        ("timeseries.csv", "\n2,", "\n0.5,", "the times in column t do not rise"),
        ("timeseries.csv", "\n2,", "\nsecret,", "column t has values that are not numbers"),
        ("meta.json", '"num_gpu_blocks": 1201', '"num_gpu_blocks": "secret"', "num_gpu_blocks is not a whole number"),
        ("meta.json", '"max_num_seqs": 32', '"max_num_seqs": 0', "max_num_seqs is not a whole number from 1 on"),
        ("requests.jsonl", '"input_toks": 8', '"input_toks": -8', "fewer than 0 or more than"),
        ("requests.jsonl", "first_token_ts", "secret", "lacks first_token_ts. Its rows must have queued_ts,"),
    ],
)
def test_a_fault_is_one_sentence_without_content(tmp_path, file, old, new, sentence):
    for path in MADE_UP.iterdir():
        text = path.read_text()
        count = -1 if new == "secret" else 1
        (tmp_path / path.name).write_text(text.replace(old, new, count) if path.name == file else text)
    with pytest.raises(InputError) as failure:
        read_recording(tmp_path)
    message = str(failure.value).replace(str(tmp_path), "")
    assert sentence in message and "\n" not in message and "secret" not in message


@pytest.mark.parametrize("meta", ["[]", '"text"', "null"])
def test_settings_that_are_no_object_are_refused(tmp_path, meta):
    (tmp_path / "requests.jsonl").write_text((MADE_UP / "requests.jsonl").read_text())
    (tmp_path / "meta.json").write_text(meta)
    with pytest.raises(InputError, match="not a JSON object"):
        read_recording(tmp_path)


def test_arrivals_over_months_are_of_other_units():
    times = RequestTimes(np.arange(30) * 1e9, np.arange(30) * 1e9, np.arange(30) * 1e9, np.ones(30), np.ones(30))
    with pytest.raises(InputError, match="arrivals span more than 30 days"):
        recording_of(times, name="log")


# ---- the engine


def test_the_format_decides_the_engine(tmp_path):
    described = json.loads((ROOT / "tests/data/recordings/vllm_bench.json").read_text())
    del described["model_id"], described["backend"], described["endpoint_type"]
    server = {"model_path": "m", "max_running_requests": 64, "chunked_prefill_size": 2048, "tp_size": 2}
    rows = len(described["ttfts"])
    (tmp_path / "result.jsonl").write_text(
        json.dumps({**described, "server_info": server, "cached_tokens": [3] * rows})
    )
    recording = read_recording(tmp_path / "result.jsonl")
    assert recording.scheduler() == SglangScheduler(max_running_requests=64, chunked_prefill_size=2048)
    assert recording.settings.deployment.tensor_parallel_size == 2 and recording.left_out == 1
    done = validate(recording, COST)
    assert done.to_dict()["scheduler"] == "sglang 0.5.23" and done.to_dict()["cached_tokens"] == 3 * (rows - 1)
    assert validate(recording, COST, engine="vllm").to_dict()["scheduler"] == "vllm 0.33.0"
    assert "1 requests failed" in warnings(done)[0]


def test_an_engine_or_a_size_that_cannot_be_validated_is_refused():
    with pytest.raises(UsageError, match="is not an --engine with a scheduler"):
        validate(recorded(), COST, engine="lmcache")
    with pytest.raises(UsageError, match="simulates the engines vllm and sglang, not dynamo"):
        validate(recorded(), COST, scheduler=DynamoScheduler())
    with pytest.raises(UsageError, match="No request fits into a KV cache of 2 blocks"):
        validate(recorded(), COST, capacity=2)


def test_requests_that_do_not_fit_are_counted_and_named():
    done = validate(recorded(), COST, capacity=90)  # of up to 1,800 tokens in 113 blocks
    assert 0 < done.run.rejected < 60 and done.to_dict()["rejected"] == done.run.rejected
    assert any("do not fit" in one for one in warnings(done))
    assert all(np.isfinite(one.error) for one in done.errors)
    assert np.isnan(done.per_request()["simulated_e2e_s"]).sum() == done.run.rejected


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_a_terminal(width):
    for table in tables(validate(read_recording(MADE_UP), COST), "made"):
        shown, _ = table.fitted(width)
        assert len(shown) == len(table.columns), table.title


# ---- real recordings


@pytest.fixture(scope="module")
def sharegpt(shared):
    fields = {"timestamp": "arrival_time_ns", "input": "input_tok_ids", "output_length": "output_toks"}
    return kvtrace.ingest.anonymize(
        shared / "data/measured/sharegpt-llama-3.1-8b-300-sps10.jsonl.gz", log_format="tokens", field_map=fields,
        time_unit="ns", tokenizer=None, block_size=16, profile="exact",
    )  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_nothing_fitted_the_errors_of_real_recordings_are_those_of_the_manual(shared, sharegpt, name):
    recording = read_recording(shared / "data/measured" / REAL[name], trace=sharegpt)
    deployment = replace(recording.settings.deployment, model="llama-3.1-8b", gpu=name)
    roofline = roofline_of(deployment)
    size = None if recording.settings.blocks else kv_room(deployment).blocks
    done = validate(recording, step_cost(roofline), capacity=size)
    (row,) = [line for line in MANUAL.read_text().splitlines() if f"`--gpu {name}`" in line and line.startswith("|")]
    cells = [cell.strip() for cell in row.split("|")[3:-1]]
    names = [f"ttft_s {one}" for one in ("mean", "p50", "p90", "p99")] + ["tpot_s mean", "e2e_s mean", "e2e_s p90"]
    stated = [float(cell.replace("%", "")) for cell in cells[:-1]]
    assert stated == pytest.approx([100 * errors_of(done)[one] for one in names], abs=0.051)
    ranks = [float(one) for one in cells[-1].split(",")]
    assert ranks == pytest.approx([*done.rank_correlation.values()], abs=0.00051)
    state = done.over_time
    assert (state["kv_use"] is None) == (name == "rtx-pro-6000-server")
    for counted in ("running", "waiting"):
        off = np.abs(np.array(state[counted]) - np.array(state[f"simulated_{counted}"]))
        assert off.mean() < 0.1 * np.mean(state[counted])


def test_vllms_scheduler_has_the_settings_of_a_real_recording(shared):
    recording = read_recording(shared / "data/measured" / REAL["rtx-4090"])
    assert recording.scheduler() == VllmScheduler(max_num_seqs=256, max_num_batched_tokens=2048)
    assert recording.setting().capacity == 2587 and recording.gauges is not None
