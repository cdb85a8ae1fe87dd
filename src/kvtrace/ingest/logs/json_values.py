"""Values of a logged row: errors for wrong types, JSON text, and JSON that a logger wrote as a string."""

from __future__ import annotations

from typing import Any

import orjson

from ..._base.errors import RowError

ENCODINGS = 3  # times that a logger may have encoded a value as a JSON string
# fields of objects and lists that loggers also write as JSON text
FOLDED = ("messages", "tools", "functions", "choices", "usage", "metadata", "conversations", "conversation")
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false", float: "a fraction",
          int: "a number", type(None): "missing"}  # fmt: skip


def wrong(value: Any, path: str, expected: str) -> RowError:
    """The error for a value of the wrong type."""
    return RowError(f"is {_KINDS[type(value)]}; expected {expected}.", field=path)


def json_bytes(value: Any, path: str) -> bytes:
    """The value as JSON with sorted keys; RowError if it is too deep for orjson to write (reading allows more)."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        pass
    raise RowError("is nested too deeply.", field=path)


def as_text(value: Any, path: str) -> str:
    """A string unchanged, any other value as JSON; RowError if it is nested too deeply."""
    return value if type(value) is str else json_bytes(value, path).decode()


def unpacked(value: Any) -> dict[str, Any] | list[Any] | None:
    """The object or the list that the value is, or that it holds as JSON text, encoded up to three times; else None.

    >>> unpacked('[{"role": "user"}]'), unpacked('"{\\\\"a\\\\": 1}"'), unpacked("[broken"), unpacked("[1] is a list")
    ([{'role': 'user'}], {'a': 1}, None, None)
    """
    for _ in range(ENCODINGS):
        if type(value) is not str or value[:64].lstrip()[:1] not in ("{", "[", '"'):
            break
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None  # prose that starts like JSON, or JSON that was cut
    return value if type(value) in (dict, list) else None


def unfolded(row: dict[str, Any]) -> dict[str, Any]:
    """The row with JSON text of the fields FOLDED replaced by the objects and lists that it holds.

    >>> unfolded({"messages": '[{"role": "user"}]', "input": "[1]"})
    {'messages': [{'role': 'user'}], 'input': '[1]'}
    """
    texts = [name for name in FOLDED if name in row and type(row[name]) is str]
    opened = {name: value for name in texts if (value := unpacked(row[name])) is not None}
    return row | opened if opened else row
