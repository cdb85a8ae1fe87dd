"""The contents of a request, in the shapes that logs have: prompt, answer, and fields that can change the prompt.

Loggers write messages as a string, the whole request body in place of its messages, or each message as a string. A text
that is such JSON is read as messages: as text, it would have other tokens than the engine saw.

An answer is a message, a completion with `choices`, the items of the Responses API, content parts, or an object with
one text. An object of another shape is an error that names its JSON path: read as an empty answer, it would have 0
tokens.

SHAPING lists the other fields for all APIs, with the type that the API gives each. A value of another type has no
meaning for the engine, and is counted as not rendered. `text/chat_requests.py` decides what the template gets of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..._base.errors import RowError
from .fieldmap import as_text, unpacked, wrong
from .record import Places

_BODY = ("messages", "prompt")  # fields of a request body that hold its prompt
# how messages start that no longer parse, and messages of str() instead of json.dumps()
_CUT = re.compile(r'\s*(\[\s*\{\s*"(role|content|type)"|\{\s*"messages")\s*:')
_PYTHON = re.compile(r"\s*(\[\s*\{\s*'(role|content)'|\{\s*'messages')\s*:")


def opened_prompt(value: Any, path: str) -> tuple[Any, str, dict[str, Any]]:
    """The prompt inside a value, its JSON path, and the request body that holds it ({} = none); RowError.

    >>> opened_prompt('{"messages": [{"role": "user", "content": "Hi"}]}', "input")[:2]
    ([{'role': 'user', 'content': 'Hi'}], 'input.messages')
    >>> opened_prompt('{"a": 1}', "input")[0]
    '{"a": 1}'
    """
    if type(value) is str:
        value = _opened_text(value, path)
    if type(value) is dict:
        name = next((name for name in _BODY if value.get(name) is not None), None)
        if name is not None:
            inner, inner_path, _ = opened_prompt(value[name], f"{path}.{name}")
            return inner, inner_path, value
        if is_message(value):
            return [value], path, {}
    if type(value) is list and value and type(value[0]) is str:
        messages = [unpacked(text) for text in value]
        if all(map(is_message, messages)):
            return messages, path, {}
    return value, path, {}


def is_message(value: Any) -> bool:
    """Whether the value is a chat message.

    >>> is_message({"role": "user", "content": "Hi"}), is_message({"role": 5})
    (True, False)
    """
    return type(value) is dict and type(value.get("role")) is str


def is_cut_json(text: str) -> bool:
    """Whether the text is messages that a logger cut: they start as JSON, but do not end as JSON.

    >>> is_cut_json('[{"role": "user", "content": "He'), is_cut_json("[see below]")
    (True, False)
    """
    return _CUT.match(text) is not None and unpacked(text) is None


def _opened_text(text, path):
    """The messages that a text holds as JSON, else the text itself."""
    parsed = unpacked(text)
    if parsed == []:
        return []
    if type(parsed) is list and all(map(is_message, parsed)):
        return parsed
    if type(parsed) is dict and (is_message(parsed) or type(parsed.get("messages")) in (list, str)):
        return parsed
    if parsed is None and _PYTHON.match(text):
        hint = "Log them with json.dumps, not with str."
        raise RowError("holds messages as Python writes them, which is not JSON.", field=path, hint=hint)
    return text


def require_prompt(value: Any, path: str) -> None:
    """RowError for a value that is not a prompt of any shape."""
    if type(value) is list and value:
        raise wrong(value[0], f"{path}[0]", "a message or a token id")
    raise wrong(value, path, "messages, text or token ids")


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


SHAPING: dict[str, type | tuple[type, ...]] = {
    "chat_template_kwargs": dict,  # vLLM, SGLang: variables of the template
    "reasoning_effort": (str, int, float),  # OpenAI chat, vLLM, SGLang
    "reasoning": dict,  # OpenAI Responses, OpenRouter, SGLang: {"effort": ...}
    "documents": list,  # vLLM: of retrieval templates
    "add_generation_prompt": bool,  # vLLM
    "continue_final_message": bool,  # vLLM, SGLang
    "add_special_tokens": bool,  # vLLM
    "chat_template": str,  # vLLM: a template of the request's own
    "tool_choice": (str, dict),
    "response_format": dict,  # a JSON schema, which some services write into the prompt
    "text": dict,  # OpenAI Responses: {"format": ...}, likewise
    "mm_processor_kwargs": dict,  # vLLM: other sizes of images
    "image_grid_thw": list,  # what a Qwen-VL processor made of the images, in their order
    "image_grid": list,
    "truncate_prompt_tokens": int,  # vLLM
    "suffix": str,  # completions that fill in the middle
    "thinking": dict,  # Anthropic
    "output_config": dict,  # Anthropic: {"effort": ...}
    "context_management": (dict, list),  # Anthropic, Responses: the server edits earlier turns
    "mcp_servers": list,  # Anthropic: the server adds tools
}
INNER = ("extra_body", "chat_template_kwargs")  # clients put fields of engines into the first
OF_ANSWERS = ("reasoning", "text", "suffix", "thinking", "output_config")  # in a row, these may be of the answer
CONTENT_FREE_FORMATS = ("text", None)  # response formats that no prompt shows


def shaping_of(places: Places) -> dict[str, Any] | None:
    """The fields of a request that can change its prompt, and `invalid`: names of those with another type; else None.

    >>> shaping_of([("", {"reasoning_effort": "low", "documents": "a"})])
    {'reasoning_effort': 'low', 'invalid': ['documents']}
    >>> shaping_of([("", {"model": "m"})]) is None
    True
    """
    shaping: dict[str, Any] = {}
    for _, place in places:
        inner = place.get("extra_body")
        for source in (place, inner) if type(inner) is dict else (place,):
            for name in SHAPING.keys() & source.keys():
                if source[name] is not None:
                    shaping.setdefault(name, source[name])
    return _checked(shaping) if shaping else None


def _checked(shaping):
    """The fields that have their API's type, in the order of SHAPING, those of the Responses API under chat's names."""
    checked: dict[str, Any] = {}
    invalid = []
    for name, kind in SHAPING.items():
        if name not in shaping:
            continue
        value = shaping[name]
        if _has_type(value, kind) and (name != "documents" or all(type(document) is dict for document in value)):
            checked[name] = value
        elif name not in OF_ANSWERS:
            invalid.append(name)
    text = checked.pop("text", None)
    if text is not None and type(text.get("format")) is dict:
        checked.setdefault("response_format", text["format"])
    if "response_format" in checked and checked["response_format"].get("type") in CONTENT_FREE_FORMATS:
        del checked["response_format"]
    effort = checked.get("reasoning", {}).get("effort")
    if type(effort) is str:
        checked.setdefault("reasoning_effort", effort)
    return (checked | ({"invalid": invalid} if invalid else {})) or None


def _has_type(value, kind):
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return type(value) in kinds
