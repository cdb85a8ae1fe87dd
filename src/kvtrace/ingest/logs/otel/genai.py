"""OpenTelemetry's own GenAI conventions, as of 1.37: messages in `gen_ai.input.messages`, made of parts.

opentelemetry.io/docs/specs/semconv/gen-ai and its gen-ai-input-messages.json. The system's instructions and the tools
may stand apart; all of them are lists, or JSON in a string, on the span or on its event with the call's details.
"""

from __future__ import annotations

from typing import Any

from ...._base.errors import RowError
from ..fields import as_text
from . import values
from .span_content import Said, chat_message, tool

INPUT, OUTPUT = "gen_ai.input.messages", "gen_ai.output.messages"
SYSTEM, TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
DETAILS = "gen_ai.client.inference.operation.details"  # the event that may hold them in the span's place
HINT = "Log with OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY."
REASONING = ("reasoning", "thinking")


def said(attributes: dict[str, Any], events: list[tuple[str, dict]]) -> Said | None:
    """What the span tells in this dialect; None where it does not speak it, RowError where it is broken.

    >>> told = said({INPUT: '[{"role": "user", "parts": [{"type": "text", "content": "Hello"}]}]'}, [])
    >>> told.messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    for name, held in events:
        if name == DETAILS:
            attributes = held | attributes
    if attributes.get(INPUT) is None:
        return None
    told = Said(f"attributes.{INPUT}", system_path=f"attributes.{SYSTEM}", output_path=f"attributes.{OUTPUT}")
    _put_prompt(told, attributes[INPUT])
    _put_system(told, attributes.get(SYSTEM))
    _put_tools(told, attributes.get(TOOLS))
    _put_output(told, attributes.get(OUTPUT))
    return told


def _put_prompt(told, value):
    if values.is_broken(value):
        told.cut, told.text = told.path, value
    else:
        told.messages = _messages(values.loaded(value), told.path)


def _put_system(told, value):
    if values.is_broken(value):
        told.cut = told.cut or told.system_path
        told.system = [{"role": "system", "content": value}]
        return
    parts = values.loaded(value)
    if type(parts) is str:
        parts = [{"type": "text", "content": parts}] if parts else None
    if parts:
        told.system = _messages([{"role": "system", "parts": parts}], told.system_path)


def _put_tools(told, value):
    path = f"attributes.{TOOLS}"
    definitions = values.loaded(value)
    if values.is_broken(value):
        told.cut = told.cut or path
    elif type(definitions) is list:
        told.tools = [tool(values.loaded(one), f"{path}[{i}]") for i, one in enumerate(definitions)]
    elif definitions is not None:
        raise RowError("is not a list of tool definitions.", field=path)


def _put_output(told, value):
    """The first of the answers; one that was cut stays a text, so that it is found out."""
    found = values.loaded(value)
    if values.is_broken(value):
        told.output = value
    elif type(found) is list:
        messages = _messages(found[:1], told.output_path)
        told.output = messages[0] if messages else None
    else:
        told.output = found


def _messages(said, path) -> Any:
    """The messages in the chat form; what is no message stays, for the reader to refuse."""
    if type(said) is not list:
        return said
    messages: list = []
    for i, message in enumerate(said):
        if type(message) is dict and message.get("parts") is not None:
            messages += _of_parts(message, f"{path}[{i}]")
        else:
            messages.append(chat_message(message) if type(message) is dict else message)
    return messages


def _of_parts(message, path) -> list[dict]:
    """One message, and one for each result of a tool among its parts."""
    if type(message["parts"]) is not list or not all(type(part) is dict for part in message["parts"]):
        raise RowError("is not a list of parts.", field=f"{path}.parts")
    content, calls, results, thoughts = [], [], [], []
    for part in message["parts"]:
        kind = part.get("type")
        if kind == "text":
            content.append({"type": "text", "text": part.get("content")})
        elif kind == "tool_call":
            calls.append(_call(part))
        elif kind == "tool_call_response":
            results.append(_result(part, path))
        elif type(kind) is str and kind in REASONING:
            thoughts.append(part.get("content"))
        else:
            content.append(_medium(part))
    whole = {"role": message.get("role"), "content": _joined(content)}
    if thoughts:
        whole["reasoning_content"] = "".join(thought for thought in thoughts if type(thought) is str)
    if calls:
        whole["tool_calls"] = calls
    if type(message.get("name")) is str:
        whole["name"] = message["name"]
    return results if results and not (content or calls or thoughts) else [whole, *results]


def _call(part):
    function = {name: part[name] for name in ("name", "arguments") if part.get(name) is not None}
    head = {"id": part["id"]} if part.get("id") is not None else {}
    return {**head, "type": "function", "function": function}


def _result(part, path):
    response = part.get("response", part.get("result"))  # the first drafts called it result
    head = {"tool_call_id": part["id"]} if part.get("id") is not None else {}
    return {"role": "tool", **head, "content": as_text(response, path)}


def _medium(part):
    """A blob, a URI or a file, under the kind of medium that it is."""
    if part.get("type") not in ("blob", "uri", "file", "file_data"):
        return part
    modality = part.get("modality")
    kind = modality if type(modality) is str and modality in ("image", "audio", "video") else "file"
    return part | {"type": kind}


def _joined(content):
    """One text stands as a text, several parts as a list, none as nothing."""
    if len(content) == 1 and content[0].get("type") == "text":
        return content[0]["text"]
    return content or None
