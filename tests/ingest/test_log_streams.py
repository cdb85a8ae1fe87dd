"""Event streams in log files: each form that a log has of one, and texts that only look like one."""

import json
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace._base.errors import NotARequest, RowError
from kvtrace.ingest.logs import open_reader
from kvtrace.ingest.logs.logged_streams import unstreamed, with_responses
from tests.attacks.canary import CANARY, all_of, require_none
from tests.capture import stub_model
from tests.capture.stub_model import CACHED, OUTPUT, PROMPT, STREAMS

TOOLS = {
    stub_model.chat: [{"function": {"name": "a"}}], stub_model.completion: None,
    stub_model.response: [{"name": "a"}], stub_model.message: [{"name": "a"}],
}  # fmt: skip
PROMPTS = {
    stub_model.chat: {"messages": [{"role": "user", "content": "?"}]}, stub_model.completion: {"prompt": "?"},
    stub_model.response: {"input": "?"},
    stub_model.message: {"messages": [{"role": "user", "content": "?"}], "system": "Be brief."},
}  # fmt: skip
APIS = list(PROMPTS)


def request_of(api, **more):
    usage = {"stream_options": {"include_usage": True}}
    return {"model": "m", "tools": TOOLS[api], "thinking": True} | usage | PROMPTS[api] | more


def events_of(api, **more):
    request = request_of(api, **more)
    return STREAMS[api](request, api(request))


def text_of(api, end="\n", **more):
    text = b"".join(stub_model.line(event, api) for event in events_of(api, **more)).decode()
    return (text + ("data: [DONE]\n\n" if api in (stub_model.chat, stub_model.completion) else "")).replace("\n", end)


def forms_of(api):
    """The stream in each form that does not depend on where it is cut."""
    events, text = events_of(api), text_of(api)
    yield text
    yield text_of(api, "\r\n")
    yield text_of(api, "\r")
    yield "\ufeff: a comment\n\nid: 7\nretry: 5\n" + text.rstrip("\n")
    yield text.removesuffix("data: [DONE]\n\n")
    yield text.replace("\n\n", "\n")  # without blank lines
    yield (
        "".join(f"data: {line}\n" for line in json.dumps(events[0], indent=1).split("\n"))
        + "\n"
        + "".join(f"data:{json.dumps(event)}\n\n" for event in events[1:])
    )
    yield events
    yield [*events, "[DONE]"]
    yield [json.dumps(event) for event in events]
    yield [{"event": event.get("type"), "data": event} for event in events]
    yield [{"data": json.dumps(event)} for event in events]
    yield "\n".join(map(json.dumps, events))
    yield json.dumps(events)
    yield json.dumps(text)
    yield text.split("\n")
    yield text.splitlines(keepends=True)
    yield [part + "\n\n" for part in text.split("\n\n") if part]
    yield [part for part in text.split("\n\n") if part]


def record_of(row):
    line = orjson.dumps(row)
    reader = open_reader("auto", [line])
    (record,) = reader.records(line)
    return reader.name, reader.time_ns(record), record


def counts_of(row):
    name, time_ns, record = record_of(row)
    return name, time_ns, record.output_length, record.prompt_tokens, record.cached_tokens, record.output_text


# -- forms -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", APIS)
def test_each_form_of_a_stream_is_the_answer_without_streaming(api):
    row = {"timestamp": 1_700_000_001, "request": request_of(api)}
    whole = counts_of(row | {"response": api(request_of(api))})
    assert whole[2:5] == (OUTPUT, PROMPT, CACHED)
    for form in forms_of(api):
        assert counts_of(row | {"response": form}) == whole
        assert counts_of(row | {"response": {"status_code": 200, "body": form}}) == whole


@pytest.mark.parametrize("api", APIS)
def test_a_stream_may_be_an_output_or_in_an_envelope(api):
    request, whole = request_of(api), api(request_of(api))
    form = text_of(api)
    for row in ({"timestamp": 0, "input": "?", "output": form}, {"timestamp": 0, "prompt": "?", "output": form}):
        assert record_of(row)[2].output_text == record_of(row | {"output": whole})[2].output_text
        assert record_of(row)[2].output_length == OUTPUT
    flat = {"timestamp": 5, "request": request}
    for name in ("chunks", "events", "stream", "content"):
        assert record_of(flat | {"response": {"headers": {}, name: events_of(api)}})[2].output_length == OUTPUT
    assert record_of(flat | {"chunks": events_of(api)})[2].output_length == OUTPUT
    har = {"status": 200, "content": {"mimeType": "text/event-stream", "text": form}}
    assert record_of(flat | {"response": har})[2].output_length == OUTPUT


@pytest.mark.parametrize("api", [stub_model.chat, stub_model.completion, stub_model.response])
def test_chunks_have_the_time_of_their_response(api):
    row = {"request": request_of(api)}
    for form in (events_of(api), text_of(api)):
        assert record_of(row | {"response": form})[1] == 1_700_000_000 * 10**9


@given(st.sampled_from(APIS), st.data())
def test_pieces_cut_anywhere_are_the_answer_without_streaming(api, data):
    text = data.draw(st.sampled_from([text_of(api), text_of(api, "\r\n"), "\n".join(map(json.dumps, events_of(api)))]))
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert unstreamed(pieces, "response") == unstreamed(text, "response")


@given(st.sampled_from(APIS), st.data())
def test_a_stream_that_ended_early_counts_the_output_that_came(api, data):
    text, events = text_of(api), events_of(api)
    size = data.draw(st.integers(200, len(text)))
    number = data.draw(st.integers(1, len(events)))
    for form in (text[:size], [text[: size // 2], text[size // 2 : size]], events[:number]):
        row = {"timestamp": 0, "input": "?", "output": form}
        try:
            record = record_of(row)[2]
        except NotARequest as reason:
            assert reason.reason == "the answer ended before its first token."
        else:
            assert record.output_length in (None, OUTPUT) and record.output_text is not None
            assert "data:" not in record.output_text


def test_a_cut_stream_of_chunks_by_hand():
    chunks = [
        {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": [
            {"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in ("It ", "is ", "late.")
    ]  # fmt: skip
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    row = {"messages": [{"role": "user", "content": "?"}]}
    whole = record_of(row | {"response": "".join(lines)})[2]
    cut = record_of(row | {"response": "".join(lines)[: len(lines[0] + lines[1]) + 30]})[2]
    assert (whole.output_text, cut.output_text) == ("It is late.", "It is ") and cut.model == "m"
    with pytest.raises(NotARequest, match=r"response: the answer ended before its first token\."):
        record_of(row | {"timestamp": 0, "response": lines[0][:60]})


def test_several_choices_give_the_first_as_without_streaming():
    row = {"request": request_of(stub_model.chat, n=3)}
    streamed = record_of(row | {"response": text_of(stub_model.chat, n=3)})
    assert streamed == record_of(row | {"response": stub_model.chat(request_of(stub_model.chat, n=3))})


def test_token_ids_of_chunks_are_read():
    first = {"object": "chat.completion.chunk", "created": 5, "prompt_token_ids": [1, 2, 3], "choices": [
        {"index": 0, "delta": {"role": "assistant", "content": ""}}]}  # fmt: skip
    more = [{"choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": [n]}]} for n in (7, 8)]
    name, _, record = record_of({"response": [first, *more]})
    assert (name, list(record.token_ids), list(record.output_ids)) == ("tokens", [1, 2, 3], [7, 8])


# -- what is no answer, and what is no stream ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        'data: {"error": {"message": "no"}}\n\n', 'event: error\ndata: {"type": "error", "error": {}}\n\n',
        "data: [DONE]\n\n", [{"error": {"message": "no"}}, "[DONE]"],
        [{"type": "response.failed", "response": {"status": "failed"}}],
        [{"type": "message_start", "message": {"usage": {"output_tokens": 1}}}, {"type": "error", "error": {}}],
        [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}],
    ],
)  # fmt: skip
def test_a_stream_without_output_is_no_request(form):
    with pytest.raises(NotARequest, match=r"response: the answer ended before its first token\."):
        record_of({"timestamp": 0, "messages": [{"role": "user", "content": "?"}], "response": form})


@pytest.mark.parametrize(
    "text",
    [
        "data: the results are in.", "data: {results}", 'data: {"a": 1}', "data:", "event: a party", ": a colon",
        "id: 7\nname: x", 'data: {"id": 5, "cho', '{"a": 1}\n{"b": 2}', '["a", "b"]', "[1] is a list", '"quoted"',
        '{"choices": 1}\n', "data: 5\n\ndata: 6\n\n", "retry: later",
    ],
)  # fmt: skip
def test_a_text_that_looks_like_a_stream_stays_a_text(text):
    assert unstreamed(text, "output") is text
    assert record_of({"timestamp": 0, "input": "?", "output": text})[2].output_text == text


@pytest.mark.parametrize(
    "value",
    [
        [{"type": "text", "text": "Yes"}], [{"role": "assistant", "content": "Yes"}], [5, 6], [], [None], ["a", "b"],
        [{"choices": [{"message": {"content": "Yes"}}]}], [{"type": "message", "role": "assistant", "content": []}],
        [{"name": "gen_ai.choice", "attributes": {}}],
    ],
)  # fmt: skip
def test_a_list_of_other_things_stays_as_it_is(value):
    assert unstreamed(value, "output") is value


def test_the_message_of_an_answer_is_never_a_stream():
    row = {"response": {"role": "assistant", "content": text_of(stub_model.chat)}}
    assert with_responses(row) is row


def test_a_stream_of_an_unknown_api_is_an_error_and_not_a_text():
    text = f'data: {{"candidates": ["{CANARY}"]}}\n\n' * 2
    with pytest.raises(
        RowError, match=r"^response: is an event stream of an API that kvtrace does not know\."
    ) as error:
        record_of({"timestamp": 0, "messages": [{"role": "user", "content": "?"}], "response": text})
    require_none(all_of(error.value), where="the error")


@pytest.mark.parametrize("broken", ["data: {%s}\n\n", 'data: ["%s"]\n\n', "data: %s\n\n"])
def test_an_event_that_is_no_object_is_an_error_without_content(broken):
    text = text_of(stub_model.chat)
    half = text.index("\n\n", len(text) // 2) + 2
    with pytest.raises(RowError, match="^response: an event of the answer's stream is not a JSON object") as error:
        record_of({"request": request_of(stub_model.chat), "response": text[:half] + broken % CANARY + text[half:]})
    require_none(all_of(error.value), where="the error")


JUNK = st.recursive(
    st.none() | st.integers(-2, 9) | st.sampled_from(["", "x", "[DONE]", "data: {", "data: {}\n\n", "message_start"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ["type", "choices", "delta", "text", "content", "data", "chunk", "error", "body", "events", "response",
         "output", "item", "index", "object", "usage", "message"]), inner, max_size=4), max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["response", "output", "chunks", "stream", "outputs"]), JUNK, max_size=3))
def test_any_value_is_opened_or_a_row_error(row):
    try:
        orjson.dumps(with_responses(row))
    except RowError as error:
        assert error.__cause__ is None


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "x" * 50}}]}}]},
        {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "x" * 50},
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "x" * 50},
    ],
)
def test_the_pieces_of_an_answer_are_joined_once(chunk):
    answer = unstreamed([chunk] * 20_000, "response")  # quadratic work would take minutes for this length
    assert "x" * 1_000_000 in json.dumps(answer)


def test_the_example_is_read_in_each_of_its_rows():
    lines = (Path(__file__).parents[1] / "data/logs/streams.jsonl").read_bytes().splitlines()
    reader = open_reader("auto", lines)
    records = [reader.read(line) for line in lines]
    whole = "Yes, tin is a metal that bakers know."
    assert [record.output_text for record in records] == [
        whole, whole, "Yes, tin is ", whole, whole, whole, "Yes, tin is a metal.",
        "data: no stream, but an answer of a model",
    ]  # fmt: skip
    assert [record.output_length for record in records] == [4, 4, None, 4, 4, None, 6, None]
