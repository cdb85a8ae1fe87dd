"""Prompts in span events, before messages became attributes (OpenTelemetry's conventions 1.27 to 1.36).

Each message is an event (`gen_ai.user.message` and others), and the answer is `gen_ai.choice`. Or all messages are JSON
in the events `gen_ai.content.prompt` and `gen_ai.content.completion`.
"""

from __future__ import annotations

from typing import Any

from . import values
from .span_content import SpanContent, chat_message

ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
CHOICE = "gen_ai.choice"
PROMPT, COMPLETION = "gen_ai.content.prompt", "gen_ai.content.completion"
BODY = "gen_ai.event.content"  # the attribute of a span event that holds the body of a log event

FIELDS = ("role", "content", "tool_calls", "id", "message")


def span_content(attributes: dict[str, Any], events: list[tuple[str, dict[str, Any]]]) -> SpanContent | None:
    """The content of the span's events; None if they hold no prompt, or only the roles of its messages.

    >>> span_content({}, [("gen_ai.user.message", {"content": "Hello"})]).messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    content = SpanContent("events", messages=[], output_path="events")
    for name, event in events:
        if name in ROLES:
            content.messages.append(_message(content, event, ROLES[name]))
        elif name == CHOICE and content.output is None:
            choice = _message(content, event, "assistant")
            message = values.loaded(choice.get("message", choice))
            content.output = chat_message(message) if type(message) is dict else message
        elif name == PROMPT:
            content.messages = _message_list(content, event.get("gen_ai.prompt"))
        elif name == COMPLETION and content.output is None:
            answers = _message_list(content, event.get("gen_ai.completion"))
            content.output = answers[0] if answers else None
    return content if content.messages and not any(map(_is_hidden, content.messages)) else None


def _is_hidden(message):
    """Whether content capture was off: what a user says is never empty otherwise."""
    is_theirs = type(message) is dict and message.get("role") in ("system", "user")
    return is_theirs and message.get("content") is None


def _message(content, event, role):
    """The message of an event: its body (an object, or JSON in a string), else its attributes."""
    if values.is_broken(event.get(BODY)):
        content.cut = content.cut or f"events.{BODY}"
    body = values.loaded(event.get(BODY))
    if body is None:
        body = {name: event[name] for name in FIELDS if name in event}
    elif type(body) is not dict:
        body = {"content": body}
    message = {"role": role} | body
    if role == "tool" and "id" in message:
        message["tool_call_id"] = message.pop("id")
    return chat_message(message)


def _message_list(content, value):
    """The messages of a list, or one user message for any other value."""
    if values.is_broken(value):
        content.cut = content.cut or content.path
    messages = values.loaded(value)
    if type(messages) is not list:
        return [] if messages is None else [{"role": "user", "content": messages}]
    return [chat_message(message) if type(message) is dict else message for message in messages]
