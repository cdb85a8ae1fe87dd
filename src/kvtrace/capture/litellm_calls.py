"""A call of LiteLLM: the fields that the reader `litellm` needs, as MessagePack from the gateway to the digester.

All other fields of the StandardLoggingPayload are dropped before the queue: keys, addresses, e-mails, headers, costs.

No text is escaped, as JSON requires. Python keeps text that is not ASCII in 1, 2 or 4 bytes a character, and takes long
to encode it in UTF-8. So such texts of the messages are taken out of a call and copied as they are in memory; the
digester puts them back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from .._native.texts import chat_texts, joined_texts

FIELDS = frozenset(
    ("id", "call_type", "status", "timestamp", "startTime", "endTime", "completionStartTime", "response_time",
     "messages", "response", "model", "trace_id", "session_id", "litellm_session_id", "end_user", "user",
     "model_parameters", "prompt_tokens", "completion_tokens", "cache_hit", "proxy_server_request", "organization_id",
     "team_id", "cache_salt", "extra_key")
)  # fmt: skip
METADATA = frozenset(
    ("user_api_key_user_id", "user_api_key_hash", "user_api_key_end_user_id", "user_api_key_org_id",
     "user_api_key_team_id", "organization_id", "team_id", "usage_object",
     "additional_usage_values", "session_id", "conversation_id", "trace_id")
)  # fmt: skip


def needed(call: dict[str, Any], keep: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The call with these fields alone, and with those of its metadata.

    Args:
        call: One StandardLoggingPayload.
        keep: Names of more fields, of the call or of its metadata.

    >>> needed({"id": "a", "response_cost": 0.1, "metadata": {"user_api_key_hash": "k", "user_agent": "b"}})
    {'id': 'a', 'metadata': {'user_api_key_hash': 'k'}}
    """
    names = FIELDS | keep
    kept = {name: value for name, value in call.items() if name in names}
    metadata = call.get("metadata")
    if type(metadata) is dict:
        names = METADATA | keep
        kept["metadata"] = {name: value for name, value in metadata.items() if name in names}
    elif metadata is not None:
        kept["metadata"] = metadata
    return kept


LONG = 4096  # characters of all texts of a call; fewer are encoded as fast in UTF-8
ORDER = "le" if sys.byteorder == "little" else "be"
CODECS = {1: "latin-1", 2: f"utf-16-{ORDER}", 4: f"utf-32-{ORDER}"}  # bytes a character in memory -> codec
TEXTS = "\0texts"  # key of a call: the places of the texts that were taken out of its messages, and the texts
WHOLE = -1  # the place of a text that is all of the messages


def packed(call: dict[str, Any]) -> bytes:
    """The call in bytes. Values that JSON does not have become text.

    >>> unpacked(packed({"id": "a", "messages": [{"content": "é" * 5000}]}))["messages"][0]["content"] == "é" * 5000
    True
    """
    messages = call.get("messages")
    if type(messages) is list:
        call = {**call, **_without_texts(messages)}
    elif type(messages) is str and len(messages) >= LONG and not messages.isascii():
        call = {**call, "messages": "", TEXTS: [[WHOLE], *joined_texts([messages])]}
    return _encoder().encode(call)


def unpacked(payload: bytes) -> Any:
    """What `packed` made bytes of; ValueError, TypeError or LookupError if they are not valid."""
    call = _decoder().decode(payload)
    if type(call) is dict and TEXTS in call:
        places, *texts = call.pop(TEXTS)
        for place, text in zip(places, _parted(*texts), strict=True):
            _put_back(call, place, text)
    return call


def is_packed(payload: bytes) -> bool:
    """Whether `packed` made this payload; JSON begins with ASCII, and maps of MessagePack do not."""
    return payload[:1] > b"\x7f"


def _without_texts(messages: list[Any]) -> dict[str, Any]:
    """The keys of a call for these messages; no keys if their texts are ASCII or short.

    The role stays in the list in place of a message that has nothing else but a text. The place of a text is the number
    of its message, or the numbers of its message and its part.
    """
    numbers, roles, texts, others = chat_texts(messages)
    places: list[Any] = list(numbers)
    rest = list(messages)
    for number, role in zip(numbers, roles, strict=True):
        rest[number] = role
    for i in others:
        content = messages[i].get("content")
        if type(content) is str:
            rest[i] = {**messages[i], "content": ""}
            places.append(i)
            texts.append(content)
        elif type(content) is list:
            rest[i] = {**messages[i], "content": list(content)}
            for j, part in enumerate(content):
                if type(part) is dict and type(text := part.get("text")) is str and not text.isascii():
                    rest[i]["content"][j] = {**part, "text": ""}
                    places.append([i, j])
                    texts.append(text)
    if sum(map(len, texts)) < LONG:
        return {}
    return {"messages": rest, TEXTS: [places, *joined_texts(texts)]}


def _parted(lengths: list[int], widths: bytes, data: bytes) -> Iterator[str]:
    """The texts that were joined."""
    start = 0
    for length, width in zip(lengths, widths, strict=True):
        end = start + length * width
        yield str(data[start:end], CODECS[width])
        start = end
    if start != len(data):
        raise ValueError("the lengths are not those of the texts")


def _put_back(call: dict[str, Any], place: Any, text: str) -> None:
    """Put a text back into the messages of a call."""
    messages = call["messages"]
    if place == WHOLE:
        call["messages"] = text
    elif type(place) is list:
        i, j = place
        messages[i]["content"][j]["text"] = text
    elif type(messages[place]) is str:
        messages[place] = {"role": messages[place], "content": text}
    else:
        messages[place]["content"] = text


@cache
def _encoder() -> Any:
    from msgspec import msgpack

    return msgpack.Encoder(enc_hook=str)


@cache
def _decoder() -> Any:
    from msgspec import msgpack

    return msgpack.Decoder()
