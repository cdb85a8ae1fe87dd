"""The events of a span that held prompts before messages became attributes (OpenTelemetry's conventions 1.27 to 1.36).

One event a message, `gen_ai.user.message` and its kin, its answer in `gen_ai.choice`; or all of them as JSON in the
events `gen_ai.content.prompt` and `gen_ai.content.completion`.
"""

from __future__ import annotations

from typing import Any

from . import values
from .span_content import Said, chat_message

ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
CHOICE = "gen_ai.choice"
PROMPT, COMPLETION = "gen_ai.content.prompt", "gen_ai.content.completion"
BODY = "gen_ai.event.content"  # where a span's event keeps what a log's event has as its body

FIELDS = ("role", "content", "tool_calls", "id", "message")


def said(attributes: dict[str, Any], events: list[tuple[str, dict]]) -> Said | None:
    """What the span's events tell; None where they hold no prompt.

    >>> said({}, [("gen_ai.user.message", {"content": "Hello"})]).messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    told = Said("events", messages=[], output_path="events")
    for name, held in events:
        if name in ROLES:
            told.messages.append(_message(told, held, ROLES[name]))
        elif name == CHOICE and told.output is None:
            choice = _message(told, held, "assistant")
            message = values.loaded(choice.get("message", choice))
            told.output = chat_message(message) if type(message) is dict else message
        elif name == PROMPT:
            told.messages = _listed(told, held.get("gen_ai.prompt"))
        elif name == COMPLETION and told.output is None:
            answers = _listed(told, held.get("gen_ai.completion"))
            told.output = answers[0] if answers else None
    return told if told.messages else None


def _message(told, held, role):
    """The message of an event: its body, as JSON in a string or in an object, or its attributes themselves."""
    if values.is_broken(held.get(BODY)):
        told.cut = told.cut or f"events.{BODY}"
    body = values.loaded(held.get(BODY))
    if body is None:
        body = {name: held[name] for name in FIELDS if name in held}
    elif type(body) is not dict:
        body = {"content": body}
    message = {"role": role} | body
    if role == "tool" and "id" in message:
        message["tool_call_id"] = message.pop("id")
    return chat_message(message)


def _listed(told, value):
    if values.is_broken(value):
        told.cut = told.cut or told.path
    found = values.loaded(value)
    if type(found) is not list:
        return [] if found is None else [{"role": "user", "content": found}]
    return [chat_message(message) if type(message) is dict else message for message in found]
