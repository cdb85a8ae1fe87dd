"""Chunks of chat completions and of completions (platform.openai.com/docs/api-reference/chat-streaming).

Each chunk adds to the texts of a choice, and to its tool calls by their index. Usage comes in the last chunk if the
client asks for it (`stream_options`), and with vLLM's `continuous_usage_stats` in each chunk. With `return_token_ids`,
vLLM writes the ids of the prompt into the first chunk and those of the answer into each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .answer import StreamedAnswer, index_of, object_of, objects_of, text_of
from .sse import DONE, Event, events

TEXTS = ("reasoning_content", "reasoning", "refusal")  # of a message; beside its content, which may also have parts
NAMES = ("id", "created", "model", "system_fingerprint", "service_tier", "prompt_token_ids")


def answer_of(stream: bytes) -> StreamedAnswer:
    """The completion of a stream of chunks; RowError if a chunk is not JSON.

    >>> piece = b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}, "finish_reason": %s}]}\\n\\n'
    >>> answer = answer_of(piece % (b"Hello", b"null") + piece % (b" you", b'"stop"'))
    >>> answer.response["choices"][0]["message"], answer.finished
    ({'role': 'assistant', 'content': 'Hello you'}, True)
    """
    return assembled(events(stream))


def assembled(events: Iterable[tuple[int, Event]]) -> StreamedAnswer:
    """The completion of chunks, each with its place.

    >>> assembled([(1, {"choices": [{"text": "Yes"}]}), (2, {"choices": [{"text": ", sir"}]})]).response["choices"]
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
