"""FieldMap: where a log keeps its fields, as `--map timestamp=created_at --map session=meta.conversation` says it.

The map lays what it finds over the row, under the names that every reader looks for first. A path is dotted, with
list indexes (`payload.0.messages`, `messages.-1.content`); the last name may itself hold dots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..._base.errors import UsageError

TARGETS = (
    "timestamp", "input", "output", "session", "user", "tenant", "type", "model", "adapter", "tools", "output_length",
    "prompt_tokens", "id",
)  # fmt: skip

MISSING = object()  # a mapped field that this row lacks: it hides the row's own field of that name


def parse_map(pairs: Iterable[str]) -> dict[str, str]:
    """Target -> path, from `target=path` pairs; UsageError where one is no such pair or no such target.

    >>> parse_map(["timestamp=created_at", "session=meta.chat"])
    {'timestamp': 'created_at', 'session': 'meta.chat'}
    """
    paths: dict[str, str] = {}
    for pair in pairs:
        target, _, path = (part.strip() for part in pair.partition("="))
        if target in paths:
            raise UsageError(f"--map gives {target} twice.")
        paths[target] = path
    FieldMap.of(paths)
    return paths


@dataclass(frozen=True, slots=True)
class FieldMap:
    """Target -> path, laid over each row before its reader sees it.

    >>> FieldMap.of({"session": "meta.chat"}).overlay({"meta": {"chat": "a"}})["session"]
    'a'
    """

    paths: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, paths: Mapping[str, str] | None) -> FieldMap:
        """The map of these paths; UsageError where a target is unknown or a path is empty."""
        for target, path in (paths or {}).items():
            if target not in TARGETS:
                raise UsageError(f"--map has no target {target!r}; it takes TARGET=PATH for {', '.join(TARGETS)}.")
            if not all(path.split(".")):
                raise UsageError(f"--map {target}= needs a path, as in --map {target}=meta.{target}.")
        return cls(tuple((paths or {}).items()))

    def __bool__(self):
        return bool(self.paths)

    def __contains__(self, target):
        return any(target == name for name, _ in self.paths)

    def overlay(self, row: dict) -> dict:
        """The row with the mapped fields under their targets' names."""
        return row | {target: find(row, path) for target, path in self.paths}

    def source(self, field: str | None) -> str | None:
        """The path that an error in `field` should name: what the user wrote, where the field was mapped."""
        for target, path in self.paths:
            if field == target or (field is not None and field.startswith((f"{target}.", f"{target}["))):
                return path + field[len(target) :]
        return field


def find(row: Any, path: str) -> Any:
    """What stands at a dotted path, or MISSING.

    >>> find({"payload": [{"gen_ai.id": 5}]}, "payload.0.gen_ai.id")
    5
    """
    value, names = row, path.split(".")
    for i, name in enumerate(names):
        if type(value) is dict and name in value:
            value = value[name]
        elif type(value) is dict:
            value = value.get(".".join(names[i:]))  # a last name with dots, as OpenTelemetry's attributes have
            break
        elif type(value) is list and _is_index(name) and -len(value) <= int(name) < len(value):
            value = value[int(name)]
        else:
            return MISSING
    return MISSING if value is None else value


def _is_index(name):
    return name.isascii() and name.removeprefix("-").isdigit()
