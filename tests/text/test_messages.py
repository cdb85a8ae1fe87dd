"""Messages come to the template as the engines bring them: nothing is changed that the template takes as it is."""

import pytest

from kvtrace._base.errors import RowError
from kvtrace.text.messages import AcceptedContent, reshape

TEXT = AcceptedContent(text=True, parts=False, null=False)
BOTH = AcceptedContent(text=True, parts=True, null=True)
LISTS = AcceptedContent(text=False, parts=True, null=False)


def shaped(message, wants=TEXT, arguments="objects"):
    (only,) = reshape([message], lambda role: wants, lambda: arguments)
    return only


def content(given, wants=TEXT):
    return shaped({"role": "user", "content": given}, wants)["content"]


def arguments(given, form):
    call = {"id": "1", "type": "function", "function": {"name": "ring", "arguments": given}}
    message = shaped({"role": "assistant", "content": "", "tool_calls": [call]}, arguments=form)
    return message["tool_calls"][0]["function"]["arguments"]


def test_messages_that_need_no_change_are_the_same_objects():
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": "c"}]
    assert reshape(messages, lambda role: TEXT, lambda: "objects") is messages


def test_the_callers_messages_are_never_altered():
    call = {"type": "function", "function": {"name": "ring", "arguments": '{"times": 2}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call], "refusal": None}]
    before = repr(messages)
    reshaped = reshape(messages, lambda role: TEXT, lambda: "objects")
    assert repr(messages) == before
    assert reshaped == [
        {"role": "assistant", "content": "",
         "tool_calls": [{"type": "function", "function": {"name": "ring", "arguments": {"times": 2}}}]}
    ]  # fmt: skip


@pytest.mark.parametrize(
    "given, joined",
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (["a", {"type": "input_text", "text": "b"}, {"type": "output_text", "text": "c"}], "a\nb\nc"),
        ([{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"}], "no\nhm"),
        ([{"type": "text", "text": ""}, {"type": "text", "text": "b"}], "b"),  # vLLM leaves empty parts out
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}], "a"),
        ([{"type": "text"}, {"type": 3}, 4, None, {}, {"type": ["text"]}], ""),
        ([], ""),
        (None, ""),
    ],
)
def test_a_template_of_plain_text_gets_the_text_of_the_parts(given, joined):
    assert content(given) == joined


@pytest.mark.parametrize(
    "given, parts",
    [
        ([{"type": "text", "text": "a"}, "b"], [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        ([{"type": "image_url", "image_url": {"url": "u"}}], [{"type": "image"}]),
        ([{"type": "input_audio", "input_audio": {}}], [{"type": "audio"}]),
        ([{"type": "input_text", "text": "a"}], [{"type": "text", "text": "a"}]),
        ([{"type": "tool_reference", "name": "x"}], [{"type": "tool_reference", "name": "x"}]),
    ],
)
def test_a_template_that_takes_lists_gets_the_parts_it_knows(given, parts):
    assert content(given, BOTH) == parts


def test_a_template_of_lists_alone_gets_text_as_a_part():
    assert content("a", LISTS) == [{"type": "text", "text": "a"}]
    assert content(None, LISTS) == []
    assert content("a", BOTH) == "a"


def test_null_stays_null_where_the_template_takes_it():
    assert content(None, BOTH) is None
    assert shaped({"role": "assistant"}, BOTH) == {"role": "assistant", "content": None}


def test_null_fields_are_dropped_and_empty_tool_calls_too():
    given = {"role": "assistant", "content": "a", "tool_calls": None, "audio": None}
    assert shaped(given) == {"role": "assistant", "content": "a"}
    assert shaped({"role": "assistant", "content": "a", "tool_calls": []}) == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "given, wanted",
    [('{"a": [1, "é"]}', {"a": [1, "é"]}), ({"a": 1}, {"a": 1}), ("", {}), (None, {}), ("no json", "no json"),
     ("[" * 100_000, "[" * 100_000), ("12345678901234567890123", 12345678901234567890123)],
)  # fmt: skip
def test_arguments_become_objects(given, wanted):
    assert arguments(given, "objects") == wanted


@pytest.mark.parametrize("given, wanted", [('{"a":1}', '{"a":1}'), ({"a": "é"}, '{"a": "é"}'), (None, "{}"), ("", "")])
def test_arguments_become_strings(given, wanted):
    assert arguments(given, "strings") == wanted


def test_a_call_without_its_envelope_is_read_as_well():
    message = {"role": "assistant", "content": "", "tool_calls": [{"name": "ring", "arguments": '{"times": 2}'}]}
    assert shaped(message)["tool_calls"] == [{"name": "ring", "arguments": {"times": 2}}]


def test_reasoning_has_all_of_its_names():
    said = {"role": "assistant", "content": "a", "reasoning_content": "r", "thinking": "r", "reasoning": "r"}
    for name in ("reasoning_content", "thinking", "reasoning"):
        assert shaped({"role": "assistant", "content": "a", name: "r"}) == said


@pytest.mark.parametrize(
    "message, field",
    [
        ("secret", "messages[1]"),
        ({"content": "secret"}, "messages[1].role"),
        ({"role": ["secret"], "content": "a"}, "messages[1].role"),
        ({"role": "user", "content": {"secret": 1}}, "messages[1].content"),
        ({"role": "assistant", "content": "", "tool_calls": "secret"}, "messages[1].tool_calls"),
        ({"role": "assistant", "content": "", "tool_calls": ["secret"]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"function": "secret"}]}, "messages[1].tool_calls[0].function"),
    ],
)
def test_an_invalid_message_is_reported_by_its_place(message, field):
    with pytest.raises(RowError) as caught:
        reshape([{"role": "user", "content": "a"}, message], lambda role: TEXT, lambda: "objects")
    assert caught.value.field == field
    assert "secret" not in str(caught.value)
