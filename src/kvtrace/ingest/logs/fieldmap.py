"""FieldMap: the paths of a log's fields, from `--map timestamp=created_at --map session=meta.conversation`.

The map copies each field to its target's name in the row, where every reader looks first. A path is dotted and may have
list indexes (`payload.0.messages`, `messages.-1.content`). Its last name may itself contain dots. A value may be JSON
that a logger wrote as a string.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ..._base.errors import RowError, UsageError
from ..._base.json_values import parsed_json

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
            value = parsed_json(value)
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


TARGETS = (
    "timestamp", "input", "output", "session", "user", "account", "tenant", "type", "model", "adapter", "tools",
    "output_length", "prompt_tokens", "hashes", "id", "domain", "end_time", "service_s", "service_ms",
    "cached_tokens", "first_token_time", "ttft_s", "ttft_ms", "e2e_s", "e2e_ms", "queue_s", "queue_ms",
)  # fmt: skip

MISSING = object()  # marks a mapped field that is not in the row; the row's own field of that name is not used either


def parse_map(pairs: Iterable[str]) -> dict[str, str]:
    """Parse `target=path` pairs to target -> path; UsageError for a malformed pair or an unknown target.

    >>> parse_map(["timestamp=created_at", "session=meta.chat"])
    {'timestamp': 'created_at', 'session': 'meta.chat'}
    """
    paths: dict[str, str] = {}
    for pair in pairs:
        target, _, path = (part.strip() for part in pair.partition("="))
        if target in paths:
            raise UsageError(f"--map {target}= is given twice.")
        paths[target] = path
    FieldMap.of(paths)
    return paths


@dataclass(frozen=True, slots=True)
class FieldMap:
    """Target -> path, applied to each row before it is read.

    >>> FieldMap.of({"session": "meta.chat"}).overlay({"meta": {"chat": "a"}})["session"]
    'a'
    """

    paths: tuple[tuple[str, str], ...] = ()
    spellings: tuple[tuple[str, str], ...] = ()  # target -> a field of that meaning, for rows that lack the target

    @classmethod
    def of(cls, paths: Mapping[str, str] | None) -> FieldMap:
        """The map of these paths; UsageError if a target is unknown or a path is empty."""
        for target, path in (paths or {}).items():
            if target not in TARGETS:
                raise UsageError(f"--map {target!r} is not a field. Use FIELD=PATH with one of: {', '.join(TARGETS)}.")
            if not all(path.split(".")):
                raise UsageError(f"--map {target}= needs a path. Example: --map {target}=meta.{target}.")
        return cls(tuple((paths or {}).items()))

    def __bool__(self) -> bool:
        return bool(self.paths or self.spellings)

    def __contains__(self, target: object) -> bool:
        return any(target == name for name, _ in self.paths)

    def overlay(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with the mapped fields under their targets' names."""
        mapped = row | {target: find(row, path) for target, path in self.paths}
        for target, name in self.spellings:
            if mapped.get(target) is None and mapped.get(name) is not None:
                mapped[target] = mapped[name]
        return mapped

    def source(self, field: str | None) -> str | None:
        """The path for an error in `field`: the user's path if the field is mapped, else the field."""
        for target, path in (*self.paths, *self.spellings):
            if field == target or (field is not None and field.startswith((f"{target}.", f"{target}["))):
                return path + field[len(target) :]
        return field


def find(row: Any, path: str) -> Any:
    """The value at a dotted path, or MISSING.

    >>> find({"payload": [{"gen_ai.id": 5}]}, "payload.0.gen_ai.id")
    5
    """
    value, names = row, path.split(".")
    for i, name in enumerate(names):
        if type(value) is str:
            value = unpacked(value)  # JSON in a string
        if type(value) is dict and name in value:
            value = value[name]
        elif type(value) is dict:
            value = value.get(".".join(names[i:]))  # the last name may contain dots, as in OpenTelemetry's attributes
            break
        elif type(value) is list and _is_index(name) and -len(value) <= int(name) < len(value):
            value = value[int(name)]
        else:
            return MISSING
    return MISSING if value is None else value


def _is_index(name):
    return name.isascii() and name.removeprefix("-").isdigit()
