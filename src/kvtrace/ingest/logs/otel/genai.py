"""OpenTelemetry's GenAI conventions, as of 1.37: `gen_ai.input.messages`, each with a list of parts.

opentelemetry.io/docs/specs/semconv/gen-ai and its gen-ai-input-messages.json. System instructions and tools may have
attributes of their own. All are lists, or JSON in a string, on the span or on its event with the operation's details.
"""

from __future__ import annotations

from typing import Any

from ...._base.errors import RowError
from ..fields import as_text
from . import values
from .span_content import SpanContent, chat_message, tool

INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
SYSTEM, TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
DETAILS = "gen_ai.client.inference.operation.details"  # the event that may hold them instead of the span
HINT = "Log with OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY."
REASONING = ("reasoning", "thinking")


def span_content(attributes: dict[str, Any], events: list[tuple[str, dict[str, Any]]]) -> SpanContent | None:
    """The content of a span in this convention; None if the span does not use it, RowError if it is malformed.

    >>> content = span_content({INPUT: '[{"role": "user", "parts": [{"type": "text", "content": "Hello"}]}]'}, [])
    >>> content.messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    for name, event in events:
        if name == DETAILS:
            attributes = event | attributes
    if attributes.get(INPUT) is None:
        return None
    content = SpanContent(f"attributes.{INPUT}", system_path=f"attributes.{SYSTEM}", output_path=f"attributes.{OUTPUT}")
    _put_prompt(content, attributes[INPUT])
    _put_system(content, attributes.get(SYSTEM))
    _put_tools(content, attributes.get(TOOLS))
    _put_output(content, attributes.get(OUTPUT))
    return content


def _put_prompt(content, value):
    if values.is_broken(value):
        content.cut, content.text = content.path, value
    else:
        content.messages = _messages(values.loaded(value), content.path)


def _put_system(content, value):
    if values.is_broken(value):
        content.cut = content.cut or content.system_path
        content.system = [{"role": "system", "content": value}]
        return
    parts = values.loaded(value)
    if type(parts) is str:
        parts = [{"type": "text", "content": parts}] if parts else None
    if parts:
        content.system = _messages([{"role": "system", "parts": parts}], content.system_path)


def _put_tools(content, value):
    path = f"attributes.{TOOLS}"
    definitions = values.loaded(value)
    if values.is_broken(value):
        content.cut = content.cut or path
    elif type(definitions) is list:
        content.tools = [tool(values.loaded(definition), f"{path}[{i}]") for i, definition in enumerate(definitions)]
    elif definitions is not None:
        raise RowError("is not a list of tool definitions.", field=path)


def _put_output(content, value):
    """Set the output to the first answer. One that was cut stays a text, which the reader detects."""
    parsed = values.loaded(value)
    if values.is_broken(value):
        content.output = value
    elif type(parsed) is list:
        messages = _messages(parsed[:1], content.output_path)
        content.output = messages[0] if messages else None
    else:
        content.output = parsed


def _messages(logged, path) -> Any:
    """The messages in chat format. Values that are not messages stay; the reader refuses them."""
    if type(logged) is not list:
        return logged
    messages: list[Any] = []
    for i, message in enumerate(logged):
        if type(message) is dict and message.get("parts") is not None:
            messages += _from_parts(message, f"{path}[{i}]")
        else:
            messages.append(chat_message(message) if type(message) is dict else message)
    return messages


def _from_parts(message, path) -> list[dict[str, Any]]:
    """The chat message of a list of parts, and one more for each tool result among them."""
    if type(message["parts"]) is not list or not all(type(part) is dict for part in message["parts"]):
        raise RowError("is not a list of parts.", field=f"{path}.parts")
    content, calls, results, reasoning = [], [], [], []
    for part in message["parts"]:
        kind = part.get("type")
        if kind == "text":
            content.append({"type": "text", "text": part.get("content")})
        elif kind == "tool_call":
            calls.append(_call(part))
        elif kind == "tool_call_response":
            results.append(_result(part, path))
        elif type(kind) is str and kind in REASONING:
            reasoning.append(part.get("content"))
        else:
            content.append(_medium(part))
    chat = {"role": message.get("role"), "content": _joined(content)}
    if reasoning:
        chat["reasoning_content"] = "".join(text for text in reasoning if type(text) is str)
    if calls:
        chat["tool_calls"] = calls
    if type(message.get("name")) is str:
        chat["name"] = message["name"]
    return results if results and not (content or calls or reasoning) else [chat, *results]


def _call(part):
    function = {name: part[name] for name in ("name", "arguments") if part.get(name) is not None}
    head = {"id": part["id"]} if part.get("id") is not None else {}
    return {**head, "type": "function", "function": function}


def _result(part, path):
    response = part.get("response", part.get("result"))  # `result` in the first drafts
    head = {"tool_call_id": part["id"]} if part.get("id") is not None else {}
    return {"role": "tool", **head, "content": as_text(response, path)}


def _medium(part):
    """A blob, a URI or a file, with its modality as its type."""
    if part.get("type") not in ("blob", "uri", "file", "file_data"):
        return part
    modality = part.get("modality")
    kind = modality if type(modality) is str and modality in ("image", "audio", "video") else "file"
    return part | {"type": kind}


def _joined(content):
    """A single text as a string, several parts as a list, no parts as None."""
    if len(content) == 1 and content[0].get("type") == "text":
        return content[0]["text"]
    return content or None
