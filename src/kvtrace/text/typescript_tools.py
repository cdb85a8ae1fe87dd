"""Tools as Harmony (gpt-oss) writes them: a namespace of TypeScript types, made of their JSON schemas.

It follows the package openai-harmony (oss-harmony 0.0.11), whose text vLLM gives to the model; what a schema says
beside types, descriptions, titles, examples and defaults is not written. Not for other models: the text is read by a
model, not by a compiler.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

SIMPLE = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}


def tools_section(functions: list[Mapping[str, Any]]) -> str:
    """The text of the functions that a developer gives to the model.

    >>> place = {"type": "object", "properties": {"port": {"type": "string", "enum": ["Ost", "West"]}}}
    >>> print(tools_section([{"name": "find_boat", "description": "Boats in a port.", "parameters": place}]))
    # Tools
    <BLANKLINE>
    ## functions
    <BLANKLINE>
    namespace functions {
    <BLANKLINE>
    // Boats in a port.
    type find_boat = (_: {
    port?: "Ost" | "West",
    }) => any;
    <BLANKLINE>
    } // namespace functions
    """
    lines = ["# Tools\n\n## functions\n\nnamespace functions {\n"]
    for function in functions:
        lines += [f"// {line}" for line in _lines(function.get("description"))]
        schema = function.get("parameters")
        arguments = "" if schema is None else f"_: {_type(schema, '')}"
        lines.append(f"type {function.get('name')} = ({arguments}) => any;\n")
    return "\n".join([*lines, "} // namespace functions"])


def _lines(text: Any) -> list[str]:
    if not isinstance(text, str) or not text:
        return []
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _type(schema: Any, indent: str) -> str:
    """The type of a schema; its lines after the first start with the indent."""
    if not isinstance(schema, Mapping):
        return "any"
    kind, variants, items = schema.get("type"), schema.get("oneOf"), schema.get("items")
    if isinstance(variants, list):
        return "".join(f"\n{indent} | {_variant(variant, indent, _notes(variant))}" for variant in variants)
    if isinstance(kind, list) and (names := [name for name in kind if isinstance(name, str)]):
        return " | ".join("number" if name == "integer" else name for name in names)
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        return f"{_type(items, indent)}[]" if "items" in schema else "Array<any>"
    if kind == "string" and (values := [value for value in _enum(schema) if isinstance(value, str)]):
        return " | ".join(f'"{value}"' for value in values)
    return SIMPLE.get(kind, "any") if isinstance(kind, str) else "any"


def _object(schema: Mapping[str, Any], indent: str) -> str:
    properties, required = schema.get("properties"), schema.get("required")
    names = required if isinstance(required, list) else []
    written = [f"{indent}// {text}\n" for text in _text(schema, "description")]
    written.append("{\n")
    for name, value in properties.items() if isinstance(properties, Mapping) else ():
        written += _property(name if name in names else f"{name}?", value, indent)
    return "".join([*written, f"{indent}}}"])


def _property(name: str, schema: Any, indent: str) -> Iterator[str]:
    """The lines of a property: comments on it, its name and type, and its default."""
    schema = schema if isinstance(schema, Mapping) else {}
    variants = schema.get("oneOf")
    yield from (f"{indent}// {title}\n{indent}//\n" for title in _text(schema, "title"))
    if "oneOf" not in schema:
        yield from (f"{indent}// {text}\n" for text in _text(schema, "description"))
    examples = schema.get("examples")
    if isinstance(examples, list) and examples:
        yield f"{indent}// Examples:\n"
        yield from (f'{indent}// - "{example}"\n' for example in examples if isinstance(example, str))
    if isinstance(variants, list):
        yield from _choice(name, schema, variants, indent)
    else:
        default = [] if "oneOf" in schema else _default(schema)
        yield f"{indent}{name}: {_nullable(schema, indent + '    ')},{_comment(default)}\n"


def _choice(name: str, schema: Mapping[str, Any], variants: list[Any], indent: str) -> Iterator[str]:
    """A property that is one of several types, each on a line; a description that two of them share is written once."""
    description = _text(schema, "description")
    is_above = bool(description) and description != _text(variants[0] if variants else None, "description")
    yield from (f"{indent}// {text}\n" for text in [*(description if is_above else []), *_default(schema)])
    yield f"{indent}{name}:\n"
    for number, variant in enumerate(variants):
        notes = [] if is_above and number == 0 else _text(variant, "description")
        notes = [*(notes if notes != description else []), *_default(variant)]
        yield f"{indent} | {_variant(variant, indent, notes)}\n"
    yield f"{indent},\n"


def _variant(schema: Any, indent: str, notes: list[str]) -> str:
    return _nullable(schema, indent + "   ") + _comment(notes)


def _nullable(schema: Any, indent: str) -> str:
    text = _type(schema, indent)
    nullable = isinstance(schema, Mapping) and schema.get("nullable") is True
    return f"{text} | null" if nullable and "null" not in text else text


def _notes(schema: Any) -> list[str]:
    """The description and the default of a type that is not a property's own; a default of an enum is quoted here."""
    return [*_text(schema, "description"), *_default(schema, quoted=True)]


def _default(schema: Any, quoted: bool = False) -> list[str]:
    if not isinstance(schema, Mapping) or "default" not in schema:
        return []
    value = schema["default"]
    if not isinstance(value, str) or (quoted and _enum(schema)):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    elif not _enum(schema):
        value = f'"{value}"'
    return [f"default: {value}"]


def _enum(schema: Mapping[str, Any]) -> list[Any]:
    values = schema.get("enum")
    return values if isinstance(values, list) else []


def _text(schema: Any, key: str) -> list[str]:
    """The text of a key, as a list of none or one."""
    text = schema.get(key) if isinstance(schema, Mapping) else None
    return [text] if isinstance(text, str) else []


def _comment(notes: list[str]) -> str:
    return f" // {' '.join(notes)}" if notes else ""
