"""From a real client to a sealed window: the bytes are those of `anonymize`, given the log of the same requests."""

import base64
import json
import urllib.request
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import kvtrace
from kvtrace.capture.intake import Ledger
from kvtrace.capture.live import Address, Live, LiveOptions
from kvtrace.capture.recorder import Recorder
from kvtrace.privacy.publishing import publish
from tests.capture import stub_model
from tests.capture.exports import Telemetry
from tests.capture.recorded import row_as_logged
from tests.capture.windows import sealed, waited
from tests.conftest import ROOT

pytestmark = [pytest.mark.enable_socket, pytest.mark.allow_hosts(["127.0.0.1"])]

ANY_PORT = Address("127.0.0.1", 0)
TINY = str(ROOT / "tests/data/tokenizers/tiny")
DAY_MS = 86_400_000  # times of the log and of the recorder differ by the time of a call
PROFILE = kvtrace.privacy.profile("exact", time_step_ms=DAY_MS, keep_measured=[])
OPTIONS = {
    "profile": PROFILE, "block_size": 4, "tokenizer": TINY,
    "chat_template": ROOT / "tests/data/tokenizers/templates/objects.jinja",
}  # fmt: skip


@contextmanager
def recording(folder, requests, options=OPTIONS, **sources):
    """Record with these sources until so many requests are digested; gives the addresses of the servers."""
    said = []
    with Recorder(folder, on_message=said.append, **options) as recorder:
        with Live(LiveOptions(**sources), recorder, ledger=recorder.ledger, on_message=said.append) as live:
            yield live.addresses
        waited(lambda: recorder.counts().digested >= requests)
    assert recorder.counts().digested == requests and recorder.counts().dropped == 0
    assert [sentence.partition(": ")[2][:7] for sentence in said] == ["sealed;"], said


def assert_same(folder, log, **options):
    """The only window has the bytes of the anonymised log."""
    (window,) = sealed(folder)
    whole = log.with_suffix(".trace.jsonl")
    publish(kvtrace.ingest.anonymize(log, **(OPTIONS | options)), whole)
    assert window.read_bytes() == whole.read_bytes()
    assert len(whole.read_bytes().splitlines()) > 1


def collected(message):
    """An export as the OpenTelemetry Collector writes it into a file: OTLP/JSON with hexadecimal ids."""

    def with_hex(value):
        if isinstance(value, list):
            return [with_hex(item) for item in value]
        if not isinstance(value, dict):
            return value
        ids = ("traceId", "spanId", "parentSpanId")
        return {k: base64.b64decode(v).hex() if k in ids else with_hex(v) for k, v in value.items()}

    return json.dumps(with_hex(MessageToDict(message)))


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_spans_of_the_sdk(compression, tmp_path):
    with recording(tmp_path / "recorded", 12, otlp=ANY_PORT) as addresses:
        exporter = OTLPSpanExporter(f"http://{addresses['otlp']}/v1/traces", compression=compression)
        telemetry = Telemetry(span_processors=[BatchSpanProcessor(exporter)])
        for number in range(12):
            telemetry.call(f"What is the capital of country {number % 5}? And its river?", tools=number % 2 == 0)
            telemetry.other_work()
        telemetry.tracers.shutdown()
    log = tmp_path / "collector.jsonl"
    log.write_text(collected(telemetry.traces()) + "\n")
    assert_same(tmp_path / "recorded", log)


def test_events_of_the_sdk(tmp_path):
    with recording(tmp_path / "recorded", 5, otlp=ANY_PORT) as addresses:
        exporter = OTLPLogExporter(f"http://{addresses['otlp']}/v1/logs")
        telemetry = Telemetry(log_processors=[BatchLogRecordProcessor(exporter)])
        for number in range(5):
            telemetry.call(f"What is the capital of country {number}?", in_span=False, in_event=True)
        telemetry.loggers.shutdown()
    log = tmp_path / "collector.jsonl"
    log.write_text(collected(telemetry.records()) + "\n")
    assert_same(tmp_path / "recorded", log)


@pytest.mark.parametrize("route", ["traces", "logs"])
def test_tenants_of_spans_and_events(route, tmp_path):
    """`--tenant-field` names an attribute of the call; tenants share no blocks here."""
    options = OPTIONS | {"isolate_tenants": True, "tenant_field": "app.team"}
    telemetry, is_event = Telemetry(), route == "logs"
    for number in range(6):
        team = {"app.team": f"team-{number % 2}"}
        telemetry.call("What is the capital of this country?", in_span=not is_event, in_event=is_event, **team)
    export = telemetry.records() if is_event else telemetry.traces()
    with recording(tmp_path / "recorded", 6, options, otlp=ANY_PORT) as addresses:
        url, headers = f"http://{addresses['otlp']}/v1/{route}", {"Content-Type": "application/x-protobuf"}
        request = urllib.request.Request(url, export.SerializeToString(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
    log = tmp_path / "collector.jsonl"
    log.write_text(collected(export) + "\n")
    assert_same(tmp_path / "recorded", log, **options)
    rows = [json.loads(line) for line in sealed(tmp_path / "recorded")[0].read_bytes().splitlines()]
    assert len({row["hash_ids"][0] for row in rows}) == 2


CHAT = {"model": "stub-1", "messages": [{"role": "system", "content": "Be brief."}], "user": "u1"}
MESSAGE = {"model": "stub-1", "max_tokens": 99, "system": "Be brief.", "metadata": {"user_id": "u1"}}


def with_question(request, number):
    question = {"role": "user", "content": f"What is the capital of country {number % 3}?"}
    return request | {"messages": [*request.get("messages", []), question]}


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_the_openai_sdk_through_the_proxy(is_streamed, upstream, tmp_path):
    import openai

    rows = []
    with (
        recording(tmp_path / "recorded", 6, proxy=ANY_PORT, upstream=upstream) as addresses,
        openai.OpenAI(base_url=f"http://{addresses['proxy']}/v1", api_key="sk-none", max_retries=0) as sdk,
    ):
        for number in range(6):
            request = with_question(CHAT, number)
            usage = {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}
            answer = sdk.chat.completions.create(**request, **usage, extra_body={"stub": {}})
            _ = list(answer) if is_streamed else None
            rows.append(row_as_logged(request, stub_model.chat(request)))
    assert_same(tmp_path / "recorded", written(tmp_path, rows))


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_the_anthropic_sdk_through_the_proxy(is_streamed, upstream, tmp_path):
    import anthropic

    rows = []
    with (
        recording(tmp_path / "recorded", 6, proxy=ANY_PORT, upstream=upstream) as addresses,
        anthropic.Anthropic(base_url=f"http://{addresses['proxy']}", api_key="sk-none", max_retries=0) as sdk,
    ):
        for number in range(6):
            request = with_question(MESSAGE, number)
            answer = sdk.messages.create(**request, stream=is_streamed, extra_body={"stub": {}})
            _ = list(answer) if is_streamed else None
            rows.append(row_as_logged(request, stub_model.message(request)))
    assert_same(tmp_path / "recorded", written(tmp_path, rows), log_format="anthropic")


def written(folder, rows) -> Path:
    log = folder / "log.jsonl"
    log.write_bytes(b"\n".join(rows) + b"\n")
    return log


def test_a_growing_log(tmp_path):
    log, lines = tmp_path / "app.jsonl", [json.dumps(row) for row in chats(40)]
    log.write_text("\n".join(lines[:10]) + "\n" + lines[10][:25])
    options = OPTIONS | {"tokenizer": "deepseek-r1", "chat_template": None}  # the default
    with recording(tmp_path / "recorded", 40, options, follow=(log,), from_start=True), log.open("a") as file:
        file.write(lines[10][25:] + "\n")
        file.flush()
        file.write("\n".join(lines[11:]) + "\n")
    assert_same(tmp_path / "recorded", log, **options)


def test_a_rotated_log(tmp_path):
    log, rows = tmp_path / "app.jsonl", chats(30)
    log.touch()
    with recording(tmp_path / "recorded", 30, follow=(log,)):
        for part in (rows[:10], rows[10:20], rows[20:]):
            log.write_text("".join(json.dumps(row) + "\n" for row in part))
            waited(partial(has_read, tmp_path / "recorded/.recording/counts", log))
            log.rename(tmp_path / f"old-{part[0]['timestamp']}.jsonl")
    whole = tmp_path / "whole.jsonl"
    whole.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert_same(tmp_path / "recorded", whole)


def has_read(counts, log):
    """Whether the follower has read the whole file."""
    position = Ledger(counts).position(log)
    return (position.file, position.offset) == (log.stat().st_ino, log.stat().st_size)


def chats(count):
    return [
        {"timestamp": 1000 * i, "input": f"Be brief. Question {i % 7} of {i % 3}: what now?", "output": 3}
        for i in range(count)
    ]
