"""Readers of conversations, Anthropic Messages, OpenAI Responses, Dynamo's traces, and tables of lengths."""

import hashlib
import json
import pickle
import traceback
from array import array
from importlib import import_module
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import EmptyPrompt, InputError, NotARequest, RowError
from kvtrace.ingest.logs import READERS, layouts, open_reader, records_of, sources
from tests.conftest import drawn
from tests.ingest.flat import anonymize_rows

from .media import media_of

HERE = Path(__file__).parents[1]
DATA = HERE / "data" / "logs"
TINY = str(HERE / "data" / "tokenizers" / "tiny")
CUT = "x" * 2048 + "..."
NO_TIME = "is missing. A trace needs the time of each request. Try --map timestamp=FIELD."
NO_OUTPUT = "is not an answer: it has no message, choices, content parts or text. Try --map output=FIELD."
HASHES = "request.replay.input_sequence_hashes"
NUMBER = "does not have one hash for each block of trace_block_size in input_length, tail block included."
OURS = {  # example -> reader, unit of times, requests that are read without and with --allow-truncated
    "sharegpt.jsonl": ("conversations", None, 5, 7),
    "lmsys.jsonl": ("conversations", None, 3, 3),
    "wildchat.jsonl": ("conversations", "ISO 8601, UTC where no zone is given", 4, 4),
    "chats.jsonl": ("conversations", None, 4, 4),
    "anthropic.jsonl": ("anthropic", "ISO 8601, UTC where no zone is given", 4, 4),
    "responses.jsonl": ("responses", "epoch seconds", 3, 5),
    "dynamo.jsonl": ("dynamo", "epoch milliseconds", 3, 3),
    "azure.csv": ("azure", "ISO 8601, UTC where no zone is given", 3, 3),
    "burstgpt.csv": ("burstgpt", "seconds from the start", 3, 3),
    "lengths.jsonl": ("lengths", "milliseconds from the start", 3, 3),
    "aiperf.jsonl": ("aiperf", "milliseconds from the start", 4, 4),
}


def lines_of(name):
    return sources.sample(sources.find(DATA / name))


def rows_of(name):
    return [orjson.loads(line) for line in lines_of(name)]


def records(row, name):
    return records_of(READERS[name], row)


def read(row, name):
    (record,) = records(row, name)
    return record


def refused(row, name, error=RowError):
    """The one line that a row is refused with."""
    with pytest.raises(error) as caught:
        records(row, name)
    return str(caught.value)


def anonymized(path, **options):
    """The trace of a log inside the house: nothing is coarsened, so that blocks show what is shared."""
    if path.name != "dynamo.jsonl":
        options = {"block_size": 4} | options
    return kvtrace.ingest.anonymize(path, tokenizer=TINY, profile="exact", **options)


def prompts(trace):
    return [trace.hash_ids[a:b].tolist() for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)]


# -- every form ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_each_form_is_recognised(name):
    reader, unit, _, _ = OURS[name]
    time = "none found in the first rows" if unit is None else f"{unit} (detected)"
    assert open_reader("auto", lines_of(name)).describe() == {"reader": f"{reader} (detected)", "time": time}


@pytest.mark.parametrize("path", sorted(p for p in DATA.iterdir() if p.name in OURS), ids=lambda path: path.name)
def test_each_row_of_an_example_is_recognised_by_itself(path):
    lines = lines_of(path.name)
    heading, lines = (lines[:1], lines[1:]) if path.suffix == ".csv" else ([], lines)
    forms = [open_reader("auto", [*heading, line]).name for line in lines if b"Is anybody there?" not in line]
    assert set(forms) == {OURS[path.name][0]}


@pytest.mark.parametrize("name", OURS)
def test_each_example_becomes_a_trace(name):
    _, unit, whole, all_of_it = OURS[name]
    options = {} if unit else {"arrivals": "rate=1/s"}
    trace = anonymized(DATA / name, allow_truncated=True, **options)
    assert len(trace) == all_of_it and (trace.input_length > 0).all()
    counted = []
    rows = anonymize_rows(
        DATA / name, tokenizer=TINY, profile="exact", max_errors=-1, on_reject=counted.append, **options
    )
    assert rows.counts.requests == whole
    assert all("the prompt is incomplete: it lacks" in str(error) for error in counted)
    assert bool(counted) == (whole < all_of_it)


# -- conversations ---------------------------------------------------------------------------------------------------


def test_each_assistant_turn_is_a_request_with_all_earlier_turns_as_its_prompt():
    row = rows_of("sharegpt.jsonl")[0]
    first, second = records(row, "conversations")
    assert [(m["role"], m["content"]) for m in second.messages] == [
        ("user", "Which river runs through Jena?"), ("assistant", "The Saale."), ("user", "How long is it?"),
    ]  # fmt: skip
    assert (first.messages, first.output_text) == (second.messages[:1], "The Saale.")
    assert (second.output_text, second.time, second.session, second.type) == ("413 kilometres.", None, None, "text")


def test_a_conversation_holds_each_message_once():
    said = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}] * 50
    found = records({"conversations": said}, "conversations")
    assert len(found) == 50 and len({id(message) for record in found for message in record.messages}) == 99


def test_turns_of_one_role_that_follow_each_other_stay_as_they_are():
    row = rows_of("sharegpt.jsonl")[1]
    assert [m["role"] for m in records(row, "conversations")[-1].messages] == [
        "system", "user", "assistant", "user", "user",
    ]  # fmt: skip
    said = [{"role": "user", "content": "a"}, *[{"role": "assistant", "content": "b"}] * 2]
    assert [len(r.messages) for r in records({"conversation": said}, "conversations")] == [1, 2]


def test_a_system_prompt_may_stand_beside_the_turns():
    record = read(rows_of("sharegpt.jsonl")[2], "conversations")
    assert record.messages[0] == {"role": "system", "content": "Answer in one word."}


@pytest.mark.parametrize("row", [3, 4])
def test_a_later_piece_of_a_conversation_lacks_its_beginning(row):
    found = records(rows_of("sharegpt.jsonl")[row], "conversations")
    assert all(record.lacks.startswith("the turns before it") for record in found)


@pytest.mark.parametrize("name", ["train_12", "identity_7", "example_3", "Qw7RtY2_0", "Qw7RtY2", "12", None, 7])
def test_an_id_that_only_ends_in_a_number_is_not_a_later_segment(name):
    row = {"id": name, "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    assert read(row, "conversations").lacks is None


def test_a_greeting_in_a_plain_chat_is_part_of_the_prompts_but_not_a_request():
    record = read(rows_of("chats.jsonl")[1], "conversations")
    assert [m["role"] for m in record.messages] == ["assistant", "user"]
    assert (record.lacks, record.type, len(media_of(record)), record.output_text) == (None, "image", 1, "A ferry.")


def test_an_image_counts_only_for_the_requests_that_show_it():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"role": "user", "content": [picture]}, {"role": "assistant", "content": "c"}]  # fmt: skip
    found = records({"messages": said}, "conversations")
    assert [(len(media_of(record)), record.type) for record in found] == [(0, "text"), (1, "image")]


def test_a_conversation_without_an_assistant_turn_is_left_out():
    reason = "conversations: the conversation has no assistant turn."
    assert refused(rows_of("sharegpt.jsonl")[5], "conversations", NotARequest) == reason


def test_wildchat_s_times_users_and_sessions():
    first, second, third = (records(row, "conversations") for row in rows_of("wildchat.jsonl"))
    # a question without a time has that of its answer; the row's own is that of the last one
    assert [r.time for r in (*first, *second)] == [
        "2031-04-09T00:01:10Z", "2031-04-09T00:02:53Z", "2031-04-09T00:03:30Z",
    ]  # fmt: skip
    assert [r.user for r in (first[0], second[0], third[0])] == ["f00d", "beef", "cafe"]
    assert first[0].session == first[1].session and second[0].session != third[0].session  # though the hash is one
    assert all(set(message) == {"role", "content"} for message in first[1].messages)  # no country, no address


def test_lmsys_conversations_are_sessions():
    assert [r.session for r in records(rows_of("lmsys.jsonl")[0], "conversations")] == ["c0ffee01"] * 2
    assert records(rows_of("lmsys.jsonl")[1], "conversations")[0].model == "koala-13b"


def test_each_turn_extends_the_prompt_of_the_previous_one():
    trace = anonymized(DATA / "chats.jsonl", arrivals="rate=1/s,think=1ms", block_size=1)
    first, second, third, _ = prompts(trace)
    assert second[: len(first)] == first and third[: len(second)] == second
    assert trace.session.tolist() == [0, 0, 0, -1]


def test_conversations_without_times_need_an_arrival_model():
    with pytest.raises(
        InputError, match=r"lmsys.jsonl:1: the request has no time. To make up arrival times, use --arrivals rate=1/s."
    ):
        anonymized(DATA / "lmsys.jsonl")


def test_a_cut_turn_spoils_the_requests_from_it_on():
    who_says, what = ["human", "gpt"], ["a", "b", CUT, "c", "d", CUT]
    said = [{"from": who, "value": text} for who, text in zip(who_says * 3, what, strict=True)]
    found = records({"conversations": said}, "conversations")
    assert [record.cut for record in found] == [None, "conversations[2].content", "conversations[2].content"]


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ([5], "conversations[0]: is a number; expected a turn."),
        ([{"value": "a"}], "conversations[0].from: is missing; expected a string."),
        ([{"from": "nobody", "value": "a"}],
         "conversations[0].from: is not a known speaker; expected human, gpt, system or tool."),
        ([{"from": "human", "value": 5}],
         "conversations[0].value: is a number; expected text, a list of parts or null."),
        ({}, "conversations: is an object; expected a list of turns."),
        (None, "messages: is missing. It must hold the turns. Try --map input=FIELD."),
    ],
)  # fmt: skip
def test_a_bad_conversation_is_refused(said, line):
    found = refused({"conversations": said}, "conversations")
    assert found == line or (
        said is None and found.endswith("is missing. It must hold the turns. Try --map input=FIELD.")
    )


def test_chats_that_are_requests_are_no_bare_conversations():
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    reader = READERS["conversations"]
    assert reader.matches({"messages": said})
    for name in ("timestamp", "created", "usage", "choices", "response", "output"):
        assert not reader.matches({"messages": said, name: 5})
    assert not reader.matches({"messages": said[:1]})


def test_a_json_array_is_read_as_its_rows(tmp_path):
    turns = [{"from": "human", "value": "Is tin a metal?"}, {"from": "gpt", "value": "Yes."}]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([{"conversations": turns}] * 3, indent=2))
    assert len(kvtrace.ingest.anonymize(path, arrivals="rate=1/s")) == 3


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (b"[\n", r"To convert a JSON array, use jq -c '\.\[\]'\."),
        (b'[{"conversations": []},\n', "ends inside its JSON. The file is incomplete."),
        (b'[{"id": "a"}]', "the first rows match no known log format"),
    ],
)
def test_a_json_array_without_requests_is_refused(text, refusal, tmp_path):
    path = tmp_path / "sharegpt.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=refusal):
        kvtrace.ingest.anonymize(path)


# -- Anthropic -------------------------------------------------------------------------------------------------------


def test_anthropic_blocks_become_chat_messages():
    first, second, third, fourth = (read(row, "anthropic") for row in rows_of("anthropic.jsonl"))
    assert [m["role"] for m in first.messages] == ["system", "user"]
    assert first.messages[0]["content"] == [
        {"type": "text", "text": "You are a guide."},
        {"type": "text", "text": "Be brief."},
    ]
    assert [m["role"] for m in second.messages] == ["system", "user", "assistant", "tool", "user"]
    spoken, answer, question = second.messages[2:]
    assert spoken["reasoning_content"] == "Look it up." and spoken["content"] == [
        {"type": "text", "text": "One moment."}
    ]
    assert spoken["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"town": "Jena"}}
    assert answer == {
        "role": "tool",
        "content": [{"type": "text", "text": "4 degrees, rain"}],
        "tool_call_id": "toolu_1",
    }
    assert question["content"] == [{"type": "text", "text": "And a hat?"}]  # its cache marker moves from turn to turn
    assert set(first.tools[0]["function"]) == {"name", "description", "parameters"}
    assert [r.type for r in (first, second, third, fourth)] == ["text", "text", "image", "file"]
    assert fourth.messages[1]["content"] == [{"type": "text", "text": "La"}]  # what is encrypted stays out


def test_anthropic_usage_includes_cached_tokens():
    found = [read(row, "anthropic") for row in rows_of("anthropic.jsonl")]
    assert [(r.prompt_tokens, r.output_length) for r in found] == [(52, 31), (92, 6), (60, 4), (30, 77)]
    assert [r.output_text for r in found] == ['Look it up.One moment.{"town":"Jena"}', "Yes, both.", "A cup.", None]


def test_claude_code_s_user_id_is_a_user_and_a_session():
    first, _, third, fourth = (read(row, "anthropic") for row in rows_of("anthropic.jsonl"))
    assert (first.user, first.session) == ("user_9f_account_3c", "71")
    assert third.session == "s9" and "s9" not in third.user and "d1" in third.user
    assert (fourth.user, fourth.session) == (None, None)
    row = rows_of("anthropic.jsonl")[0] | {"user": "kim", "session": "mine"}
    assert (read(row, "anthropic").user, read(row, "anthropic").session) == ("kim", "mine")


def test_the_next_request_of_a_conversation_shares_the_prefix():
    for name in ("anthropic.jsonl", "responses.jsonl"):
        first, second = prompts(anonymized(DATA / name, allow_truncated=True))[:2]
        assert len(first) > 10 and second[: len(first) - 5] == first[:-5]  # but for what begins the answer


def anthropic(**row):
    row = {"timestamp": 0, "messages": [{"role": "user", "content": "Hello"}], "usage": {"output_tokens": 1}} | row
    return {name: value for name, value in row.items() if value is not None}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"messages": None}, "messages: is missing; expected a list of messages."),
        ({"messages": []}, "messages: the prompt is empty."),
        ({"messages": [5]}, "messages[0]: is a number; expected a message."),
        ({"messages": [{"role": "user", "content": 5}]},
         "messages[0].content: is a number; expected text or a list of content blocks."),
        ({"messages": [{"role": "user", "content": ["a"]}]},
         "messages[0].content[0]: is a string; expected a content block."),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": 5}]}]},
         "messages[0].content[0].name: is a number; expected a string."),
        ({"messages": [{"role": "assistant", "content": [{"type": "thinking"}]}]},
         "messages[0].content[0].thinking: is missing; expected a string."),
        ({"system": 5}, "system: is a number; expected text or a list of content blocks."),
        ({"usage": {"output_tokens": -1}}, "usage.output_tokens: is negative."),
        ({"usage": None, "content": []}, f"content: {NO_OUTPUT}"),
        ({"timestamp": None}, f"timestamp: {NO_TIME}"),
    ],
)  # fmt: skip
def test_a_bad_anthropic_row_is_refused(changed, line):
    assert refused(anthropic(**changed), "anthropic") == line


def test_cuts_are_seen_in_anthropic_s_blocks():
    for block in ({"type": "text", "text": CUT}, {"type": "tool_result", "content": CUT},
                  {"type": "tool_result", "content": [{"type": "text", "text": CUT}]},
                  {"type": "tool_use", "name": "f", "input": {"a": "b (litellm_truncated 9 chars)"}}):  # fmt: skip
        row = anthropic(messages=[{"role": "user", "content": [block]}])
        assert read(row, "anthropic").cut.startswith("messages[0]")
    assert read(anthropic(system=CUT), "anthropic").cut == "system.content"
    assert read(anthropic(content=[{"type": "text", "text": CUT}], usage=None), "anthropic").cut == "content"


# -- OpenAI Responses ------------------------------------------------------------------------------------------------


def test_items_become_chat_messages():
    first, second, third, _, _ = (read(row, "responses") for row in rows_of("responses.jsonl"))
    assert [m["role"] for m in first.messages] == ["system", "user"]
    assert [m["role"] for m in second.messages] == ["system", "user", "assistant", "tool"]
    spoken, answer = second.messages[2:]
    assert (spoken["content"], spoken["reasoning_content"]) == (None, "Look it up.")
    assert spoken["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Jena"}'}}
    ]
    assert answer == {"role": "tool", "content": "4 degrees, rain", "tool_call_id": "call_1"}
    assert set(first.tools[0]["function"]) == {"name", "description", "parameters", "strict"}
    assert (third.messages[0]["role"], third.type, len(media_of(third))) == ("developer", "image", 1)


def test_responses_lengths_and_users():
    found = [read(row, "responses") for row in rows_of("responses.jsonl")]
    assert [(r.prompt_tokens, r.output_length) for r in found[:3]] == [(40, 21), (70, 3), (None, None)]
    assert [r.output_text for r in found[:3]] == ['Look it up.{"town": "Jena"}', "Yes.", "A cup."]
    assert [r.user for r in found[:3]] == ["u-1", "u-1", None] and found[1].model == "tiny-2"


@pytest.mark.parametrize(
    ("changed", "lacks"),
    [
        ({"previous_response_id": "r"}, "the turns before it (previous_response_id)"),
        ({"conversation": "c"}, "the turns before it (conversation)"),
        ({"conversation": {"id": "c"}}, "the turns before it (conversation)"),
        ({"prompt": {"id": "p"}}, "the stored prompt (prompt)"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "a referenced item (item_reference)"),
        ({"input": [{"type": "compaction", "encrypted_content": "e"}]}, "the compacted turns (compaction)"),
        ({"previous_response_id": None, "conversation": None, "prompt": None}, None),
    ],
)  # fmt: skip
def test_a_response_that_refers_to_server_state_is_incomplete(changed, lacks):
    row = {"object": "response", "created_at": 5, "input": "Hello", "usage": {"output_tokens": 1}} | changed
    assert read(row, "responses").lacks == lacks
    nested = {"request": {"input": "Hello"} | changed, "response": {"created_at": 5, "usage": {"output_tokens": 1}}}
    assert read(nested, "responses").lacks == lacks
    assert read(row, "responses").session == ("c" if "conversation" in changed and lacks else None)


def test_calls_of_tools_that_the_server_has_are_part_of_the_answer():
    search = {"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "boats"}}
    say = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Seven."}]}
    row = {"object": "response", "created_at": 5, "input": "Hello", "output": [search, say]}
    assert read(row, "responses").output_text == '{"query":"boats","type":"search"}Seven.'
    later = read(row | {"input": [{"role": "user", "content": "a"}, search, say]}, "responses")
    _, spoken, again = later.messages
    assert spoken["tool_calls"][0]["function"]["name"] == "web_search_call" and again["content"][0]["text"] == "Seven."


def test_block_hash_rows_and_embeddings_are_no_responses():
    matches = READERS["responses"].matches
    for output in ("Hi", [1, 2], 7, {"role": "assistant", "content": "Hi"}):
        assert not matches({"timestamp": 0, "input": "Hello", "output": output})
    embedding = {
        "request": {"input": "Hello"},
        "response": {"object": "list", "data": [], "usage": {"prompt_tokens": 1}},
    }
    assert not matches(embedding)
    assert refused(embedding, "responses", NotARequest) == "response.object: is not a model response."


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"input": 5}, "input: is a number; expected text or a list of items."),
        ({"input": ""}, "input: the prompt is empty."),
        ({"input": ["a"]}, "input[0]: is a string; expected an item."),
        ({"input": [{"type": 5}]}, "input[0].type: is a number; expected a string."),
        ({"input": [{"content": "a"}]}, "input[0].role: is missing; expected a string."),
        ({"input": [{"type": "function_call", "name": 5}]}, "input[0].name: is a number; expected a string."),
        ({"instructions": 5}, "instructions: is a number; expected text or a list of items."),
        ({"output": []}, f"output: {NO_OUTPUT}"),
        ({"output": [5, {}]}, "output: is not a list of token ids: each must be a whole number from 0 to 2^32 - 1."),
        ({"usage": {"input_tokens": -1}}, "usage.input_tokens: is negative."),
    ],
)  # fmt: skip
def test_a_bad_response_is_refused(changed, line):
    say = {"type": "message", "role": "assistant", "content": "Hi"}
    row = {"object": "response", "created_at": 5, "input": "Hello", "output": [say]}
    assert refused(row | changed, "responses") == line


# -- Dynamo ----------------------------------------------------------------------------------------------------------


def dynamo(hashes, input_length, *, time=1900002000000, block_size=16, **request):
    replay = {"trace_block_size": block_size, "input_length": input_length, "input_sequence_hashes": hashes}
    request = {"request_received_ms": time, "output_tokens": 5, "replay": replay} | request
    return {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}


def test_dynamo_rows_are_read_wrapped_or_not():
    first, tool, _, wrapped = rows_of("dynamo.jsonl")
    record = read(first, "dynamo")
    assert (record.time, record.session, record.id, record.model) == (1900002000000, "run-1", "req-1", "tiny")
    assert (record.input_length, record.block_size, record.output_length, record.prompt_tokens) == (40, 16, 9, 40)
    assert record.hashes == array("Q", first["request"]["replay"]["input_sequence_hashes"])
    assert refused(tool, "dynamo", NotARequest) == "event_type: is not request_end."
    found = read(wrapped, "dynamo")
    assert found.time == 1900002004000  # not the sink's own time
    assert found.hashes[0] == record.hashes[0] and wrapped["event"]["request"]["replay"]["input_sequence_hashes"][0] < 0


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (dynamo([1, 2], 33), f"{HASHES}: {NUMBER}"),
        (dynamo([1, 2, 3], 32), f"{HASHES}: {NUMBER}"),
        (dynamo([1, 2**64], 32), f"{HASHES}: is not a list of hashes: each must be a whole number of 64 bits."),
        (dynamo([1, -(2**63) - 1], 32),
         f"{HASHES}: is not a list of hashes: each must be a whole number of 64 bits."),
        (dynamo([1, True], 32), f"{HASHES}: is not a list of hashes: each must be a whole number of 64 bits."),
        (dynamo([1, 2.0], 32), f"{HASHES}: is not a list of hashes: each must be a whole number of 64 bits."),
        (dynamo("ab", 32), f"{HASHES}: is a string; expected a list of hashes."),
        (dynamo([], 0), "request.replay.input_length: the prompt is empty."),
        (dynamo([1], 9, block_size=0), "request.replay.trace_block_size: must be a number of tokens above 0."),
        (dynamo([1], 9, replay=None), "request.replay: is missing. It must hold the hashes of the prompt's blocks. "
         "Log request_end records with their replay hashes."),
        (dynamo([1], 9, request_received_ms=None), f"request.request_received_ms: {NO_TIME}"),
        (dynamo([1], 9) | {"request": 5}, "request: is a number; expected the request's metrics."),
    ],
)  # fmt: skip
def test_a_bad_dynamo_row_is_refused(row, line):
    assert refused(row, "dynamo") == line


full_blocks, tail_tokens = st.lists(st.integers(0, 2), max_size=5), st.integers(0, 15)
paths = st.lists(st.tuples(full_blocks, tail_tokens), min_size=1, max_size=12)


def chain(path, tail):
    """An engine's hash of each block: of all tokens up to its end, under no key."""
    names = [f"{path[: i + 1]}" for i in range(len(path))] + ([f"{path} {tail}"] if tail else [])
    return [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") for name in names]


@settings(deadline=None, max_examples=drawn(50))
@given(paths, st.booleans())
def test_texts_share_prefixes_exactly_as_ids_do(tmp_path_factory, found, signed):
    folder = tmp_path_factory.mktemp("dynamo")
    kept = [(path, tail) for path, tail in found if path or tail] or [([0], 0)]
    hashes = [chain(path, tail) for path, tail in kept]
    lengths = [16 * len(path) + tail for path, tail in kept]
    logged = [[h - 2**64 if signed and h >= 2**63 else h for h in row] for row in hashes]
    rows = [dynamo(*row, time=1900002000000 + i) for i, row in enumerate(zip(logged, lengths, strict=True))]
    (folder / "log.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    ours = kvtrace.ingest.anonymize(folder / "log.jsonl", tokenizer=None, profile="exact")  # no text to tokenise
    # the same requests as a trace of hash ids, as its reader takes them
    ids: dict[int, int] = {}
    numbered = [[ids.setdefault(h, len(ids)) for h in row] for row in hashes]
    trace = "".join(
        json.dumps({"timestamp": i, "input_length": length, "output_length": 5, "hash_ids": row}) + "\n"
        for i, (row, length) in enumerate(zip(numbered, lengths, strict=True))
    )
    (folder / "trace.jsonl").write_text(trace)
    theirs = kvtrace.read(folder / "trace.jsonl", block_size=16)
    assert prompts(ours) == prompts(theirs) and ours.block_size == 16
    assert ours.input_length.tolist() == theirs.input_length.tolist()


@pytest.mark.parametrize("format", ["mooncake", "bailian", "parquet"])
def test_no_engine_hash_is_in_the_output(tmp_path, format):
    hashes = [chain([i, j], 3) for i in range(5) for j in range(5)]
    rows = [dynamo(row, 35, time=1900002000000 + i) for i, row in enumerate(hashes)]
    (tmp_path / "log.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    out = tmp_path / "out"
    out.mkdir()
    kvtrace.privacy.publish(
        kvtrace.ingest.anonymize(tmp_path / "log.jsonl", profile="exact"), out / f"trace.{format}", format=format
    )
    written = b"\n".join(path.read_bytes() for path in out.iterdir())
    assert len(list(out.iterdir())) > 1  # the sidecar too
    for value in {h for row in hashes for h in row}:
        forms = [str(value), str(value - 2**64), f"{value:x}", f"{value:X}"]
        raw = [value.to_bytes(8, order) for order in ("little", "big")]
        assert not any(form in written for form in [*(form.encode() for form in forms), *raw])


def test_blocks_have_the_log_s_size():
    assert anonymized(DATA / "dynamo.jsonl").block_size == 16
    first, second, third = prompts(anonymized(DATA / "dynamo.jsonl"))
    assert (first, second, third) == ([0, 1, 2], [0, 1, 3, 4], [0, 5])


# -- tables of lengths -----------------------------------------------------------------------------------------------


def test_lengths_are_all_that_a_table_tells():
    for name, lengths in (("azure.csv", [4808, 3180, 110]), ("burstgpt.csv", [472, 1087, 417])):
        rows = anonymize_rows(DATA / name, profile="exact")
        trace = rows.trace()
        assert trace.input_length.tolist() == lengths and rows.counts.lengths_only == 3
        assert trace.meta["prefixes"].startswith("unknown")
        assert len(set(trace.hash_ids.tolist())) == len(trace.hash_ids)  # no block is shared


def test_failures_and_empty_prompts_are_left_out():
    assert anonymize_rows(DATA / "burstgpt.csv").counts.filtered == 2
    row = {"Timestamp": "5", "Model": "GPT-4", "Request tokens": "3", "Response tokens": "0"}
    assert refused(row, "burstgpt", NotARequest).endswith("is 0: the request failed.")
    assert refused(row | {"Request tokens": "0"}, "burstgpt", EmptyPrompt).endswith("the prompt is empty.")
    row = {"TIMESTAMP": "5", "ContextTokens": "0", "GeneratedTokens": "7"}
    assert refused(row, "azure", EmptyPrompt) == "ContextTokens: the prompt is empty."


def test_burstgpt_is_read_with_and_without_sessions():
    lines = lines_of("burstgpt.csv")
    reader = open_reader("auto", lines)
    assert [reader.records(line)[0].session for line in lines[1:4]] == [None, "s-1", "s-1"]
    old = [
        b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
        b"5,ChatGPT,472,18,490,Conversation log",
    ]
    reader = open_reader("auto", old)
    assert reader.name == "burstgpt" and reader.time_ns(reader.records(old[1])[0]) == 5 * 10**9


def test_files_for_clients_are_read_as_logs(tmp_path):
    trace = anonymized(DATA / "wildchat.jsonl")
    for client in ("azure", "burstgpt"):
        again = kvtrace.ingest.anonymize(written_for(client, trace, tmp_path), profile="exact")
        assert again.input_length.tolist() == trace.input_length.tolist()
        assert again.output_length.tolist() == trace.output_length.tolist()
        assert again.timestamp.tolist() == trace.timestamp.tolist()


def written_for(client, trace, folder):
    path = folder / f"{client}.csv"
    with path.open("wb") as stream:
        import_module(f"kvtrace.formats.targets.{client}").write(stream, trace)
    return path


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (b"a,b", ("a", "b")), (b"Request tokens, Log Type\r", ("Request tokens", "Log Type")),
        (b"a", None), (b"a,a", None), (b"1,2", None), (b"a,1", None), (b"a,", None), (b'{"a": 1, "b": 2}', None),
        (b'"timestamp": 0, "input": "a"', None), (b"[1, 2]", None), (b"\xff,b", None), (b'a,"b', None), (b"", None),
    ],
)  # fmt: skip
def test_a_heading_is_names_of_columns(line, names):
    assert layouts.heading(line) == names


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"2031-11-16 18:17:03,5", "has 2 cells, but the heading has 3."),
        (b"2031-11-16 18:17:03,5,6,7", "has 4 cells, but the heading has 3."),
        (b'2031-11-16 18:17:03,"5,6', "is not a CSV row in UTF-8."),
        (b"2031-11-16 18:17:03,\xff,6", "is not a CSV row in UTF-8."),
        (b"2031-11-16 18:17:03,,6", "ContextTokens: is missing. It must hold a number of tokens."),
        (b"2031-11-16 18:17:03,five,6", "ContextTokens: is not a whole number of tokens."),
        (b"2031-11-16 18:17:03,5.5,6", "ContextTokens: is not a whole number of tokens."),
        (b"2031-11-16 18:17:03,-5,6", "ContextTokens: is negative."),
        (b"2031-11-16 18:17:03,5,9999999999", "GeneratedTokens: is more than 16,777,216 tokens."),
        (b",5,6", f"timestamp: {NO_TIME}"),
    ],
)
def test_a_bad_row_of_a_table_is_refused(line, reason):
    reader = open_reader("auto", lines_of("azure.csv"))
    with pytest.raises(RowError) as error:
        reader.records(line)
    assert str(error.value) == reason and error.value.__context__ is None
    assert reader.records(b"TIMESTAMP,ContextTokens,GeneratedTokens") == []  # files that were put end to end
    assert reader.records(b"2031-11-16 18:17:03,5.0,6")[0].input_length == 5


def test_columns_of_any_table_can_be_mapped():
    lines = [b"at,who,ContextTokens,GeneratedTokens", b"3,kim,5,6", b"4,,5,6"]
    reader = open_reader("auto", lines, field_map={"timestamp": "at", "user": "who"}, time_unit="s")
    first, second = (reader.records(line)[0] for line in lines[1:])
    assert (reader.time_ns(first), first.user, second.user) == (3 * 10**9, "kim", None)


# -- laws ------------------------------------------------------------------------------------------------------------

CANARY = "canary-7c1f"
words = st.sampled_from([CANARY, f"{{{CANARY}", "user", "assistant", "message", "tool_use", "thinking", "gpt", ""])
names = st.sampled_from(["role", "content", "type", "text", "name", "input", "id", "from", "value", "user_id", CANARY])
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=4)),
    max_leaves=8,
)
GOOD = [(name, line) for name in OURS if name.endswith(".jsonl") for line in lines_of(name)]


@settings(deadline=None, max_examples=drawn(600))
@given(st.sampled_from(GOOD), st.lists(values, min_size=1, max_size=3), st.booleans(), st.data())
def test_any_good_row_with_values_changed_gives_records_or_an_error_without_content(good, changes, stated, data):
    name, line = good
    row = orjson.loads(line)
    for value in changes:
        contributor, key = data.draw(st.sampled_from(list(places_in(row))))
        contributor[key] = value
    changed = orjson.dumps(row)
    try:
        reader = open_reader(OURS[name][0] if stated else "auto", [changed, line], untimed=True, allow_truncated=True)
        for record in reader.records(changed):
            reader.time_ns(record)
            prompt = (record.messages, record.text, record.token_ids, record.hashes, record.input_length)
            assert sum(form is not None for form in prompt) in ((1, 2) if record.hashes is not None else (1,))
            assert record.output_length is None or record.output_length >= 0
    except RowError as error:
        assert_silent(error)


@settings(deadline=None, max_examples=drawn(200))
@given(st.sampled_from(["azure.csv", "burstgpt.csv"]), st.data())
def test_any_row_of_a_table_gives_a_record_or_an_error_without_content(name, data):
    lines = lines_of(name)
    line = data.draw(st.sampled_from(lines[1:]))
    cells = line.split(b",")
    cells[data.draw(st.integers(0, len(cells) - 1))] = data.draw(
        st.sampled_from([CANARY, f'"{CANARY}', "-1", "1e5", "0"])
    ).encode()
    reader = open_reader("auto", lines)
    try:
        for record in reader.records(b",".join(cells)):
            reader.time_ns(record)
            assert record.input_length > 0
    except RowError as error:
        assert_silent(error)


def places_in(value):
    """Each object or list in a row, with each of its keys or indexes."""
    for key in value if type(value) is dict else range(len(value)):
        yield value, key
        if type(value[key]) in (dict, list):
            yield from places_in(value[key])


def assert_silent(error):
    """Nothing of the row is in the error: not in its words, its parts or what hangs on it."""
    said = "".join(traceback.format_exception_only(error)) + repr(error.args) + repr(vars(error))
    assert CANARY not in said and "\n" not in str(error)
    assert error.__context__ is None and error.__cause__ is None
    assert pickle.loads(pickle.dumps(error)).reason == error.reason


# -- real logs, where they are present -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "requests", "tokens"), [("code", 8819, 18_059_974), ("conv", 19_366, 22_361_870)])
def test_all_rows_of_the_azure_traces_are_read(shared, name, requests, tokens):
    trace = kvtrace.ingest.anonymize(shared / "data" / "azure" / f"AzureLLMInferenceTrace_{name}.csv", profile="exact")
    assert (len(trace), int(trace.input_length.sum())) == (requests, tokens)


@pytest.mark.parametrize(("name", "chats", "requests"), [("tau_airline_gpt4o", 200, 2454), ("swe_agent", 22, 230)])
def test_chats_become_one_request_an_answer(shared, name, chats, requests):
    path = shared / "data" / "chats" / f"{name}.jsonl"
    assert path.read_bytes().count(b'"role": "assistant"') == requests
    trace = kvtrace.ingest.anonymize(path, arrivals="rate=1/s", profile="exact", block_size=16)
    assert len(trace) == requests and len(set(trace.session.tolist()) - {-1}) == chats
