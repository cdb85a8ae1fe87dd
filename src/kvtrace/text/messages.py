"""Reshape chat messages for a chat template, as engines do before they render.

A log holds the client's messages. vLLM and SGLang change them before the template sees them: they parse tool-call
arguments from JSON text to an object, join the text parts of a list content, and remove empty tool calls and null
fields. If a template does not accept one form, it gets the other; `AcceptedContent` says which forms it accepts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .._base.errors import RowError

# part type -> key of its text; other part types are media or unknown, and have no prompt text
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
# part type of the APIs -> part type in templates
MEDIA_PARTS = {"image_url": "image", "input_image": "image", "input_audio": "audio", "audio_url": "audio",
               "video_url": "video"}  # fmt: skip
MEDIA_KINDS = {
    "image_url": "image", "input_image": "image", "image": "image", "image_pil": "image", "image_embeds": "image",
    "input_audio": "audio", "audio_url": "audio", "audio": "audio", "audio_embeds": "audio",
    "video_url": "video", "input_video": "video", "video": "video", "video_embeds": "video",
}  # fmt: skip
NOT_MEDIA = frozenset((*TEXT_PARTS, "reasoning", "tool_reference", ""))
# three names of the same field: most templates read the first, some the second; clients send any of them
REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class AcceptedContent:
    """The forms of content that a template accepts in messages of one role."""

    text: bool  # a string
    parts: bool  # a list of parts
    null: bool  # None, without printing it as a word


def reshape(
    messages: list[dict[str, Any]], accepted_by: Callable[[str], AcceptedContent], arguments: Callable[[], str]
) -> list[dict[str, Any]]:
    """Reshape messages for a template. Messages that need no change are returned as the same objects.

    Args:
        accepted_by: role -> the forms of content that the template accepts.
        arguments: returns "objects" or "strings", the form of tool-call arguments that the template accepts.

    Raises:
        RowError: a value is not a message.

    >>> plain = AcceptedContent(text=True, parts=False, null=False)
    >>> reshape([{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}], lambda role: plain, None)
    [{'role': 'user', 'content': 'a\\nb'}]
    """
    reshaped = messages
    for index, message in enumerate(messages):
        new = _message(message, index, accepted_by, arguments)
        if new is not message:
            reshaped = list(messages) if reshaped is messages else reshaped
            reshaped[index] = new
    return reshaped


def _message(message, index, accepted_by, arguments):
    if not isinstance(message, dict):
        raise RowError("a message is not a JSON object.", field=f"messages[{index}]")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise RowError("the message has no role.", field=f"messages[{index}].role")
    accepted = accepted_by(role)
    if len(message) == 2 and accepted.text and isinstance(content, str):  # role and content: nearly all messages
        return message
    new = {key: value for key, value in message.items() if value is not None}
    new["content"] = _content(content, accepted, f"messages[{index}].content")
    if "tool_calls" in new:
        _tool_calls(new, arguments, f"messages[{index}].tool_calls")
    _reasoning(new)
    return message if new == message else new


def _content(content, accepted, field):
    if isinstance(content, str):
        return content if accepted.text or not accepted.parts else [{"type": "text", "text": content}]
    if content is None:
        return None if accepted.null else [] if accepted.parts and not accepted.text else ""
    if isinstance(content, list):
        return [_part(part) for part in content] if accepted.parts else _joined(content)
    raise RowError("the content must be text, a list of parts or null.", field=field)


def _part(part):
    """A part in the template's form: text, or the type of a medium without its data."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = _kind(part)
    if kind in MEDIA_PARTS:
        return {"type": MEDIA_PARTS[kind]}
    text = _text(part)
    return part if text is None or kind == "text" else {"type": "text", "text": text}


def _joined(parts):
    """The non-empty texts of the parts, joined by newlines as in vLLM."""
    return "\n".join(text for part in parts if (text := _text(part)))


def _text(part):
    if isinstance(part, str):
        return part
    kind = _kind(part)
    text = part.get(TEXT_PARTS[kind]) if kind in TEXT_PARTS else None
    return text if isinstance(text, str) else None


def _kind(part):
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None


def _tool_calls(message, arguments, field):
    calls = message["tool_calls"]
    if not isinstance(calls, list):
        raise RowError("the tool calls are not a list.", field=field)
    if not calls:  # templates treat the mere presence of the key as a call
        del message["tool_calls"]
        return
    form = as_object if arguments() == "objects" else as_string
    message["tool_calls"] = [_tool_call(call, form, f"{field}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call, form, field):
    if not isinstance(call, dict):
        raise RowError("a tool call is not a JSON object.", field=field)
    function = call.get("function", call)  # some logs have name and arguments without the envelope
    if not isinstance(function, dict):
        raise RowError("a tool call's function is not a JSON object.", field=f"{field}.function")
    arguments = function.get("arguments")
    converted = form(arguments)
    if converted is arguments:
        return call
    function = {**function, "arguments": converted}
    return {**call, "function": function} if "function" in call else function


def as_object(arguments: Any) -> Any:
    """Tool-call arguments as an object; None and "" are an empty object. Text that is not JSON stays as it is.

    >>> as_object('{"a": 1}'), as_object(None)
    ({'a': 1}, {})
    """
    if not arguments:
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def as_string(arguments: Any) -> str:
    """Tool-call arguments as text.

    >>> as_string({"a": "é"})
    '{"a": "é"}'
    """
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _reasoning(message):
    """Copy the reasoning to all of its names."""
    reasoning = next((message[name] for name in REASONING if name in message), None)
    if reasoning is not None:
        for name in REASONING:
            message.setdefault(name, reasoning)


def kind_of(piece: Mapping[str, Any]) -> str:
    """The type of a content part; "" without one."""
    kind = piece.get("type", "text" if isinstance(piece.get("text"), str) else None)
    return kind if isinstance(kind, str) else ""


def text_of(piece: Any) -> str | None:
    """The text of a content part; None for another part.

    >>> text_of({"type": "thinking", "thinking": "Boats float."})
    'Boats float.'
    """
    if isinstance(piece, str):
        return piece
    key = TEXT_PARTS.get(kind_of(piece))
    text = piece.get(key) if key is not None else None
    return text if isinstance(text, str) else None


def media_parts(message: Any) -> Iterator[dict[str, Any]]:
    """The content parts of a message that are not text."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        yield from (part for part in content if isinstance(part, dict) and is_medium(part))


def is_medium(part: Mapping[str, Any]) -> bool:
    """Whether a content part is an image, a sound, a video, a file or anything else that is not text.

    >>> is_medium({"type": "image_url"}), is_medium({"type": "text", "text": ""})
    (True, False)
    """
    return kind_of(part) not in NOT_MEDIA
