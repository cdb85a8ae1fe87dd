"""The SDKs of OpenAI and Anthropic through the proxy: they see what they see without it, and a row has it all."""

import orjson
import pytest

from kvtrace.ingest.logs import READERS
from tests.capture import stub_model
from tests.capture.recorded import line_of, record_of, row_as_logged, without_clock
from tests.capture.stub_model import ARGUMENTS, CACHED, OUTPUT, PROMPT, TEXT, THINKING

pytestmark = [pytest.mark.enable_socket, pytest.mark.allow_hosts(["127.0.0.1"])]

SYSTEM = "Be brief."
TURNS = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "?"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT_TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("weather", "find")]
MESSAGE_TOOLS = [{"name": name, "input_schema": SCHEMA} for name in ("weather", "find")]
RESPONSE_TOOLS = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in ("a", "b")]

CHAT = {"model": "stub-1", "messages": [{"role": "system", "content": SYSTEM}, *TURNS], "user": "u1"}
MESSAGE = {"model": "stub-1", "max_tokens": 99, "system": SYSTEM, "messages": TURNS, "metadata": {"user_id": "u1"}}
RESPONSE = {"model": "stub-1", "instructions": SYSTEM, "input": TURNS}
CALLS = {
    "chat": ("proxy-openai", CHAT),
    "chat, tools": ("proxy-openai", CHAT | {"tools": CHAT_TOOLS}),
    "chat, reasoning": ("proxy-openai", CHAT | {"reasoning_effort": "low"}),
    "chat, two answers": ("proxy-openai", CHAT | {"n": 2}),
    "completion": ("proxy-openai", {"model": "stub-1", "prompt": "Once upon a time"}),
    "response": ("proxy-responses", RESPONSE),
    "response, tools": ("proxy-responses", RESPONSE | {"tools": RESPONSE_TOOLS}),
    "message": ("proxy-anthropic", MESSAGE),
    "message, tools": ("proxy-anthropic", MESSAGE | {"tools": MESSAGE_TOOLS}),
    "message, thinking": ("proxy-anthropic", MESSAGE | {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
}
STREAMED = {"stream": True}
CODINGS = ("gzip", "deflate", "br")  # that the SDKs ask for


def client(kind, url):
    import anthropic  # here, because both take seconds of each collection
    import openai

    if kind.startswith("message"):
        return anthropic.Anthropic(base_url=url, api_key="sk-CanaryQz7xKw", max_retries=0)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="sk-CanaryQz7xKw", max_retries=0)


def call(kind, request, url, script=None):
    """What the SDK returns, as plain objects: the answer, or the list of its events."""
    with client(kind, url) as sdk:
        create = {
            "chat": lambda: sdk.chat.completions.create, "completion": lambda: sdk.completions.create,
            "response": lambda: sdk.responses.create, "message": lambda: sdk.messages.create,
        }[kind.split(",")[0]]()  # fmt: skip
        answer = create(**request, extra_body={"stub": script or {}})
        if request.get("stream"):
            return [event.model_dump(warnings=False) for event in answer]
        return answer.model_dump(warnings=False)


def streamed(kind, request):
    usage = {"stream_options": {"include_usage": True}} if kind.startswith(("chat", "completion")) else {}
    return request | STREAMED | usage


def expected(source, request):
    """The Record of the request in a log without streaming, by the stub's own answer."""
    answers = {"proxy-responses": stub_model.response, "proxy-anthropic": stub_model.message}
    other = stub_model.completion if "prompt" in request else stub_model.chat
    return record_of(source, row_as_logged(request, answers.get(source, other)(request)))


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", CALLS)
def test_an_sdk_sees_no_difference_and_the_record_is_that_of_the_log(kind, is_streamed, upstream, proxied, queue):
    source, plain = CALLS[kind]
    request = streamed(kind, plain) if is_streamed else plain
    app = proxied()
    assert call(kind, request, app.url) == call(kind, request, upstream)
    ((name, payload),) = queue.take()
    line = line_of(name, payload)
    record = record_of(name, line)
    assert name == source and without_clock(record) == without_clock(expected(source, plain))
    assert (record.output_length, record.cached_tokens, record.prompt_tokens) == (OUTPUT, CACHED, PROMPT)
    assert record.time <= record.end_time and (record.first_token is not None) == is_streamed
    assert record.first_token is None or record.time < record.first_token < record.end_time
    assert (app.counts.requests, app.counts.recorded) == (1, 1)
    assert next(n for n, reader in READERS.items() if reader.matches(orjson.loads(line))) == source.split("-")[1]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", ["chat, tools", "message", "response"])
def test_a_compressed_answer_goes_through_as_it_is_and_is_read(kind, is_streamed, coding, upstream, proxied, queue):
    source, plain = CALLS[kind]
    request = streamed(kind, plain) if is_streamed else plain
    app = proxied()
    assert call(kind, request, app.url, {"coding": coding}) == call(kind, request, upstream, {"coding": coding})
    ((name, payload),) = queue.take()
    assert without_clock(record_of(name, line_of(name, payload))) == without_clock(expected(source, plain))


@pytest.mark.parametrize("kind", ["chat", "message", "response"])
@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 500, 503, 529])
def test_an_error_of_the_server_reaches_the_client_and_is_not_recorded(kind, status, upstream, proxied, queue):
    import anthropic
    import openai

    app, errors = proxied(), []
    for url in (upstream, app.url):
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as raised:
            call(kind, CALLS[kind][1], url, {"status": status})
        errors.append((type(raised.value), raised.value.status_code, raised.value.body, str(raised.value)))
    assert errors[0] == errors[1] and errors[0][1] == status
    assert not queue.payloads and (app.counts.requests, app.counts.recorded, app.counts.failed) == (1, 0, 0)


def test_a_stream_without_usage_has_its_text(upstream, proxied, queue):
    call("chat, reasoning", CHAT | STREAMED | {"reasoning_effort": "low"}, proxied().url)
    record = record_of("proxy-openai", line_of(*queue.take()[0]))
    assert (record.output_length, record.output_text) == (None, THINKING + TEXT)


def test_the_output_of_tools_is_their_arguments(upstream, proxied, queue):
    call("message, tools", streamed("message", CALLS["message, tools"][1]), proxied().url)
    record = record_of("proxy-anthropic", line_of(*queue.take()[0]))
    assert record.output_text == TEXT + 2 * orjson.dumps(ARGUMENTS).decode()


def test_sdk_helpers_that_put_streams_together_work(upstream, proxied, queue):
    app = proxied()
    with client("message", app.url) as sdk, sdk.messages.stream(**MESSAGE) as stream:
        assert stream.get_final_text() == TEXT
    with client("response", app.url) as sdk, sdk.responses.stream(**RESPONSE) as stream:
        assert stream.get_final_response().output_text == TEXT
    assert {source for source, _ in queue.take(2)} == {"proxy-anthropic", "proxy-responses"}


def test_other_calls_go_through_and_are_not_recorded(upstream, proxied, queue, model):
    app = proxied()
    with client("message", app.url) as sdk:
        assert sdk.messages.count_tokens(model="stub-1", messages=TURNS).input_tokens == 57
    with client("chat", app.url) as sdk:
        assert sdk.models.list().data == []
    assert not queue.payloads and app.counts.requests == len(model.seen) == 2
