"""Count the values of a JSON text before it is parsed: an empty list of two bytes becomes an object of sixty.

A text without many objects, lists and strings takes at most ten times its bytes when parsed. Numbers are not counted:
prompts of token ids have millions.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import orjson

from .errors import RowError

SMALL = 1 << 18  # bytes that are parsed uncounted
MAX_VALUES = 500_000  # objects, lists and strings of a larger text; they take less than 256 MiB
TOO_MANY_VALUES = f"has more than {MAX_VALUES:,} values."
_VALUE = re.compile(rb'[\[{]|"[^"]*"?')


class TooManyValues(RowError):
    """A text or a body has more values than are read."""


def parsed_json(text: bytes | str, field: str | None = None) -> Any:
    """The value of a JSON text; TooManyValues if it has too many values, and orjson.JSONDecodeError if it is not valid.

    >>> parsed_json('{"a": [1]}')
    {'a': [1]}
    """
    require_few_values(text, field)
    return orjson.loads(text)


def require_few_values(text: bytes | str, field: str | None = None) -> None:
    """TooManyValues if the text, which need not be valid JSON, has too many values.

    >>> require_few_values(b"[1, 2]")
    >>> require_few_values("[[]" + ", []" * MAX_VALUES + "]", "messages")
    Traceback (most recent call last):
    kvtrace._base.json_values.TooManyValues: messages: has more than 500,000 values.
    """
    if len(text) <= SMALL:
        return
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if data.count(b'"') // 2 + data.count(b"[") + data.count(b"{") <= MAX_VALUES:  # there are no more than these
        return
    data = data.replace(rb"\\", b"").replace(rb"\"", b"")  # what is left of the quotes are those around strings
    if next(islice(_VALUE.finditer(data), MAX_VALUES, None), None) is not None:
        raise TooManyValues(TOO_MANY_VALUES, field=field)
