"""A call of LiteLLM as MessagePack, from the gateway to the digester: no text is escaped, as JSON requires.

Python keeps long text that is not ASCII in 1, 2 or 4 bytes a character. Its UTF-16 and UTF-32 codecs copy these, four
times as fast as UTF-8 is encoded. So long texts of messages go as extensions, whose type is the width of the codec.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

LONG = 4096  # characters; shorter texts are encoded as fast in UTF-8
UTF_16, UTF_32 = 16, 32  # types of extensions
CODECS = {UTF_16: "utf-16-le", UTF_32: "utf-32-le"}
TYPES = {1: UTF_16, 2: UTF_16, 4: UTF_32}  # bytes a character in memory -> type


def packed(call: dict[str, Any]) -> bytes:
    """The call in bytes. Values that JSON does not have become text.

    >>> unpacked(packed({"id": "a", "messages": [{"content": "é" * 5000}]}))["messages"][0]["content"] == "é" * 5000
    True
    """
    messages = call.get("messages")
    if type(messages) is list:
        call = {**call, "messages": _with_wide_texts(messages)}
    elif type(messages) is str:
        call = {**call, "messages": _wide(messages)}
    return _encoder().encode(call)


def unpacked(payload: bytes) -> Any:
    """What `packed` made bytes of; MsgspecError if they are not valid."""
    return _decoder().decode(payload)


def is_packed(payload: bytes) -> bool:
    """Whether `packed` made this payload; JSON begins with ASCII, and maps of MessagePack do not."""
    return payload[:1] > b"\x7f"


def _with_wide_texts(items: list[Any], name: str = "content") -> list[Any]:
    """A copy of messages, or of their parts, with their long texts as extensions; the list itself if none is long."""
    changed = None
    for i, item in enumerate(items):
        if type(item) is not dict or (value := item.get(name)) is None:
            continue
        if type(value) is str:
            new = value if len(value) < LONG else _wide(value)
        else:
            new = _with_wide_texts(value, "text") if type(value) is list else value
        if new is not value:
            changed = changed or list(items)
            changed[i] = {**item, name: new}
    return changed or items


def _wide(text: str) -> Any:
    """The text as an extension; itself if it is short, ASCII, or already in UTF-8 beside its characters."""
    if len(text) < LONG or text.isascii():
        return text
    kind = TYPES.get(sys.getsizeof(text) // len(text))
    if kind is None:
        return text
    return _msgspec().Ext(kind, text.encode(CODECS[kind]))


def _text(kind: int, data: memoryview) -> str:
    return str(data, CODECS[kind])


def _msgspec() -> Any:
    from msgspec import msgpack

    return msgpack


@cache
def _encoder() -> Any:
    return _msgspec().Encoder(enc_hook=str)


@cache
def _decoder() -> Any:
    return _msgspec().Decoder(ext_hook=_text)
