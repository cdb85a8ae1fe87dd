"""JSON files that describe a GPU or a model. Each error is one line and shows none of the file's values."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from ..._base.errors import InputError, KvtraceError, UsageError
from .model_table import MODELS, model_name

MAX_BYTES = 1 << 24  # a description is a page or two; a log given by mistake is not read to its end
UNREAD = object()
HINT = f"Try {', '.join(MODELS)}, or a model's config.json."


def read_object(path: str | Path, wrong: type[KvtraceError], hint: str) -> dict[str, Any]:
    """Read the JSON object of a file.

    Args:
        path: The file.
        wrong: The error if the file holds something else.
        hint: What to try; it ends each message.

    Raises:
        UsageError: The file does not exist.
    """
    text, value, reason = b"", UNREAD, None
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or "cannot be read"
    except ValueError:  # a name that no file can have
        reason = "cannot be read"
    if reason:
        raise UsageError(f"{path}: {reason}. {hint}")
    with suppress(orjson.JSONDecodeError):
        value = orjson.loads(text)
    if len(text) > MAX_BYTES or value is UNREAD:  # raised here, without orjson's error, which holds the text
        raise wrong(f"{path}: not valid JSON of a page or two. {hint}")
    if not isinstance(value, dict):
        raise wrong(f"{path}: not a JSON object. {hint}")
    return value


def read_config(config: Mapping[str, Any] | str | Path, hint: str = HINT) -> Fields:
    """The fields of a model by its name, of a model's config.json, or of a dictionary with the same fields.

    Models with images keep the fields of their language model in `text_config`.
    """
    if isinstance(config, Mapping):
        name, values = "model config", dict(config)
    elif (known := model_name(config)) is not None:
        name, values = known, dict(MODELS[known])
    elif isinstance(config, (str, Path)):
        name, values = str(config), read_object(config, InputError, hint)
    else:
        raise UsageError(f"A model is a config or a file. {hint}")
    inner = values.get("text_config")
    if isinstance(inner, dict) and "num_hidden_layers" in inner:
        outer = {key: values[key] for key in ("torch_dtype", "dtype", "quantization_config") if key in values}
        values = outer | {key: value for key, value in inner.items() if value is not None}
    return Fields(name, values, hint)


class Fields:
    """The fields of a description; each read checks the type. InputError names the field, but not its value.

    >>> Fields("config.json", {"num_hidden_layers": 32}).whole("num_hidden_layers")
    32
    """

    name: str
    values: dict[str, Any]

    def __init__(self, name: str, values: Mapping[str, Any], hint: str = HINT):
        # null means that the config lacks the field
        self.name, self.values = name, {key: value for key, value in values.items() if value is not None}
        self.hint = hint

    def __contains__(self, field: str) -> bool:
        return field in self.values

    def whole(self, field: str, default: int | None = None, *, least: int = 1, most: int = 10**9) -> int:
        """A whole number from `least` to `most`; the default, if there is one, replaces a missing field."""
        return self.checked(field, self.values.get(field, default), least=least, most=most)

    def checked(self, field: str, value: Any, *, least: int = 1, most: int = 10**9) -> int:
        """The value of a field, if it is a whole number from `least` to `most`."""
        if type(value) is not int or not least <= value <= most:
            fault = "missing" if value is None else f"not a whole number from {least:,} to {most:,}"
            raise InputError(f"{self.name}: {field} is {fault}. {self.hint}")
        return value

    def first(self, *fields: str) -> str | None:
        """The first of several alternative names that the description has."""
        return next((field for field in fields if field in self.values), None)

    def flag(self, field: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(field, default)
        if type(value) is not bool:
            raise InputError(f"{self.name}: {field} is neither true nor false. {self.hint}")
        return value
