"""OTLP in protobuf as OTLP/JSON objects, as the Collector's file exporter writes them.

Only the fields that the reader `otel` needs; google.protobuf.json_format takes several times as long. Numbers of 64
bits are text, ids are hexadecimal, and other bytes are base64 (opentelemetry.io/docs/specs/otlp, JSON encoding).
"""

from __future__ import annotations

import math
from base64 import b64encode
from typing import Any


def span_object(span: Any) -> dict[str, Any]:
    """A span as an object."""
    made = _ids(span) | {
        "startTimeUnixNano": str(span.start_time_unix_nano),
        "endTimeUnixNano": str(span.end_time_unix_nano),
        "attributes": pairs(span.attributes),
    }
    if span.events:
        made["events"] = [_event(event) for event in span.events]
    if span.status.code:
        made["status"] = {"code": span.status.code}
    return _with_dropped(made, span)


def record_object(record: Any) -> dict[str, Any]:
    """A log record as an object."""
    made = _ids(record) | {
        "timeUnixNano": str(record.time_unix_nano),
        "observedTimeUnixNano": str(record.observed_time_unix_nano),
        "attributes": pairs(record.attributes),
    }
    if record.event_name:
        made["eventName"] = record.event_name
    if record.HasField("body"):
        made["body"] = value_object(record.body)
    return _with_dropped(made, record)


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
    made = {"timeUnixNano": str(event.time_unix_nano), "name": event.name}
    return made | {"attributes": pairs(event.attributes)} if event.attributes else made


def _with_dropped(made, item):
    if item.dropped_attributes_count:
        made["droppedAttributesCount"] = item.dropped_attributes_count
    return made


def _double(value):
    """JSON has no numbers for these; protobuf's JSON has names."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
