"""Events of OpenAI's Responses (platform.openai.com/docs/api-reference/responses-streaming).

The last event holds the whole response. If it is missing, the items and the pieces of items that came are put together.
"""

from __future__ import annotations

from typing import Any

from .answer import StreamedAnswer, index_of, object_of, text_of
from .sse import events

LAST = ("response.completed", "response.incomplete", "response.failed")
FIRST = ("response.created", "response.queued", "response.in_progress")
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
    answer = StreamedAnswer()
    items: dict[int, dict[str, Any]] = {}
    for end, event in events(stream):
        kind, index = text_of(event.get("type")), index_of(event.get("output_index"))
        if kind in LAST:
            answer.response = object_of(event.get("response"))
            answer.finished, answer.failed = True, kind == "response.failed"
        elif answer.finished:
            continue
        elif kind in FIRST:
            answer.response = object_of(event.get("response"))
        elif kind in ("response.output_item.added", "response.output_item.done"):
            items[index] = object_of(event.get("item"))
        elif kind == "error":
            answer.failed = True
        elif kind in PARTS | CALLS and (piece := text_of(event.get("delta"))):
            item = items.setdefault(index, {})
            if kind in CALLS:
                _add_to_call(item, CALLS[kind], piece)
            else:
                _add_to_part(item, index_of(event.get("content_index")), *PARTS[kind], piece)
            answer.first_token = answer.first_token or end
    if not answer.finished:
        answer.response = answer.response | {"output": [items[index] for index in sorted(items)]}
    return answer


def _add_to_call(item: dict[str, Any], field: str, piece: str) -> None:
    """Add a piece of its arguments to a call that is not complete."""
    item.setdefault("type", "function_call")
    item.setdefault("name", item["type"])
    item[field] = text_of(item.get(field)) + piece


def _add_to_part(item: dict[str, Any], place: int, kind: str, field: str, piece: str) -> None:
    """Add a piece of text to a part of a message, or of reasoning, that is not complete."""
    if kind == "reasoning_text":
        item.setdefault("type", "reasoning")
    else:
        item |= {"type": "message", "role": "assistant"}
    if type(item.get("content")) is not list:
        item["content"] = []
    parts = item["content"]
    if place >= len(parts):
        parts.append({"type": kind, field: ""})
    part = parts[min(place, len(parts) - 1)]
    if type(part) is dict:
        part[field] = text_of(part.get(field)) + piece
