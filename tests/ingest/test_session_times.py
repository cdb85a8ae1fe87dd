"""What the requests of sessions waited for: from the ends or durations that each log format has, else estimated."""

import json
import random

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.cli import run
from kvtrace.ingest.checkpoint import Checkpoint
from kvtrace.ingest.encoding_tasks import EncodedPartition, packed_partition, unpacked_partition
from kvtrace.ingest.keys import Key
from kvtrace.ingest.logs import open_reader
from kvtrace.privacy.session_times import WITHOUT_TIMES
from kvtrace.privacy.steps import late_starts
from kvtrace.trace.dependencies import join_dependencies
from kvtrace.trace.session_trees import recorded_dependencies
from tests.conftest import drawn
from tests.ingest.flat import anonymize_dataset, anonymize_rows

KEY = Key(bytes(range(16)))
OPTIONS = {"key": KEY, "tokenizer": None, "block_size": 4}
CANARY = "canary-5c1e"


# -- the fields of each format ---------------------------------------------------------------------------------------

USER = [{"role": "user", "content": "Hello"}]
CHAT = {
    "attributes": {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hi", "llm.usage.completion_tokens": 3}
}
LITELLM = {"call_type": "acompletion", "messages": USER, "completion_tokens": 3}
LANGFUSE = {"traceId": "t", "type": "GENERATION", "startTime": "2031-03-04T05:06:07Z", "input": "Hello", "output": "Hi"}
LANGSMITH = {
    "run_type": "llm",
    "start_time": "2031-03-04T05:06:07",
    "inputs": {"messages": USER},
    "outputs": {"content": "Hi"},
}
HELICONE = {"request_created_at": "2031-03-04T05:06:07Z", "request_body": {"messages": USER}, "completion_tokens": 7}
PORTKEY = {"created_at": "2031-03-04T05:06:07Z", "ai_model": "m", "res_units": 7, "request": {"messages": USER}}
SGLANG = {"timestamp": "2031-01-01T00:00:09", "event": "request.finished", "rid": "a", "obj": {"text": "Hello"}}
DYNAMO = {"schema": "dynamo.request.trace.v1", "event_type": "request_end"}
REPLAY = {"trace_block_size": 16, "input_length": 20, "input_sequence_hashes": [1, 7]}
PLAIN = {"timestamp": 1900000000.0, "input": "Hello", "output": 3}
FORMS = {
    "LiteLLM's call log": (LITELLM | {"startTime": 1900000009.0, "endTime": 1900000011.5}, 2500),
    "LiteLLM's spend logs": (
        LITELLM | {"startTime": "2031-03-04T05:06:07.5+00:00", "endTime": "2031-03-04T05:06:08+00:00"}, 500),
    "LiteLLM without an end": (LITELLM | {"startTime": 1900000009.0, "response_time": 2.5}, 2500),
    "Langfuse": (LANGFUSE | {"endTime": "2031-03-04T05:06:09Z"}, 2000),
    "Langfuse's table": (LANGFUSE | {"End Time": "2031-03-04T05:06:09Z"}, 2000),
    "Langfuse's latency": (LANGFUSE | {"latency": 1.25}, 1250),
    "LangSmith": (LANGSMITH | {"end_time": "2031-03-04T05:06:08"}, 1000),
    "Helicone": (HELICONE | {"delay_ms": 850}, 850),
    "Helicone's response": (HELICONE | {"response_created_at": "2031-03-04T05:06:08Z"}, 1000),
    "Portkey": (PORTKEY | {"response_time": 321}, 321),
    "OpenTelemetry": (CHAT | {"start_time": "2031-01-01T00:00:00Z", "end_time": "2031-01-01T00:00:03Z"}, 3000),
    "OpenTelemetry's nanoseconds": (
        CHAT | {"startTimeUnixNano": "1900000000000000000", "endTimeUnixNano": "1900000000250000000"}, 250),
    "SGLang": (SGLANG | {"out": {"meta_info": {"completion_tokens": 7, "e2e_latency": 1.5}}}, 1500),
    "Dynamo": (DYNAMO | {"request": {"request_received_ms": 1900000000000, "output_tokens": 9, "total_time_ms": 40.5,
                                     "replay": REPLAY}}, 40.5),
    "an end time": (PLAIN | {"end_time": 1900000002.0}, 2000),
    "a duration": (PLAIN | {"duration_ms": "70.5"}, 70.5),
    "no end": (PLAIN, None),
    "an end before the start": (PLAIN | {"end_time": 1899999999.0}, None),
    "an end a year later": (PLAIN | {"end_time": 1931622400.0}, None),
    "an end that is no time": (PLAIN | {"end_time": CANARY}, None),
    "a negative duration": (PLAIN | {"latency_ms": -5}, None),
    "a duration of words": (PLAIN | {"latency_ms": CANARY}, None),
    "a duration of ages": (PLAIN | {"latency_ms": 1e300}, None),
    "a duration of a list": (PLAIN | {"latency_ms": [1]}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_each_format_has_its_ends_or_durations(name):
    row, milliseconds = FORMS[name]
    line = json.dumps(row).encode()
    reader = open_reader("auto", [line])
    (record,) = reader.records(line)
    assert reader.service_ns(record, reader.time_ns(record)) == (
        -1 if milliseconds is None else round(milliseconds * 10**6)
    )


def test_a_map_names_an_end_or_a_duration():
    row = PLAIN | {"meta": {"done": 1900000001.0, "took": 2, "took_ms": 300}, "end_time": 1900000009.0}
    for target, path, milliseconds in (
        ("end_time", "meta.done", 1000), ("service_s", "meta.took", 2000), ("service_ms", "meta.took_ms", 300),
    ):  # fmt: skip
        reader = open_reader("auto", [json.dumps(row).encode()], field_map={target: path})
        (record,) = reader.records(json.dumps(row).encode())
        assert reader.service_ns(record, reader.time_ns(record)) == milliseconds * 10**6


def test_the_time_of_a_conversation_is_not_that_of_its_requests():
    row = {"messages": [*USER, {"role": "assistant", "content": "a"}] * 2, "duration_ms": 90_000, "timestamp": 5}
    line = json.dumps(row).encode()
    reader = open_reader("conversations", [line], untimed=True)
    assert [record.service_s for record in reader.records(line)] == [None, None]


# -- traces ----------------------------------------------------------------------------------------------------------


def rows(count, seed, *, known=1.0, sessions=0.8):
    """Requests out of order, in sessions that share beginnings and overlap; some service times are unknown."""
    draw = random.Random(seed)
    for _ in range(count):
        ids = [7] * draw.choice([4, 8, 12]) + [draw.randrange(4) for _ in range(draw.randrange(1, 12))]
        row = {"timestamp": draw.randrange(count) * 300, "prompt_token_ids": ids, "output_length": draw.randrange(9)}
        if draw.random() < known:
            row["service_ms"] = draw.choice([0, 17, 100.25, 250, 900, 4000])
        if draw.random() < sessions:
            row["session_id"] = f"s{draw.randrange(count // 6 + 1)}"
        yield row | {"user": f"u{draw.randrange(5)}"}


def test_a_session_of_three_calls(log):
    call = {"prompt_token_ids": [1] * 8, "output_length": 3, "session_id": "a", "user": "u"}
    trace = kvtrace.ingest.anonymize(
        log([call | {"timestamp": 0, "service_ms": 900}, call | {"timestamp": 1500, "service_ms": 400},
             call | {"timestamp": 1700, "service_ms": 100}]), profile="exact", **OPTIONS,
    )  # fmt: skip
    # the third starts while the second runs, so it waits for the first
    waits = trace.dependencies
    assert (waits.request.tolist(), waits.row.tolist(), waits.delay_ms.tolist()) == ([1, 2], [0, 0], [600.0, 800.0])
    assert trace.service_ms.tolist() == [900.0, 400.0, 100.0]
    assert trace.meta["service_times"] == {"measured": True, "estimated": False}


@pytest.mark.parametrize("seed", range(drawn(4)))
def test_dependencies_are_those_of_the_released_blocks_and_exact_times(log, seed):
    path = log(rows(60, seed))
    exact = kvtrace.ingest.anonymize(path, profile="exact", **OPTIONS)
    assert exact.dependencies == recorded_dependencies(exact) and not len(late_starts(exact))
    standard = kvtrace.ingest.anonymize(path, profile="standard", **OPTIONS)
    fine = kvtrace.ingest.anonymize(path, profile=kvtrace.privacy.profile("standard"), time_step_ms=1, **OPTIONS)
    assert fine.dependencies == recorded_dependencies(fine)
    assert np.array_equal(standard.dependencies.row, fine.dependencies.row)
    assert (standard.dependencies.delay_ms % 1000 == 0).all() and not len(late_starts(standard))


@pytest.mark.parametrize("known", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("profile", ["exact", "standard", "strict"])
def test_tasks_and_workers_make_the_same_trace(log, tmp_path, profile, known):
    path, model = log(rows(80, 5, known=known)), None
    if known < 1 and profile != "strict":
        model = kvtrace.serving.service_model("llama-3.1-8b", "h100")
    options = OPTIONS | {"profile": profile, "service_model": model}
    whole = anonymize_rows(path, workers=1, **options)
    for partitions in (1, 4) if known == 0.6 else (4,):
        runner = kvtrace.privacy.LocalRunner(1)
        with anonymize_dataset(path, runner=runner, work=tmp_path / "work", partitions=partitions, **options) as done:
            pieces = list(done.made.columns())
            assert done.made.meta | {"figures": 0} == whole.meta | {"figures": 0}
            assert done.made.account.notes == whole.released.notes
        assert join_dependencies([(len(one), one.dependencies) for one in pieces]) == whole.columns.dependencies
        services = [one.service_ms for one in pieces]
        if whole.columns.service_ms is None:
            assert services == [None] * len(services)
        else:
            assert np.array_equal(np.concatenate(services), whole.columns.service_ms, equal_nan=True)
    two = anonymize_rows(path, workers=2, **options)
    assert two.columns.dependencies == whole.columns.dependencies


def test_a_resumed_run_makes_the_same_trace(log, tmp_path):
    path = log(rows(80, 6))
    whole = anonymize_rows(path, profile="standard", workers=1, **OPTIONS)

    class Stopped(Exception):
        pass

    def stop(progress):
        if progress.requests > 30:
            raise Stopped

    with pytest.raises(Stopped), Checkpoint(tmp_path / "resume", resume=False) as checkpoint:
        anonymize_rows(path, profile="standard", workers=1, checkpoint=checkpoint, on_progress=stop, **OPTIONS)
    with Checkpoint(tmp_path / "resume", resume=True) as checkpoint:
        again = anonymize_rows(path, profile="standard", workers=1, checkpoint=checkpoint, **OPTIONS)
    assert again.columns.dependencies == whole.columns.dependencies
    assert np.array_equal(again.columns.service_ms, whole.columns.service_ms)


def test_a_partition_of_a_checkpoint_says_whether_it_has_service_times():
    none = np.empty(0, np.int64)
    partition = EncodedPartition([], none, none, None, False, False, False, False, False, True, [], 7)
    assert unpacked_partition(packed_partition(partition)).has_service


def test_a_line_says_what_could_be_had(log):
    path = log(rows(30, 1, known=0))
    trace = kvtrace.ingest.anonymize(path, profile="standard", **OPTIONS)
    assert trace.dependencies is None and trace.service_ms is None and "service_times" not in trace.meta
    assert WITHOUT_TIMES in trace.account.notes
    for released in (
        kvtrace.ingest.anonymize(path, profile="strict", **OPTIONS),
        kvtrace.ingest.anonymize(log(rows(30, 1, sessions=0)), profile="standard", **OPTIONS),
    ):
        assert released.dependencies is None and released.service_ms is None
        assert WITHOUT_TIMES not in released.account.notes


def test_estimates_follow_from_what_the_release_states(log):
    """Estimates are a function of released lengths, hits and the model, so they reveal nothing else."""
    path, model = log(rows(60, 2, known=0)), kvtrace.serving.service_model("llama-3.1-8b", "h100")
    done = kvtrace.ingest.anonymize(
        path, profile="standard", time_step_ms=1, round_output=8, service_model=model, **OPTIONS
    )
    seen, cached = set(), []
    for row in range(len(done)):
        blocks = done.hash_ids[done.offsets[row] : done.offsets[row + 1]].tolist()
        leading = next((i for i, block in enumerate(blocks) if block not in seen), len(blocks))
        cached.append(min(leading * 4, done.input_length[row]))
        seen.update(blocks)
    assert np.array_equal(model.milliseconds(np.array(cached), done.input_length, done.output_length), done.service_ms)
    assert done.meta["service_times"] == {
        "measured": False, "estimated": True, "costs": "roofline", "model": "llama-3.1-8b", "gpu": "h100", "gpus": 1,
    }  # fmt: skip
    with pytest.raises(UsageError, match="--service-time is for sessions, but strict drops them"):
        kvtrace.ingest.anonymize(path, profile="strict", service_model=model, **OPTIONS)


def test_an_engines_hashes_have_dependencies_too(log):
    replay = {"trace_block_size": 4, "input_length": 8, "input_sequence_hashes": [1, 7]}
    request = {"output_tokens": 9, "total_time_ms": 500, "replay": replay}
    events = [
        DYNAMO | {"request": request | {"request_received_ms": 1900000000000 + 1000 * turn},
                  "agent_context": {"session_id": "a"}}
        for turn in range(3)
    ]  # fmt: skip
    trace = kvtrace.ingest.anonymize(log(events), profile="exact", key=KEY, tokenizer=None)
    assert trace.dependencies.row.tolist() == [0, 1] and trace.dependencies.delay_ms.tolist() == [500.0, 500.0]


def test_rows_in_the_order_of_the_log_have_no_dependencies(log):
    done = anonymize_rows(log(rows(30, 3)), profile="exact", keep_order=True, **OPTIONS)
    assert done.columns.dependencies is None and done.columns.service_ms is None


# -- the command line ------------------------------------------------------------------------------------------------


def test_the_command_estimates_service_times(log, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    path, out = log(rows(40, 4, known=0)), tmp_path / "day.parquet"
    common = ["anonymize", str(path), "-o", str(out), "--block-size", "16"]
    assert run([*common, "--service-time", "llama-3.1-8b", "--gpu", "h100"]) == 0
    trace = kvtrace.read(out)
    assert trace.meta["service_times"]["estimated"] and len(trace.dependencies.row)
    assert "service times are estimated." in capsys.readouterr().err.replace("\n", " ").replace("  ", " ")
    card = (tmp_path / "day.parquet.card.md").read_text()
    assert "* service times: estimated by the roofline for a request alone (llama-3.1-8b on h100)" in card
    assert "| `dependencies` |" in card and "| `service_ms` |" in card and "how long each request took, to 1 s" in card
    assert kvtrace.privacy.audit(out).passed


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--service-time", "llama-3.1-8b"], "--service-time needs --gpu or --costs"),
     (["--gpu", "h100"], "--gpu and --gpus need --service-time MODEL"),
     (["--service-time", "no-such-model", "--gpu", "h100"], "no-such-model"),
     (["--service-time", "llama-3.1-8b", "--gpu", "h100", "--profile", "strict"], "strict drops them")],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(log, tmp_path, capsys, options, message):
    out = tmp_path / "day.parquet"
    assert run(["anonymize", str(log(rows(5, 1))), "-o", str(out), "--block-size", "16", *options]) in (2, 3)
    assert message in " ".join(capsys.readouterr().err.split()) and not out.exists()


def test_a_line_of_the_command_says_what_could_be_had(log, tmp_path, capsys):
    out = str(tmp_path / "day.jsonl")
    assert run(["anonymize", str(log(rows(20, 1, known=0))), "-o", out, "--block-size", "16"]) == 0
    assert "--service-time MODEL --gpu GPU" in " ".join(capsys.readouterr().err.split())
