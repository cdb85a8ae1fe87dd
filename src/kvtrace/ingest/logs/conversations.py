"""Collections of conversations, a row each: ShareGPT, LMSYS-Chat-1M, WildChat, and plain {"id", "messages"} chats.

Each assistant turn is one request: its prompt is all turns before it, its output that turn. ShareGPT keeps them in
`conversations` (from, value), LMSYS and WildChat in `conversation` (role, content), plain chats in `messages`. Only
WildChat has times, in its turns; the others need an arrival model (see arrival_model.py).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ..._base.errors import NotARequest, RowError
from . import fields
from .record import Record

# what ShareGPT and its many offspring call who speaks -> the role that templates know
ROLES = {
    "human": "user", "user": "user",
    "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "model": "assistant",
    "assistant": "assistant", "function_call": "assistant",
    "system": "system", "developer": "developer",
    "tool": "tool", "observation": "tool", "function_response": "tool", "function": "tool",
}  # fmt: skip

# what a row of requests has and a bare conversation has not
REQUEST = (
    "timestamp", "created", "created_at", "usage", "choices", "response", "request", "body", "input", "output",
    "prompt", "prompt_token_ids", "startTime", "output_length", "system",
)  # fmt: skip

# ShareGPT cuts a long conversation into pieces: seven letters and digits name it, a number after them the piece
_LATER_PIECE = re.compile(r"(?=[^_]*[0-9A-Z])[0-9A-Za-z]{7}_0*[1-9][0-9]*", re.ASCII)


def read_all(row: dict) -> list[Record]:
    """The Records of one conversation, in the order of its turns; NotARequest where no turn is the assistant's.

    The requests share the messages: of a conversation's turns each is held once. RowError where it is no such row.

    >>> said = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}] * 2
    >>> [(len(request.messages), request.output_text) for request in read_all({"conversations": said})]
    [(1, 'Hi'), (3, 'Hi')]
    """
    turns, path = _turns(row)
    messages, first = _messages(row, turns, path)
    about = _about(row, turns, path)
    begun = Record()  # what the messages before a turn hold: images, cut texts
    records = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant" and i:
            record = replace(about, messages=messages[:i], media=list(begun.media), cut=begun.cut)
            record.type = about.type or begun.type or "text"
            record.time = _time(turns, i - first)
            fields.put_output(record, message, f"{path}[{i - first}]")
            records.append(record)
        fields.put_message(begun, message, f"{path}[{i - first}]" if i >= first else "system")
    if not records:
        raise NotARequest("no turn of this conversation is an answer.", field=path)
    return records


def matches(row: dict) -> bool:
    """Whether the row looks like one of this form."""
    if _is_turns(row.get("conversations")) or _is_turns(row.get("conversation")):
        return True
    messages = row.get("messages")
    if type(messages) is not list or not _is_turns(messages) or any(row.get(name) is not None for name in REQUEST):
        return False
    return any(type(message) is dict and message.get("role") == "assistant" for message in messages)


def small_unit(row: dict) -> str | None:
    """The unit of a time too small for an epoch, where the field's name says it: here it does not."""
    return None


def _is_turns(value: Any) -> bool:
    return type(value) is list and bool(value) and type(value[0]) is dict and bool(value[0].keys() & {"role", "from"})


def _turns(row) -> tuple[list, str]:
    """The turns as logged, and their JSON path."""
    turns, path = fields.find([("", row)], "input", "conversations", "conversation", "messages")
    if turns is None:
        raise RowError("is missing; it holds the turns.", field="conversations", hint="Try --map input=FIELD.")
    if not isinstance(turns, list):
        raise fields.wrong(turns, path, "a list of turns")
    for i, turn in enumerate(turns):
        if type(turn) is not dict:
            raise fields.wrong(turn, f"{path}[{i}]", "a turn")
    return turns, path


def _messages(row, turns, path) -> tuple[list[dict], int]:
    """The turns as chat messages, and how many stand before the first of them."""
    messages = [turn if path == "messages" else _message(turn, f"{path}[{i}]") for i, turn in enumerate(turns)]
    for i, message in enumerate(messages):
        if type(message.get("role")) is not str:
            raise fields.wrong(message.get("role"), f"{path}[{i}].role", "a string")
    system = row.get("system")  # beside the turns, in some of ShareGPT's offspring
    if system and path == "conversations" and messages and messages[0]["role"] != "system":
        if type(system) is not str:
            raise fields.wrong(system, "system", "a string")
        return [{"role": "system", "content": system}, *messages], 1
    return messages, 0


def _message(turn, path) -> dict[str, Any]:
    """A turn with its role and content alone: what else it has (a language, an address) is not in the prompt."""
    place = [(f"{path}.", turn)]
    names = ("from", "role") if path.startswith("conversations") else ("role", "from")
    who, where = fields.find(place, *names)
    if type(who) is not str:
        raise fields.wrong(who, where, "a string")
    role = ROLES.get(who.lower())
    if role is None:
        raise RowError("is nobody's name that is known; expected was human, gpt, system or tool.", field=where)
    content, where = fields.find(place, "content", "value")
    if content is not None and type(content) not in (str, list):
        raise fields.wrong(content, where, "text, a list of parts or null")
    return {"role": role, "content": content} | {name: turn[name] for name in ("tool_calls",) if turn.get(name)}


def _about(row, turns, path) -> Record:
    """What all requests of the conversation share."""
    here = dict(row)
    if path == "conversation":
        here = {"session": _wildchat_session(row, turns), "user": row.get("hashed_ip")} | here
    about = fields.described([("", here)])
    about.output_length = about.prompt_tokens = None  # of a row's many requests neither could be all theirs
    if path != "messages" and _begins_late(row, turns):
        about.lacks = "the turns before it: the conversation's beginning is another row, or gone"
    return about


def _wildchat_session(row, turns):
    """A WildChat conversation's hash with its first turn's number: the hash is of the text, equal texts share it."""
    name, turn = row.get("conversation_hash"), turns[0].get("turn_identifier") if turns else None
    return name if name is None or turn is None else f"{name} {turn}"


def _begins_late(row, turns):
    """Whether an answer comes before any question, or the row's id is that of a later piece."""
    name = row.get("id")
    if "conversations" in row and type(name) is str and _LATER_PIECE.fullmatch(name):
        return True
    roles = (ROLES.get(str(turn.get("role") or turn.get("from")).lower()) for turn in turns)
    return next((role for role in roles if role in ("user", "assistant")), None) == "assistant"


def _time(turns, i):
    """When the question of this answer came, else when the answer did; None where the turns have no times."""
    asked = turns[i - 1].get("timestamp") if i and turns[i - 1].get("role") == "user" else None
    return asked if asked is not None else turns[i].get("timestamp")
