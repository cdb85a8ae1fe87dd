"""A GPU or a model that a JSON file describes: read whole, and each error one line that shows none of its values."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from ..._base.errors import InputError, KvtraceError, UsageError

LARGEST = 1 << 24  # bytes: a description is a page or two; a log given by mistake is not read to its end
UNREAD = object()


def read_object(path: str | Path, wrong: type[KvtraceError], hint: str) -> dict[str, Any]:
    """The JSON object in a file; UsageError where there is no such file, `wrong` where it holds something else.

    `hint` ends each message: what to try.
    """
    text, said, reason = b"", UNREAD, None
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        reason = error.strerror or "cannot be read"
    except ValueError:  # a name that no file can have
        reason = "cannot be read"
    if reason:
        raise UsageError(f"{path}: {reason}. {hint}")
    with suppress(orjson.JSONDecodeError):
        said = orjson.loads(text)
    if len(text) > LARGEST or said is UNREAD:  # raised out here, so that orjson's error, which holds the text, is gone
        raise wrong(f"{path}: not valid JSON of a page or two. {hint}")
    if not isinstance(said, dict):
        raise wrong(f"{path}: not a JSON object. {hint}")
    return said


class Fields:
    """The fields of a description, each asked for as what it must be; InputError names the field, not its value.

    >>> Fields("config.json", {"num_hidden_layers": 32}).whole("num_hidden_layers")
    32
    """

    def __init__(self, name: str, values: Mapping[str, Any]):
        # null is how a config says that it has no such field
        self.name, self.values = name, {key: value for key, value in values.items() if value is not None}

    def __contains__(self, field: str) -> bool:
        return field in self.values

    def whole(self, field: str, default: int | None = None, *, least: int = 1, most: int = 10**9) -> int:
        """A whole number from `least` to `most`; the default, if there is one, where the field is missing."""
        value = self.values.get(field, default)
        if type(value) is not int or not least <= value <= most:
            said = "missing" if value is None else f"no whole number from {least:,} to {most:,}"
            raise InputError(f"{self.name}: {field} is {said}. Try a model's config.json.")
        return value

    def first(self, *fields: str) -> str | None:
        """Which of some names for one thing the description uses."""
        return next((field for field in fields if field in self.values), None)

    def flag(self, field: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(field, default)
        if type(value) is not bool:
            raise InputError(f"{self.name}: {field} is neither true nor false. Try a model's config.json.")
        return value
