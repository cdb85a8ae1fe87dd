"""The fields of a model: by its name, or of its config.json. Each error is one line and shows no value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._base.errors import InputError, UsageError
from ..._base.input_files import read_object
from .catalog import MODELS, model_name, near_models

HINT = "Try a name that kvtrace models lists, or the path of a model's config.json."
LACKS = "The catalog has no more than its KV bytes. Give its config.json, or another name that kvtrace models lists."
OUTER = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")  # beside `text_config`
DEFAULTS: dict[str, dict[str, Any]] = {  # model type -> fields that its published config.json leaves out
    "gemma3": {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
}


def read_config(config: Mapping[str, Any] | str | Path, hint: str = HINT) -> Fields:
    """The fields of a model by its name, of a model's config.json, or of a dictionary with the same fields.

    Models with images keep the fields of their language model in `text_config`.
    """
    if isinstance(config, Mapping):
        name, values = "model config", dict(config)
    elif (known := model_name(config)) is not None:
        name, values, hint = known, dict(MODELS[known].config), LACKS
    elif isinstance(config, (str, Path)):
        name, values = str(config), read_object(config, InputError, _meant(str(config)) + hint)
    else:
        raise UsageError(f"A model is a config or a file. {hint}")
    inner = values.get("text_config")
    if isinstance(inner, dict) and "num_hidden_layers" in inner:
        outer = {key: values[key] for key in OUTER if key in values}
        values = outer | {key: value for key, value in inner.items() if value is not None}
    defaults = next((row for kind, row in DEFAULTS.items() if str(values.get("model_type")).startswith(kind)), {})
    return Fields(name, defaults | {key: value for key, value in values.items() if value is not None}, hint)


def _meant(text: str) -> str:
    near = near_models(text)
    return f"Did you mean {' or '.join(near)}? " if near else ""


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
