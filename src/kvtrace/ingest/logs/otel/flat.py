"""The numbered attributes of OpenLLMetry (Traceloop), before it adopted OpenTelemetry's messages.

`gen_ai.prompt.0.role`, `.content` and `.tool_calls.0.name`, `gen_ai.completion.0.content`,
`llm.request.functions.0.name`, as in opentelemetry-instrumentation-openai 0.40; `llm.prompts.0.content` of its first
versions; `gen_ai.prompt` as one list, in OpenTelemetry's conventions before 1.28.
"""

from __future__ import annotations

from typing import Any

from . import values
from .span_content import SpanContent, chat_message, tool

PROMPTS = ("gen_ai.prompt", "llm.prompts")
COMPLETIONS = ("gen_ai.completion", "llm.completions")
TOOLS = "llm.request.functions"
HINT = "Log with TRACELOOP_TRACE_CONTENT=true."


def span_content(attributes: dict[str, Any], events: list[tuple[str, dict[str, Any]]]) -> SpanContent | None:
    """The content of a span in this convention; None if the span does not use it.

    >>> span_content({"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hello"}, []).messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    for prompt, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        messages, is_whole = _numbered(attributes, prompt)
        if not messages:
            continue
        content = SpanContent(f"attributes.{prompt}", output_path=f"attributes.{completion}")
        content.messages = [chat_message(message) if type(message) is dict else message for message in messages]
        content.lacks = None if is_whole else "messages (their numbers have gaps)"
        if values.is_broken(attributes.get(prompt)):
            content.cut = content.path
        if attributes.get("llm.request.type") == "completion" and len(messages) == 1 and type(messages[0]) is dict:
            content.messages, content.text = None, messages[0].get("content")  # no chat template applies
        _put_tools(content, attributes)
        _put_output(content, attributes, completion)
        return content
    return None


def _numbered(attributes, name):
    """The messages of that name (numbered, one list, or one user message), and whether the numbers have no gaps."""
    value = values.loaded(attributes.get(name))
    if type(value) is list:
        return value, True
    if type(value) is str:
        return [{"role": "user", "content": value}], True
    return values.gathered(attributes, name)


def _put_tools(content, attributes):
    definitions, _ = values.gathered(attributes, TOOLS)
    for i, definition in enumerate(definitions):
        path = f"attributes.{TOOLS}.{i}"
        schema = definition.get("parameters", definition.get("input_schema")) if type(definition) is dict else None
        if values.is_broken(schema):
            content.cut = content.cut or path
        content.tools.append(tool(definition, path))


def _put_output(content, attributes, name):
    answers, _ = _numbered(attributes, name)
    if answers:
        content.output = chat_message(answers[0]) if type(answers[0]) is dict else answers[0]
