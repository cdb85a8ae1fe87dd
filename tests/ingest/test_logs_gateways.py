"""Logs of gateways, of OpenTelemetry and of SGLang: what is read, what is left out, and what is refused, silently."""

import copy
import pickle
import traceback
from array import array
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import NotARequest, RowError
from kvtrace.ingest.logs import READERS, litellm, open_reader, otel_values, records_of, sglang, sources
from kvtrace.ingest.logs import otel_spans as otel
from tests.conftest import drawn

from .media import media_of

HERE = Path(__file__).parents[1]
DATA = HERE / "data" / "logs"
TINY = HERE / "data" / "tokenizers" / "tiny"
USER = {"role": "user", "content": "Hello"}
MIDDLE = "x" * 1024 + "..." + "y" * 1024  # as SGLang cuts

# example file -> its reader, the requests it holds, the lines that are none, and how its times are read
EXAMPLES = {
    "litellm": ("litellm", 4, 2, "epoch seconds"),
    "litellm_spend": ("litellm", 2, 0, "ISO 8601, UTC where no zone is given"),
    "otel_genai": ("otel", 3, 2, "ISO 8601, UTC where no zone is given"),
    "otel_traceloop": ("otel", 3, 1, "ISO 8601, UTC where no zone is given"),
    "otel_openinference": ("otel", 3, 1, "ISO 8601, UTC where no zone is given"),
    "otel_events": ("otel", 2, 0, "ISO 8601, UTC where no zone is given"),
    "otel_otlp": ("otel", 4, 1, "epoch nanoseconds"),
    "otel_log_records": ("otel", 4, 1, "epoch nanoseconds"),
    "sglang": ("sglang", 6, 2, "ISO 8601, UTC where no zone is given"),
}


def lines_of(name):
    return (DATA / f"{name}.jsonl").read_bytes().splitlines()


def rows_of(name):
    return [orjson.loads(line) for line in lines_of(name)]


def read(row, name):
    (record,) = records_of(READERS[name], row)
    return record


def refused(row, name, kind=RowError):
    with pytest.raises(kind) as error:
        records_of(READERS[name], row)
    assert isinstance(error.value, NotARequest) == (kind is NotARequest)
    return str(error.value)


# -- the examples ----------------------------------------------------------------------------------------------------


def test_each_example_file_is_tested():
    prefixes = ("litellm", "otel", "sglang")
    found = {path.stem for path in DATA.glob("*.jsonl") if path.stem.startswith(prefixes)}
    assert found - {"litellm_hashes"} == set(EXAMPLES)  # test_logs_hashes.py has it


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_form_is_recognised_and_reads_to_its_end(name):
    reader, requests, others, time = EXAMPLES[name]
    opened = open_reader("auto", lines_of(name))
    assert opened.describe() == {"reader": f"{reader} (detected)", "time": f"{time} (detected)"}
    records, left_out = [], 0
    for line in lines_of(name):
        try:
            records += opened.records(line)
        except NotARequest:
            left_out += 1
    assert (len(records), left_out) == (requests, others)
    times = [opened.time_ns(record) for record in records]
    assert all(type(ns) is int for ns in times) and len(set(times)) == len(times)
    for record in records:
        assert sum(prompt is not None for prompt in (record.messages, record.text, record.token_ids)) == 1
        assert record.output_length is not None or record.output_text is not None


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_becomes_a_trace(name):
    trace = kvtrace.ingest.anonymize(DATA / f"{name}.jsonl", tokenizer=str(TINY), block_size=2, profile="exact")
    assert len(trace) == EXAMPLES[name][1] and trace.is_chained
    assert (trace.input_length > 0).all()


@pytest.mark.parametrize(
    "name", ["litellm", "otel_genai", "otel_traceloop", "otel_openinference", "otel_log_records", "sglang"]
)
def test_the_second_turn_of_a_conversation_extends_the_first(name):
    trace = kvtrace.ingest.anonymize(DATA / f"{name}.jsonl", tokenizer=str(TINY), block_size=1, profile="exact")
    trace = kvtrace.trace.in_domains(trace)
    first, second = [row for row in range(len(trace)) if trace.session[row] == trace.session[0] >= 0][:2]
    shared = 0
    for one, other in zip(trace.prompt(first), trace.prompt(second), strict=False):
        shared += one == other
    if name == "sglang":  # another adapter: not a block in common
        assert shared == 0
    else:
        assert shared >= 0.8 * len(trace.prompt(first)) and trace.parent[second] in (first, -1)


def test_the_same_call_is_the_same_record_in_every_dialect():
    told = [read(rows_of(f"otel_{name}")[0], "otel") for name in ("traceloop", "openinference")]
    told.append(read(rows_of("litellm")[0], "litellm"))
    assert told[0].messages == told[1].messages == told[2].messages
    assert {(r.prompt_tokens, r.output_length, r.output_text, r.user, r.model) for r in told} == {
        (31, 14, '{"ware": "rye"}', "anna", "oven-1")
    }
    genai = read(rows_of("otel_genai")[0], "otel")
    assert genai.messages == told[0].messages and genai.tools[0]["function"]["name"] == "stock"


# -- litellm ---------------------------------------------------------------------------------------------------------


def payload(**row):
    """A good call of LiteLLM's, with these fields changed; None takes one out."""
    row = {"call_type": "acompletion", "startTime": 5.5, "messages": [USER], "completion_tokens": 3} | row
    return {name: value for name, value in row.items() if value is not None}


def test_litellm_users_are_end_users_then_owners_then_keys():
    keys = {"user_api_key_hash": "h", "user_api_key_user_id": "o", "user_api_key_team_id": "t"}
    assert read(payload(end_user="e", metadata=keys), "litellm").user == "e"
    assert read(payload(end_user="", metadata=keys), "litellm").user == "o"
    assert read(payload(metadata={"user_api_key_hash": "h"}), "litellm").user == "h"
    assert read(payload(end_user="e", user="mapped"), "litellm").user == "mapped"
    assert read(payload(metadata=orjson.dumps(keys).decode()), "litellm").tenant == "t"
    assert read(payload(), "litellm").user is None


@pytest.mark.parametrize("call_type", ["aembedding", "aimage_generation", "transcription", "rerank", "moderation"])
def test_litellm_calls_that_generate_no_text_are_no_requests(call_type):
    assert refused(payload(call_type=call_type), "litellm", NotARequest).startswith("call_type: ")
    assert refused(payload(status="failure"), "litellm", NotARequest).startswith("status: the call failed")


def test_litellm_prompts_stand_in_messages_or_in_the_body_that_spend_logs_keep():
    body = orjson.dumps({"messages": [USER], "tools": [{"type": "function"}]}).decode()
    record = read(payload(messages={}, proxy_server_request=body), "litellm")
    assert record.messages == [USER] and record.tools == [{"type": "function"}]
    assert read(payload(messages=orjson.dumps([USER]).decode()), "litellm").messages == [USER]
    assert read(payload(messages="Hello"), "litellm").messages == [USER]
    assert read(payload(messages="Hello", call_type="text_completion"), "litellm").text == "Hello"
    assert "store_prompts_in_spend_logs" in refused(payload(messages={}), "litellm")
    redacted = payload(messages=[{"role": "user", "content": "redacted-by-litellm"}])
    assert "turn_off_message_logging" in refused(redacted, "litellm")


def test_litellm_logs_the_other_interfaces_too():
    system = {"role": "system", "content": "Be brief."}
    turn = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    claude = payload(call_type="anthropic_messages", messages=[turn], model_parameters={"system": "Be brief."})
    assert read(claude, "litellm").messages[0] == system
    items = payload(call_type="aresponses", messages=[USER], model_parameters={"instructions": "Be brief."})
    assert read(items, "litellm").messages == [system, USER]
    said = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}]
    assert read(items | {"response": {"output": said}}, "litellm").output_text == "Hi"
    kept = payload(call_type="aresponses", model_parameters={"previous_response_id": "r"})
    assert read(kept, "litellm").lacks == "the turns before it (previous_response_id)"


def test_litellm_counts_of_nothing_give_way_to_the_answer():
    answer = {"choices": [{"message": {"content": "Hi"}}]}
    assert read(payload(completion_tokens=0, response=answer), "litellm").output_length is None
    assert read(payload(completion_tokens=0), "litellm").output_length == 0
    usage = payload(completion_tokens=None, response=answer | {"usage": {"completion_tokens": 4}})
    assert read(usage, "litellm").output_length == 4
    assert not read(payload(completion_tokens=None), "litellm").has_output


LITELLM_CUT = "x" * 716 + "... (litellm_truncated skipped 912 chars. To keep more, see the docs.) ..." + "y" * 1331


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"messages": [USER | {"content": LITELLM_CUT}]}, "messages[0].content"),
        ({"messages": [USER | {"content": "x" * 2048 + "... (litellm_truncated 52 chars)"}]}, "messages[0].content"),
        ({"messages": [USER | {"content": [{"type": "text", "text": LITELLM_CUT}]}]}, "messages[0].content[0]"),
        ({"messages": orjson.dumps([USER, USER | {"content": LITELLM_CUT}]).decode()}, "messages[1].content"),
        ({"messages": LITELLM_CUT}, "messages[0].content"),
        ({"messages": orjson.dumps([USER]).decode()[:-9]}, "messages"),
        ({"messages": "{}", "proxy_server_request": {"messages": [USER | {"content": LITELLM_CUT}]}},
         "proxy_server_request.messages[0].content"),
        ({"completion_tokens": None, "response": LITELLM_CUT}, "response"),
    ],
)  # fmt: skip
def test_texts_cut_by_litellm_are_refused_unless_allowed(changed, path):
    line = orjson.dumps(payload(**changed))
    with pytest.raises(RowError) as error:
        open_reader("litellm", [line]).records(line)
    assert str(error.value).startswith(f"{path}: was cut short by the logger.")
    (record,) = open_reader("litellm", [line], allow_truncated=True).records(line)
    assert record.cut == path


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"startTime": None}, "startTime: is missing. A trace needs the time of each request."),
        ({"messages": ["a"]}, "messages[0]: is a string; expected a message or a token id."),
        ({"messages": [USER, {"content": "a"}]}, "messages[1].role: is missing; expected a string."),
        ({"completion_tokens": -1}, "completion_tokens: is negative."),
        ({"metadata": {"user_api_key_user_id": []}}, "metadata.user_api_key_user_id: is a list;"),
        ({"model_parameters": {"tools": {}}}, "model_parameters.tools: is an object;"),
    ],
)
def test_a_bad_call_of_litellm_is_refused_with_its_path(changed, line):
    row = payload(**changed)
    row = row if changed.get("startTime", 0) is not None else {"startTime": None} | row
    assert refused(row, "litellm").startswith(line)


# -- opentelemetry ---------------------------------------------------------------------------------------------------


def span(**attributes):
    """A span of a call, in OpenTelemetry's own dialect."""
    base = {"gen_ai.operation.name": "chat", "gen_ai.usage.output_tokens": 3}
    return {"start_time": "2031-01-01T00:00:00Z", "attributes": base | attributes}


def said(*parts, role="user"):
    return {"gen_ai.input.messages": [{"role": role, "parts": list(parts)}]}


def otlp(*spans, resource=()):
    return {"resourceSpans": [{"resource": {"attributes": list(resource)}, "scopeSpans": [{"spans": list(spans)}]}]}


TEXT = {"type": "text", "content": "Hello"}


def test_parts_become_messages_that_templates_know():
    call = {"type": "tool_call", "id": "c", "name": "f", "arguments": {"a": 1}}
    result = {"type": "tool_call_response", "id": "c", "response": "done"}
    (message,) = read(
        span(**said({"type": "reasoning", "content": "Hm."}, TEXT, call, role="assistant")), "otel"
    ).messages
    assert message["content"] == "Hello" and message["reasoning_content"] == "Hm."
    assert message["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    both = read(span(**said(result, result | {"id": "d"}, role="tool")), "otel").messages
    assert [(m["role"], m["tool_call_id"], m["content"]) for m in both] == [
        ("tool", "c", "done"),
        ("tool", "d", "done"),
    ]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "blob", "modality": "image", "content": "AA"}, "image"),
        ({"type": "uri", "modality": "video", "uri": "gs://a"}, "video"),
        ({"type": "file", "file_id": "f"}, "file"),
    ],
)
def test_parts_that_are_no_text_are_identified(part, kind):
    record = read(span(**said(TEXT, part)), "otel")
    other = read(span(**said(TEXT, part | {"mime_type": "other"})), "otel")
    assert record.type == kind and len(media_of(record)) == 1 and media_of(record) != media_of(other)


@pytest.mark.parametrize("form", ["object", "nested", "otlp", "text"])
def test_attributes_are_read_in_every_form(form):
    plain = {"gen_ai.usage.output_tokens": 7, "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hello"}
    forms = {
        "object": plain,
        "nested": {"gen_ai": {"usage": {"output_tokens": 7}, "prompt": [USER]}},
        "otlp": [{"key": k, "value": {"intValue": "7"} if v == 7 else {"stringValue": v}} for k, v in plain.items()],
        "text": orjson.dumps(plain).decode(),
    }
    record = read({"startTimeUnixNano": "1900000000000000000", "attributes": forms[form]}, "otel")
    assert (record.messages, record.output_length) == ([USER], 7)


def test_otlp_values_of_every_type_are_plain():
    pairs = [{"key": "list", "value": {"arrayValue": {"values": [{"intValue": 5}, {"boolValue": True}, {}]}}},
             {"key": "map", "value": {"kvlistValue": {"values": [{"key": "x", "value": {"doubleValue": 0.5}}]}}},
             {"key": "snake", "value": {"string_value": "s"}}, {"key": "none"}]  # fmt: skip
    assert otel_values.attributes(pairs) == {"list": [5, True, None], "map.x": 0.5, "snake": "s", "none": None}


leaves = st.one_of(st.integers(), st.booleans(), st.text("ab", max_size=3))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, min_size=1),
    ),
    max_leaves=10,
)


@given(st.lists(trees, min_size=1, max_size=12))
def test_numbered_attributes_become_lists(items):
    flat = {}

    def spread(value, name):
        if type(value) in (dict, list):
            for key, item in value.items() if type(value) is dict else enumerate(value):
                spread(item, f"{name}.{key}")
        else:
            flat[name] = value

    spread(items, "a.b")
    assert otel_values.gathered(dict(reversed(flat.items())), "a.b") == (items, True)


def test_spans_of_one_line_are_no_conversation(tmp_path):
    attributes = [{"key": "gen_ai.prompt.0.content", "value": {"stringValue": "Hello"}},
                  {"key": "gen_ai.prompt.0.role", "value": {"stringValue": "user"}},
                  {"key": "llm.usage.completion_tokens", "value": {"intValue": "3"}}]  # fmt: skip
    spans = [{"startTimeUnixNano": str(19 * 10**17 + i), "attributes": attributes} for i in range(3)]
    log = tmp_path / "log.jsonl"
    log.write_bytes(orjson.dumps(otlp(*spans)))
    trace = kvtrace.ingest.anonymize(log, tokenizer=str(TINY), block_size=2, profile="exact")
    assert len(trace) == 3 and (trace.session is None or (trace.session < 0).all())


def test_a_span_inherits_users_and_tenants_from_its_resource():
    resource = [{"key": "user.id", "value": {"stringValue": "u"}}, {"key": "tenant.id", "value": {"intValue": "7"}}]
    record = read(otlp(span(**said(TEXT)), resource=resource), "otel")
    assert (record.user, record.tenant) == ("u", "7")
    own = read(otlp(span(**said(TEXT), **{"user.id": "own"}), resource=resource), "otel")
    assert own.user == "own"


TENANT_PATHS = {  # path -> tenants of two spans; the field `tenant.id` is read without a path
    None: ["bakery", "bakery"], "app.team": ["rye", "oat"], "attributes.app.team": ["rye", "oat"],
    "resource.attributes.app.team": ["all", "all"], "app.shop": ["west", "west"], "attributes.app.shop": [None, None],
    "name": ["chat", "chat"], "app.none": [None, None],
}  # fmt: skip


@pytest.mark.parametrize("as_pairs", [False, True], ids=["objects", "pairs"])
@pytest.mark.parametrize("path", TENANT_PATHS)
def test_the_path_of_a_tenant_names_an_attribute_of_each_span(path, as_pairs):
    def attributes(texts):
        return [{"key": k, "value": {"stringValue": v}} for k, v in texts.items()] if as_pairs else texts

    call = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": orjson.dumps([USER]).decode(),
            "gen_ai.output.messages": orjson.dumps([USER | {"role": "assistant"}]).decode()}  # fmt: skip
    spans = [{"name": "chat", "startTimeUnixNano": "5", "attributes": attributes({**call, "app.team": team})}
             for team in ("rye", "oat")]  # fmt: skip
    resource = {"attributes": attributes({"tenant.id": "bakery", "app.team": "all", "app.shop": "west"})}
    batch = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
    for rows in ([batch], [span | {"resource": resource} for span in spans]):
        lines = [orjson.dumps(row) for row in rows]
        reader = open_reader("otel", lines, field_map=None if path is None else {"tenant": path}, time_unit="ns")
        assert [record.tenant for line in lines for record in reader.records(line)] == TENANT_PATHS[path]


@pytest.mark.parametrize(
    ("attributes", "setting"),
    [
        ({"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 5}, "OTEL_INSTRUMENTATION_GENAI_CAPTURE_"),
        ({"llm.request.type": "chat", "gen_ai.usage.prompt_tokens": 5}, "TRACELOOP_TRACE_CONTENT=true"),
        ({"openinference.span.kind": "LLM", "llm.token_count.prompt": 5}, "OPENINFERENCE_HIDE_INPUTS=false"),
        ({"openinference.span.kind": "LLM", "llm.input_messages.0.message.role": "user",
          "llm.input_messages.0.message.content": "__REDACTED__"}, "OPENINFERENCE_HIDE_INPUTS=false"),
    ],
)  # fmt: skip
def test_a_span_without_content_is_reported_with_the_setting_that_captures_it(attributes, setting):
    assert setting in refused({"start_time": "2031-01-01T00:00:00Z", "attributes": attributes}, "otel")


@pytest.mark.parametrize(
    "attributes",
    [
        {"http.request.method": "GET"},
        {"gen_ai.operation.name": "embeddings", "gen_ai.usage.input_tokens": 5},
        {"gen_ai.operation.name": "invoke_agent"} | said(TEXT),
        {"openinference.span.kind": "CHAIN", "llm.input_messages.0.message.role": "user"},
        {"traceloop.span.kind": "tool"},
    ],
)
def test_spans_of_other_work_are_no_requests(attributes):
    row = {"start_time": "2031-01-01T00:00:00Z", "attributes": attributes}
    refused(row, "otel", NotARequest)
    refused(otlp(row), "otel", NotARequest)
    assert len(records_of(otel, otlp(row, span(**said(TEXT)), row))) == 1


def test_calls_that_failed_are_no_requests():
    failed = {"start_time": "2031-01-01T00:00:00Z", "attributes": {"gen_ai.operation.name": "chat"} | said(TEXT)}
    for status in ({"code": 2}, {"code": "STATUS_CODE_ERROR"}, {"status_code": "ERROR"}):
        assert "failed" in refused(failed | {"status": status}, "otel", NotARequest)
    assert read(span(**said(TEXT)) | {"status": {"code": 2}}, "otel").output_length == 3  # an answer that broke off


JSON_CUT = orjson.dumps([{"role": "user", "parts": [TEXT]}]).decode()[:-7]


@pytest.mark.parametrize(
    ("row", "path"),
    [
        (span(**{"gen_ai.input.messages": JSON_CUT}), "attributes.gen_ai.input.messages"),
        (span(**said(TEXT), **{"gen_ai.system_instructions": '[{"type": '}), "attributes.gen_ai.system_instructions"),
        (span(**said(TEXT), **{"gen_ai.tool.definitions": '[{"type": "fu'}), "attributes.gen_ai.tool.definitions"),
        (span(**said(TEXT), **{"gen_ai.output.messages": JSON_CUT, "gen_ai.usage.output_tokens": None}),
         "attributes.gen_ai.output.messages"),
        (span(**{"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "Hi",
                 "llm.tools.0.tool.json_schema": '{"type": "fu'}), "attributes.llm.tools.0.tool.json_schema"),
        (span(**{"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": MIDDLE}),
         "attributes.gen_ai.prompt[0].content"),
    ],
)  # fmt: skip
def test_attributes_cut_by_a_length_limit_are_refused_unless_allowed(row, path):
    line = orjson.dumps(row)
    with pytest.raises(RowError) as error:
        open_reader("otel", [line]).records(line)
    assert str(error.value).startswith(f"{path}: was cut short by the logger.")
    (record,) = open_reader("otel", [line], allow_truncated=True).records(line)
    assert record.cut == path
    assert (records_of(otel, otlp(row))[0].cut or "").endswith(f".spans[0].{path}")


def test_messages_that_are_lost_are_missed():
    gap = span(**{f"gen_ai.prompt.{i}.{name}": "user" for i in (0, 2) for name in ("role", "content")})
    few = span(**said(TEXT)) | {"droppedAttributesCount": 3}
    for row, lacks in [(gap, "numbers have gaps"), (few, "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT")]:
        assert lacks in read(row, "otel").lacks
        line = orjson.dumps(row)
        with pytest.raises(RowError, match=lacks):
            open_reader("otel", [line]).records(line)
        assert open_reader("otel", [line], allow_truncated=True).records(line)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (span(**said(TEXT)) | {"start_time": None}, "start_time: is missing"),
        (span(**said("a")), "attributes.gen_ai.input.messages[0].parts: is not a list of parts."),
        (span(**{"gen_ai.input.messages": 5}), "attributes.gen_ai.input.messages: is a number;"),
        (span(**said(TEXT), **{"gen_ai.usage.output_tokens": -1}), "attributes.gen_ai.usage.output_tokens: is "),
        (span(**said(TEXT), **{"session.id": []}), "attributes.session.id: is a list;"),
        ({"start_time": 5, "attributes": 5}, "attributes: are not an object or a list of keys."),
        ({"start_time": 5, "attributes": '{"gen_ai.pro'}, "attributes: were cut short: their JSON is incomplete."),
        ({"resourceSpans": {}}, "resourceSpans: is not a list of objects."),
        (otlp(span(**said(TEXT)), span(**{"gen_ai.input.messages": 5})),
         "resourceSpans[0].scopeSpans[0].spans[1].attributes.gen_ai.input.messages: is a number;"),
    ],
)  # fmt: skip
def test_a_bad_span_is_refused_with_its_path(row, line):
    assert refused(row, "otel").startswith(line)


# -- log records of opentelemetry -------------------------------------------------------------------------------------

DETAILS = "gen_ai.client.inference.operation.details"


def logs(*records, resource=()):
    scopes = [{"logRecords": list(records)}]
    return {"resourceLogs": [{"resource": {"attributes": list(resource)}, "scopeLogs": scopes}]}


def details(**attributes):
    """A log record with the event of a call."""
    return {"eventName": DETAILS, "timeUnixNano": "1900000000000000000", "attributes": span(**attributes)["attributes"]}


def message(name, ms, body, **fields):
    """A log record with one message of a call, as OTLP has it."""
    base = {"timeUnixNano": str(1_900_000_000_000_000_000 + ms * 10**6), "traceId": "a", "spanId": "b"}
    return base | {"eventName": f"gen_ai.{name}", "body": body} | fields


def test_an_event_of_a_call_is_the_record_of_its_span():
    resource = [{"key": "tenant.id", "value": {"intValue": "7"}}]
    attributes = said(TEXT) | {"gen_ai.conversation.id": "c", "gen_ai.usage.input_tokens": 9}
    as_span = span(**attributes) | {"start_time": None, "startTimeUnixNano": "1900000000000000000"}
    assert read(logs(details(**attributes), resource=resource), "otel") == read(
        otlp(as_span, resource=resource), "otel"
    )


def test_an_event_may_be_named_by_an_attribute_and_have_an_observed_time_alone():
    event = details(**said(TEXT))
    named = event | {"attributes": event["attributes"] | {"event.name": DETAILS}, "eventName": "", "timeUnixNano": "0",
                     "observedTimeUnixNano": event["timeUnixNano"]}  # fmt: skip
    assert read(logs(named), "otel") == read(logs(event), "otel")


def test_the_sdk_prints_an_event_a_line():
    row = {"body": None, "severity_number": 9, "attributes": span(**said(TEXT))["attributes"], "dropped_attributes": 0,
           "timestamp": None, "observed_timestamp": "2031-01-01T00:00:00.000000Z", "trace_id": "0xa", "span_id": "0xb",
           "resource": {"attributes": {"tenant.id": "t"}}, "event_name": DETAILS}  # fmt: skip
    reader = open_reader("auto", [orjson.dumps(row)])
    (record,) = reader.records(orjson.dumps(row))
    assert reader.name == "otel" and reader.time_ns(record) == 1_924_992_000 * 10**9
    assert (record.messages, record.tenant) == ([USER], "t")
    refused(row | {"event_name": "gen_ai.user.message"}, "otel", NotARequest)  # its call is on other lines


def test_events_of_messages_are_calls_by_trace_and_span():
    one = [message("system.message", 0, {"content": "Be brief."}), message("user.message", 1, {"content": "Hello"}),
           message("choice", 250, {"message": {"role": "assistant", "content": "Hi!"}})]  # fmt: skip
    other = [record | {"traceId": "z", "body": {"content": "Bye"}} for record in one[1:]]
    records = records_of(otel, logs(one[0], other[0], one[1], other[1], one[2]))
    assert [record.messages for record in records] == [
        [{"role": "system", "content": "Be brief."}, USER], [{"role": "user", "content": "Bye"}],
    ]  # fmt: skip
    assert [record.output_text for record in records] == ["Hi!", "Bye"]
    reader = open_reader("otel", [orjson.dumps(logs(*one))])
    (record,) = reader.records(orjson.dumps(logs(*one)))
    assert reader.service_ns(record, reader.time_ns(record)) == 250 * 10**6


def test_tool_calls_in_events_of_messages():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    records = [
        message("user.message", 0, {"content": "Hello"}),
        message("assistant.message", 1, {"tool_calls": [call]}),
        message("tool.message", 2, {"id": "c", "content": "done"}),
        message("choice", 3, {"message": USER}),
    ]
    messages = read(logs(*records), "otel").messages
    assert messages[1:] == [
        {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "done", "tool_call_id": "c"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "records",
    [
        [{"body": {"stringValue": "Ready."}, "timeUnixNano": "5"}],
        [message("user.message", 0, {"content": "Hello"})],  # its answer is in another line
        [message("choice", 0, {"message": USER})],
        [message("user.message", 0, USER, spanId=""), message("choice", 1, {"message": USER}, spanId="")],
        [],
    ],
)
def test_other_log_records_are_no_requests(records):
    refused(logs(*records), "otel", NotARequest)
    assert len(records_of(otel, logs(*records, details(**said(TEXT))))) == 1


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (logs(details()), "resourceLogs[0].scopeLogs[0].logRecords[0].attributes: have no prompt: content capture"),
        (logs(message("user.message", 0, None), message("choice", 1, {"message": {"role": "assistant"}})),
         "resourceLogs[0].scopeLogs[0].logRecords[0].attributes: have no prompt: content capture"),
        (logs(details(**{"gen_ai.input.messages": 5})),
         "resourceLogs[0].scopeLogs[0].logRecords[0].attributes.gen_ai.input.messages: is a number;"),
        (logs(details(**said(TEXT)) | {"timeUnixNano": "0"}), "resourceLogs[0].scopeLogs[0].logRecords[0].start_time"),
        ({"resourceLogs": 5}, "resourceLogs: is not a list of objects."),
        ({"resourceLogs": [{"scopeLogs": [{"logRecords": {}}]}]}, "resourceLogs[0].scopeLogs[0].logRecords: is not a"),
    ],
)  # fmt: skip
def test_a_bad_event_is_refused_with_its_path(row, line):
    assert refused(row, "otel").startswith(line)


# -- sglang ----------------------------------------------------------------------------------------------------------


def finished(obj=None, out=None, **meta):
    meta = {"prompt_tokens": 5, "completion_tokens": 3, "e2e_latency": 1.5} | meta
    return {
        "timestamp": "2031-01-01T00:00:09.250000", "event": "request.finished", "rid": "r",
        "obj": {"text": "Hello"} | (obj or {}), "out": {"meta_info": meta} | (out or {}),
    }  # fmt: skip


def test_a_request_came_its_latency_before_its_line_was_written():
    opened = open_reader("sglang", [orjson.dumps(finished())])
    (quick,) = opened.records(orjson.dumps(finished(e2e_latency=0.25)))
    (slow,) = opened.records(orjson.dumps(finished(e2e_latency=9)))
    assert opened.time_ns(quick) - opened.time_ns(slow) == 8_750_000_000
    assert read(finished(e2e_latency=None), "sglang").time == "2031-01-01T00:00:09.250000"
    assert (
        refused(finished(e2e_latency="1"), "sglang") == "out.meta_info.e2e_latency: is not a valid number of seconds."
    )
    mapped = read(finished() | {"timestamp": 5}, "sglang")
    assert mapped.time == 5  # a map's: not the time of the line


def test_sglang_token_ids_win_over_the_text_decoded_from_them():
    record = read(finished({"input_ids": [5, 6]}, {"output_ids": [7, 8, 9]}), "sglang")
    assert (record.token_ids, record.text, record.output_ids) == (array("I", [5, 6]), None, array("I", [7, 8, 9]))


def test_extra_keys_and_cache_salts_are_part_of_the_blocks_key():
    plain = read(finished(), "sglang")
    for obj in ({"extra_key": "a"}, {"cache_salt": "a"}, {"image_data": "a.png"}, {"audio_data": ["a"]}):
        record = read(finished(obj), "sglang")
        assert record.media + record.salts != plain.media + plain.salts
    assert read(finished({"lora_path": "a"}), "sglang").adapter == "a"


def test_a_session_of_the_engine_lacks_the_turns_before():
    record = read(finished({"session_params": {"id": "s", "rid": "q"}}), "sglang")
    assert record.session == "s" and record.lacks == "the turns before it (session_params)"
    assert read(finished({"session_id": "s"}), "sglang").lacks is None


def test_each_prompt_of_a_batch_is_a_request_of_its_own():
    out = [{"text": "a", "meta_info": {"completion_tokens": 1}}, {"text": "b", "meta_info": {"completion_tokens": 2}}]
    batch = finished({"text": None, "input_ids": [[5], [6, 7]], "lora_path": [None, "l"]}) | {"out": out}
    one, two = sglang.read_all(batch)
    assert (one.token_ids, one.adapter, two.token_ids, two.adapter) == (array("I", [5]), None, array("I", [6, 7]), "l")
    assert (one.output_length, two.output_length, one.session, two.session) == (1, 2, None, None)
    assert refused(batch | {"out": out[:1]}, "sglang") == "out: does not have one result for each prompt of the batch."


def test_sglang_events_that_are_no_requests_are_left_out():
    refused(finished() | {"event": "request.received"}, "sglang", NotARequest)
    refused(finished() | {"event": "request.other"}, "sglang", NotARequest)
    refused(finished(out={"embedding": [0.5]}), "sglang", NotARequest)
    assert "--log-requests-level 3" in refused(finished({"text": None}), "sglang")


@pytest.mark.parametrize(
    ("row", "path"),
    [
        (finished({"text": MIDDLE}), "obj.text"),
        (finished({"input_ids": [*range(1024), "...", *range(1024)]}), "obj.input_ids"),
        (finished({"image_data": MIDDLE}), "obj.image_data[0]"),
        (finished(out={"text": MIDDLE}, completion_tokens=None), "out.text"),
    ],
)
def test_texts_cut_at_level_2_are_refused_unless_allowed(row, path):
    line = orjson.dumps(row)
    with pytest.raises(RowError) as error:
        open_reader("sglang", [line]).records(line)
    assert str(error.value).startswith(f"{path}: was cut short by the logger.")
    (record,) = open_reader("sglang", [line], allow_truncated=True).records(line)
    assert record.cut == path


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (finished() | {"obj": 5}, "obj: is not an object; a finished request must have this object."),
        (finished() | {"out": None}, "out: is missing; a finished request must have this object."),
        (finished() | {"timestamp": None}, "timestamp: is missing."),
        (finished({"text": 5}), "obj.text: is a number;"),
        (finished({"input_ids": [5, -1]}), "obj.input_ids: is not a list of token ids"),
        (finished({"session_id": {}}), "obj.session_id: is an object;"),
        (finished(completion_tokens=-1), "out.meta_info.completion_tokens: is negative."),
    ],
)
def test_a_bad_line_of_sglang_is_refused_with_its_path(row, line):
    assert refused(row, "sglang").startswith(line)


# -- a map goes before all of it -------------------------------------------------------------------------------------

MAP = {"timestamp": "at", "input": "q", "output": "a", "user": "who", "session": "gone"}


@pytest.mark.parametrize("row", [payload(session_id="s"), span(**said(TEXT), **{"session.id": "s"}), finished()])
def test_a_map_is_laid_over_these_forms_too(row):
    line = orjson.dumps(row | {"at": 7, "q": "Hello there", "a": "Hi", "who": "kim"})
    name = next(name for name, reader in READERS.items() if reader.matches(row))
    (record,) = open_reader(name, [line], field_map=MAP).records(line)
    said = record.text or record.messages[0]["content"]
    assert (record.time, said, record.output_text, record.user, record.session) == (7, "Hello there", "Hi", "kim", None)


# -- laws ------------------------------------------------------------------------------------------------------------

CANARY = "canary-7c1f"
GOOD = [(EXAMPLES[name][0], orjson.loads(line)) for name in EXAMPLES for line in lines_of(name)]
words = st.sampled_from([CANARY, f"[{{{CANARY}", f'{{"{CANARY}', "user", "text", "", MIDDLE, "...", "0", "[]", "{}"])
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 2**70), st.floats(allow_nan=False), words),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from([CANARY, "key", "value", "stringValue", "role", "parts", "type", "0"]), inner),
    ),
    max_leaves=8,
)


def places_in(value):
    """Each object or list in a row, with each of its keys or indexes."""
    for key in list(value) if type(value) is dict else range(len(value)):
        yield value, key
        if type(value[key]) in (dict, list):
            yield from places_in(value[key])


@settings(deadline=None, max_examples=drawn(800), suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(GOOD), st.lists(anything, min_size=1, max_size=3), st.booleans(), st.data())
def test_any_good_row_with_values_changed_gives_records_or_an_error_without_content(good, changes, allowed, data):
    name, row = good
    row = copy.deepcopy(row)
    for value in changes:
        contributor, key = data.draw(st.sampled_from(list(places_in(row))))
        contributor[key] = value
        if not row:
            break
    row = {key: value if type(value) is not int or abs(value) < 2**63 else 0 for key, value in row.items()}
    try:
        reader = open_reader(name, [], time_unit="ns", allow_truncated=allowed)
        for record in records_of(READERS[name], row):
            assert sum(prompt is not None for prompt in (record.messages, record.text, record.token_ids)) == 1
            assert record.time is not None and reader.name == name
        READERS[name].matches(row)
        READERS[name].small_unit(row)
    except RowError as error:
        assert_silent(error)


@pytest.mark.parametrize("depth", [40, 900])
def test_rows_that_nest_too_deeply_are_refused(depth):
    deep = "x"
    for _ in range(depth):
        deep = {"a": deep}
    for row in (span(**said({"type": "tool_call_response", "response": deep}, role="tool")), span(**{"llm.x": deep})):
        try:
            records_of(otel, row)
        except RowError as error:
            assert_silent(error)
    nested = {"stringValue": "x"}
    for _ in range(depth):
        nested = {"arrayValue": {"values": [nested]}}
    with pytest.raises(RowError, match="nested too deeply"):
        records_of(otel, {"start_time": 5, "attributes": [{"key": "gen_ai.x", "value": nested}]})


def assert_silent(error):
    """Nothing of the row is in the error: not in its words, its parts or what hangs on it."""
    told = "".join(traceback.format_exception_only(error)) + repr(error.args) + repr(vars(error))
    assert CANARY not in told and "\n" not in str(error)
    assert error.__context__ is None and error.__cause__ is None
    assert pickle.loads(pickle.dumps(error)).reason == error.reason


def test_modules_name_their_forms():
    assert [READERS[name] for name in ("litellm", "otel", "sglang")] == [litellm, otel, sglang]
    assert not open_reader("otel", []).is_conversation and not open_reader("sglang", []).is_conversation
    assert sources.find(DATA / "otel_otlp.jsonl")
