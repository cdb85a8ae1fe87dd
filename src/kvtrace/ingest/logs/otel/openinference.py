"""OpenInference's attributes, as of its specification of 2026 (arize-ai.github.io/openinference/spec): Phoenix, Arize.

`llm.input_messages.0.message.role`, `.message.content` or `.message.contents.0.message_content.text`,
`.message.tool_calls.0.tool_call.function.name`, `llm.tools.0.tool.json_schema`; also as lists of objects instead of
numbered names. A completion's prompt is `llm.prompts.0.prompt.text`.
"""

from __future__ import annotations

from typing import Any

from ...._base.errors import RowError
from . import values
from .span_content import SpanContent, chat_message, tool

INPUT, OUTPUT, TOOLS = "llm.input_messages", "llm.output_messages", "llm.tools"
PROMPTS, CHOICES = "llm.prompts", "llm.choices"
HIDDEN = "__REDACTED__"
HINT = "Log with OPENINFERENCE_HIDE_INPUTS=false."


def span_content(attributes: dict[str, Any], events: list[tuple[str, dict[str, Any]]]) -> SpanContent | None:
    """The content of a span in this convention; None if the span does not use it, RowError if it is hidden.

    >>> span_content({INPUT: [{"message.role": "user", "message.content": "Hello"}]}, []).messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    attributes = attributes | {name: values.loaded(attributes.get(name)) for name in (INPUT, OUTPUT)}
    messages, is_whole = values.gathered(attributes, INPUT)
    content = SpanContent(f"attributes.{INPUT}", output_path=f"attributes.{OUTPUT}")
    if messages:
        content.messages = [_message(message) for message in messages]
        content.lacks = None if is_whole else "messages (their numbers have gaps)"
    elif values.is_broken(attributes.get(INPUT)):
        content.text, content.cut = attributes[INPUT], content.path
    elif (prompt := _prompt(attributes)) is not None:
        content.path, content.text = f"attributes.{PROMPTS}", prompt
    else:
        return None
    _refuse_hidden(content)
    _put_tools(content, attributes)
    _put_output(content, attributes)
    return content


def _message(item) -> Any:
    """One message in chat format. A value that is not a message stays; the reader refuses it."""
    logged = item.get("message", item) if type(item) is dict else item
    if type(logged) is not dict:
        return logged
    message = {name: logged.get(name) for name in ("role", "content", "name", "tool_call_id")}
    if type(contents := logged.get("contents")) is list:
        message["content"] = [_part(part) for part in contents]
    if type(calls := logged.get("tool_calls")) is list:
        message["tool_calls"] = [call.get("tool_call", call) if type(call) is dict else call for call in calls]
    elif type(function := logged.get("function_call_name")) is str:
        arguments = logged.get("function_call_arguments_json")
        message["tool_calls"] = [{"name": function, "arguments": arguments}]
    return chat_message(message)


def _part(item):
    """A content part. Reasoning with a text counts as text."""
    part = item.get("message_content", item) if type(item) is dict else item
    is_reasoning = type(part) is dict and part.get("type") == "reasoning"
    return part | {"type": "text"} if is_reasoning and type(part.get("text")) is str else part


def _prompt(attributes):
    prompts, _ = values.gathered(attributes, PROMPTS)
    first = prompts[0] if prompts else None
    prompt = first.get("prompt") if type(first) is dict else first
    text = prompt.get("text") if type(prompt) is dict else prompt
    return text if type(text) is str else None


def _refuse_hidden(content):
    texts = [content.text]
    for message in content.messages or []:
        parts = message.get("content") if type(message) is dict else None
        texts += [part.get("text") for part in parts if type(part) is dict] if type(parts) is list else [parts]
    if HIDDEN in texts:
        raise RowError("was hidden by OpenInference.", field=content.path, hint=HINT)


def _put_tools(content, attributes):
    definitions, _ = values.gathered(attributes, TOOLS)
    for i, definition in enumerate(definitions):
        path = f"attributes.{TOOLS}.{i}.tool"
        logged = definition.get("tool", definition) if type(definition) is dict else None
        schema = logged.get("json_schema") if type(logged) is dict else None
        if values.is_broken(schema):
            content.cut = content.cut or f"{path}.json_schema"
        else:
            parsed = values.loaded(schema)
            content.tools.append(tool(parsed if type(parsed) is dict else logged, path))


def _put_output(content, attributes):
    answers, _ = values.gathered(attributes, OUTPUT)
    choices, _ = values.gathered(attributes, CHOICES)
    if answers:
        content.output = _message(answers[0])
    elif choices:
        completion = choices[0].get("completion") if type(choices[0]) is dict else None
        content.output = completion.get("text") if type(completion) is dict else None
    elif attributes.get("output.mime_type") == "text/plain":
        content.output, content.output_path = attributes.get("output.value"), "attributes.output.value"
    if content.output == HIDDEN or (type(content.output) is dict and content.output.get("content") == HIDDEN):
        content.output = None
