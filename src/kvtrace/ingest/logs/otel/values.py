"""The attributes of an OpenTelemetry span made plain: one object of dotted names, whatever form the exporter wrote.

An object, nested or not; OTLP's list of {"key": ..., "value": {"stringValue": ...}}; or either as JSON in a string.
What is numbered (`llm.tools.0.tool.json_schema`) is gathered into lists again.
"""

from __future__ import annotations

from typing import Any

from ...._base.errors import RowError
from ..pairs import unpacked

DEEP = 32  # levels of objects and lists: far more than any convention has
JSON = ('{"', "[{", '["')  # how objects and lists of them begin; prose may begin with a bracket
KINDS = ("string", "bool", "double", "bytes")  # of values in OTLP that stand as they are; also in snake case


def attributes(value: Any, path: str = "attributes") -> dict[str, Any]:
    """Dotted name -> value; RowError where there is something else than attributes.

    >>> attributes([{"key": "n", "value": {"intValue": "12"}}]), attributes({"llm": {"model_name": "a"}})
    ({'n': 12}, {'llm.model_name': 'a'})
    """
    found = unpacked(value) if type(value) is str else value
    if found is None and value in (None, ""):
        return {}
    if type(found) is list:
        found = _pairs(found, path, 0)
    if type(found) is not dict:
        is_cut = is_broken(value)
        raise RowError(
            "were cut: their JSON breaks off." if is_cut else "are no object, nor a list of keys.", field=path
        )
    flat: dict[str, Any] = {}
    _flatten(found, "", flat, path, 0)
    return flat


def gathered(attributes: dict[str, Any], prefix: str) -> tuple[list[Any], bool]:
    """What is numbered under a prefix, in order, and whether no number is left out.

    >>> gathered({"a.1.b.c": 7, "a.0.b": 5}, "a")
    ([{'b': 5}, {'b': {'c': 7}}], True)
    """
    under = {name: value for name, value in attributes.items() if (name + ".").startswith(prefix + ".")}
    flat: dict[str, Any] = {}
    for name, value in under.items():
        _spread(value, name[len(prefix) + 1 :], flat, prefix, 0)
    root: dict[str, Any] = {}
    for name, value in flat.items():
        _plant(root, name.split("."), value, prefix)
    numbers = sorted((int(name), name) for name in root if _is_number(name))
    return [_listed(root[name]) for _, name in numbers], [n for n, _ in numbers] == list(range(len(numbers)))


def loaded(value: Any) -> Any:
    """The object or list that JSON in a string holds; any other value, and text that is no JSON, as it is."""
    found = unpacked(value)
    return value if found is None else found


def is_broken(value: Any) -> bool:
    """Whether a text begins as JSON does, and is none: a limit on the length of values has cut it."""
    return type(value) is str and value.lstrip().startswith(JSON) and unpacked(value.strip()) is None


def _pairs(pairs, path, depth):
    if not all(type(pair) is dict and type(pair.get("key")) is str for pair in pairs):
        raise RowError("are not a list of keys and values.", field=path)
    return {pair["key"]: _plain(pair.get("value"), path, depth + 1) for pair in pairs}


def _plain(value, path, depth):
    """The value of one of OTLP's, which says its type; None where it says none."""
    if depth > DEEP:
        raise RowError("are nested too deeply.", field=path)
    if type(value) is not dict or len(value) != 1:
        return None
    ((kind, held),) = value.items()
    kind = kind.removesuffix("Value").removesuffix("_value")
    if kind in KINDS:
        return held
    if kind == "int":  # JSON has no 64-bit integers: OTLP writes them as strings
        is_number = type(held) is str and len(held) < 20 and held.isascii() and held.removeprefix("-").isdigit()
        return int(held) if is_number else held if type(held) is int else None
    values = held.get("values", []) if type(held) is dict else None
    if type(values) is not list:
        return None
    if kind == "array":
        return [_plain(item, path, depth + 1) for item in values]
    return _pairs(values, path, depth + 1) if kind == "kvlist" else None


def _flatten(found, prefix, flat, path, depth):
    """Objects in objects become dotted names; lists stay, for most are values."""
    if depth > DEEP:
        raise RowError("are nested too deeply.", field=path)
    for name, value in found.items():
        if type(value) is dict and value:
            _flatten(value, f"{prefix}{name}.", flat, path, depth + 1)
        else:
            flat.setdefault(f"{prefix}{name}", value)


def _spread(value, name, flat, path, depth):
    """Every leaf under its dotted name, list items under their numbers."""
    if depth > DEEP:
        raise RowError("is nested too deeply.", field=path)
    if type(value) in (dict, list) and value:
        for key, item in value.items() if type(value) is dict else enumerate(value):
            _spread(item, f"{name}.{key}" if name else str(key), flat, path, depth + 1)
    else:
        flat.setdefault(name, value)


def _plant(root, names, value, path):
    if len(names) > DEEP:
        raise RowError("is nested too deeply.", field=path)
    node = root
    for name in names[:-1]:
        if type(node.get(name)) is not dict:
            node[name] = {}
        node = node[name]
    node.setdefault(names[-1], value)


def _listed(node):
    """Objects whose names are all numbers are lists."""
    if type(node) is not dict or not node:
        return node
    if all(_is_number(name) for name in node):
        return [_listed(node[name]) for name in sorted(node, key=int)]
    return {name: _listed(value) for name, value in node.items()}


def _is_number(name):
    return name.isascii() and name.isdigit() and len(name) < 10
