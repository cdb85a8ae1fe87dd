"""Raw log readers: rows of every form become Records, and a bad row an error that holds nothing of it."""

import pickle
import re
import traceback
from array import array
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace._base.errors import RowError, UsageError
from kvtrace.ingest import logs
from kvtrace.ingest.logs import READERS, fields, open_reader, sources
from kvtrace.ingest.logs.fieldmap import TARGETS, FieldMap, find, parse_map
from kvtrace.ingest.logs.kv_events import row_lines
from kvtrace.ingest.logs.pairs import UNREAD
from kvtrace.ingest.logs.record import Record
from tests.conftest import drawn

from .media import media_of

HERE = Path(__file__).parents[1]
DATA = HERE / "data" / "logs"
USER = {"role": "user", "content": "Hello"}
NO_TIME = "is missing. A trace needs the time of each request. Try --map timestamp=FIELD."
NO_CONTENT = "expected text, a list of parts or null."
CUT = "x" * 2048 + "..."


def lines_of(name):
    return sources.sample(sources.find(DATA / f"{name}.jsonl"))


def records_of(name, **options):
    lines = lines_of(name)
    reader = open_reader("auto", lines, **options)
    return reader, [reader.read(line) for line in lines]


def read(row, name="block-hash"):
    (record,) = logs.records_of(READERS[name], row)
    return record


def refused(row, name="block-hash"):
    """The one line that a row is refused with."""
    with pytest.raises(RowError) as error:
        read(row, name)
    return str(error.value)


def block_hash(**row):
    """A good row of the block-hash form, with these fields changed; None takes one out."""
    row = {"timestamp": 0, "input": "Hello", "output": "World"} | row
    return {name: value for name, value in row.items() if value is not None}


# -- the table -------------------------------------------------------------------------------------------------------


def test_the_docs_name_each_target_of_a_field_map():
    docs = "".join(page.read_text() for page in (HERE.parent / "docs/ingest").glob("logs*.md"))
    assert all(f"`{target}`" in docs for target in TARGETS)


@pytest.mark.parametrize(
    ("name", "reader", "time"),
    [
        ("block_hash_messages", "block-hash", "milliseconds from the start"),
        ("block_hash_text", "block-hash", "ISO 8601, UTC where no zone is given"),
        ("block_hash_ids", "block-hash", "seconds from the start"),
        ("openai_flat", "openai", "epoch seconds"),
        ("openai_nested", "openai", "ISO 8601, UTC where no zone is given"),
        ("openai_batch", "openai", "epoch seconds"),
        ("openai_completions", "openai", "epoch seconds"),
        ("tokens", "tokens", "milliseconds from the start"),
        ("tokens_vllm", "tokens", "epoch seconds"),
    ],
)
def test_each_form_is_recognised_and_reads_to_its_end(name, reader, time):
    opened, records = records_of(name)
    assert opened.describe() == {"reader": f"{reader} (detected)", "time": f"{time} (detected)"}
    times = [opened.time_ns(record) for record in records]
    assert all(type(ns) is int for ns in times) and len(set(times)) > 1
    for record in records:
        assert sum(prompt is not None for prompt in (record.messages, record.text, record.token_ids)) == 1
        assert record.output_length is not None or record.output_text is not None


@pytest.mark.parametrize("page", ["logs", "logs-gateways", "logs-more"])
def test_the_docs_examples_are_read_as_they_say(page):
    text = (HERE.parent / "docs/ingest" / f"{page}.md").read_text()
    sections = re.findall(r"^## `([\w-]+)`\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert len(sections) > 2
    for name, section in sections:
        blocks = re.findall(r"^```(json|csv|)\n(.*?)^```$", section, re.M | re.S)
        assert blocks, name
        for kind, block in blocks:
            lines = block.encode().splitlines()
            lines = [*row_lines(lines)] if name == "kv-events" else lines
            for case in [lines] if kind == "csv" else [[line] for line in lines]:
                reader = open_reader("auto", case, untimed=True)
                assert reader.name == name
                assert all(reader.time_ns(record) is not None for line in case for record in reader.records(line))


# -- block-hash ------------------------------------------------------------------------------------------------------


def test_block_hash_rows_hold_messages_text_or_ids():
    assert read(block_hash(input=[USER])).messages == [USER]
    assert read(block_hash(input="<s>Hello")).text == "<s>Hello"
    assert read(block_hash(input=[5, 6])).token_ids == array("I", [5, 6])


def test_block_hash_outputs_are_text_ids_a_length_or_a_message():
    answer = {"role": "assistant", "content": "World"}
    assert read(block_hash(output="World")).output_text == "World"
    assert read(block_hash(output=answer)).output_text == "World"
    assert read(block_hash(output=7)).output_length == read(block_hash(output=7.0)).output_length == 7
    assert read(block_hash(output=0)).output_length == 0
    ids = read(block_hash(output=[8, 9]))
    assert (ids.output_ids, ids.output_length) == (array("I", [8, 9]), 2)
    assert read(block_hash(output=[])).output_length == 0
    assert read(block_hash(output=None, output_length=5)).output_length == 5


def test_a_logged_length_takes_precedence_over_the_output():
    for output in ("World", [8, 9], 7):
        assert read(block_hash(output=output, output_length=5)).output_length == 5


def test_optional_fields_are_read_under_any_of_their_names():
    record = records_of("block_hash_messages")[1][3]
    assert (record.session, record.tenant, record.type, record.model) == ("7", "north", "search", "desk-large")
    assert (record.adapter, record.output_length, record.prompt_tokens, record.id) == ("maps", 42, 31, "r-4")
    assert record.tools[0]["function"]["name"] == "find"
    for name in fields.SESSION:
        assert read(block_hash(**{name: "a"})).session == "a"
    for name in fields.USER:
        assert read(block_hash(**{name: 3})).user == "3"
    assert read(block_hash(session="", user=None)).session is None  # an empty key would join strangers


def test_a_row_without_optional_fields_leaves_them_empty():
    record = read(block_hash())
    assert record == Record(time=0, text="Hello", output_text="World", type="text")


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"timestamp": None}, f"timestamp: {NO_TIME}"),
        ({"input": None}, "input: is missing. It must hold the prompt. Try --map input=FIELD."),
        ({"input": ""}, "input: the prompt is empty."),
        ({"input": []}, "input: the prompt is empty."),
        ({"input": 5}, "input: is a number; expected messages, text or token ids."),
        ({"input": {}}, "input: is an object; expected messages, text or token ids."),
        ({"input": ["a"]}, "input[0]: is a string; expected a message or a token id."),
        ({"input": [USER, "a"]}, "input[1]: is a string; expected a message."),
        ({"input": [{"content": "a"}]}, "input[0].role: is missing; expected a string."),
        ({"input": [USER | {"content": 5}]}, f"input[0].content: is a number; {NO_CONTENT}"),
        ({"input": [USER | {"content": [5]}]}, "input[0].content[0]: is a number; expected a content part."),
        ({"input": [USER | {"tool_calls": 5}]}, "input[0].tool_calls: is a number; expected a list of tool calls."),
        ({"input": [1, -2]}, "input: is not a list of token ids: each must be a whole number from 0 to 2^32 - 1."),
        ({"input": [1, True]}, "input: is not a list of token ids: each must be a whole number from 0 to 2^32 - 1."),
        ({"input": [1, 2**32]}, "input: is not a list of token ids: each must be a whole number from 0 to 2^32 - 1."),
        ({"output": None, "response": "Yes"}, f"response: {UNREAD} Try --map output=response."),
        ({"output": True}, "output: is true or false; expected text, token ids or a length."),
        ({"output": -1}, "output: is negative."),
        ({"output": 1.5}, "output: is a fraction; expected a whole number of tokens."),
        ({"output": ["a"]}, "output: is not a list of token ids: each must be a whole number from 0 to 2^32 - 1."),
        ({"output": {"content": 5}}, f"output.content: is a number; {NO_CONTENT}"),
        ({"output_length": -1}, "output_length: is negative."),
        ({"output_length": 2**31}, "output_length: is more than 16,777,216 tokens."),
        ({"prompt_tokens": "seven"}, "prompt_tokens: is a string; expected a whole number of tokens."),
        ({"session_id": {}}, "session_id: is an object; expected a string or a whole number."),
        ({"tools": {}}, "tools: is an object; expected a list of tool definitions."),
        ({"type": 7}, "type: is a number; expected a string."),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_with_its_path_and_without_its_content(changed, line):
    assert refused(block_hash(**changed)) == line


# -- openai ----------------------------------------------------------------------------------------------------------


def test_flat_pairs_are_read():
    _, (first, second, third) = records_of("openai_flat")
    assert (first.time, first.user, first.model, first.prompt_tokens, first.output_length) == (
        1900000000, "u-1", "tiny-1", 58, 17,
    )  # fmt: skip
    assert first.output_text == '{"town": "Jena"}'  # the arguments of the call; its content is null
    assert second.messages[1]["content"] is None and second.messages[1]["tool_calls"] and len(second.tools) == 1
    assert (third.user, third.session, third.output_length) == ("s-9", "night", None)
    assert third.type == "text" and media_of(third) == []  # parts of text are no media


def test_nested_pairs_are_read_and_the_row_and_the_response_come_first():
    opened, (first, second, third, fourth) = records_of("openai_nested")
    assert opened.time_ns(second) - opened.time_ns(first) == 3_321_099_000  # timestamp, not created
    assert (first.session, first.user, first.model, first.id) == ("s1", "u1", "eye-2031-01-01", "c1")
    assert (first.prompt_tokens, first.output_length, first.output_text) == (96, 7, "Two cups and a map.")
    assert second.output_text == "The blue part is the sea.A map of the coast." and second.output_length is None
    assert [record.type for record in (first, second, third, fourth)] == ["image", "image", "file", "audio"]
    assert (fourth.model, fourth.output_text) == ("eye", "A dog barks.")  # request and response as JSON in strings


def test_batch_rows_are_read_and_half_a_batch_gives_a_hint():
    _, records = records_of("openai_batch")
    assert [(record.id, record.time, record.output_text) for record in records] == [
        ("job-0", 1900000100, "Yes"), ("job-1", 1900000100, "No"), ("job-2", 1900000101, "Yes"),
    ]  # fmt: skip
    half = {"custom_id": "job-0", "response": {"body": {"created": 5, "choices": []}}}
    assert "two files: give both" in refused(half, "openai")


def test_older_completions_are_read():
    _, (first, second) = records_of("openai_completions")
    assert (first.text, first.output_text, first.output_length) == ("Once upon a time", " there was a kettle.", 5)
    assert second.token_ids == array("I", [11, 12, 13])
    functions = read({"created": 5, "messages": [USER], "functions": [{"name": "f"}], "response": "Hi"}, "openai")
    assert functions.tools == [{"type": "function", "function": {"name": "f"}}] and functions.output_text == "Hi"


@pytest.mark.parametrize("choices", [[], [None], {}, [{}], "no"])
def test_a_response_without_a_choice_needs_a_count(choices):
    row = {"created": 5, "messages": [USER], "choices": choices}
    assert refused(row, "openai").startswith("choices: is not an answer that this log format reads.")
    assert read(row | {"usage": {"completion_tokens": 4}}, "openai").output_length == 4


def test_tool_call_arguments_may_be_objects_and_contents_parts():
    message = {"content": [{"type": "text", "text": "So: "}, {"type": "refusal", "refusal": "no"}],
               "tool_calls": [{"function": {"arguments": {"b": 1}}}, {"function": {}}, {"custom": {}}]}  # fmt: skip
    row = {"created": 5, "messages": [USER], "choices": [{"message": message}]}
    assert read(row, "openai").output_text == 'So: no{"b":1}'


def test_a_map_or_the_row_itself_wins_over_request_and_response():
    row = {"timestamp": 9, "output_length": 3, "prompt_tokens": 2, "model": "mine", "output": "mine",
           "request": {"messages": [USER], "model": "a", "tools": []},
           "response": {"created": 5, "model": "b", "usage": {"completion_tokens": 8, "prompt_tokens": 8}}}  # fmt: skip
    record = read(row, "openai")
    assert (record.time, record.output_length, record.prompt_tokens, record.model) == (9, 3, 2, "mine")
    assert (record.output_text, record.tools) == ("mine", None)


def test_an_error_names_the_nested_path():
    row = {"request": {"messages": [USER, {"role": 5}]}, "response": {"created": 5}}
    assert refused(row, "openai") == "request.messages[1].role: is a number; expected a string."
    row = {"body": {"messages": [USER]}, "response": {"body": {"created": 5, "usage": {"completion_tokens": -1}}}}
    assert refused(row, "openai") == "response.body.usage.completion_tokens: is negative."


# -- tokens ----------------------------------------------------------------------------------------------------------


def test_tokenised_rows_are_exact():
    _, (first, second, third) = records_of("tokens")
    assert (first.token_ids, first.output_ids) == (array("I", [1, 2, 3, 4, 5]), array("I", [6, 7]))
    assert first.output_length == 2
    assert (second.output_ids, third.output_length, third.type) == (array("I", [9]), 11, "coder")


def test_images_with_equal_placeholder_ids_are_distinguished_by_the_messages():
    _, (cat, dog) = records_of("tokens_vllm")
    assert cat.token_ids == dog.token_ids and cat.messages is None
    assert media_of(cat) != media_of(dog) and cat.type == "image"
    assert cat.output_ids == array("I", [30, 2])


def test_a_request_output_of_vllm_has_its_answer_in_outputs_and_its_time_in_metrics():
    row = {"request_id": "1", "prompt": None, "prompt_token_ids": [1, 2, 3], "num_cached_tokens": 2}
    row |= {"outputs": [{"index": 0, "text": "", "token_ids": [6, 7]}], "metrics": {"arrival_time": 1900000000.5}}
    reader = open_reader("auto", [orjson.dumps(row)])
    record = reader.read(orjson.dumps(row))
    assert (reader.name, record.output_ids, record.output_length) == ("tokens", array("I", [6, 7]), 2)
    assert record.time == 1900000000.5 and reader.describe()["time"] == "epoch seconds (detected)"
    assert reader.read(orjson.dumps(row | {"timestamp": 1900000007.0})).time == 1900000007.0
    assert refused(row | {"metrics": {"arrival_time": 0.0}}, "tokens").startswith(f"timestamp: {NO_TIME}")


@pytest.mark.parametrize("path", ["outputs", "outputs.0", "outputs.0.token_ids"])
def test_an_answer_of_ids_without_text_has_their_number(path):
    row = {"timestamp": 0, "prompt_token_ids": [1], "outputs": [{"text": "", "token_ids": [6, 7]}]}
    record = open_reader("tokens", [], field_map={"output": path}).read(orjson.dumps(row))
    assert record.output_length == 2
    said = {"timestamp": 0, "input": "Hello", "output": [{"text": "Yes", "token_ids": [6, 7]}]}
    assert open_reader("block-hash", []).read(orjson.dumps(said)).output_text == "Yes"


def test_a_reader_knows_all_models_and_those_of_texts():
    rows = [{"timestamp": 0, "prompt_token_ids": [1], "token_ids": [2], "model": "llama-3.1-8b"}]
    ids = open_reader("auto", [orjson.dumps(row) for row in rows])
    assert (ids.models, ids.text_models) == (("llama-3.1-8b",), None)
    rows = [{"timestamp": 0, "input": "Hello", "output": 3, "model": "qwen3-8b"}]
    texts = open_reader("auto", [orjson.dumps(row) for row in rows])
    assert texts.models == texts.text_models == ("qwen3-8b",)


def test_rows_whose_ids_were_not_returned_are_read_as_text():
    row = {"created": 5, "messages": [USER], "prompt_token_ids": None, "usage": {"completion_tokens": 1}}
    assert logs.detect([row]) == "openai"
    assert refused({"timestamp": 0, "prompt_token_ids": []}, "tokens") == "prompt_token_ids: the prompt is empty."


# -- media and request types -----------------------------------------------------------------------------------------


def with_parts(*parts):
    return read(block_hash(input=[{"role": "user", "content": list(parts)}]))


def test_each_part_that_is_not_text_is_identified():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AB=="}}
    assert len(set(media_of(with_parts(image, other)))) == 2
    assert media_of(with_parts({"type": "text", "text": "a"}, "b", {"text": "c"})) == []
    turned_round = dict(reversed(image.items()))
    assert media_of(with_parts(image)) == media_of(with_parts(turned_round))  # the order of keys is nothing
    marked = image | {"cache_control": {"type": "ephemeral"}}
    assert media_of(with_parts(image)) == media_of(with_parts(marked))  # nor is a marker that moves from turn to turn


def test_the_type_comes_from_the_row_else_from_the_first_part_that_is_not_text():
    assert with_parts({"type": "document"}, {"type": "image"}).type == "file"
    assert (
        with_parts({"type": "tool_result"}).type == "text" and len(media_of(with_parts({"type": "tool_result"}))) == 1
    )
    row = block_hash(input=[{"role": "user", "content": [{"type": "image"}]}], type="search")
    assert read(row).type == "search" and len(media_of(read(row))) == 1


# -- cut texts -------------------------------------------------------------------------------------------------------


def test_prompts_that_the_logger_cut_are_refused_or_noted():
    lines = lines_of("truncated")
    reader = open_reader("auto", lines)
    assert reader.read(lines[0]).cut is None
    for line in lines[1:3]:
        with pytest.raises(RowError, match=r"^input\[0\].content: was cut short by the logger. .*--allow-truncated.$"):
            reader.read(line)
    allowing = open_reader("auto", lines, allow_truncated=True)
    assert [allowing.read(line).cut for line in lines] == [None, "input[0].content", "input[0].content", None]


@pytest.mark.parametrize(
    "row",
    [
        block_hash(input=CUT),
        block_hash(input="y" * 2045 + "..."),
        block_hash(input=[{"role": "user", "content": [{"type": "text", "text": CUT}]}]),
        block_hash(input=[{"role": "user", "content": [CUT]}]),
        block_hash(input=[{"role": "assistant", "tool_calls": [{"function": {"arguments": CUT}}]}]),
        block_hash(input=[USER | {"content": "ab... (litellm_truncated 9 chars)"}]),
        block_hash(output=CUT),
        block_hash(output={"content": CUT}),
    ],
)
def test_a_cut_is_seen_wherever_text_stands(row):
    assert read(row).cut


@pytest.mark.parametrize("text", ["x" * 2048, "x" * 2047 + "...", "a litellm_truncated field", "wait..."])
def test_texts_that_only_resemble_cut_ones_are_accepted(text):
    assert read(block_hash(input=text)).cut is None


def test_a_cut_output_whose_length_was_logged_is_left_out():
    record = read(block_hash(output=CUT, output_length=900))
    assert (record.cut, record.output_text, record.output_length) == (None, None, 900)


# -- the field map ---------------------------------------------------------------------------------------------------

MAP = {
    "timestamp": "at", "input": "payload.0.messages", "session": "meta.chat", "user": "meta.who.name",
    "output": "answer.text", "output_length": "attributes.gen_ai.usage.output_tokens",
}  # fmt: skip


def test_a_map_makes_any_row_a_block_hash_row():
    reader, (first, second) = records_of("mapped", field_map=MAP)
    assert reader.name == "block-hash"
    assert (reader.time_ns(first), first.session, first.user, first.output_length) == (1_500_000_000, "x", "kim", 4)
    assert first.messages == [{"role": "user", "content": "Good morning."}]
    assert second.user is None  # its path is absent in this row


def test_a_map_overrides_and_hides_the_rows_own_fields():
    row = block_hash(session="own", other="mapped")
    assert read(FieldMap.of({"session": "other"}).overlay(row)).session == "mapped"
    assert read(FieldMap.of({"session": "gone"}).overlay(row | {"session_id": "own too"})).session is None
    assert "timestamp: is missing" in refused(FieldMap.of({"timestamp": "gone"}).overlay(row))


@pytest.mark.parametrize("name", ["openai", "tokens"])
def test_a_map_is_laid_over_the_other_forms_too(name):
    row = {"at": 9, "q": {"x": "Hello"}, "a": "World", "who": "kim", "created": 5, "messages": [USER]}
    mapped = FieldMap.of({"timestamp": "at", "input": "q.x", "output": "a", "user": "who"}).overlay(row)
    record = read(mapped, name)
    assert (record.time, record.text, record.output_text, record.user) == (9, "Hello", "World", "kim")
    assert refused(FieldMap.of({"timestamp": "gone"}).overlay(row), name).startswith("timestamp: is missing")


def test_an_error_names_the_path_that_the_user_wrote():
    reader = open_reader("auto", [], field_map=MAP)
    row = {"at": 0, "payload": [{"messages": [{"role": 5}]}], "answer": {"text": "a"}}
    with pytest.raises(RowError, match=r"^payload.0.messages\[0\].role: is a number"):
        reader.read(orjson.dumps(row))
    with pytest.raises(RowError, match=r"^at: is missing"):
        reader.read(b"{}")


def test_paths_go_through_objects_and_lists():
    row = {"a": [{"b": 1}, {"b": None}], "c.d": 2, "e": {"f.g": 3}, "5": 4}
    assert [find(row, path) for path in ("a.0.b", "a.-2.b", "c.d", "e.f.g", "5")] == [1, 1, 2, 3, 4]
    missing = {find(row, path) for path in ("a.1.b", "a.2", "a.x", "a.-3", "a.-", "a.²", "x", "a.0.b.c", "e.f")}
    assert len(missing) == 1 and missing.pop() is find({}, "x")


def test_a_map_is_written_as_pairs():
    assert parse_map(["timestamp = created_at", "session=a=b"]) == {"timestamp": "created_at", "session": "a=b"}
    assert FieldMap.of(None) == FieldMap() and not FieldMap()
    for pair, message in [
        ("time=at", "--map 'time' is not a field. Use FIELD=PATH with one of: timestamp, input, output"),
        ("at", "'at' is not a field"),
        ("session=", "--map session= needs a path"),
        ("session=a..b", "--map session= needs a path"),
    ]:
        with pytest.raises(UsageError, match=message):
            parse_map([pair])
    with pytest.raises(UsageError, match="session= is given twice"):
        parse_map(["session=a", "session=b"])


# -- opening and reading lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"timestamp": 0, "input": tru}', "not valid JSON at column 27."),
        (b'{"timestamp": 0, "input": "\xff"}', "not UTF-8 at byte 27."),
        (b'{"timestamp": 0, "input": "\\ud800"}', "not valid JSON at column 28."),
        (b"{", "not valid JSON at column 2. A log holds one JSON object a line. To convert indented JSON, use jq -c."),
        (b"[[" * 2000, "not valid JSON at column 1026."),
        (b"[1]", "is JSON, but not an object. A log holds one JSON object a line."),
        (b"17", "is JSON, but not an object. A log holds one JSON object a line."),
    ],
)
def test_an_invalid_line_is_reported_with_its_column(line, message):
    with pytest.raises(RowError) as error:
        open_reader("block-hash", []).read(line)
    assert str(error.value) == message
    assert error.value.__context__ is None and error.value.__cause__ is None


def test_conversations_without_times_say_that_a_time_is_missing():
    lines = lines_of("conversations")
    reader = open_reader("auto", lines)
    assert reader.describe()["time"] == "none found in the first rows"
    for record in reader.records(lines[0]):
        with pytest.raises(
            RowError, match=r"the request has no time. To make up arrival times, use --arrivals rate=1/s\."
        ):
            reader.time_ns(record)


def test_rows_that_match_no_reader_are_an_error_that_lists_the_formats():
    with pytest.raises(
        RowError,
        match=r"no known log format. Try --map input=FIELD, or --log-format NAME .one of litellm-.*, lengths",
    ):
        open_reader("auto", [b'{"question": "Hello"}', b"broken"])


def test_broken_lines_in_the_sample_are_left_to_be_read_in_their_place():
    assert open_reader("auto", [b"broken", b"[]"]).name == "block-hash"
    assert open_reader("auto", [b"broken", *lines_of("tokens")]).describe()["time"].startswith("milliseconds")


def test_the_reader_that_most_rows_fit_is_taken():
    rows = [{"messages": [USER]}, {"messages": [USER]}, {"input": "Hello"}, {}]
    assert logs.detect(rows) == "openai"
    assert logs.detect([{"input": "Hello", "messages": [USER]}]) == "block-hash"


def test_stated_settings_are_not_detected():
    reader = open_reader("openai", lines_of("tokens"), time_unit="us")
    assert reader.describe() == {"reader": "openai (stated)", "time": "microseconds (stated)"}
    assert reader.time_ns(Record(time=5)) == 5_000
    with pytest.raises(UsageError, match="'csv' is not a log format. Try auto, .*tokens, .*openai"):
        open_reader("csv", [])
    with pytest.raises(UsageError, match="'minutes' is not a --time-unit"):
        open_reader("auto", [], time_unit="minutes")


def test_seconds_of_created_stay_seconds_when_they_are_small():
    rows = [orjson.dumps({"created": at, "messages": [USER], "response": "Hi"}) for at in (0, 3)]
    assert open_reader("auto", rows).describe()["time"] == "seconds from the start (detected)"
    rows = [orjson.dumps({"timestamp": at, "messages": [USER], "response": "Hi"}) for at in (0, 3)]
    assert open_reader("auto", rows).describe()["time"] == "milliseconds from the start (detected)"


@pytest.mark.parametrize("damaged", [1_900_000_000, 1_900_000, 9_900_000_000_000])
def test_a_time_of_another_decade_is_a_bad_row(damaged):
    epochs = [b'{"timestamp": %d, "input": "a", "output": 1}' % (1_900_000_000_000 + at) for at in (0, 5, 9)]
    reader = open_reader("auto", epochs)
    assert reader.time_ns(reader.read(epochs[0])) == 1_900_000_000_000 * 10**6
    with pytest.raises(RowError):
        reader.time_ns(Record(time=damaged))
    with pytest.raises(RowError, match="more than five years from the times of the first rows"):
        reader.time_ns(Record(time=1_700_000_000_000))


def test_the_first_time_may_be_the_damaged_one():
    lines = [b'{"timestamp": "%s", "input": "a", "output": 1}' % time for time in (b"1031-01-01", b"2031-01-02")] * 3
    lines += [b'{"timestamp": "2031-01-03", "input": "a", "output": 1}']
    reader = open_reader("auto", lines)
    assert reader.time_ns(reader.read(lines[1])) > 0


def test_a_time_without_a_unit_is_refused():
    with pytest.raises(RowError, match=r"the first rows had no times. Set --time-unit"):
        open_reader("block-hash", []).time_ns(Record(time=5))


def test_readers_and_records_can_be_pickled():
    reader, records = records_of("openai_nested", field_map={"session": "session"}, allow_truncated=True)
    again = pickle.loads(pickle.dumps(reader))
    assert again == reader and again.describe() == reader.describe()
    assert [again.read(line) for line in lines_of("openai_nested")] == records == pickle.loads(pickle.dumps(records))


# -- laws ------------------------------------------------------------------------------------------------------------

CANARY = "canary-7c1f"
names = st.sampled_from(
    [*TARGETS, "messages", "prompt", "request", "response", "body", "choices", "message", "usage", "created", "role",
     "content", "tool_calls", "function", "arguments", "text", "image_url", "completion_tokens", "prompt_token_ids",
     "token_ids", "functions", "session_id", "reasoning", CANARY]
)  # fmt: skip
words = st.sampled_from([CANARY, f"{{{CANARY}", "user", "text", "", CUT.replace("x", CANARY[0])])
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 2**33), st.floats(allow_nan=False), words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=5)),
    max_leaves=12,
)
rows = st.dictionaries(names, values, max_size=8).map(
    lambda row: {"timestamp": 0, "input": CANARY, "output": 1, "messages": [USER | {"name": CANARY}]} | row
)


@settings(deadline=None, max_examples=drawn(300))
@given(rows, st.sampled_from([*READERS, "auto"]), st.booleans())
def test_any_row_gives_a_record_or_an_error_without_content(row, name, mapped):
    line = orjson.dumps(row)
    try:
        reader = open_reader(name, [line], field_map={"output": "response.text"} if mapped else None)
        record = reader.read(line)
        assert sum(prompt is not None for prompt in (record.messages, record.text, record.token_ids)) == 1
        reader.time_ns(record)
    except RowError as error:
        assert_silent(error)


GOOD = [(path.stem, line) for path in sorted(DATA.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


@settings(deadline=None, max_examples=drawn(300))
@given(st.sampled_from(GOOD), values, st.data())
def test_any_good_row_with_one_value_changed_gives_a_record_or_an_error_without_content(good, value, data):
    name, line = good
    row = orjson.loads(line)
    contributor, key = data.draw(st.sampled_from(list(places_in(row))))
    contributor[key] = value
    try:
        reader = open_reader("auto", [orjson.dumps(row), line], field_map=MAP if name == "mapped" else None)
        for record in reader.records(orjson.dumps(row)):
            reader.time_ns(record)
    except RowError as error:
        assert_silent(error)


def places_in(value):
    """Each object or list in a row, with each of its keys or indexes."""
    for key in value if type(value) is dict else range(len(value)):
        yield value, key
        if type(value[key]) in (dict, list):
            yield from places_in(value[key])


@settings(deadline=None)
@given(rows, st.data())
def test_any_broken_line_gives_an_error_without_content(row, data):
    line = orjson.dumps(row)
    start = data.draw(st.integers(0, len(line) - 1))
    broken = line[:start] + data.draw(st.binary(max_size=3)) + line[start + data.draw(st.integers(0, 9)) :]
    try:
        open_reader("block-hash", [broken], time_unit="ms").read(broken)
    except RowError as error:
        assert_silent(error)


def assert_silent(error):
    """Nothing of the row is in the error: not in its words, its parts or what hangs on it."""
    said = "".join(traceback.format_exception_only(error)) + repr(error.args) + repr(vars(error))
    assert CANARY not in said and "\n" not in str(error)
    assert error.__context__ is None and error.__cause__ is None
    assert pickle.loads(pickle.dumps(error)).reason == error.reason


# -- real logs, where they are present -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "requests", "empty"), [("miniswe", 402, 0), ("magagent", 746, 53)])
def test_agent_logs_are_block_hash_rows_in_microseconds(shared, name, requests, empty):
    found = sources.find(shared / "data" / "agent_logs" / f"{name}.jsonl")
    reader = open_reader("auto", sources.sample(found))
    assert reader.describe() == {"reader": "block-hash (detected)", "time": "epoch microseconds (detected)"}
    lines = [line for piece in sources.pieces(found) for line in piece.read().splitlines()]
    read, refused = [], []
    for line in lines:
        try:
            read.append(reader.read(line))
        except RowError as error:
            refused.append(str(error))
    assert (len(lines), refused) == (requests, ["input: the prompt is empty."] * empty)
    times = [reader.time_ns(record) for record in read]
    assert times != sorted(times) and all(record.session and record.output_text for record in read)


def test_chats_without_times_are_not_requests(shared):
    for path in sorted((shared / "data" / "chats").glob("*.jsonl")):
        found = sources.find(path)
        reader = open_reader("auto", sources.sample(found))
        with pytest.raises(RowError, match="the request has no time"):
            reader.time_ns(reader.records(sources.sample(found)[0])[0])
