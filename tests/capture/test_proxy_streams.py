"""Streamed answers put together: each API's own quirks, cut streams, and rows that nobody can forge."""

import gzip
import json
import zlib

import brotli
import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvtrace._base.errors import NotARequest, RowError
from kvtrace.capture.proxy.exchange import Exchange, source_of
from kvtrace.capture.proxy.rows import decoded
from kvtrace.capture.sources import SOURCES
from kvtrace.ingest.logs import streamed
from kvtrace.ingest.logs.sse import events
from tests.attacks.canary import CANARY, all_of, require_none
from tests.capture import stub_model
from tests.capture.recorded import record_of
from tests.capture.stub_model import ARGUMENTS, OUTPUT, STREAMS, TEXT

TOOLS = {
    stub_model.chat: [{"function": {"name": "a"}}, {"function": {"name": "b"}}],
    stub_model.response: [{"name": "a"}, {"name": "b"}],
    stub_model.message: [{"name": "a"}, {"name": "b"}],
    stub_model.completion: None,
}
ANSWER_OF = {
    stub_model.chat: streamed.chat_answer, stub_model.completion: streamed.chat_answer,
    stub_model.response: streamed.responses_answer, stub_model.message: streamed.anthropic_answer,
}  # fmt: skip
SOURCE_OF = {
    stub_model.chat: "proxy-openai", stub_model.completion: "proxy-openai",
    stub_model.response: "proxy-responses", stub_model.message: "proxy-anthropic",
}  # fmt: skip
PROMPTS = {
    stub_model.chat: {"messages": [{"role": "user", "content": "?"}]}, stub_model.completion: {"prompt": "?"},
    stub_model.response: {"input": "?"},
    stub_model.message: {"messages": [{"role": "user", "content": "?"}]},
}  # fmt: skip


def request_of(api):
    usage = {"stream_options": {"include_usage": True}}
    return {"model": "m", "tools": TOOLS[api], "thinking": True, "reasoning_effort": "low"} | usage | PROMPTS[api]


def stream_of(api):
    request = request_of(api)
    return b"".join(stub_model.line(event, api) for event in STREAMS[api](request, api(request)))


def sse(*chunks, end="\n\n"):
    return "".join(f"data: {json.dumps(chunk)}{end}" for chunk in chunks).encode()


def delta(value, index=0, finish=None):
    return {"choices": [{"index": index, "delta": value, "finish_reason": finish}]}


def message_of(*chunks):
    return streamed.chat_answer(sse(*chunks)).response["choices"][0]["message"]


def payload(request=b"{}", answer=b"{}", **values):
    values = {"arrived_ns": 10, "ended_ns": 30, "complete": True, "streamed": False} | values
    return Exchange(request, answer, **values).packed()


def rows(source="proxy-openai"):
    return SOURCES[source].rows()


# -- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ANSWER_OF)
def test_a_stream_is_the_answer_without_streaming(api):
    answer, whole = ANSWER_OF[api](stream_of(api)), api(request_of(api))
    assert answer.finished and not answer.failed
    if api is stub_model.response:
        assert answer.response == whole
    else:
        row = {"timestamp": 0, "request": request_of(api)}
        one, other = (
            record_of(SOURCE_OF[api], orjson.dumps(row | {"response": response}))
            for response in (answer.response, whole)
        )
        assert one == other and one.output_length == OUTPUT and CANARY in one.output_text


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("api", ANSWER_OF)
def test_each_line_end_is_one(api, end):
    assert (
        ANSWER_OF[api](stream_of(api).replace(b"\n", end.encode())).response == ANSWER_OF[api](stream_of(api)).response
    )


def test_comments_names_and_data_over_several_lines_are_read():
    stream = b"\xef\xbb\xbf: OPENROUTER PROCESSING\n\nevent: x\nid: 7\nretry: 5\n"
    stream += b'data:{\ndata: "a":\ndata:1}\n\n\n\ndata: [DONE]'
    assert [event for _, event in events(stream)] == [{"a": 1}, {"done": True}]


def test_data_that_is_not_an_object_is_an_error_without_content():
    for data in (CANARY, f'["{CANARY}"]', f'{{"a": {CANARY}}}'):
        with pytest.raises(RowError, match="not a JSON object") as raised:
            list(events(f"data: {data}\n\ndata: {{}}\n\n".encode()))
        require_none(all_of(raised.value), where="the error")


@pytest.mark.parametrize("api", ANSWER_OF)
def test_a_stream_that_is_cut_anywhere_gives_the_text_so_far(api):
    stream, seen = stream_of(api), ""
    row = {"timestamp": 0, "request": request_of(api)}
    for size in range(0, len(stream), 7):
        answer = ANSWER_OF[api](stream[:size])
        if answer.finished or answer.first_token is None:
            continue
        record = record_of(SOURCE_OF[api], orjson.dumps(row | {"response": answer.response}))
        text = record.output_text.replace(" ", "")  # arguments of a message are an object once they are complete
        assert record.output_length in (None, OUTPUT) and text.startswith(seen)
        seen = text
    assert TEXT.replace(" ", "") in seen or api is stub_model.chat
    assert api is stub_model.completion or seen.endswith(json.dumps(ARGUMENTS)[-2:])


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["type", "index", "delta", "choices", "message", "content", "usage", "text", "tool_calls", "function", "item",
         "arguments", "content_block", "response", "output_index", "content_index", "finish_reason", "error", "id"]
    ), inner, max_size=5), max_leaves=12,
)  # fmt: skip
KINDS = st.sampled_from(
    [*streamed.FIRST, *streamed.LAST, *streamed.PARTS, *streamed.CALLS, "response.output_item.added",
     "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
     "text_delta", "input_json_delta", "error"]
)  # fmt: skip


FIELDS = st.sampled_from(
    ["type", "index", "delta", "choices", "message", "usage", "item", "content_block", "response", "output_index",
     "content_index"]
)  # fmt: skip


@given(st.lists(st.dictionaries(FIELDS, JUNK | KINDS, max_size=5), max_size=6))
def test_events_of_any_shape_are_an_answer_or_a_row_error(chunks):
    for answer_of in set(ANSWER_OF.values()):
        orjson.dumps(answer_of(sse(*chunks)).response)


@given(st.binary(max_size=200))
def test_any_bytes_are_rows_or_a_row_error(body):
    for source in set(SOURCE_OF.values()):
        for values in ({}, {"streamed": True}, {"answer_coding": "gzip"}, {"request_coding": "br, zstd"}):
            for one in (body, payload(body, body, **values), payload(b"{}", b"data: " + body, **values)):
                try:
                    lines = rows(source).of(one)
                except RowError as error:
                    assert error.__cause__ is None and error.__context__ is None
                else:
                    assert len(lines) == 1 and b"\n" not in lines[0]


# -- OpenAI's chunks -------------------------------------------------------------------------------------------------


def test_tool_calls_without_an_index_are_told_apart_by_their_ids():
    call = {"id": "a", "function": {"name": "f", "arguments": '{"x":'}}
    more = [{"function": {"arguments": "1}"}}, {"id": "b", "function": {"name": "g", "arguments": "{}"}}]
    message = message_of(*(delta({"tool_calls": [one]}) for one in (call, *more)))
    assert [(c["id"], c["function"]["arguments"]) for c in message["tool_calls"]] == [("a", '{"x":1}'), ("b", "{}")]


def test_older_function_calls_refusals_and_parts_are_read():
    assert message_of(
        delta({"function_call": {"name": "f", "arguments": "{"}}), delta({"function_call": {"arguments": "}"}})
    )["function_call"] == {"name": "f", "arguments": "{}"}
    assert message_of(delta({"refusal": "No"}), delta({"refusal": ", sir"}))["refusal"] == "No, sir"
    part = {"type": "text", "text": "a"}
    assert message_of(delta({"content": [part]}), delta({"content": "b"}))["content"] == [part, part | {"text": "b"}]


def test_usage_of_each_chunk_counts_as_far_as_it_came():
    chunks = [delta({"content": "a"}) | {"usage": {"completion_tokens": n}} for n in (1, 2, 3)]
    answer = streamed.chat_answer(sse(*chunks))
    assert answer.response["usage"] == {"completion_tokens": 3} and not answer.finished


def test_the_first_token_is_the_first_text_and_not_the_role():
    role, text = sse(delta({"role": "assistant", "content": ""})), sse(delta({"content": "a"}))
    assert streamed.chat_answer(role).first_token is None
    assert streamed.chat_answer(role + text + text).first_token == len(role + text)


# -- Anthropic's events ----------------------------------------------------------------------------------------------


def test_a_message_that_is_cut_does_not_count_the_tokens_of_its_start():
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}
    assert streamed.anthropic_answer(sse(start, piece)).response["usage"] == {"input_tokens": 9}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}}
    assert streamed.anthropic_answer(sse(start, piece, end)).response["usage"] == {
        "input_tokens": 9,
        "output_tokens": 7,
    }


# -- rows ------------------------------------------------------------------------------------------------------------


def test_a_row_has_the_times_of_the_proxy():
    start, piece = sse(delta({"role": "assistant"})), sse(delta({"content": "a"}, finish="stop"))
    arrivals = [(len(start), 15), (len(start) + 5, 20), (len(start + piece), 25)]
    (line,) = rows().of(payload(answer=start + piece, streamed=True, arrivals=arrivals))
    row = orjson.loads(line)
    assert (row["timestamp"], row["first_token_time"], row["end_time"]) == (10, 25, 30)
    (line,) = rows().of(payload(answer=gzip.compress(start + piece), streamed=True, answer_coding="gzip"))
    assert "first_token_time" not in orjson.loads(line)  # a piece of compressed data tells no event


def test_an_error_in_the_stream_ends_the_answer():
    error = {"type": "error", "error": {"message": CANARY}}
    piece = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}
    with pytest.raises(NotARequest, match="before its first token"):
        rows("proxy-anthropic").of(payload(answer=sse(error), streamed=True))
    made = rows("proxy-anthropic")
    assert len(made.of(payload(answer=sse(piece, error), streamed=True))) == 1 and made.counts["ended_early"] == 1
    with pytest.raises(NotARequest, match="before its first token"):
        rows().of(payload(answer=sse({"error": {"message": CANARY}}) + b"data: [DONE]\n\n", streamed=True))
    with pytest.raises(NotARequest, match="before its first token"):
        rows("proxy-responses").of(payload(answer=sse({"type": "response.failed", "response": {}}), streamed=True))


def test_a_body_cannot_write_fields_of_its_row():
    for body in (b'{}, "session": "x"', b'{}}\n{"timestamp": 1', b"[]", b"1", b"", b'"x"', b'{"a": 1', b"{}{}"):
        with pytest.raises(RowError, match="request"):
            rows().of(payload(request=body))
        with pytest.raises(RowError, match="response"):
            rows().of(payload(answer=body))
    (line,) = rows().of(payload(request=b'{\r\n "a": "\\n",\n "timestamp": 3}\n', session='s"\n'))
    assert orjson.loads(line) | {"response": 0} == {
        "timestamp": 10, "end_time": 30, "session": 's"\n', "request": {"a": "\n", "timestamp": 3}, "response": 0,
    }  # fmt: skip


def test_a_damaged_payload_is_an_error_without_content():
    for damaged in (b"", b"\n", b"{}\n", b"[]\n", CANARY.encode(), b'{"size": "x"}\n', payload()[:50]):
        with pytest.raises(RowError, match="damaged") as raised:
            rows().of(damaged)
        require_none(all_of(raised.value), where="the error")


# -- codings ---------------------------------------------------------------------------------------------------------

COMPRESS = {
    "gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress,
    "zstd": zstandard.compress, "identity": bytes, "": bytes,
    "Deflate": lambda body: zlib.compress(body, wbits=-15),
}  # fmt: skip


@given(st.sampled_from(list(COMPRESS)), st.binary(max_size=3000))
def test_a_coding_is_undone_and_a_cut_body_gives_its_beginning(coding, body):
    packed = COMPRESS[coding](body)
    assert decoded(packed, coding) == body
    for size in range(0, len(packed), 11):
        assert body.startswith(decoded(packed[:size], coding))


def test_codings_are_undone_from_right_to_left():
    assert decoded(brotli.compress(gzip.compress(b"Yes")), "gzip, br") == b"Yes"
    assert decoded(gzip.compress(b"a") + gzip.compress(b"b"), "gzip") == b"ab"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd", "br"])
def test_a_body_that_grows_without_end_is_an_error(coding, monkeypatch):
    monkeypatch.setattr("kvtrace.capture.proxy.rows.MAX_PLAIN", 1 << 20)
    packed = COMPRESS[coding](bytes(4 << 20))
    with pytest.raises(RowError, match="longer than 1 MiB"):
        decoded(packed, coding)
    with pytest.raises(RowError, match=f"not valid {coding} data"):
        decoded(b"\x07\xff" + CANARY.encode(), coding)


def test_an_unknown_coding_is_an_error():
    with pytest.raises(RowError, match="not one of gzip"):
        decoded(b"x", f"gzip, {CANARY}")


# -- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "source"),
    [
        ("POST", "/v1/chat/completions", "proxy-openai"),
        ("POST", "/openai/deployments/my-model/chat/completions", "proxy-openai"),
        ("POST", "/v1/completions/", "proxy-openai"),
        ("POST", "/v1/responses", "proxy-responses"),
        ("POST", "/v1/messages", "proxy-anthropic"),
        ("POST", "/anthropic/v1/messages", "proxy-anthropic"),
        ("POST", "/v1/messages/count_tokens", None),
        ("POST", "/v1/messages/batches", None),
        ("POST", "/v1/threads/thread_1/messages", None),
        ("POST", "/v1/responses/resp_1/cancel", None),
        ("POST", "/v1/embeddings", None),
        ("GET", "/v1/chat/completions", None),
    ],
)
def test_calls_that_generate_text_are_recorded(method, path, source):
    assert source_of(method, path) == source
