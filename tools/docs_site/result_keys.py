"""The keys of the JSON objects that results make of their fields, with types, for the JSON schemas."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from kvtrace._base.results import Described, ResultColumn, attributes_in


class Key(NamedTuple):
    """The type of the value, whether the object always has the key, and the first line of a property's docstring."""

    kind: Any
    is_required: bool = True
    meaning: str = ""


def keys_of(kind: Any) -> dict[str, Key]:
    """Key -> its type, of a result or of a TypedDict.

    >>> from kvtrace.serving.misses.baseline import Amount
    >>> keys_of(Amount)["tokens"], keys_of(Amount)["gib"]
    (Key(kind=<class 'int'>, is_required=True, meaning=''), Key(kind=<class 'float'>, is_required=False, meaning=''))
    """
    if typing.is_typeddict(kind):
        return _keys_of_dict(kind)
    keys = {} if kind._schema is None else {"schema": Key(int)}
    for name, column in attributes_in(kind).items():
        value = _kind_of(kind, name, column)
        if column.spread is not None:
            picks = column.value and is_described(value) and isinstance(column.spread, Mapping)
            keys |= {key: each for key, each in _spread(value).items() if not picks or key in column.spread}
        elif column.optional:
            keys[column.key or name] = Key(_without_none(value), False, _meaning_of(kind, name))
        else:
            keys[column.key or name] = Key(value, True, _meaning_of(kind, name))
    return keys


def _keys_of_dict(kind: Any) -> dict[str, Key]:
    """Those of a TypedDict; its own __required_keys__ miss NotRequired where annotations are text."""
    return {
        name: Key(hint, name in kind.__required_keys__ and get_origin(hint) is not typing.NotRequired)
        for name, hint in get_type_hints(kind, include_extras=True).items()
    }


def _spread(kind: Any) -> dict[str, Key]:
    """The keys of an object that stand among those of its owner; of one that can be None, they can be null."""
    if not _is_union(kind):
        return keys_of(kind)
    keys = keys_of(_without_none(kind))
    return {
        name: key._replace(kind=key.kind if type(None) in get_args(key.kind) else key.kind | None, is_required=True)
        for name, key in keys.items()
    }


def _without_none(kind: Any) -> Any:
    return reduce(or_, [each for each in get_args(kind) if each is not type(None)]) if _is_union(kind) else kind


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _kind_of(kind: type, name: str, column: ResultColumn) -> Any:
    """The type of the value of an attribute in JSON."""
    if column.value is not None and (value := get_type_hints(column.value).get("return")):
        return value
    getter = _getter(kind, name)
    return get_type_hints(getter)["return"] if getter else get_type_hints(kind)[name]


def _meaning_of(kind: type, name: str) -> str:
    """The first line of a property's docstring; a field has none."""
    return (getattr(_getter(kind, name), "__doc__", None) or "").strip().split("\n")[0]


def _getter(kind: type, name: str) -> Any:
    attribute = getattr(kind, name, None)
    return getattr(attribute, "fget", None) or getattr(attribute, "func", None)


def is_described(kind: Any) -> bool:
    """Whether a type makes its JSON object of its fields."""
    return isinstance(kind, type) and issubclass(kind, Described)
