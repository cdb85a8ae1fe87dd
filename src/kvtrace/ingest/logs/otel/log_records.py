"""Model calls in log records (OTLP JSON files of logs): the events of OpenTelemetry's GenAI conventions.

`gen_ai.client.inference.operation.details` (conventions 1.37) is one call. It is logged when the call ends, and has no
start. In the conventions 1.27 to 1.36 each message is an event, and so is the answer, `gen_ai.choice`: the events of
one line with the same trace and span are one call, which began with the first of them and ended with its answer.
Calls whose events are in several lines are left out.

Each call becomes a span with the events, for the reader of spans. A file exporter writes
`resourceLogs[].scopeLogs[].logRecords[]`; an SDK prints one record a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..json_values import as_text
from . import events, values
from .genai import DETAILS

CONTAINERS = ("resourceLogs", "resource_logs")
SCOPES = ("scopeLogs", "scope_logs")
RECORDS = ("logRecords", "log_records")
EVENT_NAMES = ("eventName", "event_name")
EVENT_NAME = "event.name"  # the attribute that named an event before records had a field for it
TIMES = ("timeUnixNano", "time_unix_nano", "observedTimeUnixNano", "observed_time_unix_nano", "timestamp",
         "observed_timestamp")  # fmt: skip
TRACE, SPAN = ("traceId", "trace_id"), ("spanId", "span_id")
MESSAGES = frozenset((*events.ROLES, events.CHOICE))
CALL_EVENTS = MESSAGES | {DETAILS}
DROPPED = ("droppedAttributesCount", "dropped_attributes_count")


def calls(records: Iterable[tuple[dict[str, Any], str]]) -> Iterator[tuple[dict[str, Any], str]]:
    """The calls among log records, each as a span; records and spans come with their JSON paths.

    Messages without an answer, or an answer without messages, are no call: the rest is in another line.

    >>> record = {"eventName": DETAILS, "timeUnixNano": "5", "attributes": {"gen_ai.input.messages": "Hi"}}
    >>> [(span["startTimeUnixNano"], path) for span, path in calls([(record, "logRecords[0].")])]
    [('5', 'logRecords[0].')]
    """
    messages: dict[tuple[str, str], list[tuple[str, dict[str, Any], str]]] = {}  # trace and span -> those of one call
    for record, path in records:
        name = event_name(record)
        if name == DETAILS:
            yield _span_of_details(record), path
        elif name in MESSAGES and (span := _first(record, SPAN)) is not None:
            messages.setdefault((str(_first(record, TRACE)), str(span)), []).append((name, record, path))
    for call in messages.values():
        if 0 < sum(name == events.CHOICE for name, _, _ in call) < len(call):
            yield _span_of_messages(call), call[0][2]


def event_name(record: dict[str, Any]) -> str | None:
    """The name of the event that a log record is; None if it is none.

    >>> event_name({"attributes": [{"key": "event.name", "value": {"stringValue": "gen_ai.choice"}}]})
    'gen_ai.choice'
    """
    name = _first(record, EVENT_NAMES)
    if name is None:
        attributes = record.get("attributes")
        if type(attributes) is list:
            pairs = [pair for pair in attributes if type(pair) is dict and pair.get("key") == EVENT_NAME]
            name = values.attributes(pairs[:1]).get(EVENT_NAME) if pairs else None
        elif type(attributes) is dict:
            name = attributes.get(EVENT_NAME)
    return name if type(name) is str else None


def _span_of_details(record):
    span = {"startTimeUnixNano": _first(record, TIMES), "attributes": record.get("attributes")}
    return span | {name: record[name] for name in DROPPED if name in record}


def _span_of_messages(call):
    first, answers = call[0][1], [record for name, record, _ in call if name == events.CHOICE]
    return {
        "startTimeUnixNano": _first(first, TIMES),
        "endTimeUnixNano": _first(answers[-1], TIMES),
        "attributes": {"gen_ai.operation.name": "chat"} | values.attributes(first.get("attributes")),
        "events": [{"name": name, "attributes": {events.BODY: _body(record, path)}} for name, record, path in call],
    }


def _body(record, path):
    """The body of a message as JSON text: an object, of which a text is the content."""
    body = values.plain(record.get("body"), f"{path}body")
    if type(body) is not dict:
        body = {} if body is None else {"content": body}
    return as_text(body, f"{path}body")


def _first(record, names):
    """The value of the first of these names that is set; OTLP writes 0 for an unknown time."""
    return next((record[name] for name in names if record.get(name) not in (None, "", "0", 0)), None)
