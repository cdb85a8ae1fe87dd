"""Spans and log records of OpenTelemetry, as OTLP/HTTP brings them: one line for each call of a model.

A line is an OTLP/JSON export of that call alone, or of the events of its messages, so that a bad call costs one line.
Spans of other work make no lines. A call comes twice if its span and its event both hold the prompt, or if an exporter
tries again: its first line counts. A span whose prompt is in an event makes no line, and neither does the event of a
call whose prompt is in its span.

Protobuf becomes OTLP/JSON as the Collector's file exporter writes it, with only the fields that the reader `otel`
needs; google.protobuf.json_format takes several times as long. Numbers of 64 bits are text, ids are hexadecimal, and
other bytes are base64 (opentelemetry.io/docs/specs/otlp, JSON encoding).
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from ..._base.errors import RowError
from ...ingest.logs import otel_conventions, otel_spans
from ..asgi import MAX_BODY, TIMEOUT_S, App, routed
from ..export_items import RECORDS, SPANS, json_items, protobuf_items
from ..receivers import JSON_TRACES, PROTOBUF_LOGS, PROTOBUF_TRACES, litellm_routes, otlp_routes
from ..source import Put, Source

CALLS = ("gen_ai.", "llm.", "openinference.", "traceloop.")  # attributes of calls of models begin so
PROMPTS = (
    otel_conventions.GENAI_INPUT,
    otel_conventions.OI_INPUT,
    otel_conventions.OI_PROMPTS,
    *otel_conventions.FLAT_PROMPTS,
)
PROMPT_EVENTS = frozenset((*otel_conventions.ROLES, otel_conventions.PROMPT, otel_conventions.DETAILS))
MAX_CALLS = 1 << 16  # the last calls, to find those that come twice
MAX_OPEN, MAX_OPEN_BYTES = 1 << 12, 1 << 26  # calls whose answer is not there yet, and their messages
MAX_LINES = 4 * MAX_BODY  # bytes of the lines of an export, 2.5 times those in protobuf; each repeats the resource

Call = tuple[str, str]  # trace and span
Item = tuple[bytes, dict[str, Any]]


def otlp_app(put: Put, *, max_body: int = MAX_BODY, timeout_s: float = TIMEOUT_S, keep: Iterable[str] = ()) -> App:
    """The ASGI application that receives OTLP/HTTP, and LiteLLM's callback on /litellm.

    Args:
        put: Puts a payload into the queue.
        max_body: The largest body, in bytes, before and after decompression.
        timeout_s: Seconds in which a body must come.
        keep: Names of more fields of LiteLLM's calls, or of their metadata, to keep.

    >>> otlp_app(lambda source, payload, requests: True).__name__
    'app'
    """
    return routed({**otlp_routes(put), **litellm_routes(put, keep=keep)}, max_body=max_body, timeout_s=timeout_s)


class OtlpRows:
    """Turns exports into lines of the log format `otel`.

    >>> rows, pairs = OtlpRows(), [{"key": "gen_ai.prompt.0.content", "value": {"stringValue": "Hi"}}]
    >>> span = {"traceId": "a", "spanId": "b", "attributes": pairs}
    >>> export = b"T" + orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    >>> len(rows.of(export)), len(rows.of(export)), rows.repeated
    (1, 0, 1)
    """

    def __init__(self) -> None:
        self.repeated = 0  # calls that came again: sent again, or in an event beside their span; they make no line
        self._known: OrderedDict[Call, None] = OrderedDict()  # calls whose prompt made a line
        self._open: OrderedDict[Call, list[bytes]] = OrderedDict()  # call without its answer -> its messages
        self._open_bytes = 0
        self._in_spans = self._in_records = False  # where prompts were found

    def of(self, payload: bytes) -> list[bytes]:
        """The lines of the calls that this export completes; RowError if it is not valid.

        >>> pairs = [{"key": "gen_ai.prompt.0.content", "value": {"stringValue": "Hi"}}]
        >>> export = {"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": pairs}, {"name": "GET"}]}]}]}
        >>> len(OtlpRows().of(b"T" + orjson.dumps(export)))
        1
        """
        kind, body = payload[:1], payload[1:]
        if kind in (PROTOBUF_TRACES, JSON_TRACES):
            spans = protobuf_spans(body) if kind == PROTOBUF_TRACES else json_items(body, SPANS, _dumped)
            lines = (self._line_of_span(span, resource) for resource, span in spans)
        else:
            records = protobuf_records(body) if kind == PROTOBUF_LOGS else json_items(body, RECORDS, _dumped)
            lines = (self._line_of_record(record, resource) for resource, record in records)
        kept, size = [], 0
        for line in filter(None, lines):
            kept.append(line)
            size += len(line)
            if size > MAX_LINES:
                raise RowError(f"has calls that take more than {MAX_LINES >> 20} MiB, each with its resource.")
        return kept

    def rest(self) -> list[bytes]:
        """No lines: a call without its answer may still get it."""
        return []

    def _line_of_span(self, span, resource) -> bytes | None:
        names = _attribute_names(span)
        if not any(name.startswith(CALLS) for name in names | _event_names(span)):
            return None
        if any(name.startswith(PROMPTS) for name in names) or PROMPT_EVENTS & _event_names(span):
            self._in_spans = True
            return _line(SPANS, resource, [_dumped(span)]) if self._is_new(_call(span)) else None
        return None if self._in_records else _line(SPANS, resource, [_dumped(span)])

    def _line_of_record(self, record, resource) -> bytes | None:
        name = otel_spans.event_name(record)
        if name in otel_spans.MESSAGES:
            return self._line_of_message(record, resource, name)
        if name != otel_conventions.DETAILS:
            return None
        if otel_conventions.GENAI_INPUT in _attribute_names(record):
            self._in_records = True
            return _line(RECORDS, resource, [_dumped(record)]) if self._is_new(_call(record)) else None
        return None if self._in_spans else _line(RECORDS, resource, [_dumped(record)])

    def _line_of_message(self, record, resource, name) -> bytes | None:
        """The line of a call's messages, if this is its answer."""
        call = _call(record)
        if not call[1] or call in self._known:
            self.repeated += bool(call[1]) and name == otel_conventions.CHOICE
            return None
        if name != otel_conventions.CHOICE:
            self._keep_open(call, _dumped(record))
            return None
        messages = self._open.pop(call, [])
        self._open_bytes -= sum(map(len, messages))
        if not messages:
            return None  # its messages came before the service started
        self._in_records = True
        self._is_new(call)
        return _line(RECORDS, resource, [*messages, _dumped(record)])

    def _keep_open(self, call, message):
        self._open.setdefault(call, []).append(message)
        self._open_bytes += len(message)
        while len(self._open) > MAX_OPEN or self._open_bytes > MAX_OPEN_BYTES:
            _, messages = self._open.popitem(last=False)
            self._open_bytes -= sum(map(len, messages))

    def _is_new(self, call: Call) -> bool:
        """Whether the call made no line yet; it is known from now on. Calls without an id are always new."""
        if not call[1]:
            return True
        if call in self._known:
            self.repeated += 1
            return False
        self._known[call] = None
        if len(self._known) > MAX_CALLS:
            self._known.popitem(last=False)
        return True


SOURCE: Source = Source("otlp", log_format="otel", time_unit="ns", rows=OtlpRows, comes_again=True)


def protobuf_spans(body: bytes) -> Iterator[Item]:
    """The spans of calls in an ExportTraceServiceRequest, each after the JSON of its resource."""
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    for resource, span in protobuf_items(body, Span, _resource):
        if any(pair.key.startswith(CALLS) for pair in span.attributes) or any(
            event.name.startswith(CALLS) for event in span.events
        ):
            yield resource, span_object(span)


def protobuf_records(body: bytes) -> Iterator[Item]:
    """The log records of calls in an ExportLogsServiceRequest, each after the JSON of its resource."""
    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

    for resource, record in protobuf_items(body, LogRecord, _resource):
        if record.event_name in otel_spans.CALL_EVENTS or any(
            pair.key == otel_spans.EVENT_NAME for pair in record.attributes
        ):
            yield resource, record_object(record)


def _resource(resource):
    return orjson.dumps({"attributes": pairs(resource.attributes)})


def _line(names, resource, items):
    batches, scopes, items_name = (name.encode() for name in names)
    return b'{"%b":[{"resource":%b,"%b":[{"%b":[%b]}]}]}' % (batches, resource, scopes, items_name, b",".join(items))


def _dumped(value) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # reading allows more levels than writing
        raise RowError("is nested too deeply.") from None


def _attribute_names(item) -> set[str]:
    attributes = item.get("attributes")
    pairs = attributes if type(attributes) is list else ()
    return {pair["key"] for pair in pairs if type(pair) is dict and type(pair.get("key")) is str}


def _event_names(span) -> set[str]:
    events = span.get("events")
    events = events if type(events) is list else ()
    return {event["name"] for event in events if type(event) is dict and type(event.get("name")) is str}


def _call(item) -> Call:
    return str(item.get("traceId") or ""), str(item.get("spanId") or "")


def span_object(span: Any) -> dict[str, Any]:
    """A span as an object."""
    fields = _ids(span) | {
        "startTimeUnixNano": str(span.start_time_unix_nano),
        "endTimeUnixNano": str(span.end_time_unix_nano),
        "attributes": pairs(span.attributes),
    }
    if span.events:
        fields["events"] = [_event(event) for event in span.events]
    if span.status.code:
        fields["status"] = {"code": span.status.code}
    return _with_dropped(fields, span)


def record_object(record: Any) -> dict[str, Any]:
    """A log record as an object."""
    fields = _ids(record) | {
        "timeUnixNano": str(record.time_unix_nano),
        "observedTimeUnixNano": str(record.observed_time_unix_nano),
        "attributes": pairs(record.attributes),
    }
    if record.event_name:
        fields["eventName"] = record.event_name
    if record.HasField("body"):
        fields["body"] = value_object(record.body)
    return _with_dropped(fields, record)


def pairs(attributes: Any) -> list[dict[str, Any]]:
    """Attributes as a list of keys and values."""
    return [{"key": pair.key, "value": value_object(pair.value)} for pair in attributes]


def value_object(value: Any) -> dict[str, Any]:
    """An AnyValue as an object of its type and its value."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return {"stringValue": value.string_value}
    if kind == "int_value":
        return {"intValue": str(value.int_value)}
    if kind == "bool_value":
        return {"boolValue": value.bool_value}
    if kind == "double_value":
        return {"doubleValue": _double(value.double_value)}
    if kind == "array_value":
        return {"arrayValue": {"values": [value_object(item) for item in value.array_value.values]}}
    if kind == "kvlist_value":
        return {"kvlistValue": {"values": pairs(value.kvlist_value.values)}}
    return {"bytesValue": b64encode(value.bytes_value).decode()} if kind == "bytes_value" else {}


def _ids(item):
    return {"traceId": item.trace_id.hex(), "spanId": item.span_id.hex()}


def _event(event):
    fields = {"timeUnixNano": str(event.time_unix_nano), "name": event.name}
    return fields | {"attributes": pairs(event.attributes)} if event.attributes else fields


def _with_dropped(fields, item):
    if item.dropped_attributes_count:
        fields["droppedAttributesCount"] = item.dropped_attributes_count
    return fields


def _double(value):
    """JSON has no numbers for these; protobuf's JSON has names."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
