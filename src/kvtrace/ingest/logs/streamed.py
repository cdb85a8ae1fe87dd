"""Streamed answers of three APIs, put together as the answers that the API gives without streaming.

OpenAI's chat completions and completions (platform.openai.com/docs/api-reference/chat-streaming): each chunk adds to
the texts of a choice, and to its tool calls by their index. Usage comes in the last chunk if the client asks for it
(`stream_options`), and with vLLM's `continuous_usage_stats` in each chunk. With `return_token_ids`, vLLM writes the ids
of the prompt into the first chunk and those of the answer into each.

OpenAI's Responses (platform.openai.com/docs/api-reference/responses-streaming): the last event holds the whole
response. If it is missing, the items and the pieces of items that came are put together.

Anthropic's Messages (docs.anthropic.com/en/api/messages-streaming): `message_start` has the message without content,
`content_block_start` and `content_block_delta` fill its blocks by index, and `message_delta` has the usage, whose
counts are cumulative.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from ..._base.errors import RowError
from ..._base.json_values import parsed_json
from .sse import DONE, Event, StreamedAnswer, events, index_of, object_of, objects_of, text_of

TEXTS = ("reasoning_content", "reasoning", "refusal")  # of a message; beside its content, which may also have parts
NAMES = ("id", "created", "model", "system_fingerprint", "service_tier", "prompt_token_ids")


def chat_answer(stream: bytes) -> StreamedAnswer:
    """The completion of a stream of chunks; RowError if a chunk is not JSON.

    >>> piece = b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}, "finish_reason": %s}]}\\n\\n'
    >>> answer = chat_answer(piece % (b"Hello", b"null") + piece % (b" you", b'"stop"'))
    >>> answer.response["choices"][0]["message"], answer.finished
    ({'role': 'assistant', 'content': 'Hello you'}, True)
    """
    return assembled_chat(events(stream))


def assembled_chat(events: Iterable[tuple[int, Event]]) -> StreamedAnswer:
    """The completion of chunks, each with its place.

    >>> assembled_chat([(1, {"choices": [{"text": "Yes"}]}), (2, {"choices": [{"text": ", sir"}]})]).response["choices"]
    [{'index': 0, 'finish_reason': None, 'text': 'Yes, sir'}]
    """
    answer = StreamedAnswer()
    choices: dict[int, _Choice] = {}
    for end, chunk in events:
        if chunk is DONE:
            answer.finished = True
            continue
        answer.failed = answer.failed or chunk.get("error") is not None
        for name in NAMES:
            if chunk.get(name) is not None:
                answer.response.setdefault(name, chunk[name])
        if type(chunk.get("usage")) is dict:
            answer.response["usage"] = chunk["usage"]
        for piece in objects_of(chunk.get("choices")):
            choice = choices.setdefault(index_of(piece.get("index")), _Choice())
            if choice.add(piece) and answer.first_token is None:
                answer.first_token = end
    answer.response["choices"] = [choices[index].whole(index) for index in sorted(choices)]
    ends = [choice["finish_reason"] for choice in answer.response["choices"]]
    answer.finished = answer.finished or (bool(ends) and None not in ends)
    return answer


class _Choice:
    """One of the answers: the pieces that came so far."""

    def __init__(self) -> None:
        self.is_chat = False
        self.finish_reason: str | None = None
        self.content: list[Any] = []  # texts, and parts of servers that stream parts
        self.texts: dict[str, list[str]] = {}
        self.calls: dict[int, _Call] = {}  # by index; those without one come after
        self.function = _Call()  # OpenAI's older name of a call
        self.ids: dict[str, list[Any]] = {}  # token ids of the prompt and of the answer

    def add(self, piece: dict[str, Any]) -> bool:
        """Take the piece of a choice; whether it has generated text."""
        self.finish_reason = piece.get("finish_reason") or self.finish_reason
        for name in ("prompt_token_ids", "token_ids"):
            if type(piece.get(name)) is list:
                self.ids.setdefault(name, []).extend(piece[name])
        delta = piece.get("delta", piece.get("message"))  # some servers send the whole message as one event
        if type(delta) is not dict:
            text = text_of(piece.get("text"))
            self.content.append(text)
            return bool(text or piece.get("token_ids"))
        self.is_chat = True
        content = delta.get("content")
        added = [content] if type(content) is str and content else objects_of(content)
        self.content += added
        for name in TEXTS:
            if text := text_of(delta.get(name)):
                self.texts.setdefault(name, []).append(text)
                added = [text]
        if type(delta.get("function_call")) is dict:
            self.function.add(delta["function_call"])
            added = [delta]
        for call in objects_of(delta.get("tool_calls")):
            self._add_tool_call(call)
            added = [call]
        return bool(added or piece.get("token_ids"))

    def _add_tool_call(self, call):
        index = call.get("index")
        if type(index) is not int:  # a call with an id is a new one
            index = len(self.calls) - (0 if call.get("id") or not self.calls else 1)
        whole = self.calls.setdefault(index, _Call())
        whole.id = whole.id or call.get("id")
        whole.add(object_of(call.get("function")))

    def whole(self, index: int) -> dict[str, Any]:
        """The choice as the API gives it without streaming."""
        has_parts = any(type(piece) is dict for piece in self.content)
        content = [_part(piece) for piece in self.content] if has_parts else "".join(self.content)
        choice: dict[str, Any] = {"index": index, "finish_reason": self.finish_reason} | self.ids
        if not self.is_chat:
            return choice | {"text": content}
        message: dict[str, Any] = {"role": "assistant", "content": content or None}
        message |= {name: "".join(texts) for name, texts in self.texts.items()}
        calls = [self.calls[i] for i in sorted(self.calls)]
        if calls:
            message["tool_calls"] = [{"id": call.id, "type": "function", "function": call.whole()} for call in calls]
        message |= {"function_call": self.function.whole()} if self.function.is_called else {}
        return choice | {"message": message}


class _Call:
    """The call of a function: its name comes once, its arguments come in pieces."""

    def __init__(self) -> None:
        self.id: Any = None
        self.is_called = False
        self.name: Any = None
        self.pieces: list[str] = []
        self.arguments: dict[str, Any] | None = None  # of servers that send them as an object

    def add(self, call: dict[str, Any]) -> None:
        """Take a piece."""
        self.is_called = True
        self.name = self.name or call.get("name")
        arguments = call.get("arguments")
        if type(arguments) is dict:
            self.arguments = arguments
        else:
            self.pieces.append(text_of(arguments))

    def whole(self) -> dict[str, Any]:
        """The call as the API gives it without streaming."""
        return {"name": self.name, "arguments": "".join(self.pieces) if self.arguments is None else self.arguments}


def _part(piece):
    return {"type": "text", "text": piece} if type(piece) is str else piece


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


def responses_answer(stream: bytes) -> StreamedAnswer:
    """The response of a stream of events; RowError if an event is not JSON.

    >>> responses_answer(b'data: {"type": "response.output_text.delta", '
    ... b' "output_index": 0, "delta": "Hi"}\\n\\n').response
    {'output': [{'type': 'message', 'role': 'assistant', 'content': [{'type': 'output_text', 'text': 'Hi'}]}]}
    """
    return assembled_responses(events(stream))


def assembled_responses(events: Iterable[tuple[int, Event]]) -> StreamedAnswer:
    """The response of events, each with its place.

    >>> response = {"object": "response", "output": []}
    >>> assembled_responses([(1, {"type": "response.completed", "response": response})]).response
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


EVENTS = frozenset(
    ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
     "message_stop")
)  # fmt: skip
DELTAS = {  # type of a delta -> its field, and the block's field
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("partial_json", "input"),
}


def anthropic_answer(stream: bytes) -> StreamedAnswer:
    """The message of a stream of events; RowError if an event is not JSON.

    >>> answer = anthropic_answer(b'data: {"type": "message_start", "message": {"usage": {"input_tokens": 9}}}\\n\\n'
    ...     b'data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}\\n\\n'
    ...     b'data: {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 1}}\\n\\n')
    >>> answer.response
    {'usage': {'input_tokens': 9, 'output_tokens': 1}, 'content': [{'type': 'text', 'text': 'Hi'}]}
    """
    return assembled_anthropic(events(stream))


def assembled_anthropic(events: Iterable[tuple[int, Event]]) -> StreamedAnswer:
    """The message of events, each with its place.

    >>> delta = {"type": "text_delta", "text": "Hi"}
    >>> assembled_anthropic([(1, {"type": "content_block_delta", "index": 0, "delta": delta})]).response["content"]
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
        value = parsed_json(text)
    except (orjson.JSONDecodeError, RowError):
        return text
    return value if type(value) is dict else text
