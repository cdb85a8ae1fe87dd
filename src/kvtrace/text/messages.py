"""Chat messages in the shape that a chat template wants, as the engines bring them there before they render.

Logs hold what the client sent; a template sees what the engine made of it. vLLM and SGLang parse the JSON text of
tool-call arguments into an object, join the text parts of a content that is a list, and drop empty tool calls and
null fields. A template that cannot take one of these shapes gets the other one: `Wants` says which.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from .._base.errors import RowError

# part type -> the key its text is under; what is not here is media (or unknown) and holds no prompt text
TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
# part type of the APIs -> the part type that templates know
MEDIA_PARTS = {"image_url": "image", "input_image": "image", "input_audio": "audio", "audio_url": "audio",
               "video_url": "video"}  # fmt: skip
# the same thing under three names: templates read the first, some the second; clients send any
REASONING = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True)
class Wants:
    """Which contents a template can take in the messages of one role."""

    text: bool  # a string
    parts: bool  # a list of parts
    null: bool  # None, without printing it as a word


def reshape(messages: list[dict], wants_of: Callable[[str], Wants], arguments: Callable[[], str]) -> list[dict]:
    """The messages as the template wants them; those that need no change are the same objects, none is altered.

    `wants_of` tells what a role's content may be, `arguments` whether tool-call arguments are "objects" or "strings".
    RowError says which message is no message.

    >>> plain = Wants(text=True, parts=False, null=False)
    >>> reshape([{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}], lambda role: plain, None)
    [{'role': 'user', 'content': 'a\\nb'}]
    """
    reshaped = messages
    for index, message in enumerate(messages):
        new = _message(message, index, wants_of, arguments)
        if new is not message:
            reshaped = list(messages) if reshaped is messages else reshaped
            reshaped[index] = new
    return reshaped


def _message(message, index, wants_of, arguments):
    if not isinstance(message, dict):
        raise RowError("a message is not a JSON object.", field=f"messages[{index}]")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise RowError("the message has no role.", field=f"messages[{index}].role")
    wants = wants_of(role)
    if len(message) == 2 and wants.text and isinstance(content, str):  # role and content: nearly all messages
        return message
    new = {key: value for key, value in message.items() if value is not None}
    new["content"] = _content(content, wants, f"messages[{index}].content")
    if "tool_calls" in new:
        _tool_calls(new, arguments, f"messages[{index}].tool_calls")
    _reasoning(new)
    return message if new == message else new


def _content(content, wants, field):
    if isinstance(content, str):
        return content if wants.text or not wants.parts else [{"type": "text", "text": content}]
    if content is None:
        return None if wants.null else [] if wants.parts and not wants.text else ""
    if isinstance(content, list):
        return [_part(part) for part in content] if wants.parts else _joined(content)
    raise RowError("the content is neither text, nor a list of parts, nor null.", field=field)


def _part(part):
    """A part as templates know it: a text part or the mark of a medium; its data is not the template's business."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = _kind(part)
    if kind in MEDIA_PARTS:
        return {"type": MEDIA_PARTS[kind]}
    text = _text(part)
    return part if text is None or kind == "text" else {"type": "text", "text": text}


def _joined(parts):
    """The texts of the parts, a line each, as vLLM joins them: empty ones are left out, media hold no text."""
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
    if not calls:  # templates take the mere presence of the key for a call
        del message["tool_calls"]
        return
    form = _as_object if arguments() == "objects" else _as_string
    message["tool_calls"] = [_tool_call(call, form, f"{field}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call, form, field):
    if not isinstance(call, dict):
        raise RowError("a tool call is not a JSON object.", field=field)
    function = call.get("function", call)  # some logs hold name and arguments without the envelope
    if not isinstance(function, dict):
        raise RowError("a tool call's function is not a JSON object.", field=f"{field}.function")
    given = function.get("arguments")
    wanted = form(given)
    if wanted is given:
        return call
    function = {**function, "arguments": wanted}
    return {**call, "function": function} if "function" in call else function


def _as_object(arguments):
    """None and the empty text are no arguments; text that is not JSON stays, for the template to take or not."""
    if not arguments:
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _as_string(arguments):
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _reasoning(message):
    said = next((message[name] for name in REASONING if name in message), None)
    if said is not None:
        for name in REASONING:
            message.setdefault(name, said)
