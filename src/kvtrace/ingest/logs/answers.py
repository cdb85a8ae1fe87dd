"""The generated text of an answer, in the shapes that logs have.

A message, a completion with `choices`, the items of the Responses API, content parts, or an object with one text. An
object of another shape is an error that names its JSON path: read as an empty answer, it would have 0 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..._base.errors import RowError
from .json_values import as_text, unpacked, wrong

MESSAGE = frozenset(("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "refusal"))
TEXTS = ("text", "output_text", "completion", "generated_text")  # an object with one of these has no other answer
EXPECTED = "is not an answer: it has no message, choices, content parts or text"
HINT = "Try --map output=FIELD."


def answer_text(value: Any, path: str) -> str:
    """The generated text of an answer that is an object or a list of objects; RowError if it has another shape.

    >>> answer_text({"choices": [{"message": {"role": "assistant", "content": "Yes"}}]}, "output")
    'Yes'
    >>> answer_text([{"type": "text", "text": "Yes"}, {"type": "text", "text": ", sir"}], "output")
    'Yes, sir'
    """
    if type(value) is str:
        return value
    if type(value) is list and value and all(type(item) is dict for item in value):
        return _of_list(value, path)
    if type(value) is dict:
        return _of_object(value, path)
    raise wrong(value, path, "a message, choices, content parts or text")


def opened_answer(value: str) -> Any:
    """The answer that a logger wrote as JSON text: a completion or the assistant's messages; else the text itself.

    A model can answer with JSON objects, so only objects that models do not write are opened.

    >>> opened_answer('{"role": "assistant", "content": "Yes"}'), opened_answer('{"text": "Yes"}')
    ({'role': 'assistant', 'content': 'Yes'}, '{"text": "Yes"}')
    """
    parsed = unpacked(value)
    messages = parsed if type(parsed) is list else [parsed]
    if messages and all(is_assistant(message) for message in messages):
        return parsed
    choices = parsed.get("choices") if type(parsed) is dict else None
    choice = choices[0] if type(choices) is list and choices else None
    return parsed if type(choice) is dict and ("message" in choice or "text" in choice) else value


def is_assistant(value: Any) -> bool:
    """Whether the value is a message of the assistant.

    >>> is_assistant({"role": "assistant", "content": "Yes"}), is_assistant({"role": "user", "content": "Yes?"})
    (True, False)
    """
    return type(value) is dict and value.get("role") in ("assistant", "ai", "model") and bool(MESSAGE & value.keys())


def is_item(value: Any) -> bool:
    """Whether the value is an item of the Responses API that the model wrote: a message, reasoning or a call.

    >>> is_item({"type": "function_call", "arguments": "{}"}), is_item({"type": "text", "text": "Yes"})
    (True, False)
    """
    kind = value.get("type") if type(value) is dict else None
    return type(kind) is str and (kind in ("message", "reasoning") or kind.endswith("_call"))


def message_text(message: dict[str, Any], path: str) -> str:
    """The generated text of a message: its reasoning, its content and its tool-call arguments, end to end."""
    # engines that write both names write the same text under each
    texts = [message.get("reasoning_content") or message.get("reasoning")]
    content = message.get("content")
    if type(content) is list:
        texts += _part_texts(content, f"{path}.content")
    elif content is None or type(content) is str:
        texts.append(content if content is not None else message.get("refusal"))
    else:
        raise wrong(content, f"{path}.content", "text, a list of parts or null")
    if message.get("tool_calls") is not None:
        texts += arguments(message["tool_calls"], f"{path}.tool_calls")
    elif type(call := message.get("function_call")) is dict:  # OpenAI's older name
        texts += arguments([{"function": call}], f"{path}.function_call")
    return "".join(text for text in texts if type(text) is str)


def arguments(calls: Any, path: str) -> Iterator[str]:
    """The arguments of each tool call, as text; RowError if they are not a list of calls."""
    if type(calls) is not list:
        raise wrong(calls, path, "a list of tool calls")
    for i, call in enumerate(calls):
        if type(call) is not dict:
            raise wrong(call, f"{path}[{i}]", "a tool call")
        function = call.get("function")
        if type(function) is dict:
            yield as_text(function.get("arguments", ""), f"{path}[{i}].function.arguments")
        elif (value := call.get("args", call.get("arguments"))) is not None:  # LangChain's shape
            yield as_text(value, f"{path}[{i}].args")


def _of_object(value, path):
    choices = value.get("choices")
    if type(choices) is list and choices and type(choices[0]) is dict:
        choice = choices[0]
        return _nested(choice, path, "choices[0].", ("message", "text"))
    if type(value.get("message")) is dict:
        return _of_object(value["message"], f"{path}.message")
    if MESSAGE & value.keys():
        return message_text(value, path)
    for name in TEXTS:
        if type(value.get(name)) is str:
            return value[name]
    return _nested(value, path, "", ("output", "messages"))


def _nested(value, path, prefix, names):
    """The text of the first of these fields that is set."""
    for name in names:
        if (inner := value.get(name)) is not None:
            if name == "messages" and type(inner) is list:
                inner = inner[-1:]  # the messages before it are the prompt
            return answer_text(inner, f"{path}.{prefix}{name}")
    raise RowError(f"{EXPECTED}.", field=path, hint=HINT)


def _of_list(items, path):
    if any("role" in item and item.get("type") in (None, "message") for item in items):
        replies = [(i, item) for i, item in enumerate(items) if is_assistant(item) or _is_work(item)]
        if not replies:
            raise RowError("has no message of the assistant.", field=path, hint=HINT)
        return "".join(_item_text(item, f"{path}[{i}]") for i, item in replies)
    if any(is_item(item) for item in items):
        return "".join(_item_text(item, f"{path}[{i}]") for i, item in enumerate(items))
    if len(items) == 1 and not items[0].get("type"):
        return _of_object(items[0], f"{path}[0]")
    return "".join(_part_texts(items, path))


def _is_work(item):
    """Whether the object is reasoning or a call."""
    return is_item(item) and item.get("type") != "message"


def _item_text(item, path):
    if item.get("type") == "reasoning":
        parts = item.get("content") or []
        return "".join(_part_texts(parts, f"{path}.content")) if type(parts) is list and parts else ""
    if _is_work(item):
        value = item.get("arguments", item.get("input"))
        return "" if value is None else as_text(value, f"{path}.arguments")
    return message_text(item, path)


def _part_texts(parts, path) -> list[str]:
    """The texts of content parts; RowError if there are parts, but none of them has text or the input of a tool."""
    texts = []
    for i, part in enumerate(parts):
        if type(part) is str:
            texts.append(part)
        elif type(part) is dict:
            text = next((part[name] for name in ("text", "thinking", "refusal") if type(part.get(name)) is str), None)
            if text is None and part.get("type") in ("tool_use", "server_tool_use", "mcp_tool_use"):
                text = as_text(part.get("input") or {}, f"{path}[{i}].input")
            texts += [] if text is None else [text]
    if parts and not texts:
        raise RowError("has no part with text.", field=path, hint=HINT)
    return texts
