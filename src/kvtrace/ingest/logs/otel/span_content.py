"""Said: what one span tells of a call, in the shape of chat messages, whichever dialect told it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...._base.errors import RowError
from . import values


@dataclass
class Said:
    """The prompt and the answer of one call; `path` says where the prompt stands."""

    path: str
    messages: Any = None
    text: str | None = None  # a prompt that is no chat
    system: list[dict] = field(default_factory=list)  # messages that stand apart, to go before the others
    system_path: str = ""
    tools: list[dict] = field(default_factory=list)
    output: Any = None  # text, or an assistant's message
    output_path: str = ""
    cut: str | None = None  # path of a text that was cut
    lacks: str | None = None


def chat_message(said: dict) -> dict:
    """A message of the chat form, from one whose tool calls are flat; fields that are not set are left out.

    >>> chat_message({"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "arguments": "{}"}]})["tool_calls"]
    [{'id': 'c', 'type': 'function', 'function': {'name': 'f', 'arguments': '{}'}}]
    """
    message = {name: value for name, value in said.items() if value is not None}
    content = message.get("content")
    parts = values.loaded(content)
    if type(parts) is list and parts and all(type(part) is dict and "type" in part for part in parts):
        message["content"] = parts  # a list of parts, as JSON in a string
    if type(calls := message.get("tool_calls")) is list:
        message["tool_calls"] = [tool_call(call) for call in calls]
    return message


def tool_call(call: Any) -> Any:
    """A tool call with its function in an object of its own."""
    if type(call) is not dict or "function" in call:
        return {"type": "function"} | call if type(call) is dict else call
    function = {name: call[name] for name in ("name", "arguments") if call.get(name) is not None}
    head = {"id": call["id"]} if call.get("id") is not None else {}
    return {**head, "type": "function", "function": function}


def tool(definition: Any, path: str) -> dict:
    """A tool's definition with its function in an object of its own; RowError where it is no definition."""
    if type(definition) is not dict:
        raise RowError("is not a tool's definition.", field=path)
    if "function" in definition or "name" not in definition:
        return definition
    function = {name: value for name, value in definition.items() if name not in ("type", "input_schema")}
    schema = values.loaded(definition.get("parameters", definition.get("input_schema")))
    return {"type": "function", "function": function | ({} if schema is None else {"parameters": schema})}
