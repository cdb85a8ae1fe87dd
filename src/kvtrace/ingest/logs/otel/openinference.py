"""OpenInference's attributes, as of its specification of 2026 (arize-ai.github.io/openinference/spec): Phoenix, Arize.

`llm.input_messages.0.message.role`, `.message.content` or `.message.contents.0.message_content.text`,
`.message.tool_calls.0.tool_call.function.name`, `llm.tools.0.tool.json_schema`; also with lists of objects in place of
numbers. A completion's prompt is `llm.prompts.0.prompt.text`.
"""

from __future__ import annotations

from typing import Any

from ...._base.errors import RowError
from . import values
from .span_content import Said, chat_message, tool

INPUT, OUTPUT, TOOLS = "llm.input_messages", "llm.output_messages", "llm.tools"
PROMPTS, CHOICES = "llm.prompts", "llm.choices"
HIDDEN = "__REDACTED__"
HINT = "Log with OPENINFERENCE_HIDE_INPUTS=false."


def said(attributes: dict[str, Any], events: list[tuple[str, dict]]) -> Said | None:
    """What the span tells in this dialect; None where it does not speak it, RowError where it was hidden.

    >>> said({INPUT: [{"message.role": "user", "message.content": "Hello"}]}, []).messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    attributes = attributes | {name: values.loaded(attributes.get(name)) for name in (INPUT, OUTPUT)}
    messages, is_whole = values.gathered(attributes, INPUT)
    told = Said(f"attributes.{INPUT}", output_path=f"attributes.{OUTPUT}")
    if messages:
        told.messages = [_message(message) for message in messages]
        told.lacks = None if is_whole else "messages, for their numbers have gaps"
    elif values.is_broken(attributes.get(INPUT)):
        told.text, told.cut = attributes[INPUT], told.path
    elif (prompt := _prompt(attributes)) is not None:
        told.path, told.text = f"attributes.{PROMPTS}", prompt
    else:
        return None
    _refuse_hidden(told)
    _put_tools(told, attributes)
    _put_output(told, attributes)
    return told


def _message(item) -> Any:
    """One message in the chat form; what is none stays, for the reader to refuse."""
    held = item.get("message", item) if type(item) is dict else item
    if type(held) is not dict:
        return held
    message = {name: held.get(name) for name in ("role", "content", "name", "tool_call_id")}
    if type(contents := held.get("contents")) is list:
        message["content"] = [_part(part) for part in contents]
    if type(calls := held.get("tool_calls")) is list:
        message["tool_calls"] = [call.get("tool_call", call) if type(call) is dict else call for call in calls]
    elif type(function := held.get("function_call_name")) is str:
        arguments = held.get("function_call_arguments_json")
        message["tool_calls"] = [{"name": function, "arguments": arguments}]
    return chat_message(message)


def _part(item):
    """A part of a message: its text, or the medium with all that identifies it."""
    part = item.get("message_content", item) if type(item) is dict else item
    is_thought = type(part) is dict and part.get("type") == "reasoning"
    return part | {"type": "text"} if is_thought and type(part.get("text")) is str else part


def _prompt(attributes):
    prompts, _ = values.gathered(attributes, PROMPTS)
    first = prompts[0] if prompts else None
    prompt = first.get("prompt") if type(first) is dict else first
    text = prompt.get("text") if type(prompt) is dict else prompt
    return text if type(text) is str else None


def _refuse_hidden(told):
    texts = [told.text]
    for message in told.messages or []:
        content = message.get("content") if type(message) is dict else None
        texts += [part.get("text") for part in content if type(part) is dict] if type(content) is list else [content]
    if HIDDEN in texts:
        raise RowError("was hidden: there is no prompt to read.", field=told.path, hint=HINT)


def _put_tools(told, attributes):
    definitions, _ = values.gathered(attributes, TOOLS)
    for i, definition in enumerate(definitions):
        path = f"attributes.{TOOLS}.{i}.tool"
        held = definition.get("tool", definition) if type(definition) is dict else None
        schema = held.get("json_schema") if type(held) is dict else None
        if values.is_broken(schema):
            told.cut = told.cut or f"{path}.json_schema"
        else:
            found = values.loaded(schema)
            told.tools.append(tool(found if type(found) is dict else held, path))


def _put_output(told, attributes):
    answers, _ = values.gathered(attributes, OUTPUT)
    choices, _ = values.gathered(attributes, CHOICES)
    if answers:
        told.output = _message(answers[0])
    elif choices:
        completion = choices[0].get("completion") if type(choices[0]) is dict else None
        told.output = completion.get("text") if type(completion) is dict else None
    elif attributes.get("output.mime_type") == "text/plain":
        told.output, told.output_path = attributes.get("output.value"), "attributes.output.value"
    if told.output == HIDDEN or (type(told.output) is dict and told.output.get("content") == HIDDEN):
        told.output = None
