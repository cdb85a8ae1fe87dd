"""What an engine makes of a request before its template sees it, worked out by hand from the engines' sources."""

import pytest

from kvtrace._base.errors import RowError
from kvtrace.ingest.logs import openai
from kvtrace.text.chat_requests import render
from kvtrace.text.templates import ChatTemplate

TURNS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
SYSTEM_FIRST = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}"
SYSTEM_FIRST += "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
CALLS = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
SWITCH = TURNS + "{{ enable_thinking }}"
USER = {"role": "user", "content": "Hi"}
BLOCKS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def text(source, messages, engine, tools=None, **fields):
    return "|".join(render(ChatTemplate(source), messages, tools, fields, engine=engine).texts)


@pytest.mark.parametrize(("engine", "joined"), [("vllm", "ab"), ("sglang", "a\nb")])
def test_anthropic_s_system_blocks_are_joined_as_the_engine_does(engine, joined):
    messages = [{"role": "system", "content": BLOCKS}, USER]
    assert text(TURNS, messages, engine, api="messages") == f"<system>{joined}<user>Hi"


def test_of_chat_requests_they_are_joined_as_other_contents():
    messages = [{"role": "system", "content": BLOCKS}, USER]
    assert text(TURNS, messages, "vllm") == "<system>a\nb<user>Hi"
    assert text(TURNS, messages, "sglang") == "<system>a b<user>Hi"


def test_claude_code_s_billing_block_is_no_part_of_vllm_s_prompt():
    billing = {"type": "text", "text": "x-anthropic-billing-header: cch=1"}
    messages = [{"role": "system", "content": [billing, *BLOCKS]}, USER]
    assert text(TURNS, messages, "vllm", api="messages") == "<system>ab<user>Hi"


def test_a_late_system_message_moves_to_the_start_if_the_template_refuses_it():
    messages = [{"role": "system", "content": "a"}, USER, {"role": "system", "content": "b"}, USER]
    assert text(SYSTEM_FIRST, messages, "vllm", api="messages") == "<system>ab<user>Hi<user>Hi"
    assert text(SYSTEM_FIRST, messages, "sglang", api="responses") == "<system>a\n\nb<user>Hi<user>Hi"
    assert text(TURNS, messages, "vllm", api="messages") == "<system>a<user>Hi<system>b<user>Hi"


def test_disabled_thinking_is_a_switch_of_the_template():
    disabled = {"thinking": {"type": "disabled"}}
    assert text(SWITCH, [USER], "vllm", api="messages", **disabled) == "<user>HiFalse"
    assert text(SWITCH, [USER], "vllm", **disabled) == "<user>Hi"  # vLLM's chat requests have no such field
    effort = {"output_config": {"effort": "low"}}
    assert text(SWITCH, [USER], "vllm", api="messages", **effort) == "<user>HiTrue"


def test_results_of_tools_are_one_text():
    messages = [USER, {"role": "tool", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "2"}]}]
    assert text(TURNS, messages, "vllm", api="messages") == "<user>Hi<tool>\n2"
    assert text(TURNS, messages, "sglang", api="messages") == "<user>Hi<tool>2"


@pytest.mark.parametrize(
    ("api", "keys"), [("chat", '{"arguments": {}, "name": "f"}'), ("responses", '{"name": "f", "arguments": {}}')]
)
def test_only_chats_go_through_the_model_that_orders_a_call_s_keys(api, keys):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, USER]
    assert text(CALLS, messages, "vllm", api=api) == keys


@pytest.mark.parametrize(
    ("api", "tool"),
    [
        ("chat", '{"name": "f", "parameters": {"a": 1}, "description": null}'),
        ("responses", '{"name": "f", "description": null, "parameters": {"a": 1}}'),
        ("messages", '{"name": "f", "description": "", "parameters": {"a": 1, "type": "object"}, "strict": false}'),
    ],
)
def test_sglang_s_tools_by_api(api, tool):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}]
    source = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    expected = f'[{{"type": "function", "function": {tool}, "defer_loading": null}}]Hi'
    assert text(source, [USER], "sglang", tools, api=api) == expected


def test_a_template_that_cannot_write_a_null_gets_an_empty_description():
    tools = [{"type": "function", "function": {"name": "f"}}]
    source = "{% for t in tools or [] %}{{ t.function.name + ':' + t.function.description }}{% endfor %}" + TURNS
    assert text(source, [USER], "vllm", tools) == "f:<user>Hi"


def test_sglang_uses_the_first_of_named_templates_for_all_requests():
    named = [{"name": "default", "template": TURNS}, {"name": "tool_use", "template": "{{ tools | tojson }}" + TURNS}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    template = ChatTemplate(named)
    assert render(template, [USER], tools, {}, engine="vllm").texts[0].startswith("[{")
    assert "tools" in render(template, [USER], tools, {}, engine="sglang").not_rendered


def test_a_developer_of_the_responses_api_is_labelled_by_sglang():
    messages = [{"role": "developer", "content": "Be brief."}, USER]
    assert text(TURNS, messages, "sglang", api="responses") == "<system>Developer instructions:\nBe brief.<user>Hi"


def test_a_completion_has_one_prompt():
    row = {"timestamp": 0, "request": {"prompt": ["a"]}, "response": {"choices": [{"text": "b"}]}}
    assert openai.read(row).text == "a"
    row["request"]["prompt"].append("b")
    with pytest.raises(RowError, match=r"holds 2 prompts"):
        openai.read(row)
