"""Logs that look readable and mean something else: a line as people log it, and what is read, or the error.

READ and REFUSED are tables to read: the mistake, the row, and what kvtrace makes of it. A prompt that is read as text
instead of messages, an answer that is read as 0 tokens, or a session that is overlooked changes the trace and no error
tells.
"""

from pathlib import Path

import orjson
import pytest

from kvtrace._base.errors import EmptyPrompt, RowError
from kvtrace.cli import run
from kvtrace.ingest.logs import open_reader

ASK = [{"role": "user", "content": "Is tin a metal?"}]
YES = {"role": "assistant", "content": "Yes."}
ASKED = orjson.dumps(ASK).decode()
TIN = {"type": "function", "function": {"name": "tin"}}


def text(value, times=1):
    """The value as JSON text, encoded several times."""
    for _ in range(times):
        value = orjson.dumps(value).decode()
    return value


def row(**fields):
    return {"timestamp": 0, "input": ASK, "output": "Yes."} | fields


CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "tin", "args": {"a": 1}}]}

READ = {  # mistake -> (row, fields of the record)
    "messages as JSON text": (row(input=ASKED), {"messages": ASK, "text": None}),
    "messages as JSON text, encoded twice": (row(input=text(ASKED)), {"messages": ASK}),
    "messages as indented JSON text": (row(input="\n [ " + ASKED[1:]), {"messages": ASK}),
    "the body instead of its messages": (row(input={"model": "m", "messages": ASK}), {"messages": ASK}),
    "the body as JSON text": (row(input=text({"messages": ASK, "tools": [TIN]})), {"messages": ASK, "tools": [TIN]}),
    "a body with JSON text in it": (row(input={"messages": ASKED}), {"messages": ASK}),
    "an Anthropic body": (
        row(input={"system": "Brief.", "messages": ASK}),
        {"messages": [{"role": "system", "content": "Brief."}, *ASK]},
    ),
    "a body with a prompt": (row(input={"prompt": "Is tin"}), {"text": "Is tin", "messages": None}),
    "one message without its list": (row(input=ASK[0]), {"messages": ASK}),
    "each message as JSON text": (row(input=[text(message) for message in ASK]), {"messages": ASK}),
    "messages of chat completions as JSON text": (
        {"created": 5, "messages": ASKED, "choices": text([{"message": YES}])},
        {"messages": ASK, "output_text": "Yes."},
    ),
    "tools as JSON text": (row(tools=text([TIN])), {"tools": [TIN]}),
    "a request encoded twice": (
        {"timestamp": 0, "request": text({"messages": ASK}, 2), "response": text({"choices": [{"message": YES}]}, 2)},
        {"messages": ASK, "output_text": "Yes."},
    ),
    "a whole line as JSON text": (text(row()), {"messages": ASK, "output_text": "Yes."}),
    "text that only looks like JSON": (row(input="[1] is a list"), {"text": "[1] is a list", "messages": None}),
    "JSON that is a text prompt": (row(input='{"a": 1}'), {"text": '{"a": 1}', "messages": None}),
    "a completion as the output": (
        row(output={"choices": [{"message": YES}], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}),
        {"output_text": "Yes.", "output_length": 2, "prompt_tokens": 9},
    ),
    "a completion as JSON text": (row(output=text({"choices": [{"message": YES}]})), {"output_text": "Yes."}),
    "the choice's message in an object": (row(output={"message": YES}), {"output_text": "Yes."}),
    "a message as JSON text": (row(output=text(YES)), {"output_text": "Yes."}),
    "messages as the output": (row(output=[YES]), {"output_text": "Yes."}),
    "the whole conversation as the output": (row(output={"messages": [*ASK, YES]}), {"output_text": "Yes."}),
    "content parts as the output": (row(output=[{"type": "text", "text": "Yes."}]), {"output_text": "Yes."}),
    "a text in an object": (row(output={"text": "Yes."}), {"output_text": "Yes."}),
    "a text in a list of one": (row(output=[{"generated_text": "Yes."}]), {"output_text": "Yes."}),
    "an answer of the Responses API": (
        row(output={"output": [YES | {"type": "message", "content": [{"type": "output_text", "text": "Yes."}]}]}),
        {"output_text": "Yes."},
    ),
    "a tool call in LangChain's shape": (row(output=CALL), {"output_text": '{"a":1}'}),
    "the input of Anthropic's tool": (
        row(output={"content": [{"type": "tool_use", "input": {"a": 1}}]}),
        {"output_text": '{"a":1}'},
    ),
    "a function call of OpenAI's older shape": (
        row(output={"content": None, "function_call": {"name": "tin", "arguments": "{}"}}),
        {"output_text": "{}"},
    ),
    "an answer that is JSON because it was asked for": (
        row(output='{"text": "Yes."}'),
        {"output_text": '{"text": "Yes."}'},
    ),
    "a message as the response of a chat completion": (
        {"timestamp": 0, "messages": ASK, "response": YES},
        {"output_text": "Yes."},
    ),
    "the completion of a text completion": (
        {"timestamp": 0, "prompt": "Is tin", "completion": "Yes."},
        {"text": "Is tin", "output_text": "Yes."},
    ),
    "an unknown answer with a logged length": (
        row(output={"score": 1}, output_length=7),
        {"output_text": None, "output_length": 7},
    ),
}  # fmt: skip

REFUSED = {  # mistake -> (row, error)
    "messages of str() instead of JSON": (
        row(input=str(ASK)),
        "input: holds messages as Python writes them, which is not JSON. Log them with json.dumps, not with str.",
    ),
    "messages that were cut": (
        row(input=ASKED[:-5]),
        "input: was cut short by the logger. Log complete texts, or accept cut ones with --allow-truncated.",
    ),
    "no messages, as JSON text": (row(input="[]"), "input: the prompt is empty."),
    "an output of another shape": (
        row(output={"score": 1}),
        "output: is not an answer: it has no message, choices, content parts or text. Try --map output=FIELD.",
    ),
    "an empty object as the output": (
        row(output={}),
        "output: is not an answer: it has no message, choices, content parts or text. Try --map output=FIELD.",
    ),
    "a choice of another shape": (
        row(output={"choices": [{"index": 0}]}),
        "output: is not an answer: it has no message, choices, content parts or text. Try --map output=FIELD.",
    ),
    "content parts without text": (
        row(output={"content": [{"type": "image", "url": "x"}]}),
        "output.content: has no part with text. Try --map output=FIELD.",
    ),
    "the prompt's messages as the output": (
        row(output=ASK), "output: has no message of the assistant. Try --map output=FIELD."
    ),
    "a body without a prompt": (
        row(input={"model": "m"}), "input: is an object; expected messages, text or token ids."
    ),
    "a line that is a text": ('"hello"', "is JSON, but not an object. A log holds one JSON object a line."),
}  # fmt: skip


DATE = "2031-03-04T05:06:0{}Z"


def turns(*rows, **fields):
    """Rows with the first fields one by one, and with the others in each."""
    return [row(**fields) | one for one in rows]


SPELLINGS = {  # mistake -> (rows, fields of the last record, note)
    "a session in camel case": (turns({"sessionId": "a"}, {"sessionId": "a"}), {"session": "a"}, None),
    "a conversation": (turns({"conversation": 7}, {"conversation": 7}), {"session": "7"}, None),
    "a thread": (turns({"thread_id": "a"}, {"thread_id": "b"}, {"thread_id": "b"}), {"session": "b"}, None),
    "a session that is new in each row": (
        turns({"sessionId": "a"}, {"sessionId": "b"}),
        {"session": None},
        "the rows have `sessionId`, which looks like a session. It is not used. To use it: --map session=sessionId",
    ),
    "a session under a name that is not certain": (
        turns({"conv": "a"}, {"conv": "a"}),
        {"session": None},
        "the rows have `conv`, which looks like a session. It is not used. To use it: --map session=conv",
    ),
    "a session inside the metadata": (
        turns({}, {}, metadata={"sessionId": "a"}),
        {"session": None},
        "the rows have `metadata.sessionId`, which looks like a session. It is not used. To use it: --map "
        "session=metadata.sessionId",
    ),
    "a user in camel case": (turns({"userId": "kim"}, {"userId": "kim"}), {"user": "kim"}, None),
    "an end user": (turns({"end_user": "kim"}, {"end_user": "kim"}), {"user": "kim"}, None),
    "a user that changes within a session": (
        turns({"userId": "1"}, {"userId": "2"}, {"userId": "1"}, session="a"),
        {"user": None},
        "the rows have `userId`, which looks like a user. It is not used. To use it: --map user=userId",
    ),
    "an API key in camel case": (
        turns({"apiKey": "k"}, {"apiKey": "k"}, user="kim"),
        {"account": "k", "user": "kim"},
        None,
    ),
    "an organisation in camel case": (turns({"orgId": 5}, {"orgId": 5}), {"tenant": "5"}, None),
    "a team, which a client may choose": (
        turns({"team": "x"}, {"team": "x"}),
        {"tenant": None},
        "the rows have `team`, which looks like a tenant. It is not used. To use it: --map tenant=team",
    ),
    "two names that are not certain": (
        turns({"chat": "a", "uid": 1}, {"chat": "a", "uid": 1}),
        {"session": None, "user": None},
        "the rows have `chat`, which looks like a session, and `uid`, which looks like a user. They are not used. "
        "To use them: --map session=chat --map user=uid",
    ),
    "a model under another name": (turns({"model_name": "m"}), {"model": "m"}, None),
    "the reader's own name first": (
        turns({"session": "a", "sessionId": "b"}, {"session": "a", "sessionId": "b"}),
        {"session": "a"},
        None,
    ),
    "a date of creation": (
        [{"createdAt": DATE.format(i), "input": ASK, "output": "Yes."} for i in range(2)],
        {"time": DATE.format(1)},
        None,
    ),
    "a start in snake case": ([{"start_time": 1.9e9, "input": ASK, "output": 1}], {"time": 1.9e9}, None),
    "a short name of the time": ([{"ts": 1900000000123, "input": ASK, "output": 1}], {"time": 1900000000123}, None),
}  # fmt: skip

UNKNOWN = {  # mistake -> (rows, error)
    "the responses of a Batch without its requests": (
        [{"id": "1", "custom_id": "a", "response": {"body": {}}, "error": None}] * 2,
        "the first rows match no known log format. A Batch has its requests and responses in two files: give both.",
    ),
    "names of our own": (
        [{"question": "x", "reply": "y", "when": 1}] * 2,
        "the first rows match no known log format. Their fields: question, reply, when. Try --map timestamp=when --map "
        "input=question --map output=reply, or --log-format NAME.",
    ),
    "names that say nothing": (
        [{"a": 1, "b": 2}] * 2,
        "the first rows match no known log format. Their fields: a, b. Try --map input=FIELD, or --log-format NAME.",
    ),
}


@pytest.mark.parametrize("mistake", SPELLINGS)
def test_another_spelling_is_used_or_named_in_one_note(mistake):
    rows, expected, note = SPELLINGS[mistake]
    lines = [line_of(row) for row in rows]
    reader = open_reader("auto", lines)
    record = reader.read(lines[-1])
    assert {name: getattr(record, name) for name in expected} == expected
    assert reader.note == note


def test_a_time_that_is_no_date_is_not_guessed():
    line = line_of({"time": 0.31, "input": ASK, "output": "Yes."})  # seconds that a request took
    with pytest.raises(RowError, match=r"^timestamp: is missing\. .* Try --map timestamp=FIELD\.$"):
        open_reader("auto", [line]).read(line)


def test_a_mapped_field_has_no_other_spelling():
    lines = [line_of(row) for row in turns({"sessionId": "a"}, {"sessionId": "a"}, chat="c")]
    assert open_reader("auto", lines, field_map={"session": "chat"}).read(lines[0]).session == "c"


@pytest.mark.parametrize("mistake", UNKNOWN)
def test_an_unknown_form_names_its_fields(mistake):
    rows, expected = UNKNOWN[mistake]
    with pytest.raises(RowError) as error:
        open_reader("auto", [line_of(row) for row in rows])
    assert str(error.value) == expected


@pytest.mark.parametrize(
    "rows",
    [
        [{"question": "x"}],  # one row: its names may be content
        [{"question": "x"}, {"Ann Lee": "y"}, {"Bo Chen": "z"}],
        [{"Ann Lee": 1, "id7": 2, "x" * 40: 3, "ZÜRICH": 4}] * 3,
    ],
)
def test_an_unknown_form_names_no_field_that_may_be_content(rows):
    with pytest.raises(RowError, match=r"^the first rows match no known log format\. Try --map input=FIELD, or"):
        open_reader("auto", [line_of(row) for row in rows])


def test_a_path_leads_into_json_text():
    line = line_of({"at": 0, "payload": text({"messages": ASK}), "output": "Yes."})
    reader = open_reader("auto", [line], field_map={"timestamp": "at", "input": "payload.messages"})
    assert reader.read(line).messages == ASK


TRACE = '{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [0]}'
SIDECAR = '{\n  "kvtrace": {\n    "version": "1",\n    "format_version": 1\n  },\n  "block_size": 4\n}\n'
CARD = "# A trace\n\nA service.\n\n## Licence and citation\n"
MODEL = '{"schema":1,"what":"kvtrace attach model","rows":3}'

WRONG_FILES = {  # what is given -> (name, content, error of anonymize, error of analyze; None = it is what is expected)
    "a raw log": (
        "day.jsonl", text(row()), None,
        "day.jsonl: is a raw log, not a trace. To make a trace of it: kvtrace anonymize day.jsonl -o TRACE",
    ),
    "a raw log in one array": (
        "day.json", f"[\n {text(row())}\n]", None,
        "day.json: is a raw log, not a trace. To make a trace of it: kvtrace anonymize day.json -o TRACE",
    ),
    "a raw log as CSV": (
        "day.csv", "timestamp,prompt,completion\n0,Hello,Hi\n", None,
        "day.csv: is a raw log, not a trace. To make a trace of it: kvtrace anonymize day.csv -o TRACE",
    ),
    "a trace": (
        "t.jsonl", TRACE, "t.jsonl: is a trace, not a raw log. To release it: kvtrace release t.jsonl -o TRACE", None
    ),
    "a sidecar": (
        "t.jsonl.meta.json", SIDECAR,
        *["t.jsonl.meta.json: is the sidecar of a trace. Give the trace itself: t.jsonl."] * 2
    ),
    "a data card": (
        "t.jsonl.card.md", CARD, *["t.jsonl.card.md: is the data card of a trace. Give the trace itself: t.jsonl."] * 2
    ),
    "a model": (
        "m.json", MODEL,
        *["m.json: is a model, not a trace. To draw a trace from it: kvtrace synthesize m.json -o TRACE"] * 2
    ),
    "a report": (
        "r.html", "<!doctype html>\n<html>",
        *["r.html: is an HTML page, such as kvtrace report writes. Give the trace that it shows."] * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("given", WRONG_FILES)
def test_another_kind_of_file_is_one_line_with_the_command_that_is_meant(given, tmp_path, monkeypatch, capfd):
    name, content, as_log, as_trace = WRONG_FILES[given]
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(content)
    for command, expected in ((["anonymize", name, "-o", "out.jsonl"], as_log), (["analyze", name], as_trace)):
        if expected is not None:
            assert run(command) == 3
            assert capfd.readouterr().err == f"kvtrace: {expected}\n"


def line_of(row):
    return row.encode() if isinstance(row, str) else orjson.dumps(row)


@pytest.mark.parametrize("mistake", READ)
def test_a_row_is_read_as_it_is_meant(mistake):
    row, expected = READ[mistake]
    reader = open_reader("auto", [line_of(row)])
    record = reader.read(line_of(row))
    assert {name: getattr(record, name) for name in expected} == expected


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_row_that_cannot_be_read_is_refused_with_its_path(mistake):
    row, expected = REFUSED[mistake]
    reader = open_reader("block-hash", [line_of(row)])
    with pytest.raises((RowError, EmptyPrompt)) as error:
        reader.read(line_of(row))
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("content", "what"),
    [(b"PK\3\4" + bytes(99), "a ZIP archive"), (bytes(257) + b"ustar", "a tar archive"), (b"Obj\1", "an Avro file")],
)
def test_a_file_that_must_be_unpacked_is_named(content, what, tmp_path, capfd):
    (tmp_path / "day.jsonl").write_bytes(content)
    assert run(["start", str(tmp_path / "day.jsonl"), "-o", str(tmp_path / "answer")]) == 3
    assert f"day.jsonl: is {what}. A log is JSON Lines, a JSON array or CSV" in capfd.readouterr().err


ASKED_AGAIN = [*ASK, YES, {"role": "user", "content": "Is zinc?"}]


def rows_read(*rows):
    """The reader that is detected for the rows, and their records."""
    lines = [orjson.dumps(row) for row in rows]
    reader = open_reader("auto", lines)
    return reader, [reader.read(line) for line in lines]


def test_a_request_that_logs_its_history_is_not_a_conversation():
    row = {"event_time": "2031-05-01 10:00:00", "conversation_id": "a", "messages": ASKED_AGAIN}
    reader, (record, _) = rows_read(row, row)
    assert reader.name == "openai" and record.messages == ASKED_AGAIN and record.session == "a"
    reader, (record,) = rows_read({"messages": ASKED_AGAIN, "completion": "No.", "created": 1_790_000_000})
    assert reader.name == "openai" and record.output_text == "No."


def test_the_upper_case_of_a_data_warehouse_is_read():
    row = {
        "EVENT_TS": "2031-05-01 10:00:00.250", "CONVERSATION_ID": "a", "MODEL_NAME": "m", "MESSAGES": text(ASKED_AGAIN),
        "COMPLETION": "No.", "COMPLETION_TOKENS": "9",
    }  # fmt: skip
    reader, (record, _) = rows_read(row, row)
    assert reader.name == "openai" and record.messages == ASKED_AGAIN and record.output_length == 9
    assert (record.time, record.session, record.model) == (row["EVENT_TS"], "a", "m")
    lines = [b"EVENT_TS,PROMPT,COMPLETION", *[b'2031-05-01 10:00:00.250,"Is tin",Yes'] * 2]
    assert open_reader("auto", lines).read(lines[1]).text == "Is tin"
    mapped = open_reader("auto", lines, field_map={"input": "COMPLETION", "output": "PROMPT"})
    assert mapped.read(lines[1]).text == "Yes"


def test_unknown_fields_in_upper_case_are_named():
    with pytest.raises(RowError) as caught:
        open_reader("auto", [b'{"EVENT_TS": 5, "USER_QUESTION": "x", "ANSWER": "y"}'] * 2)
    assert "Their fields: EVENT_TS, USER_QUESTION, ANSWER." in str(caught.value)
    assert "--map timestamp=EVENT_TS --map input=USER_QUESTION --map output=ANSWER" in str(caught.value)


def test_the_time_of_a_row_takes_precedence_over_that_of_its_answer():
    row = {"ts": "2031-05-01T10:00:00.250Z", "request": {"messages": ASK}}
    answer = {"created": 1_790_000_000, "choices": [{"message": YES}]}
    reader, records = rows_read(row | {"response": answer}, row | {"response": answer})
    assert str(reader.unit).startswith("ISO") and [record.time for record in records] == [row["ts"]] * 2
    assert reader.read(orjson.dumps(row | {"response": None})).time == row["ts"]
