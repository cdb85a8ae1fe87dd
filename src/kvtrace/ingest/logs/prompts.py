"""The prompt of a request, in the shapes that logs have: messages, templated text or token ids, also as JSON text.

Loggers write messages as a string, the whole request body in place of its messages, or each message as a string. A
text that is such JSON is read as messages: as text, it would have other tokens than the engine saw.
"""

from __future__ import annotations

import re
from typing import Any

from ..._base.errors import RowError
from .json_values import unpacked, wrong

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
