"""FieldMap: the paths of a log's fields, from `--map timestamp=created_at --map session=meta.conversation`.

The map copies each field to its target's name in the row, where every reader looks first. A path is dotted and may have
list indexes (`payload.0.messages`, `messages.-1.content`). Its last name may itself contain dots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..._base.errors import UsageError
from .json_values import unpacked

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
