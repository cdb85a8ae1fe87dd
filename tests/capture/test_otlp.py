"""OTLP/HTTP: what a receiver answers, and that its rows read as the log of the same calls."""

import base64
import dataclasses
import gzip
import random
import socket
import subprocess
import sys
import threading
import zlib

import orjson
import pytest

from kvtrace._base.errors import NotARequest, RowError
from kvtrace._base.json_values import SMALL
from kvtrace.capture.asgi import BODIES_IN_FLIGHT, RETRY_AFTER_S, Refusal
from kvtrace.capture.export_items import protobuf_items
from kvtrace.capture.sources.otlp import SOURCE, OtlpRows, otlp_app
from kvtrace.ingest.logs import open_reader
from tests import docs
from tests.capture.asgi import Queue, post
from tests.capture.servers import serving
from tests.capture.wire import message
from tests.ingest.test_logs import CANARY

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.capture.exports import Telemetry

JSON = "application/json"


def as_collector(message):
    """The line that the Collector's file exporter writes of an export: protobuf's own JSON, with ids in hexadecimal."""

    def with_hex(node):
        if isinstance(node, list):
            return [with_hex(item) for item in node]
        if not isinstance(node, dict):
            return node
        return {
            name: base64.b64decode(value).hex() if name in ("traceId", "spanId", "parentSpanId") else with_hex(value)
            for name, value in node.items()
        }

    return orjson.dumps(with_hex(json_format.MessageToDict(message)))


def records_of(lines):
    reader = open_reader(SOURCE.log_format, lines, time_unit=SOURCE.time_unit)
    records = []
    for line in lines:
        try:
            records += reader.records(line)
        except NotARequest:
            pass
        except RowError as error:  # the span of a call whose event is not there yet
            assert "content capture was off" in error.reason
    return sorted(records, key=lambda record: int(record.time))


def rows_of(queue, rows=None):
    rows = rows or OtlpRows()
    lines = [line for _, payload, _ in queue.items for line in rows.of(payload)]
    return lines + rows.rest()


@pytest.fixture
def telemetry():
    """Calls of every kind among other work."""
    made = Telemetry()
    for number in range(3):
        made.call(f'Is oven {number} on? ümlaut "quoted"\n', tools=number == 1)
        made.other_work()
    return made


# -- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content_type", ["application/x-protobuf", JSON])
def test_the_rows_of_spans_read_as_the_collectors_file(telemetry, content_type):
    queue, export = Queue(), telemetry.traces()
    body = export.SerializeToString() if content_type != JSON else as_collector(export)
    answer = post(otlp_app(queue), "/v1/traces", body, content_type)
    assert (answer.status, answer.headers["content-type"]) == (200, content_type)
    assert answer.body == (b"{}" if content_type == JSON else ExportTraceServiceResponse().SerializeToString())
    ((source, _, count),) = queue.items
    assert (source, count) == ("otlp", 6)
    lines = rows_of(queue)
    assert len(lines) == 3  # the other spans make none
    records = records_of(lines)
    assert records == records_of([as_collector(export)])
    assert records[1].messages[1]["tool_calls"][0]["function"]["arguments"] == {"kind": "rye", "loaves": 40}
    assert {(record.tenant, record.user, record.session) for record in records} == {("bakers", "anna", "c-1")}


@pytest.mark.parametrize("kind", ["in_event", "old"])
@pytest.mark.parametrize("content_type", ["application/x-protobuf", JSON])
def test_the_rows_of_events_read_as_the_collectors_file(kind, content_type):
    telemetry, queue = Telemetry(), Queue()
    for number in range(3):
        telemetry.call(f"Is oven {number} on?", in_span=False, **{kind: True})
        telemetry.other_work()
    export = telemetry.records()
    body = export.SerializeToString() if content_type != JSON else as_collector(export)
    answer = post(otlp_app(queue), "/v1/logs", body, content_type)
    assert answer.status == 200
    assert answer.body == (b"{}" if content_type == JSON else ExportLogsServiceResponse().SerializeToString())
    records = records_of(rows_of(queue))
    assert len(records) == 3 and records == records_of([as_collector(export)])
    assert [record.messages[-1]["content"] for record in records] == [f"Is oven {n} on?" for n in range(3)]
    assert {record.output_text for record in records} == {"Yes."}


def test_the_rows_read_as_what_the_sdk_prints(telemetry):
    """Its console exporters write JSON of their own: an oracle that shares no code with protobuf."""
    telemetry.call("In an event", in_span=False, in_event=True)
    queue = Queue()
    app = otlp_app(queue)
    assert post(app, "/v1/traces", telemetry.traces().SerializeToString()).status == 200
    assert post(app, "/v1/logs", telemetry.records().SerializeToString()).status == 200
    ours = records_of(rows_of(queue))
    printed = [span.to_json(indent=None).encode() for span in telemetry.spans.get_finished_spans()]
    printed += [record.to_json(indent=None).encode() for record in telemetry.logs.get_finished_logs()]
    reader, theirs = open_reader("otel", printed), []
    for line in printed:
        try:
            theirs += reader.records(line)
        except NotARequest:
            continue
        except RowError as error:
            assert "content capture was off" in error.reason  # the span of the call in an event
    assert len(ours) == len(theirs) == 4
    for one, other in zip(ours, theirs, strict=True):
        assert abs(int(one.time) - reader.time_ns(other)) < 1000  # it prints microseconds
        if other.end_time is not None:
            assert (
                abs(int(one.end_time) - reader.time_ns(other) - reader.service_ns(other, reader.time_ns(other))) < 2000
            )
        times = {"time": None, "end_time": None}
        assert dataclasses.replace(one, **times) == dataclasses.replace(other, **times)


def test_a_call_in_a_span_and_in_an_event_counts_once_whichever_comes_first():
    telemetry = Telemetry()
    for number in range(3):
        telemetry.call(f"Is oven {number} on?", in_span=True, in_event=True, old=number == 2)
    payloads = [b"t" + telemetry.traces().SerializeToString(), b"l" + telemetry.records().SerializeToString()]
    for order in (payloads, payloads[::-1], [*payloads, *payloads]):  # an exporter may try again, too
        rows = OtlpRows()
        lines = [line for payload in order for line in rows.of(payload)]
        assert len(records_of(lines)) == len(lines) == 3
        assert rows.repeated == {2: 3 + 1, 4: 3 + 1 + 3 + 3 + 1}[len(order)]  # one call is in older events, too


def test_a_span_without_its_prompt_is_a_bad_row_until_events_bring_prompts():
    telemetry = Telemetry()
    telemetry.call("Hello", in_span=False, in_event=True)
    span, event = b"t" + telemetry.traces().SerializeToString(), b"l" + telemetry.records().SerializeToString()
    rows = OtlpRows()
    (line,) = rows.of(span)  # nobody knows yet that an event will come
    with pytest.raises(RowError, match="content capture was off. Log with OTEL_INSTRUMENTATION_GENAI_CAPTURE"):
        open_reader("otel", [line]).records(line)
    assert len(records_of(rows.of(event))) == 1
    assert rows.of(span) == []


def test_an_event_without_its_prompt_is_left_out_if_spans_bring_prompts():
    telemetry = Telemetry()
    telemetry.call("Hello")
    with telemetry.tracer.start_as_current_span("chat"):
        telemetry.event("gen_ai.client.inference.operation.details", {"gen_ai.operation.name": "chat"})
    event, rows = b"l" + telemetry.records().SerializeToString(), OtlpRows()
    (line,) = rows.of(event)
    with pytest.raises(RowError, match="content capture was off"):
        open_reader("otel", [line]).records(line)
    assert len(rows.of(b"t" + telemetry.traces().SerializeToString())) == 1
    assert rows.of(event) == []


def test_messages_and_their_answer_in_two_exports_are_one_call():
    telemetry = Telemetry()
    telemetry.call("Hello", in_span=False, old=True)
    telemetry.call("Again", in_span=False, old=True)
    (batch,) = telemetry.records().resource_logs
    rows, lines = OtlpRows(), []
    for record in batch.scope_logs[0].log_records:
        export = ExportLogsServiceRequest()
        export.resource_logs.add(resource=batch.resource).scope_logs.add().log_records.add().CopyFrom(record)
        lines += rows.of(b"l" + export.SerializeToString())
        lines += rows.rest()  # a window that ends here does not lose it
    assert records_of(lines) == records_of([as_collector(telemetry.records())])
    assert len(lines) == 2
    assert rows._open == {} and rows._open_bytes == 0


def test_what_waits_for_answers_is_bounded(monkeypatch):
    monkeypatch.setattr("kvtrace.capture.sources.otlp.MAX_OPEN", 10)
    monkeypatch.setattr("kvtrace.capture.sources.otlp.MAX_CALLS", 5)
    rows = OtlpRows()
    for number in range(50):
        record = {"spanId": f"{number}", "eventName": "gen_ai.user.message", "body": {"stringValue": "x" * 100}}
        export = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
        assert rows.of(b"L" + orjson.dumps(export)) == []
    assert len(rows._open) == 10 and rows._open_bytes < 10 * 300
    telemetry = Telemetry()
    for _ in range(20):
        telemetry.call("Hello")
    assert len(rows.of(b"t" + telemetry.traces().SerializeToString())) == 20
    assert len(rows._known) == 5


def test_values_of_every_type_are_protobufs_own_json(telemetry):
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

    from kvtrace.capture.sources.otlp import value_object

    plain = [AnyValue(string_value="ü"), AnyValue(bool_value=False), AnyValue(int_value=-(2**63)), AnyValue(),
             AnyValue(double_value=0.1), AnyValue(bytes_value=b"\x00\xff"), AnyValue(double_value=float("inf")),
             AnyValue(double_value=float("-inf")), AnyValue(double_value=float("nan"))]  # fmt: skip
    nested = AnyValue(kvlist_value=KeyValueList(values=[KeyValue(key="k", value=AnyValue(
        array_value=ArrayValue(values=plain)))]))  # fmt: skip
    for value in (*plain, nested):
        assert value_object(value) == json_format.MessageToDict(value)


# -- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["gzip", "deflate", "raw deflate", "members"])
def test_compressed_bodies(telemetry, form):
    body = telemetry.traces().SerializeToString()
    half = len(body) // 2
    raw = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": gzip.compress(body), "deflate": zlib.compress(body), "raw deflate": raw.compress(body) + raw.flush(),
        "members": gzip.compress(body[:half]) + gzip.compress(body[half:]),
    }[form]  # fmt: skip
    queue, encoding = Queue(), "deflate" if "deflate" in form else "gzip"
    assert post(otlp_app(queue), "/v1/traces", packed, content_encoding=encoding).status == 200
    assert queue.items[0][1] == b"t" + body
    assert post(otlp_app(queue), "/v1/traces", packed[:-9], content_encoding=encoding).status == 400


def test_a_zip_bomb_is_refused_before_it_is_large():
    import tracemalloc

    bomb = gzip.compress(bytes(200 << 20))
    for packed, encoding in [(bomb, "gzip"), (bomb * 3, "gzip"), (zlib.compress(bytes(50 << 20)), "deflate")]:
        queue = Queue()
        tracemalloc.start()
        answer = post(otlp_app(queue, max_body=1 << 20), "/v1/traces", packed, content_encoding=encoding)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert answer.status == 413 and not queue.items and peak < 8 << 20


def test_metrics_are_ignored():
    for content_type in ("application/x-protobuf", JSON):
        answer = post(otlp_app(None), "/v1/metrics", b"anything", content_type)
        assert (answer.status, answer.body) == (200, b"{}" if content_type == JSON else b"")


def test_work_that_is_no_call_takes_no_room_in_the_queue():
    telemetry, queue = Telemetry(), Queue(room=0)
    telemetry.other_work()
    assert post(otlp_app(queue), "/v1/traces", telemetry.traces().SerializeToString()).status == 200
    assert post(otlp_app(queue), "/v1/traces", b"").status == 200  # an empty export is valid


@pytest.mark.parametrize("content_type", ["application/x-protobuf", JSON])
def test_a_full_queue_asks_the_exporter_to_try_again(telemetry, content_type):
    body = telemetry.traces().SerializeToString() if content_type != JSON else as_collector(telemetry.traces())
    answer = post(otlp_app(Queue(room=0)), "/v1/traces", body, content_type)
    assert (answer.status, answer.headers["retry-after"]) == (503, str(RETRY_AFTER_S))
    assert status_of(answer).message == "The queue is full. Try again later."


def status_of(answer):
    """The google.rpc.Status of an answer, read by protobuf."""
    if answer.headers["content-type"] == JSON:
        return json_format.Parse(answer.body, Status())
    status = Status()
    status.ParseFromString(answer.body)
    return status


MALFORMED = [
    ("application/x-protobuf", b"\xff\xff" + CANARY.encode()),
    ("application/x-protobuf", b'{"resourceSpans": []}'),
    (JSON, b"{"),
    (JSON, b"[]"),
    (JSON, b'{"resourceSpans": 5}'),
    (JSON, b'{"resourceSpans": [5]}'),
    (JSON, b'{"resourceSpans": [{"scopeSpans": {}}]}'),
    (JSON, b'{"resourceSpans": [{"scopeSpans": [{"spans": "' + CANARY.encode() + b'"}]}]}'),
    (JSON, b'{"resourceSpans": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
]


@pytest.mark.parametrize(("content_type", "body"), MALFORMED)
def test_a_malformed_body_is_refused_without_showing_it(content_type, body):
    answer = post(otlp_app(None), "/v1/traces", body, content_type)
    assert answer.status == 400 and answer.headers["content-type"] == content_type
    assert status_of(answer).code == 3 and CANARY.encode() not in answer.body
    assert "export request" in status_of(answer).message


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs", "/v1/metrics", "/litellm"])
def test_the_wrong_method_type_or_encoding(path):
    app = otlp_app(None)
    assert (post(app, path, method="GET").status, post(app, path, method="GET").headers["allow"]) == (405, "POST")
    assert post(app, path, content_type="text/plain").status == 415
    assert post(app, path, content_type=None).status == 415
    assert post(app, path, content_type=JSON, content_encoding="br").status == 415
    assert post(app, path + "/").status == post(app, "/" + CANARY).status == 404


def test_a_large_body_is_refused_whether_its_length_is_stated_or_not(telemetry):
    app = otlp_app(None, max_body=100)
    assert post(app, "/v1/traces", b"x" * 101, content_length="101").status == 413
    seen = []
    assert post(app, "/v1/traces", chunks=(seen.append(n) or b"x" * 60 for n in range(9))).status == 413
    assert post(app, "/v1/traces", b"", content_length="-5").status == 200  # a server refuses it; all that counts came


def test_a_slow_client_and_one_that_leaves():
    app = otlp_app(None, timeout_s=0.05)
    assert post(app, "/v1/traces", chunks=[b"x"] * 20, wait_s=0.02).status == 408
    assert post(app, "/v1/traces", chunks=[b"x", None]).status == 400


def test_the_memory_of_all_bodies_is_bounded(telemetry):
    """Clients that send large bodies slowly fill it; then the next is told to try again, until one of them ends."""
    import asyncio

    app, statuses = otlp_app(None, max_body=1000), []

    async def client(chunks, done):
        chunks = list(chunks)

        async def receive():
            if not chunks:
                await done.wait()
            body = chunks.pop(0) if chunks else b""
            return {"type": "http.request", "body": body, "more_body": bool(chunks) or not done.is_set()}

        async def send(message):
            statuses.append(message.get("status"))

        scope = {"type": "http", "method": "POST", "path": "/v1/metrics",
                 "headers": [(b"content-type", b"application/json")]}  # fmt: skip
        await app(scope, receive, send)

    async def main():
        done, over = asyncio.Event(), asyncio.Event()
        over.set()
        slow = [asyncio.create_task(client([b"x" * 900], done)) for _ in range(BODIES_IN_FLIGHT)]
        await asyncio.sleep(0.01)
        await client([b"x" * 900], over)
        assert statuses[0] == 503
        done.set()
        await asyncio.gather(*slow)
        await client([b"x" * 900], over)

    asyncio.run(main())
    assert [status for status in statuses if status] == [503] + [200] * (BODIES_IN_FLIGHT + 1)


def test_an_export_is_walked_to_the_items_that_protobuf_parses():
    """Fields in any order, several resources (protobuf merges them), and fields that no schema has."""
    rng = random.Random(38)

    def some(number, parts):
        parts = [message(number, part) for part in parts]
        parts += rng.choices(
            [message(15, b"x" * 200), b"\x78\x96\x01", b"\x7d1234", b"\x7912345678"], k=rng.randrange(3)
        )
        return b"".join(rng.sample(parts, len(parts)))

    def resource(number):
        return message(1, message(1, b"tenant.id") + message(2, message(1, b"%d" % number)))

    for _ in range(50):
        batches = []
        for _ in range(rng.randrange(4)):
            scopes = [
                some(2, [message(5, b"%d" % n) for n in range(rng.randrange(4))]) for _ in range(rng.randrange(3))
            ]
            parts = [message(1, resource(n)) for n in range(rng.randrange(3))] + [message(2, scope) for scope in scopes]
            batches.append(b"".join(rng.sample(parts, len(parts))))
        body = some(1, batches)
        export = ExportTraceServiceRequest.FromString(body)
        expected = [(batch.resource, span) for batch in export.resource_spans for scope in batch.scope_spans
                    for span in scope.spans]  # fmt: skip
        assert list(protobuf_items(body, Span, lambda value: value)) == expected
        for cut in range(0, len(body), 7):
            try:
                ExportTraceServiceRequest.FromString(body[:cut])
            except DecodeError:
                with pytest.raises(RowError, match="not a valid export"):
                    list(protobuf_items(body[:cut], Span))


@pytest.mark.parametrize("content_type", ["application/x-protobuf", JSON])
def test_a_long_resource_is_not_repeated_without_end(content_type, monkeypatch):
    """A line has its call and the resource: 2 KB of gzip held 2 GB of lines."""
    monkeypatch.setattr("kvtrace.capture.sources.otlp.MAX_LINES", 1 << 20)
    pair = lambda key, value: message(1, key) + message(2, message(1, value))  # noqa: E731
    for size, is_kept in ((1000, True), (20_000, False)):
        span = message(2, message(9, pair(b"gen_ai.prompt", b"Hi")))
        export = message(1, message(1, message(1, pair(b"a", b"x" * size))) + message(2, span * 100))
        body = export if content_type != JSON else as_collector(ExportTraceServiceRequest.FromString(export))
        queue = Queue()
        assert post(otlp_app(queue), "/v1/traces", body, content_type).status == 200
        if is_kept:
            assert len(rows_of(queue)) == 100
        else:
            with pytest.raises(RowError, match="each with its resource"):
                rows_of(queue)


@pytest.mark.parametrize("content_type", ["application/x-protobuf", JSON])
def test_a_large_body_is_read_beside_the_event_loop_with_the_same_rows(content_type):
    telemetry, threads = Telemetry(), []
    for number in range(300):
        telemetry.call(f"Is oven {number} on? " + "ümlaut " * 300)
    export = telemetry.traces()

    class Watched(Queue):
        def __call__(self, *payload):
            threads.append(threading.current_thread())
            return super().__call__(*payload)

    queue = Watched(room=1 << 30)
    body = export.SerializeToString() if content_type != JSON else as_collector(export)
    assert len(body) > SMALL and post(otlp_app(queue), "/v1/traces", body, content_type).status == 200
    assert threads != [threading.main_thread()] and queue.items[0][2] == 300
    assert records_of(rows_of(queue)) == records_of([as_collector(export)])


def test_deep_values_are_refused_or_make_a_bad_row():
    """orjson reads 1,024 levels and writes 254; protobuf reads 100; the reader takes 32."""

    def statuses(depth):
        value, protobuf = b'{"stringValue": "%b"}' % CANARY.encode(), message(1, CANARY.encode())
        for _ in range(depth):  # arrayValue.values
            value, protobuf = b'{"arrayValue": {"values": [%b]}}' % value, message(5, message(1, protobuf))
        span = b'{"attributes": [{"key": "gen_ai.prompt", "value": %b}], "startTimeUnixNano": "5"}' % value
        attributes = message(9, message(1, b"gen_ai.prompt") + message(2, protobuf))
        bodies = [(JSON, b'{"resourceSpans": [{"scopeSpans": [{"spans": [%b]}]}]}' % span),
                  ("application/x-protobuf", message(1, message(2, message(2, attributes))))]  # fmt: skip
        for content_type, body in bodies:
            queue = Queue()
            status = post(otlp_app(queue), "/v1/traces", body, content_type).status
            if status == 200:
                with pytest.raises(RowError, match="nested too deeply") as error:
                    (line,) = rows_of(queue)
                    open_reader("otel", [line]).records(line)
                assert CANARY not in repr(error.value)
            yield status

    assert list(statuses(40)) == [200, 200]
    assert list(statuses(200)) == [200, 400]
    assert next(statuses(600)) == 400


def test_bytes_at_random_never_break_the_service(telemetry):
    """Flipped, cut and repeated bytes of real exports: an answer of 200 or 400, and rows or one error."""
    rng = random.Random(23)
    telemetry.call("Old", in_span=False, old=True, in_event=True)
    queue = Queue(room=10**6)
    app = otlp_app(queue)
    exports = {"/v1/traces": telemetry.traces(), "/v1/logs": telemetry.records()}
    statuses = set()
    for _ in range(600):
        path = rng.choice(list(exports))
        content_type = rng.choice(["application/x-protobuf", JSON])
        body = bytearray(as_collector(exports[path]) if content_type == JSON else exports[path].SerializeToString())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(body))
            change = rng.choice([0, 1, 2, 3, 3, 3, 3])
            if change == 0:
                body[at] = rng.randrange(256)
            elif change == 1:
                del body[at : at + rng.randrange(1, 50)]
            elif change == 3:
                body[at] = rng.choice(b"abcde0123456789")
            else:
                body[at:at] = body[at : at + rng.randrange(1, 50)]
        packed = rng.random() < 0.2
        sent = bytearray(gzip.compress(bytes(body))) if packed else body
        if packed and rng.random() < 0.5:
            sent[rng.randrange(len(sent))] ^= 1 << rng.randrange(8)
        answer = post(app, path, bytes(sent), content_type, content_encoding="gzip" if packed else None)
        statuses.add(answer.status)
        assert answer.status in (200, 400) and b"oven" not in answer.body
    assert statuses == {200, 400} and len(queue.items) > 50
    rows = OtlpRows()
    reader = open_reader("otel", [], time_unit="ns")
    for _, payload, _ in queue.items:
        try:
            for line in rows.of(payload):
                reader.records(line)
        except RowError as error:
            assert "Is oven" not in str(error)


def test_refusals_fit_a_status():
    assert all(len(str(Refusal(400, text))) < 128 for text in ("The body is not a valid export request in protobuf.",))


# -- the real exporter -----------------------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch):
    """An address at which uvicorn serves the application, and its queue."""
    queue = Queue()
    with serving(otlp_app(queue, timeout_s=0.5)) as address:
        yield address, queue


@pytest.mark.enable_socket
@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_the_sdks_exporters_deliver_the_records_of_its_own_log(served, compression):
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    address, queue = served
    spans = BatchSpanProcessor(OTLPSpanExporter(f"{address}/v1/traces", compression=Compression(compression)))
    logs = BatchLogRecordProcessor(OTLPLogExporter(f"{address}/v1/logs", compression=Compression(compression)))
    telemetry = Telemetry([spans], [logs])
    for number in range(40):
        telemetry.call(
            f"Is oven {number} on? " + "ümlaut " * number, in_span=number % 2 == 0, in_event=True, tools=True
        )
        telemetry.other_work()
    telemetry.tracers.shutdown()
    telemetry.loggers.shutdown()
    records = records_of(rows_of(queue))
    assert len(records) == 40
    in_spans = [r for r in records_of([as_collector_of_calls(telemetry.traces())])]
    in_logs = records_of([as_collector(telemetry.records())])
    assert len(in_spans) == 20 and len(in_logs) == 40
    prompt = lambda record: record.messages[0]["content"]  # noqa: E731
    by_prompt = {prompt(record): record for record in in_logs} | {prompt(record): record for record in in_spans}
    ours = {prompt(record): record for record in records}
    assert ours.keys() == by_prompt.keys()
    for text, record in ours.items():
        either = (by_prompt[text], next(one for one in in_logs if prompt(one) == text))
        assert record in either  # the one that came first


def as_collector_of_calls(export):
    """The collector's line without spans whose prompt is in an event."""
    kept = ExportTraceServiceRequest()
    kept.CopyFrom(export)
    for batch in kept.resource_spans:
        for scope in batch.scope_spans:
            with_prompt = [s for s in scope.spans if any(a.key == "gen_ai.input.messages" for a in s.attributes)]
            del scope.spans[:]
            scope.spans.extend(with_prompt)
    return as_collector(kept)


@pytest.mark.enable_socket
def test_the_pages_example_records_its_call(served):
    address, queue = served
    page = docs.ROOT / "docs/capture/record.md"
    (code,) = (code for _, code in docs.blocks(page, "py") if "OTLPSpanExporter" in code)
    assert "http://127.0.0.1:4318" in code
    subprocess.run([sys.executable, "-c", code.replace("http://127.0.0.1:4318", address)], check=True, timeout=60)
    (record,) = records_of(rows_of(queue))
    assert (record.messages, record.output_length) == ([{"role": "user", "content": "Hello"}], 3)


@pytest.mark.enable_socket
def test_a_client_that_stops_in_the_middle_does_not_hold_the_service(served):
    address, queue = served
    host, port = address.removeprefix("http://").split(":")
    head = (
        b"POST /v1/traces HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-protobuf\r\nContent-Length: 1000\r\n\r\n"
    )
    slow = [socket.create_connection((host, int(port))) for _ in range(20)]
    for connection in slow:
        connection.sendall(head + b"x")
    for connection in slow:
        assert connection.recv(4096).startswith(b"HTTP/1.1 408")
        connection.close()
    telemetry = Telemetry()
    telemetry.call("Still there?")
    import urllib.request

    request = urllib.request.Request(f"{address}/v1/traces", telemetry.traces().SerializeToString(),
                                     {"Content-Type": "application/x-protobuf"})  # fmt: skip
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 200 and answer.read() == b""
    assert len(rows_of(queue)) == 1
