"""SpanContent: the prompt and the answer of one span, as chat messages. Every convention's module returns it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...._base.errors import RowError
from . import values


@dataclass
class SpanContent:
    """The prompt and the answer of one call to a model."""

    path: str  # JSON path of the prompt
    messages: Any = None
    text: str | None = None  # a prompt that is not a chat
    system: list[dict[str, Any]] = field(default_factory=list)  # system messages outside `messages`; they come first
    system_path: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    output: Any = None  # text, or an assistant's message
    output_path: str = ""
    cut: str | None = None  # JSON path of a text that was cut short
    lacks: str | None = None  # the missing part of an incomplete prompt, in words


def chat_message(logged: dict[str, Any]) -> dict[str, Any]:
    """A message in chat format: with nested tool calls, and without fields that are None.

    >>> chat_message({"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "arguments": "{}"}]})["tool_calls"]
    [{'id': 'c', 'type': 'function', 'function': {'name': 'f', 'arguments': '{}'}}]
    """
    message = {name: value for name, value in logged.items() if value is not None}
    content = message.get("content")
    parts = values.loaded(content)
    if type(parts) is list and parts and all(type(part) is dict and "type" in part for part in parts):
        message["content"] = parts  # a list of parts, logged as JSON in a string
    if type(calls := message.get("tool_calls")) is list:
        message["tool_calls"] = [tool_call(call) for call in calls]
    return message


def tool_call(call: Any) -> Any:
    """A tool call with its name and arguments under `function`."""
    if type(call) is not dict or "function" in call:
        return {"type": "function"} | call if type(call) is dict else call
    function = {name: call[name] for name in ("name", "arguments") if call.get(name) is not None}
    head = {"id": call["id"]} if call.get("id") is not None else {}
    return {**head, "type": "function", "function": function}


def tool(definition: Any, path: str) -> dict[str, Any]:
    """A tool definition with its name and schema under `function`; RowError if it is not an object."""
    if type(definition) is not dict:
        raise RowError("is not a tool definition.", field=path)
    if "function" in definition or "name" not in definition:
        return definition
    function = {name: value for name, value in definition.items() if name not in ("type", "input_schema")}
    schema = values.loaded(definition.get("parameters", definition.get("input_schema")))
    return {"type": "function", "function": function | ({} if schema is None else {"parameters": schema})}
