"""OpenTelemetry spans of calls to models, one a line or many (OTLP JSON files), in the dialects of otel_*.py.

A span is an object with `attributes`, a start time and perhaps `events`, as SDKs print it and the Collector's file
exporter writes it: there `resourceSpans[].scopeSpans[].spans[]`, a batch a line. Spans of tools, agents and other work
are no requests. Sessions and users are attributes of the span or of its resource.
"""

from __future__ import annotations

from ...._base.errors import NotARequest, RowError
from .. import fields
from ..pairs import unpacked
from ..record import Record
from . import events as otel_events
from . import flat as otel_flat
from . import genai as otel_genai
from . import openinference as otel_openinference
from . import values
from .span_content import Said

CONVERSATION = False  # the spans of a line are those that ended at about the same time
DIALECTS = (otel_genai, otel_openinference, otel_flat, otel_events)  # in this order: a span may speak several

CONTAINERS = ("resourceSpans", "resource_spans")
SCOPES = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")
NANOSECONDS = ("startTimeUnixNano", "start_time_unix_nano")
STARTS = ("start_time", "startTime", *NANOSECONDS)
DROPPED = ("droppedAttributesCount", "dropped_attributes_count")

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


def read_all(row: dict) -> list[Record]:
    """The Records of the calls among a line's spans; NotARequest where there is none, RowError where one is not good.

    >>> attributes = {"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hi", "llm.usage.completion_tokens": 3}
    >>> read_all({"start_time": "2031-01-01T00:00:00Z", "attributes": attributes})[0].output_length
    3
    """
    records, last = [], None
    for span, path, resource in _spans(row):
        try:
            records.append(_record(span, resource))
        except NotARequest as reason:
            last = reason
        except RowError as error:
            error.field = path + (error.field or "attributes")
            raise
        else:
            records[-1].cut = records[-1].cut and path + records[-1].cut
    if not records:
        raise NotARequest("holds no span of a call to a model." if last is None else last.reason)
    return records


def matches(row: dict) -> bool:
    """Whether the row looks like one of this form."""
    if any(type(row.get(name)) is list for name in CONTAINERS):
        return True
    has_attributes = type(row.get("attributes")) in (dict, list, str)
    return has_attributes and any(row.get(name) is not None for name in STARTS)


def small_unit(row: dict) -> str | None:
    """The unit of a time too small for an epoch, where the field's name tells it."""
    return "ns" if any(name in row for name in (*NANOSECONDS, *CONTAINERS)) else None


def _spans(row):
    """Each span of the row, its path, and the attributes of the resource that it came from."""
    container = next((name for name in CONTAINERS if name in row), None)
    if container is None:
        yield row, "", _resource(row, "")
        return
    for batch, batch_path in _objects(row, (container,), ""):
        resource = _resource(batch, batch_path)
        for scope, scope_path in _objects(batch, SCOPES, batch_path):
            for span, path in _objects(scope, ("spans",), scope_path):
                yield span, path, resource


def _objects(contributor, names, path):
    """The objects in the lists of these names, each with its path."""
    for name in names:
        items = contributor.get(name)
        if items is None:
            continue
        if type(items) is not list or not all(type(item) is dict for item in items):
            raise RowError("is not a list of objects.", field=path + name)
        for i, item in enumerate(items):
            yield item, f"{path}{name}[{i}]."


def _resource(contributor, path):
    resource = contributor.get("resource")
    if type(resource) is not dict:
        return {}
    return values.attributes(resource.get("attributes"), f"{path}resource.attributes")


def _record(span, resource) -> Record:
    attributes = values.attributes(span.get("attributes"))
    if not _is_call(attributes):
        raise NotARequest("is a span of another kind than a call to a model.")
    mapped, path = fields.find([("", span)], "input")
    told = Said(path) if mapped is not None else _said(attributes, _events(span))
    if _has_failed(span, attributes, told):
        raise NotARequest("is a call that failed: nothing was generated.")
    if told is None:
        raise RowError("hold no prompt: content capture was off.", field="attributes", hint=_hint(attributes))
    record = fields.common([("", span)], *_time(span))
    places = [("attributes.", attributes), ("resource.attributes.", resource)]
    fields.fill(record, span, places, session=SESSION, user=USER, tenant=TENANT, model=MODEL, id=ID)
    _put_usage(record, attributes)
    if mapped is not None:
        fields.put_prompt(record, mapped, path)
    else:
        _put_prompt(record, told)
        record.lacks = _lack(span) or told.lacks
    _put_output(record, span, told)
    return record


def _time(span):
    names = STARTS if span.get("timestamp") is None else ("timestamp",)  # where a map puts the time
    return fields.find([("", span)], *names)


def _said(attributes, events) -> Said | None:
    return next((told for dialect in DIALECTS if (told := dialect.said(attributes, events)) is not None), None)


def _is_call(attributes):
    """Whether the span is of a call to a model, and not of what is around one."""
    kinds = [kind.upper() for name in KINDS if type(kind := attributes.get(name)) is str]
    if kinds:
        return "LLM" in kinds
    operation = attributes.get("gen_ai.operation.name", attributes.get("llm.request.type"))
    if type(operation) is str:
        return operation in CALLS
    return any(name.startswith(("gen_ai.", "llm.")) for name in attributes)


def _events(span):
    """The names and attributes of the span's events, in order."""
    events = span.get("events")
    events = unpacked(events) if type(events) is str else events
    if type(events) is not list:
        return []
    named = [(i, event) for i, event in enumerate(events) if type(event) is dict and type(event.get("name")) is str]
    return [
        (event["name"], values.attributes(event.get("attributes"), f"events[{i}].attributes"))
        for i, event in named
        if event["name"].startswith("gen_ai.")
    ]


def _has_failed(span, attributes, told):
    """Whether the call ended in an error and gave nothing."""
    status = span.get("status")
    code = status.get("code", status.get("status_code")) if type(status) is dict else span.get("status_code")
    is_error = code == 2 or (type(code) is str and code.upper() in ("ERROR", "STATUS_CODE_ERROR"))
    counted = fields.find([("", attributes)], *OUTPUT_TOKENS)[0]
    return is_error and not counted and (told is None or told.output is None)


def _hint(attributes):
    """Which setting of the dialect that the span speaks turns the capture of content on."""
    if any(name.startswith(("openinference.", "llm.token_count.")) for name in attributes):
        return otel_openinference.HINT
    is_flat = any(name.startswith(("traceloop.", "llm.")) for name in attributes)
    return otel_flat.HINT if is_flat else otel_genai.HINT


def _put_usage(record, attributes):
    places = [("attributes.", attributes)]
    if record.prompt_tokens is None:
        record.prompt_tokens = fields.count(*fields.find(places, *INPUT_TOKENS))
    if record.output_length is None:
        record.output_length = fields.count(*fields.find(places, *OUTPUT_TOKENS))


def _put_prompt(record, told):
    record.cut = told.cut
    record.tools = record.tools or told.tools or None
    for i, message in enumerate(told.system):
        fields.put_message(record, message, f"{told.system_path}[{i}]")
    fields.put_prompt(record, told.messages if told.text is None else told.text, told.path)
    if record.messages is not None:
        record.messages = [*told.system, *record.messages]


def _lack(span):
    """SDKs keep 128 attributes a span unless told otherwise, and count what they dropped."""
    count = next((span[name] for name in DROPPED if span.get(name)), None)
    return None if count in (None, "0") else "attributes that the SDK dropped (OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT)"


def _put_output(record, span, told):
    value, path = fields.find([("", span)], "output")
    if value is None:
        value, path = told.output, told.output_path
    if values.is_broken(value) and record.output_length is None and path.startswith("attributes."):
        record.cut = record.cut or path
    fields.put_output(record, value if type(value) in (str, dict, int, float, list, type(None)) else None, path)
