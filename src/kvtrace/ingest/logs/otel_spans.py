"""OpenTelemetry spans of model calls, one or several a line (OTLP JSON files), in any of otel_conventions.py.

A span is an object with `attributes`, a start time and optional `events`. SDKs print one span a line; the Collector's
file exporter writes a batch a line, `resourceSpans[].scopeSpans[].spans[]`. Spans of tools, agents and other work are
left out. Sessions and users are attributes of the span or of its resource. A span's end is the end of its request.
Cached tokens and times have names of OpenTelemetry (opentelemetry.io/docs/specs/semconv/registry/attributes/gen-ai),
vLLM (vllm/tracing), OpenLLMetry, OpenInference, Sentry and Langfuse.

Log records that are events of the GenAI conventions hold calls, too (`resourceLogs[].scopeLogs[].logRecords[]`, or one
record a line); each call becomes a span with the events. `gen_ai.client.inference.operation.details` (conventions 1.37)
is one call. It is logged when the call ends, and has no start. In the conventions 1.27 to 1.36 each message is an
event, and so is the answer, `gen_ai.choice`: the events of one line with the same trace and span are one call, which
began with the first of them and ended with its answer. Calls whose events are in several lines are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..._base.errors import FailedCall, NotARequest, RowError
from . import fields, otel_conventions, otel_values
from . import otel_conventions as event_convention
from .fieldmap import MISSING, FieldMap, as_text, find
from .otel_conventions import DETAILS
from .otel_values import SpanContent
from .pairs import unpacked
from .record import Record, put_measured

CONVERSATION = False  # the spans of a line only ended at about the same time
CONVENTIONS = (
    otel_conventions.genai_content,
    otel_conventions.openinference_content,
    otel_conventions.flat_content,
    event_convention.events_content,
)  # in this order: a span may use several

CONTAINERS = ("resourceSpans", "resource_spans")
SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
NANOSECONDS = ("startTimeUnixNano", "start_time_unix_nano")
ENDS = ("end_time", "endTime", "endTimeUnixNano", "end_time_unix_nano")
STARTS = ("start_time", "startTime", *NANOSECONDS)

CALLS = ("chat", "text_completion", "generate_content", "completion", "responses", "messages")  # operations
KINDS = ("openinference.span.kind", "traceloop.span.kind")
SESSION = ("gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id", "langfuse.session.id",
           "session_id")  # fmt: skip
USER = ("user.id", "enduser.id", "traceloop.association.properties.user_id", "langfuse.user.id", "user_id")
TENANT = ("tenant.id", "organization.id", "tenant_id", "traceloop.association.properties.organization_id")
ID = ("gen_ai.response.id",)
MODEL = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "llm.response.model", "llm.request.model")
INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens",
                "llm.token_count.prompt")  # fmt: skip
OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens",
                 "llm.token_count.completion")  # fmt: skip
CACHED_TOKENS = (
    "gen_ai.usage.cache_read.input_tokens",  # OpenTelemetry
    "gen_ai.usage.cache_read_input_tokens",  # OpenLLMetry, and Sentry before
    "gen_ai.usage.input_tokens.cached",  # Sentry
    "llm.token_count.prompt_details.cache_read",  # OpenInference
    "llm.usage.cache_read_input_tokens",  # OpenLLMetry before
)
TTFT = {  # attribute -> seconds in its unit
    "gen_ai.response.time_to_first_chunk": 1.0,  # OpenTelemetry
    "gen_ai.latency.time_to_first_token": 1.0,  # vLLM and SGLang
    "gen_ai.response.time_to_first_token": 1.0,  # Sentry
    "gen_ai.server.time_to_first_token": 1.0,  # OpenTelemetry's name of the metric
}
QUEUE = {"gen_ai.latency.time_in_queue": 1.0}  # vLLM
FIRST_TOKEN = ("langfuse.observation.completion_start_time",)
FIRST_TOKEN_EVENTS = ("First Token Stream Event", "llm.content.completion.chunk")  # OpenInference, OpenLLMetry
OF_SPAN, OF_RESOURCE = "attributes.", "resource.attributes."  # paths that name attributes of one of them
MAPPED = "\0fields"  # the map of a row's fields, beside them
EVENT_TIMES = ("timeUnixNano", "time_unix_nano", "timestamp", "time")


def read_all(row: dict[str, Any]) -> list[Record]:
    """The Records of the model calls among a line's spans; NotARequest if it has none, RowError if one is bad.

    >>> attributes = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hi", "llm.usage.completion_tokens": 3}
    >>> read_all({"start_time": "2031-01-01T00:00:00Z", "attributes": attributes})[0].output_length
    3
    """
    records, last_reason, mapped = [], None, row.get(MAPPED)
    for span, path, resource in _calls(row):
        try:
            if type(mapped) is FieldMap:
                span = span | _mapped(span, resource, mapped)
            if fields.UNTIMED in row:
                span = span | {fields.UNTIMED: True}
            records.append(_record(span, resource))
        except NotARequest as reason:
            last_reason = reason
        except RowError as error:
            error.field = path + (error.field or "attributes")
            raise
        else:
            records[-1].cut = records[-1].cut and path + records[-1].cut
    if not records:
        raise NotARequest("has no span of a model call." if last_reason is None else last_reason.reason)
    return records


def overlay(row: dict[str, Any], fields: FieldMap) -> dict[str, Any]:
    """The row with a map of fields, for each of its calls. A path may name an attribute of the span or its resource.

    >>> attributes = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hi", "app.team": "a"}
    >>> attributes["gen_ai.usage.output_tokens"] = 3
    >>> row = {"start_time": "2031-01-01T00:00:00Z", "attributes": attributes}
    >>> [record.tenant for record in read_all(overlay(row, FieldMap.of({"tenant": "app.team"})))]
    ['a']
    """
    return {**fields.overlay(row), MAPPED: fields}


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    if any(type(row.get(name)) is list for name in (*CONTAINERS, *LOG_CONTAINERS)):
        return True
    has_attributes = type(row.get("attributes")) in (dict, list, str)
    return has_attributes and (any(row.get(name) is not None for name in STARTS) or _is_event(row))


def small_unit(row: dict[str, Any]) -> str | None:
    """Nanoseconds if the name of the field states them, else None."""
    names = (*NANOSECONDS, *CONTAINERS, *LOG_CONTAINERS, *TIMES[:4])
    return "ns" if any(name in row for name in names) else None


def _calls(row):
    """The spans of a row and the calls in its log records, each with its JSON path and its resource's attributes."""
    if not any(name in row for name in (*CONTAINERS, *LOG_CONTAINERS)):
        resource = _resource(row, "")
        spans = calls([(row, "")]) if _is_event(row) else [(row, "")]
        yield from ((span, path, resource) for span, path in spans)
        return
    for batch, batch_path in _objects(row, CONTAINERS, ""):
        resource = _resource(batch, batch_path)
        yield from ((span, path, resource) for span, path in _in_scopes(batch, batch_path, SCOPES, ("spans",)))
    for batch, batch_path in _objects(row, LOG_CONTAINERS, ""):
        resource = _resource(batch, batch_path)
        records = _in_scopes(batch, batch_path, LOG_SCOPES, RECORDS)
        yield from ((span, path, resource) for span, path in calls(records))


def _is_event(row):
    """Whether a row is a log record with an event of a call."""
    is_span = any(row.get(name) is not None for name in STARTS)
    return not is_span and event_name(row) in CALL_EVENTS


def _in_scopes(batch, path, scopes, names):
    """The objects of these names in the scopes of a batch, each with its JSON path."""
    for scope, scope_path in _objects(batch, scopes, path):
        yield from _objects(scope, names, scope_path)


def _objects(parent, names, path):
    """The objects in the lists of these names, each with its JSON path."""
    for name in names:
        items = parent.get(name)
        if items is None:
            continue
        if type(items) is not list or not all(type(item) is dict for item in items):
            raise RowError("is not a list of objects.", field=path + name)
        for i, item in enumerate(items):
            yield item, f"{path}{name}[{i}]."


def _resource(parent, path):
    resource = parent.get("resource")
    if type(resource) is not dict:
        return {}
    return otel_values.attributes(resource.get("attributes"), f"{path}resource.attributes")


def _mapped(span, resource, mapped):
    """Target -> value at its path in the span, or of the attribute of this name: the span's, else its resource's."""
    attributes, values_of = otel_values.attributes(span.get("attributes")), {}
    for target, path in mapped.paths:
        value = find(span, path)
        places = (resource,) if path.startswith(OF_RESOURCE) else (attributes, resource)
        if path.startswith(OF_SPAN):
            places = (attributes,)
        name = path.removeprefix(OF_RESOURCE).removeprefix(OF_SPAN)
        for place in places if value is MISSING else ():
            if (value := place.get(name, MISSING)) is not MISSING:
                break
        values_of[target] = MISSING if value is None else value
    return values_of


def _record(span, resource) -> Record:
    attributes = otel_values.attributes(span.get("attributes"))
    if not _is_call(attributes):
        raise NotARequest("is not the span of a model call.")
    mapped, path = fields.find([("", span)], "input")
    content = SpanContent(path) if mapped is not None else _content(attributes, _events(span))
    if _has_failed(span, attributes, content):
        raise FailedCall()
    if content is None:
        raise RowError("have no prompt: content capture was off.", field="attributes", hint=_hint(attributes))
    record = fields.common([("", span)], *_time(span))
    record.end_time = fields.find([("", span)], *ENDS)[0]
    places = [("attributes.", attributes), ("resource.attributes.", resource)]
    fields.fill(record, span, places, session=SESSION, user=USER, tenant=TENANT, model=MODEL, id=ID)
    usage = [("attributes.", attributes)]
    fields.put_usage(record, usage, prompt=INPUT_TOKENS, output=OUTPUT_TOKENS, cached=CACHED_TOKENS)
    put_measured(record, usage, ttft=TTFT, queue=QUEUE, first_token=FIRST_TOKEN)
    record.first_token = record.first_token or _first_token(span)
    if mapped is not None:
        fields.put_prompt(record, mapped, path)
    else:
        _put_prompt(record, content)
        record.lacks = _dropped_attributes(span) or content.lacks
    _put_output(record, span, content)
    return record


def _time(span):
    names = STARTS if span.get("timestamp") is None else ("timestamp",)  # a field map puts the time there
    return fields.find([("", span)], *names)


def _content(attributes, events) -> SpanContent | None:
    contents = (content_of(attributes, events) for content_of in CONVENTIONS)
    return next((content for content in contents if content is not None), None)


def _is_call(attributes):
    """Whether the span is a model call, not a tool, an agent or other work."""
    kinds = [kind.upper() for name in KINDS if type(kind := attributes.get(name)) is str]
    if kinds:
        return "LLM" in kinds
    operation = attributes.get("gen_ai.operation.name", attributes.get("llm.request.type"))
    if type(operation) is str:
        return operation in CALLS
    return any(name.startswith(("gen_ai.", "llm.")) for name in attributes)


def _events(span):
    """The names and attributes of the span's events of this convention, in order."""
    return [
        (event["name"], otel_values.attributes(event.get("attributes"), f"events[{i}].attributes"))
        for i, event in _all_events(span)
        if event["name"].startswith("gen_ai.")
    ]


def _all_events(span) -> list[tuple[int, dict[str, Any]]]:
    """The events of a span that have a name, each with its place among all."""
    events = span.get("events")
    events = unpacked(events) if type(events) is str else events
    if type(events) is not list:
        return []
    return [(i, event) for i, event in enumerate(events) if type(event) is dict and type(event.get("name")) is str]


def _has_failed(span, attributes, content):
    """Whether the call ended in an error without output."""
    status = span.get("status")
    code = status.get("code", status.get("status_code")) if type(status) is dict else span.get("status_code")
    is_error = code == 2 or (type(code) is str and code.upper() in ("ERROR", "STATUS_CODE_ERROR"))
    counted = fields.find([("", attributes)], *OUTPUT_TOKENS)[0]
    return is_error and not counted and (content is None or content.output is None)


def _hint(attributes):
    """The setting that turns on content capture, for the convention of the span."""
    if any(name.startswith(("openinference.", "llm.token_count.")) for name in attributes):
        return otel_conventions.OI_HINT
    is_flat = any(name.startswith(("traceloop.", "llm.")) for name in attributes)
    return otel_conventions.FLAT_HINT if is_flat else otel_conventions.GENAI_HINT


def _first_token(span):
    """The time of the event that marks the first token; None if the span has none."""
    for _, event in _all_events(span):
        if event["name"] in FIRST_TOKEN_EVENTS:
            return fields.find([("", event)], *EVENT_TIMES)[0]
    return None


def _put_prompt(record, content):
    record.cut = content.cut
    record.tools = record.tools or content.tools or None
    for i, message in enumerate(content.system):
        fields.put_message(record, message, f"{content.system_path}[{i}]")
    fields.put_prompt(record, content.messages if content.text is None else content.text, content.path)
    if record.messages is not None:
        record.messages = [*content.system, *record.messages]


def _dropped_attributes(span):
    """The missing part of the prompt, if the SDK dropped attributes (by default it keeps 128 a span), else None."""
    count = next((span[name] for name in DROPPED if span.get(name)), None)
    return None if count in (None, "0") else "attributes that the SDK dropped (OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT)"


def _put_output(record, span, content):
    value, path = fields.find([("", span)], "output")
    if value is None:
        value, path = content.output, content.output_path
    if otel_values.is_broken(value) and record.output_length is None and path.startswith("attributes."):
        record.cut = record.cut or path
    fields.put_output(record, value, path)


LOG_CONTAINERS = ("resourceLogs", "resource_logs")
LOG_SCOPES = ("scopeLogs", "scope_logs")
RECORDS = ("logRecords", "log_records")
EVENT_NAMES = ("eventName", "event_name")
EVENT_NAME = "event.name"  # the attribute that named an event before records had a field for it
TIMES = ("timeUnixNano", "time_unix_nano", "observedTimeUnixNano", "observed_time_unix_nano", "timestamp",
         "observed_timestamp")  # fmt: skip
TRACE, SPAN = ("traceId", "trace_id"), ("spanId", "span_id")
MESSAGES = frozenset((*otel_conventions.ROLES, otel_conventions.CHOICE))
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
        if 0 < sum(name == otel_conventions.CHOICE for name, _, _ in call) < len(call):
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
            name = otel_values.attributes(pairs[:1]).get(EVENT_NAME) if pairs else None
        elif type(attributes) is dict:
            name = attributes.get(EVENT_NAME)
    return name if type(name) is str else None


def _span_of_details(record):
    span = {"startTimeUnixNano": _first(record, TIMES), "attributes": record.get("attributes")}
    return span | {name: record[name] for name in DROPPED if name in record}


def _span_of_messages(call):
    first, answers = call[0][1], [record for name, record, _ in call if name == otel_conventions.CHOICE]
    return {
        "startTimeUnixNano": _first(first, TIMES),
        "endTimeUnixNano": _first(answers[-1], TIMES),
        "attributes": {"gen_ai.operation.name": "chat"} | otel_values.attributes(first.get("attributes")),
        "events": [
            {"name": name, "attributes": {otel_conventions.BODY: _body(record, path)}} for name, record, path in call
        ],
    }


def _body(record, path):
    """The body of a message as JSON text: an object, of which a text is the content."""
    body = otel_values.plain(record.get("body"), f"{path}body")
    if type(body) is not dict:
        body = {} if body is None else {"content": body}
    return as_text(body, f"{path}body")


def _first(record, names):
    """The value of the first of these names that is set; OTLP writes 0 for an unknown time."""
    return next((record[name] for name in names if record.get(name) not in (None, "", "0", 0)), None)
