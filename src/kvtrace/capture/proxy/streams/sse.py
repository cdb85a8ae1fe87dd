"""Server-sent events (html.spec.whatwg.org, 9.2): the JSON objects of a stream, each with the place where it ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from ...._base.errors import RowError

DONE = {"done": True}  # stands for `data: [DONE]`, with which OpenAI ends a stream
_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n")


def events(stream: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a stream with the bytes of the stream up to their end; DONE for `[DONE]`.

    The last event may be cut: it is then left out. RowError if another one is not a JSON object.

    >>> list(events(b': hello\\n\\nevent: a\\ndata: {"b": 1}\\n\\ndata: [DONE]\\n\\ndata: {"c'))
    [(34, {'b': 1}), (48, {'done': True})]
    """
    start = 3 if stream.startswith(b"\xef\xbb\xbf") else 0
    for match in _BLANK_LINE.finditer(stream, start):
        if event := _event(stream[start : match.start()]):
            yield match.end(), event
        elif event is None:
            raise RowError("an event of the answer's stream is not a JSON object.")
        start = match.end()
    if event := _event(stream[start:]):  # some servers leave out the last blank line
        yield len(stream), event


def _event(block):
    """The object of one event; {} if the event has no data, None if its data is not an object."""
    if block.startswith(b"data: {") and b"\n" not in block and b"\r" not in block:  # nearly all events
        data = block[6:]
    else:
        lines = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
    if not data.strip():
        return {}
    if data.strip() == b"[DONE]":
        return DONE
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return event if type(event) is dict else None
