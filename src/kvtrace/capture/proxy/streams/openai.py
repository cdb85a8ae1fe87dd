"""Chunks of chat completions and of completions (platform.openai.com/docs/api-reference/chat-streaming).

Each chunk adds to the texts of a choice, and to its tool calls by their index. Usage comes in the last chunk if the
client asks for it (`stream_options`), and with vLLM's `continuous_usage_stats` in each chunk.
"""

from __future__ import annotations

from typing import Any

from .answer import StreamedAnswer, index_of, object_of, objects_of, text_of
from .sse import DONE, events

TEXTS = ("reasoning_content", "reasoning", "refusal")  # of a message; beside its content, which may also have parts
NAMES = ("id", "created", "model", "system_fingerprint", "service_tier")


def answer_of(stream: bytes) -> StreamedAnswer:
    """The completion of a stream of chunks; RowError if a chunk is not JSON.

    >>> piece = b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}, "finish_reason": %s}]}\\n\\n'
    >>> answer = answer_of(piece % (b"Hello", b"null") + piece % (b" you", b'"stop"'))
    >>> answer.response["choices"][0]["message"], answer.finished
    ({'role': 'assistant', 'content': 'Hello you'}, True)
    """
    answer = StreamedAnswer()
    choices: dict[int, _Choice] = {}
    for end, chunk in events(stream):
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
        self.calls: dict[int, dict[str, Any]] = {}  # by index; those without one come after
        self.function: dict[str, Any] = {}  # OpenAI's older name of a call

    def add(self, piece: dict[str, Any]) -> bool:
        """Take the piece of a choice; whether it has generated text."""
        self.finish_reason = piece.get("finish_reason") or self.finish_reason
        if type(piece.get("delta")) is not dict:
            text = text_of(piece.get("text"))
            self.content.append(text)
            return bool(text)
        delta, self.is_chat = piece["delta"], True
        content = delta.get("content")
        added = [content] if type(content) is str and content else objects_of(content)
        self.content += added
        for name in TEXTS:
            if text := text_of(delta.get(name)):
                self.texts.setdefault(name, []).append(text)
                added = [text]
        if type(delta.get("function_call")) is dict:
            _add_call(self.function, delta["function_call"])
            added = [delta]
        for call in objects_of(delta.get("tool_calls")):
            self._add_tool_call(call)
            added = [call]
        return bool(added)

    def _add_tool_call(self, call):
        index = call.get("index")
        if type(index) is not int:  # a call with an id is a new one
            index = len(self.calls) - (0 if call.get("id") or not self.calls else 1)
        whole = self.calls.setdefault(index, {"id": None, "type": "function", "function": {}})
        whole["id"] = whole["id"] or call.get("id")
        _add_call(whole["function"], object_of(call.get("function")))

    def whole(self, index: int) -> dict[str, Any]:
        """The choice as the API gives it without streaming."""
        has_parts = any(type(piece) is dict for piece in self.content)
        content = [_part(piece) for piece in self.content] if has_parts else "".join(self.content)
        choice: dict[str, Any] = {"index": index, "finish_reason": self.finish_reason}
        if not self.is_chat:
            return choice | {"text": content}
        message: dict[str, Any] = {"role": "assistant", "content": content or None}
        message |= {name: "".join(texts) for name, texts in self.texts.items()}
        message |= {"tool_calls": [self.calls[i] for i in sorted(self.calls)]} if self.calls else {}
        message |= {"function_call": self.function} if self.function else {}
        return choice | {"message": message}


def _add_call(whole, call):
    """Add a piece of a function's call to the call: its name comes once, its arguments come in pieces."""
    whole["name"] = whole.get("name") or call.get("name")
    arguments = call.get("arguments")
    whole["arguments"] = whole.get("arguments", "") + text_of(arguments) if type(arguments) is not dict else arguments


def _part(piece):
    return {"type": "text", "text": piece} if type(piece) is str else piece
