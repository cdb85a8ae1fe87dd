"""The HTTP receivers: routes of OTLP/HTTP and of LiteLLM's callback, which put bodies of requests into the queue.

OTLP/HTTP (opentelemetry.io/docs/specs/otlp): /v1/traces, /v1/logs and, ignored, /v1/metrics. Bodies are protobuf or
JSON, and answers have the content type of their request. A payload of the queue is one byte of PROTOBUF_TRACES, ... and
the body.

LiteLLM's `generic_api` (docs.litellm.ai/docs/observability/generic_api): POST /litellm, a JSON array, or lines, of
StandardLoggingPayloads. The payload of the queue is one line for each call, with the fields that its reader needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from .asgi import Answer, Refusal, Route, plain, retry_later
from .litellm_calls import needed
from .source import Put

PROTOBUF, JSON = "application/x-protobuf", "application/json"
PROTOBUF_TRACES, PROTOBUF_LOGS, JSON_TRACES, JSON_LOGS = b"t", b"l", b"T", b"L"
NAMES = (b"gen_ai.", b"llm.", b"openinference.", b"traceloop.")  # a body without them has no call of a model
INVALID_ARGUMENT, UNAVAILABLE = 3, 14  # codes of google.rpc.Status
LISTS = {"resourceSpans": ("scopeSpans", "spans"), "resourceLogs": ("scopeLogs", "logRecords")}


def otlp_routes(put: Put) -> Mapping[str, Route]:
    """The paths of OTLP/HTTP, which put payloads of the source `otlp` into the queue."""
    return {"/v1/traces": _Traces(put), "/v1/logs": _Logs(put), "/v1/metrics": _Metrics()}


class _Export:
    """An export of telemetry: the forms of its answers."""

    content_types = (PROTOBUF, JSON)

    def take(self, body: bytes, content_type: str) -> Answer:
        """An empty response of the export's type: all was taken."""
        return Answer(200, b"" if content_type == PROTOBUF else b"{}", content_type)

    def refuse(self, refusal: Refusal, content_type: str) -> Answer:
        """The refusal as a google.rpc.Status."""
        code = UNAVAILABLE if refusal.status in (429, 503) else INVALID_ARGUMENT
        if content_type == JSON:
            body = orjson.dumps({"code": code, "message": refusal.reason})
        else:
            text = refusal.reason.encode()
            body = bytes([0x08, code, 0x12, len(text)]) + text  # field 1: code; field 2: message, of at most 127 bytes
        return Answer(refusal.status, body, content_type)


class _Metrics(_Export):
    """Metrics are ignored. An exporter that sends them with the rest shall not report errors."""


class _CallExport(_Export):
    """An export that may hold calls of models: it is checked, counted and put into the queue."""

    list_name: str
    protobuf_kind: bytes
    json_kind: bytes

    def __init__(self, put: Put):
        self.put = put

    def take(self, body: bytes, content_type: str) -> Answer:
        is_protobuf = content_type == PROTOBUF
        count = self._protobuf_count(body) if is_protobuf else self._json_count(body)
        if count and any(name in body for name in NAMES):
            kind = self.protobuf_kind if is_protobuf else self.json_kind
            if not self.put("otlp", kind + body, count):
                raise retry_later()
        return super().take(body, content_type)

    def _protobuf_count(self, body: bytes) -> int:
        """The number of spans or log records; Refusal if the body is not valid."""
        from google.protobuf.message import DecodeError

        message = self._message()
        try:
            message.ParseFromString(body)
        except DecodeError:
            raise malformed("protobuf") from None
        return self._count(message)

    def _message(self) -> Any:
        raise NotImplementedError

    def _count(self, message: Any) -> int:
        raise NotImplementedError

    def _json_count(self, body: bytes) -> int:
        try:
            parsed = orjson.loads(body)
        except orjson.JSONDecodeError:
            raise malformed("JSON") from None
        if type(parsed) is not dict:
            raise malformed("JSON")
        scopes, items = LISTS[self.list_name]
        return sum(len(_objects(scope, items)) for batch in _objects(parsed, self.list_name)
                   for scope in _objects(batch, scopes))  # fmt: skip


class _Traces(_CallExport):
    list_name, protobuf_kind, json_kind = "resourceSpans", PROTOBUF_TRACES, JSON_TRACES

    def _message(self):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        return ExportTraceServiceRequest()

    def _count(self, message):
        return sum(len(scope.spans) for batch in message.resource_spans for scope in batch.scope_spans)


class _Logs(_CallExport):
    list_name, protobuf_kind, json_kind = "resourceLogs", PROTOBUF_LOGS, JSON_LOGS

    def _message(self):
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

        return ExportLogsServiceRequest()

    def _count(self, message):
        return sum(len(scope.log_records) for batch in message.resource_logs for scope in batch.scope_logs)


def malformed(form: str) -> Refusal:
    """The refusal of a body that is not what its content type states."""
    return Refusal(400, f"The body is not a valid export request in {form}.")


def _objects(parent: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The objects of a list that may be missing; Refusal if it is something else."""
    items = parent.get(name)
    if items is None:
        return []
    if type(items) is not list or not all(type(item) is dict for item in items):
        raise malformed("JSON")
    return items


NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")


def litellm_routes(put: Put, *, keep: Iterable[str] = ()) -> Mapping[str, Route]:
    """The path of LiteLLM's callback, which puts payloads of the source `litellm` into the queue.

    Args:
        put: Puts a payload into the queue.
        keep: Names of more fields of a call, or of its metadata, to keep.
    """
    return {"/litellm": _LiteLLMCalls(put, frozenset(keep))}


class _LiteLLMCalls:
    content_types = (JSON, *NDJSON)  # LiteLLM sends lines as application/json, too

    def __init__(self, put: Put, keep: frozenset[str]):
        self.put, self.keep = put, keep

    def take(self, body: bytes, content_type: str) -> Answer:
        """Puts the calls into the queue as one payload."""
        lines = [orjson.dumps(needed(call, self.keep)) for call in calls_of(body)]
        if lines and not self.put("litellm", b"\n".join(lines), len(lines)):
            raise retry_later()
        return Answer(200, b"{}")

    def refuse(self, refusal: Refusal, content_type: str) -> Answer:
        """The refusal in one sentence."""
        return plain(refusal.status, refusal.reason)


def calls_of(body: bytes) -> list[dict[str, Any]]:
    """The objects of a JSON array, of lines of JSON, or one; Refusal if it is something else.

    >>> calls_of(b'[{"id": "a"}, null]'), calls_of(b'{"id": "a"}\\n{"id": "b"}\\n')
    ([{'id': 'a'}], [{'id': 'a'}, {'id': 'b'}])
    """
    try:
        if body.lstrip()[:1] == b"[":
            calls = orjson.loads(body)
        else:
            calls = [orjson.loads(line) for line in body.splitlines() if line.strip()]
    except orjson.JSONDecodeError:
        calls = [0]
    if not all(type(call) is dict or call is None for call in calls):  # LiteLLM may send null for a call
        raise Refusal(400, "The body is not a JSON array or lines of JSON objects.")
    return [call for call in calls if call is not None]
