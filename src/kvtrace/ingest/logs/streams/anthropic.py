"""Events of Anthropic's Messages (docs.anthropic.com/en/api/messages-streaming).

`message_start` has the message without content, `content_block_start` and `content_block_delta` fill its blocks by
index, and `message_delta` has the usage, whose counts are cumulative.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from .answer import StreamedAnswer, index_of, object_of, text_of
from .sse import Event, events

EVENTS = frozenset(
    ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
     "message_stop")
)  # fmt: skip
DELTAS = {  # type of a delta -> its field, and the block's field
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("partial_json", "input"),
}


def answer_of(stream: bytes) -> StreamedAnswer:
    """The message of a stream of events; RowError if an event is not JSON.

    >>> answer = answer_of(b'data: {"type": "message_start", "message": {"usage": {"input_tokens": 9}}}\\n\\n'
    ...     b'data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}\\n\\n'
    ...     b'data: {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 1}}\\n\\n')
    >>> answer.response
    {'usage': {'input_tokens': 9, 'output_tokens': 1}, 'content': [{'type': 'text', 'text': 'Hi'}]}
    """
    return assembled(events(stream))


def assembled(events: Iterable[tuple[int, Event]]) -> StreamedAnswer:
    """The message of events, each with its place.

    >>> delta = {"type": "text_delta", "text": "Hi"}
    >>> assembled([(1, {"type": "content_block_delta", "index": 0, "delta": delta})]).response["content"]
    [{'type': 'text', 'text': 'Hi'}]
    """
    answer, blocks, counted = StreamedAnswer(), {}, False
    usage: dict[str, Any] = {}
    for end, event in events:
        kind = event.get("type")
        if kind == "message_start":
            answer.response |= object_of(event.get("message"))
            usage |= object_of(answer.response.get("usage"))
        elif kind == "content_block_start":
            blocks[index_of(event.get("index"))] = _Block(object_of(event.get("content_block")))
        elif kind == "content_block_delta":
            block = blocks.setdefault(index_of(event.get("index")), _Block({}))
            if block.add(object_of(event.get("delta"))) and answer.first_token is None:
                answer.first_token = end
        elif kind == "content_block_stop" and index_of(event.get("index")) in blocks:
            blocks[index_of(event.get("index"))].is_whole = True
        elif kind == "message_delta":
            answer.response |= {k: v for k, v in object_of(event.get("delta")).items() if v is not None}
            counts = {k: v for k, v in object_of(event.get("usage")).items() if v is not None}
            usage |= counts
            counted = counted or "output_tokens" in counts
        answer.finished = answer.finished or kind == "message_stop"
        answer.failed = answer.failed or kind == "error"
    if not counted:
        usage.pop("output_tokens", None)  # that of message_start counts the first tokens only
    answer.response |= {"usage": usage, "content": [blocks[index].whole() for index in sorted(blocks)]}
    return answer


class _Block:
    """One content block: how it began, and the pieces that came so far."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.pieces: dict[str, list[str]] = {}
        self.is_whole = False

    def add(self, delta: dict[str, Any]) -> bool:
        """Take a piece; whether it has generated text."""
        source, target = DELTAS.get(text_of(delta.get("type")), ("", ""))
        text = text_of(delta.get(source))
        if text:
            self.pieces.setdefault(target, []).append(text)
            self.start.setdefault("type", {"input": "tool_use"}.get(target, target))
        return bool(text)

    def whole(self) -> dict[str, Any]:
        """The block as the API gives it without streaming."""
        block = dict(self.start)
        if "input" in block and not self.is_whole:
            block["input"] = ""  # the empty object of the start is no argument that the model wrote
        for target, pieces in self.pieces.items():
            text = "".join(pieces)
            block[target] = _arguments(text) if target == "input" else text_of(block.get(target)) + text
        return block


def _arguments(text):
    """The arguments of a tool as an object; as text if the stream ended before they were complete."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value if type(value) is dict else text
