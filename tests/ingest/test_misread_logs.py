"""Logs that look readable and mean something else: a line as people log it, and what is read, or the error.

READ and REFUSED are tables to read: the mistake, the row, and what kvtrace makes of it. A prompt that is read as text
instead of messages, an answer that is read as 0 tokens, or a session that is overlooked changes the trace and no error
tells.
"""

import orjson
import pytest

from kvtrace._base.errors import EmptyPrompt, RowError
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
