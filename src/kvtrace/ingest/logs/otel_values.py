"""Span attributes as one flat object of dotted names, for all exporters, and the prompt and answer of one span.

Attributes are an object, nested or flat; OTLP's list of {"key": ..., "value": {"stringValue": ...}}; or either as JSON
in a string. `gathered` turns numbered names (`llm.tools.0.tool.json_schema`) back into lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..._base.errors import RowError
from .pairs import unpacked

MAX_DEPTH = 32  # levels of objects and lists; no convention comes near it
JSON_STARTS = ('{"', "[{", '["')  # prose may start with a single bracket
PLAIN_KINDS = ("string", "bool", "double", "bytes")  # OTLP value types whose values need no conversion

TYPED = frozenset(
    kind + suffix for kind in (*PLAIN_KINDS, "int", "array", "kvlist") for suffix in ("Value", "_value")
)  # names of the fields of a typed value


def attributes(value: Any, path: str = "attributes") -> dict[str, Any]:
    """Dotted name -> value; RowError if the value does not hold attributes.

    >>> attributes([{"key": "n", "value": {"intValue": "12"}}]), attributes({"llm": {"model_name": "a"}})
    ({'n': 12}, {'llm.model_name': 'a'})
    """
    parsed = unpacked(value) if type(value) is str else value
    if parsed is None and value in (None, ""):
        return {}
    if type(parsed) is list:
        parsed = _pairs(parsed, path, 0)
    if type(parsed) is not dict:
        is_cut = is_broken(value)
        raise RowError(
            "were cut short: their JSON is incomplete." if is_cut else "are not an object or a list of keys.",
            field=path,
        )
    flat: dict[str, Any] = {}
    _flatten(parsed, "", flat, path, 0)
    return flat


def gathered(attributes: dict[str, Any], prefix: str) -> tuple[list[Any], bool]:
    """The values that are numbered under a prefix, in order, and whether the numbers have no gaps.

    >>> gathered({"a.1.b.c": 7, "a.0.b": 5}, "a")
    ([{'b': 5}, {'b': {'c': 7}}], True)
    """
    under = {name: value for name, value in attributes.items() if (name + ".").startswith(prefix + ".")}
    flat: dict[str, Any] = {}
    for name, value in under.items():
        _spread(value, name[len(prefix) + 1 :], flat, prefix, 0)
    root: dict[str, Any] = {}
    for name, value in flat.items():
        _insert(root, name.split("."), value, prefix)
    numbers = sorted((int(name), name) for name in root if _is_number(name))
    return [_with_lists(root[name]) for _, name in numbers], [n for n, _ in numbers] == list(range(len(numbers)))


def loaded(value: Any) -> Any:
    """The object or list that a string holds as JSON; any other value unchanged."""
    parsed = unpacked(value)
    return value if parsed is None else parsed


def plain(value: Any, path: str) -> Any:
    """A typed OTLP value as plain JSON; any other value unchanged. RowError if it is nested too deeply.

    >>> plain({"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "Hi"}}]}}, "body")
    {'content': 'Hi'}
    """
    is_typed = type(value) is dict and len(value) == 1 and next(iter(value)) in TYPED
    return _plain(value, path, 0) if is_typed else value


def is_broken(value: Any) -> bool:
    """Whether a text starts like JSON but is not valid: a limit on attribute lengths has cut it."""
    return type(value) is str and value.lstrip().startswith(JSON_STARTS) and unpacked(value.strip()) is None


def _pairs(pairs, path, depth):
    if not all(type(pair) is dict and type(pair.get("key")) is str for pair in pairs):
        raise RowError("are not a list of keys and values.", field=path)
    return {pair["key"]: _plain(pair.get("value"), path, depth + 1) for pair in pairs}


def _plain(value, path, depth):
    """The value of a typed OTLP value; None if it has no type."""
    if depth > MAX_DEPTH:
        raise RowError("are nested too deeply.", field=path)
    if type(value) is not dict or len(value) != 1:
        return None
    ((kind, inner),) = value.items()
    kind = kind.removesuffix("Value").removesuffix("_value")  # camel case or snake case
    if kind in PLAIN_KINDS:
        return inner
    if kind == "int":  # JSON has no 64-bit integers: OTLP writes them as strings
        is_number = type(inner) is str and len(inner) < 20 and inner.isascii() and inner.removeprefix("-").isdigit()
        return int(inner) if is_number else inner if type(inner) is int else None
    values = inner.get("values", []) if type(inner) is dict else None
    if type(values) is not list:
        return None
    if kind == "array":
        return [_plain(item, path, depth + 1) for item in values]
    return _pairs(values, path, depth + 1) if kind == "kvlist" else None


def _flatten(nested, prefix, flat, path, depth):
    """Turn nested objects into dotted names. Lists stay, since most of them are values."""
    if depth > MAX_DEPTH:
        raise RowError("are nested too deeply.", field=path)
    for name, value in nested.items():
        if type(value) is dict and value:
            _flatten(value, f"{prefix}{name}.", flat, path, depth + 1)
        else:
            flat.setdefault(f"{prefix}{name}", value)


def _spread(value, name, flat, path, depth):
    """Add each leaf of a value under its dotted name; list items under their numbers."""
    if depth > MAX_DEPTH:
        raise RowError("is nested too deeply.", field=path)
    if type(value) in (dict, list) and value:
        for key, item in value.items() if type(value) is dict else enumerate(value):
            _spread(item, f"{name}.{key}" if name else str(key), flat, path, depth + 1)
    else:
        flat.setdefault(name, value)


def _insert(root, names, value, path):
    """Insert a value into a tree of objects, at a path of names."""
    if len(names) > MAX_DEPTH:
        raise RowError("is nested too deeply.", field=path)
    node = root
    for name in names[:-1]:
        if type(node.get(name)) is not dict:
            node[name] = {}
        node = node[name]
    node.setdefault(names[-1], value)


def _with_lists(node):
    """The tree with a list in place of each object whose names are all numbers."""
    if type(node) is not dict or not node:
        return node
    if all(_is_number(name) for name in node):
        return [_with_lists(node[name]) for name in sorted(node, key=int)]
    return {name: _with_lists(value) for name, value in node.items()}


def _is_number(name):
    return name.isascii() and name.isdigit() and len(name) < 10


@dataclass
class SpanContent:
    """The prompt and the answer of one call to a model."""

    path: str  # JSON path of the prompt
    messages: Any = None
    text: str | None = None  # a prompt that is not a chat
    system: list[dict[str, Any]] = field(default_factory=list)  # system messages outside `messages`; they come first
    system_path: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    output: Any = None  # text, or an assistant's message
    output_path: str = ""
    cut: str | None = None  # JSON path of a text that was cut short
    lacks: str | None = None  # the missing part of an incomplete prompt, in words


def chat_message(logged: dict[str, Any]) -> dict[str, Any]:
    """A message in chat format: with nested tool calls, and without fields that are None.

    >>> chat_message({"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "arguments": "{}"}]})["tool_calls"]
    [{'id': 'c', 'type': 'function', 'function': {'name': 'f', 'arguments': '{}'}}]
    """
    message = {name: value for name, value in logged.items() if value is not None}
    content = message.get("content")
    parts = loaded(content)
    if type(parts) is list and parts and all(type(part) is dict and "type" in part for part in parts):
        message["content"] = parts  # a list of parts, logged as JSON in a string
    if type(calls := message.get("tool_calls")) is list:
        message["tool_calls"] = [tool_call(call) for call in calls]
    return message


def tool_call(call: Any) -> Any:
    """A tool call with its name and arguments under `function`."""
    if type(call) is not dict or "function" in call:
        return {"type": "function"} | call if type(call) is dict else call
    function = {name: call[name] for name in ("name", "arguments") if call.get(name) is not None}
    head = {"id": call["id"]} if call.get("id") is not None else {}
    return {**head, "type": "function", "function": function}


def tool(definition: Any, path: str) -> dict[str, Any]:
    """A tool definition with its name and schema under `function`; RowError if it is not an object."""
    if type(definition) is not dict:
        raise RowError("is not a tool definition.", field=path)
    if "function" in definition or "name" not in definition:
        return definition
    function = {name: value for name, value in definition.items() if name not in ("type", "input_schema")}
    schema = loaded(definition.get("parameters", definition.get("input_schema")))
    return {"type": "function", "function": function | ({} if schema is None else {"parameters": schema})}
