"""The HTTP receivers: routes of OTLP/HTTP and of LiteLLM's callback, which put bodies of requests into the queue.

OTLP/HTTP (opentelemetry.io/docs/specs/otlp): /v1/traces, /v1/logs and, ignored, /v1/metrics. Bodies are protobuf or
JSON, and answers have the content type of their request. A payload of the queue is one byte of PROTOBUF_TRACES, ... and
the body.

LiteLLM's `generic_api` (docs.litellm.ai/docs/observability/generic_api): POST /litellm, a JSON array, or lines, of
StandardLoggingPayloads. The payload of the queue is one line for each call, with the fields that its reader needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import orjson

from .._base.errors import RowError
from .._base.json_values import TooManyValues
from .asgi import Answer, Refusal, Route, plain, retry_later
from .export_items import RECORDS, SPANS, json_calls, json_items, protobuf_items
from .litellm_calls import needed
from .source import Put

PROTOBUF, JSON = "application/x-protobuf", "application/json"
PROTOBUF_TRACES, PROTOBUF_LOGS, JSON_TRACES, JSON_LOGS = b"t", b"l", b"T", b"L"
NAMES = (b"gen_ai.", b"llm.", b"openinference.", b"traceloop.")  # a body without them has no call of a model
INVALID_ARGUMENT, UNAVAILABLE = 3, 14  # codes of google.rpc.Status


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

    names: tuple[str, str, str]
    protobuf_kind: bytes
    json_kind: bytes

    def __init__(self, put: Put):
        self.put = put

    def take(self, body: bytes, content_type: str) -> Answer:
        is_protobuf = content_type == PROTOBUF
        items = protobuf_items(body, self._item_type()) if is_protobuf else json_items(body, self.names)
        with refusals(f"The body is not a valid export request in {'protobuf' if is_protobuf else 'JSON'}."):
            count = sum(1 for _ in items)
        if count and any(name in body for name in NAMES):
            kind = self.protobuf_kind if is_protobuf else self.json_kind
            if not self.put("otlp", kind + body, count):
                raise retry_later()
        return super().take(body, content_type)

    def _item_type(self) -> Any:
        raise NotImplementedError


class _Traces(_CallExport):
    names, protobuf_kind, json_kind = SPANS, PROTOBUF_TRACES, JSON_TRACES

    def _item_type(self):
        from opentelemetry.proto.trace.v1.trace_pb2 import Span

        return Span


class _Logs(_CallExport):
    names, protobuf_kind, json_kind = RECORDS, PROTOBUF_LOGS, JSON_LOGS

    def _item_type(self):
        from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

        return LogRecord


@contextmanager
def refusals(reason: str) -> Iterator[None]:
    """Errors of a body as refusals: 413 if it holds too much, else 400 with this reason."""
    try:
        yield
    except TooManyValues as error:
        refusal = Refusal(413, f"The body {error.reason} Send smaller batches.")
    except RowError:
        refusal = Refusal(400, reason)
    else:
        return
    raise refusal


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
        with refusals("The body is not a JSON array or lines of JSON objects."):
            lines = [orjson.dumps(needed(call, self.keep)) for call in json_calls(body)]
        if lines and not self.put("litellm", b"\n".join(lines), len(lines)):
            raise retry_later()
        return Answer(200, b"{}")

    def refuse(self, refusal: Refusal, content_type: str) -> Answer:
        """The refusal in one sentence."""
        return plain(refusal.status, refusal.reason)
