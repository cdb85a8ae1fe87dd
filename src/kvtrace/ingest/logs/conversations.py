"""Collections of conversations, one a row: ShareGPT, LMSYS-Chat-1M, WildChat, and plain {"id", "messages"} chats.

Each assistant turn is one request: its prompt is all turns before it, and its output is the turn. The turns are in
`conversations` (from, value) for ShareGPT, in `conversation` (role, content) for LMSYS and WildChat, and in `messages`
for plain chats. Only WildChat has times, in its turns. The others need an arrival model (--arrivals).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ..._base.errors import NotARequest, RowError
from . import fields
from .contents import TEXTS
from .pairs import ANSWERS
from .record import Record, clear_measured
from .spellings import has_time

# speaker in ShareGPT and the data sets derived from it -> role in chat templates
ROLES = {
    "human": "user", "user": "user",
    "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "model": "assistant",
    "assistant": "assistant", "function_call": "assistant",
    "system": "system", "developer": "developer",
    "tool": "tool", "observation": "tool", "function_response": "tool", "function": "tool",
}  # fmt: skip

# fields of a logged request that a plain conversation does not have
REQUEST_FIELDS = (
    "timestamp", "created", "created_at", "usage", "choices", "response", "request", "body", "input", "output",
    "prompt", "prompt_token_ids", "startTime", "output_length", "system",
    "delay", "message_mode", *ANSWERS, *TEXTS,
)  # fmt: skip

# ShareGPT splits long conversations: the id has seven letters and digits, and the number of the segment after `_`
_LATER_SEGMENT = re.compile(r"(?=[^_]*[0-9A-Z])[0-9A-Za-z]{7}_0*[1-9][0-9]*", re.ASCII)


def read_all(row: dict[str, Any]) -> list[Record]:
    """The Records of one conversation, in the order of its turns. They share the message objects.

    NotARequest if the conversation has no assistant turn; RowError if the row does not have this format.

    >>> turns = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}] * 2
    >>> [(len(request.messages), request.output_text) for request in read_all({"conversations": turns})]
    [(1, 'Hi'), (3, 'Hi')]
    """
    turns, path = _turns(row)
    messages, first = _messages(row, turns, path)
    shared = _shared_fields(row, turns, path)
    prefix = Record()  # media, cut texts and type of the messages so far
    records = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant" and i:
            record = replace(shared, messages=messages[:i], media=list(prefix.media), cut=prefix.cut)
            record.type = shared.type or prefix.type or "text"
            record.time = _time(turns, i - first)
            fields.put_output(record, message, f"{path}[{i - first}]")
            records.append(record)
        fields.put_message(prefix, message, f"{path}[{i - first}]" if i >= first else "system")
    if not records:
        raise NotARequest("the conversation has no assistant turn.", field=path)
    return records


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    if _is_turns(row.get("conversations")) or _is_turns(row.get("conversation")):
        return True
    messages = row.get("messages")
    if messages is None or not _is_turns(messages) or any(row.get(name) is not None for name in REQUEST_FIELDS):
        return False
    roles = [message.get("role") for message in messages if type(message) is dict]
    is_request = roles[-1] != "assistant" and has_time(row)  # with the turns before it
    return "assistant" in roles and not is_request


def small_unit(row: dict[str, Any]) -> str | None:
    """None: the field's name does not tell the unit of small times."""
    return None


def _is_turns(value: Any) -> bool:
    return type(value) is list and bool(value) and type(value[0]) is dict and bool(value[0].keys() & {"role", "from"})


def _turns(row) -> tuple[list[Any], str]:
    """The logged turns and their JSON path."""
    turns, path = fields.find([("", row)], "input", "conversations", "conversation", "messages")
    if turns is None:
        raise RowError("is missing. It must hold the turns.", field="conversations", hint="Try --map input=FIELD.")
    if not isinstance(turns, list):
        raise fields.wrong(turns, path, "a list of turns")
    for i, turn in enumerate(turns):
        if type(turn) is not dict:
            raise fields.wrong(turn, f"{path}[{i}]", "a turn")
    return turns, path


def _messages(row, turns, path) -> tuple[list[dict[str, Any]], int]:
    """The turns as chat messages, after the row's system message if it has one, and the index of the first turn."""
    messages = [turn if path == "messages" else _message(turn, f"{path}[{i}]") for i, turn in enumerate(turns)]
    for i, message in enumerate(messages):
        if type(message.get("role")) is not str:
            raise fields.wrong(message.get("role"), f"{path}[{i}].role", "a string")
    system = row.get("system")  # outside the turns, in some data sets derived from ShareGPT
    if system and path == "conversations" and messages and messages[0]["role"] != "system":
        if type(system) is not str:
            raise fields.wrong(system, "system", "a string")
        return [{"role": "system", "content": system}, *messages], 1
    return messages, 0


def _message(turn, path) -> dict[str, Any]:
    """A turn with its role, content and tool calls. Its other fields (language, address) are not in the prompt."""
    place = [(f"{path}.", turn)]
    names = ("from", "role") if path.startswith("conversations") else ("role", "from")
    speaker, speaker_path = fields.find(place, *names)
    if type(speaker) is not str:
        raise fields.wrong(speaker, speaker_path, "a string")
    role = ROLES.get(speaker.lower())
    if role is None:
        raise RowError("is not a known speaker; expected human, gpt, system or tool.", field=speaker_path)
    content, content_path = fields.find(place, "content", "value")
    if content is not None and type(content) not in (str, list):
        raise fields.wrong(content, content_path, "text, a list of parts or null")
    return {"role": role, "content": content} | {name: turn[name] for name in ("tool_calls",) if turn.get(name)}


def _shared_fields(row, turns, path) -> Record:
    """A Record of the fields that all requests of the conversation share."""
    place = dict(row)
    if path == "conversation":
        place = {"session": _wildchat_session(row, turns), "user": row.get("hashed_ip")} | place
    shared = fields.described([("", place)])
    shared.output_length = shared.prompt_tokens = None  # a row's counts cannot be those of each of its requests
    clear_measured(shared)  # likewise
    if path != "messages" and _starts_late(row, turns):
        shared.lacks = "the turns before it; the start of the conversation is in another row, or missing"
    return shared


def _wildchat_session(row, turns):
    """A session key for WildChat: the conversation's hash (equal texts share it) with its first turn's number."""
    name, turn = row.get("conversation_hash"), turns[0].get("turn_identifier") if turns else None
    return name if name is None or turn is None else f"{name} {turn}"


def _starts_late(row, turns):
    """Whether the conversation starts with an assistant turn, or the row's id is that of a later segment."""
    name = row.get("id")
    if "conversations" in row and type(name) is str and _LATER_SEGMENT.fullmatch(name):
        return True
    roles = (ROLES.get(str(turn.get("role") or turn.get("from")).lower()) for turn in turns)
    return next((role for role in roles if role in ("user", "assistant")), None) == "assistant"


def _time(turns, i):
    """The time of the user turn before this assistant turn, else of the assistant turn, else None."""
    user_time = turns[i - 1].get("timestamp") if i and turns[i - 1].get("role") == "user" else None
    return user_time if user_time is not None else turns[i].get("timestamp")
