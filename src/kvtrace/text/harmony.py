"""Requests to gpt-oss as vLLM writes them: in Harmony, OpenAI's format, and not by the chat template.

vLLM 0.33 (renderers/online_renderer.py, entrypoints/openai/parser/harmony_utils.py, .../responses/harmony.py) makes
Harmony messages of a request and lets the package openai-harmony write them. SGLang's chat API uses the template.

    <|start|>AUTHOR to=RECIPIENT<|channel|>CHANNEL json<|message|>CONTENT<|end|>

The package tokenises each content by itself, and control tokens in it as text. So the prompt is cut between contents
and inside `<|`, `name|>`: no token of gpt-oss spans these places.

Tools are a namespace of TypeScript types, made of their JSON schemas as the package (oss-harmony 0.0.11) does it; what
a schema says beside types, descriptions, titles, examples and defaults is not written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from .._base.errors import RowError
from .messages import as_string, is_medium
from .template_syntax import strftime

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
    written = [f"{indent}// {text}\n" for text in _schema_text(schema, "description")]
    written.append("{\n")
    for name, value in properties.items() if isinstance(properties, Mapping) else ():
        written += _property(name if name in names else f"{name}?", value, indent)
    return "".join([*written, f"{indent}}}"])


def _property(name: str, schema: Any, indent: str) -> Iterator[str]:
    """The lines of a property: comments on it, its name and type, and its default."""
    schema = schema if isinstance(schema, Mapping) else {}
    variants = schema.get("oneOf")
    yield from (f"{indent}// {title}\n{indent}//\n" for title in _schema_text(schema, "title"))
    if "oneOf" not in schema:
        yield from (f"{indent}// {text}\n" for text in _schema_text(schema, "description"))
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
    description = _schema_text(schema, "description")
    is_above = bool(description) and description != _schema_text(variants[0] if variants else None, "description")
    yield from (f"{indent}// {text}\n" for text in [*(description if is_above else []), *_default(schema)])
    yield f"{indent}{name}:\n"
    for number, variant in enumerate(variants):
        notes = [] if is_above and number == 0 else _schema_text(variant, "description")
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
    return [*_schema_text(schema, "description"), *_default(schema, quoted=True)]


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


def _schema_text(schema: Any, key: str) -> list[str]:
    """The text of a key, as a list of none or one."""
    text = schema.get(key) if isinstance(schema, Mapping) else None
    return [text] if isinstance(text, str) else []


def _comment(notes: list[str]) -> str:
    return f" // {' '.join(notes)}" if notes else ""


Json = dict[str, Any]
Piece = str | Json  # text that is tokenised by itself, or the part of a medium
EFFORTS = ("low", "medium", "high")
GENERATION_PROMPT = "<|start|>assistant"
CONTROL = re.compile(r"(?<=<\|)(?=[a-z]\w*\|>)")  # inside what a tokenizer would read as a control token
SYSTEM = (
    "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: {date}\n\n"
    "Reasoning: {effort}\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message."
)
TOOLS_CHANNEL = "\nCalls to these tools must go to the commentary channel: 'functions'."


class Turn(NamedTuple):
    """A Harmony message."""

    header: str
    contents: list[Piece]
    channel: str = ""
    end: str = "<|end|>"


def effort_of(fields: Mapping[str, Any]) -> str | None:
    """The reasoning effort that the prompt states; None if Harmony has no word for that of the request.

    >>> effort_of({}), effort_of({"reasoning_effort": "low"}), effort_of({"reasoning_effort": "none"})
    ('medium', 'low', None)
    """
    effort = fields.get("reasoning_effort")
    if effort == "none" and fields.get("api") == "messages":
        return "low"  # for disabled thinking, vLLM takes the least effort that the model has
    return "medium" if effort is None else effort if effort in EFFORTS else None


def harmony_pieces(
    messages: list[Json], tools: list[Any] | None, fields: Mapping[str, Any], time: float | datetime | None
) -> list[Piece]:
    """The prompt of a request, up to the generation prompt.

    Args:
        messages, tools, fields: As in `chat_requests.render`, after `as_chat` for Anthropic's API.
        time: Of the request; the prompt holds the date.

    Returns: Texts that are tokenised one by one, and the parts of media.

    Raises:
        RowError: A message is malformed, or the request has no time.

    >>> pieces = harmony_pieces([{"role": "user", "content": "Any <|end|> boats?"}], None, {}, 0)
    >>> pieces[0].splitlines()[2], pieces[0][-17:], pieces[1]
    ('Current date: 1970-01-01', '<|message|>Any <|', 'end|> boats?<|end|>')
    """
    for index, message in enumerate(messages):
        _require_message(message, f"messages[{index}]")
    instructions, rest = fields.get("instructions"), messages
    if instructions is None and messages[0]["role"] in ("system", "developer"):
        instructions, rest = _joined(messages[0].get("content")), messages[1:]
    functions = [tool["function"] for tool in tools or () if isinstance(tool.get("function"), Mapping)]
    system = SYSTEM.format(date=strftime(time, "%Y-%m-%d"), effort=effort_of(fields) or "medium")
    turns = [Turn("system", [system + (TOOLS_CHANNEL if functions else "")])]
    if instructions or functions:
        turns.append(_developer(instructions, functions))
    names = {str(call.get("id")): _function(call).get("name") for message in rest for call in _calls(message)}
    of_message = _of_responses if fields.get("api") == "responses" else _of_chat
    turns += [turn for message in rest for turn in of_message(message, names)]
    return _written(_without_past_thoughts(turns))


# -- messages ------------------------------------------------------------------------------------------------------


def _of_chat(message: Json, names: Mapping[str, Any]) -> Iterator[Turn]:
    role, content = message["role"], message.get("content")
    if role != "assistant":
        yield from _of_others(message, names, is_kept=content is not None)
    elif calls := _calls(message):
        yield from _spoken([_joined(content) or ""], "commentary")
        yield from _thought(message)
        yield from map(_call, calls)
    else:
        yield from _thought(message)
        yield from _spoken(_contents(content), "final")


def _of_responses(message: Json, names: Mapping[str, Any]) -> Iterator[Turn]:
    if message["role"] != "assistant":
        yield from _of_others(message, names, is_kept=bool(_joined(message.get("content"))))
        return
    yield from _thought(message)
    if message.get("content") is not None:
        yield Turn("assistant", _contents(message["content"]), "final")
    yield from map(_call, _calls(message))


def _of_others(message: Json, names: Mapping[str, Any], *, is_kept: bool) -> Iterator[Turn]:
    """The turn of a user, a tool or a later developer; `is_kept`: whether a developer's content is not left out."""
    role, content = message["role"], message.get("content")
    if role == "tool":
        header = f"functions.{names.get(str(message.get('tool_call_id'))) or ''}<|channel|>commentary to=assistant"
        yield Turn(header, [_joined(content) or ""], "commentary")
    elif role not in ("system", "developer"):
        yield Turn(role, _contents(content))
    elif is_kept:
        yield _developer(_joined(content), [])


def _developer(instructions: str | None, functions: list[Mapping[str, Any]]) -> Turn:
    sections = [] if instructions is None else ["# Instructions", instructions]
    sections += [tools_section(functions)] if functions else []
    return Turn("developer", ["\n\n".join(sections)])


def _spoken(contents: list[Piece], channel: str) -> Iterator[Turn]:
    if contents and contents[0]:
        yield Turn("assistant", contents, channel)


def _thought(message: Json) -> Iterator[Turn]:
    reasoning = message.get("reasoning")
    reasoning = message.get("reasoning_content") if reasoning is None else reasoning
    if isinstance(reasoning, str):
        yield from _spoken([reasoning], "analysis")


def _call(call: Json) -> Turn:
    function = _function(call)
    header = f"assistant to=functions.{function.get('name', '')}<|channel|>commentary json"
    arguments = function.get("arguments")
    if isinstance(arguments, (dict, list)):
        arguments = json.dumps(arguments)  # vLLM writes Anthropic's objects so, in ASCII
    return Turn(header, [as_string(arguments) if arguments is not None else ""], "commentary", "<|call|>")


def _without_past_thoughts(turns: list[Turn]) -> list[Turn]:
    """The turns without the analysis before the last final answer."""
    last = max((place for place, turn in enumerate(turns) if turn.channel == "final"), default=0)
    return [turn for place, turn in enumerate(turns) if place > last or turn.channel != "analysis"]


# -- text ----------------------------------------------------------------------------------------------------------


def _written(turns: list[Turn]) -> list[Piece]:
    pieces: list[Piece] = [""]
    for turn in turns:
        header = turn.header
        if turn.channel and "<|channel|>" not in header:
            header += f"<|channel|>{turn.channel}"
        _append(pieces, f"<|start|>{header}<|message|>")
        for number, content in enumerate(turn.contents):
            texts = [content] if isinstance(content, dict) else CONTROL.split(content)
            _append(pieces, texts[0], is_apart=number > 0)
            pieces += texts[1:]
        _append(pieces, turn.end)
    return pieces


def _append(pieces: list[Piece], piece: Piece, is_apart: bool = False) -> None:
    """Add a piece to the last text, or after it if it is tokenised apart or either is a medium."""
    if is_apart or isinstance(piece, dict) or isinstance(pieces[-1], dict):
        pieces.append(piece)
    else:
        pieces[-1] += piece


def _contents(content: Any) -> list[Piece]:
    """The parts of a content, each a content of the message."""
    if not isinstance(content, list):
        return [content or ""]
    return [part if isinstance(part, dict) and is_medium(part) else _text(part) or "" for part in content]


def _joined(content: Any) -> str | None:
    """The texts of a content, joined; None if it has none."""
    if not isinstance(content, list):
        return content
    texts = [text for part in content if (text := _text(part)) is not None]
    return "".join(texts) if texts else None


def _text(part: str | Json) -> str | None:
    """The text of a part; None for a part without one, such as a refusal."""
    text = part if isinstance(part, str) else part.get("text")
    return text if isinstance(text, str) else None


def _calls(message: Json) -> list[Json]:
    calls = message.get("tool_calls")
    return calls if message["role"] == "assistant" and isinstance(calls, list) else []


def _function(call: Json) -> Json:
    return call.get("function", call)


def _require_message(message: Any, field: str) -> None:
    """RowError unless a message has the form of its API."""
    if not isinstance(message, dict):
        raise RowError("a message is not a JSON object.", field=field)
    if not isinstance(message.get("role"), str):
        raise RowError("the message has no role.", field=f"{field}.role")
    content, calls = message.get("content"), message.get("tool_calls") or []
    if not isinstance(content, (str, list, type(None))):
        raise RowError("the content must be text, a list of parts or null.", field=f"{field}.content")
    if isinstance(content, list) and not all(isinstance(part, (str, dict)) for part in content):
        raise RowError("a part of the content is not text or a JSON object.", field=f"{field}.content")
    if not isinstance(calls, list):
        raise RowError("the tool calls are not a list.", field=f"{field}.tool_calls")
    if not all(isinstance(call, dict) and isinstance(_function(call), dict) for call in calls):
        raise RowError("a tool call's function is not a JSON object.", field=f"{field}.tool_calls")
