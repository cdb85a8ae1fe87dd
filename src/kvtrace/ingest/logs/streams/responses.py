"""Events of OpenAI's Responses (platform.openai.com/docs/api-reference/responses-streaming).

The last event holds the whole response. If it is missing, the items and the pieces of items that came are put together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .answer import StreamedAnswer, index_of, object_of, text_of
from .sse import Event, events

LAST = ("response.completed", "response.incomplete", "response.failed")
FIRST = ("response.created", "response.queued", "response.in_progress")
ADDED = ("response.output_item.added", "response.output_item.done")
PARTS = {  # event -> type and field of a part of the item's content
    "response.output_text.delta": ("output_text", "text"),
    "response.refusal.delta": ("refusal", "refusal"),
    "response.reasoning_text.delta": ("reasoning_text", "text"),
}
CALLS = {  # event -> the field of a call
    "response.function_call_arguments.delta": "arguments",
    "response.mcp_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}


def answer_of(stream: bytes) -> StreamedAnswer:
    """The response of a stream of events; RowError if an event is not JSON.

    >>> answer_of(b'data: {"type": "response.output_text.delta", "output_index": 0, "delta": "Hi"}\\n\\n').response
    {'output': [{'type': 'message', 'role': 'assistant', 'content': [{'type': 'output_text', 'text': 'Hi'}]}]}
    """
    return assembled(events(stream))


def assembled(events: Iterable[tuple[int, Event]]) -> StreamedAnswer:
    """The response of events, each with its place.

    >>> response = {"object": "response", "output": []}
    >>> assembled([(1, {"type": "response.completed", "response": response})]).response
    {'object': 'response', 'output': []}
    """
    answer = StreamedAnswer()
    items: dict[int, _Item] = {}
    for end, event in events:
        kind, index = text_of(event.get("type")), index_of(event.get("output_index"))
        if kind in LAST:
            answer.response = object_of(event.get("response"))
            answer.finished, answer.failed = True, kind == "response.failed"
        elif answer.finished:
            continue
        elif kind in FIRST:
            answer.response = object_of(event.get("response"))
        elif kind in ADDED:
            items[index] = _Item(object_of(event.get("item")))
            if kind == "response.output_item.done" and answer.first_token is None:
                answer.first_token = end
        elif kind == "error":
            answer.failed = True
        elif kind in PARTS | CALLS and (piece := text_of(event.get("delta"))):
            items.setdefault(index, _Item({})).add(kind, index_of(event.get("content_index")), piece)
            answer.first_token = answer.first_token or end
    if not answer.finished:
        answer.response = answer.response | {"output": [items[index].whole() for index in sorted(items)]}
    return answer


class _Item:
    """One item of the output: how it was added, and the pieces of it that came after."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = dict(start)
        self.pieces: dict[str, list[str]] = {}  # of a call: field -> pieces
        self.parts: dict[int, tuple[str, str, list[str]]] = {}  # of a message: place -> type, field and pieces

    def add(self, kind: str, place: int, piece: str) -> None:
        """Take a piece of a call, or of the part at a place of a message or of reasoning."""
        if kind in CALLS:
            self.start.setdefault("type", "function_call")
            self.start.setdefault("name", self.start["type"])
            self.pieces.setdefault(CALLS[kind], []).append(piece)
            return
        if PARTS[kind][0] == "reasoning_text":
            self.start.setdefault("type", "reasoning")
        else:
            self.start |= {"type": "message", "role": "assistant"}
        self.parts.setdefault(place, (*PARTS[kind], []))[2].append(piece)

    def whole(self) -> dict[str, Any]:
        """The item as the API gives it without streaming, as far as it came."""
        item = dict(self.start)
        for name, pieces in self.pieces.items():
            item[name] = text_of(item.get(name)) + "".join(pieces)
        if self.parts:
            item["content"] = self._content(item.get("content"))
        return item

    def _content(self, content):
        parts = list(content) if type(content) is list else []
        for place in sorted(self.parts):
            kind, field, pieces = self.parts[place]
            if place >= len(parts):
                parts.append({"type": kind})
            part = parts[min(place, len(parts) - 1)]
            if type(part) is dict:
                parts[min(place, len(parts) - 1)] = part | {field: text_of(part.get(field)) + "".join(pieces)}
        return parts
