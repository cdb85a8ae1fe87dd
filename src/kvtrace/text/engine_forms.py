"""The form in which an engine gives a chat request to its chat template: messages, tools and variables.

A log holds the client's request. vLLM and SGLang parse it into models of their own and render those, so the template
sees other keys, other orders and other contents. Each row of FORMS follows one engine:

    vllm    vLLM 0.33: openai/chat_completion/protocol.py, renderers/chat_utils/chat_message.py, renderers/hf.py
    sglang  SGLang 0.5.23: entrypoints/openai/{protocol,serving_chat}.py, parser/jinja_template_utils.py
    raw     the request as it was logged, in the forms that the template accepts (messages.py)

Where the engine's form makes a template raise, a message keeps the form that the template accepts: a log of another
service may hold requests that the engine itself would refuse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from .._base.errors import RowError
from .api_forms import BILLING
from .messages import MEDIA_PARTS, as_object, as_string, kind_of, reshape, text_of

if TYPE_CHECKING:
    from .templates import ChatTemplate

Message = dict[str, Any]
SGLANG_KEYS = ("role", "content", "tool_call_id", "name", "phase", "reasoning_content", "tool_calls", "tools", "prefix")
SGLANG_TEXTS = ("text", "input_text")
SWITCHES = ("thinking", "enable_thinking")  # templates read one or the other


class EngineForm(Protocol):
    """What an engine gives its chat template for a request."""

    separate_prefill: bool  # whether an answer to continue is tokenised by itself, after the prompt

    def messages(self, messages: list[Message], template: ChatTemplate, fields: Mapping[str, Any]) -> list[Message]:
        """The messages, in the engine's form; RowError for a value that is not a message."""

    def tools(self, tools: list[Any] | None, fields: Mapping[str, Any]) -> list[Any] | None:
        """The tools, in the engine's form; None without tools."""

    def variables(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The variables of the template, from the fields of the request."""


class Raw:
    """The request as it was logged."""

    separate_prefill = False

    def messages(self, messages: list[Message], template: ChatTemplate, fields: Mapping[str, Any]) -> list[Message]:
        """The messages in the forms that the template accepts."""
        return reshape(messages, template.accepted_by, lambda: template.arguments)

    def tools(self, tools: list[Any] | None, fields: Mapping[str, Any]) -> list[Any] | None:
        """The tools as they were logged."""
        return tools or None

    def variables(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments that the request has for the template."""
        named = {name: fields[name] for name in ("documents", "reasoning_effort") if fields.get(name) is not None}
        return {**(fields.get("chat_template_kwargs") or {}), **named}


class Vllm:
    """As vLLM renders.

    >>> Vllm().tools([{"function": {"parameters": {}, "name": "find", "cache_control": 1}}], {})
    [{'type': 'function', 'function': {'name': 'find', 'description': None, 'parameters': {}}}]
    >>> Vllm().variables({"reasoning_effort": "none"})
    {'reasoning_effort': 'none', 'enable_thinking': False}
    """

    separate_prefill = False

    def messages(self, messages: list[Message], template: ChatTemplate, fields: Mapping[str, Any]) -> list[Message]:
        """Each message with the keys that vLLM keeps, its content as text or parts, as the template wants it."""
        parts = template.wants_parts("vllm")
        calls = CALL_KEYS if fields.get("api") != "responses" else ()
        shaped, plain = messages, True
        for index, message in enumerate(messages):
            if (  # nearly all messages: the text of a user or an assistant, and nothing else
                not parts
                and type(message) is dict
                and len(message) == 2
                and type(message.get("content")) is str
                and message.get("role") in ("user", "assistant")
            ):
                continue
            plain = False
            new = _vllm_message(message, parts, calls, template, f"messages[{index}]")
            if new is not message:
                shaped = list(messages) if shaped is messages else shaped
                shaped[index] = new
        if not plain and not template.names_developer and "developer" in [message["role"] for message in shaped]:
            shaped = _one_system_message([_as_system(message) for message in shaped])
        return shaped

    def tools(self, tools: list[Any] | None, fields: Mapping[str, Any]) -> list[Any] | None:
        """The tools in the declared order of vLLM's model, without keys that it does not know; nulls are kept."""
        return [_vllm_tool(tool) for tool in tools] if tools else None

    def variables(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The request's arguments; its own fields win, and a reasoning effort also switches thinking on or off."""
        if not fields:  # as most requests
            return {}
        given = _set(fields.get("chat_template_kwargs") or {})
        effort = fields.get("reasoning_effort")
        own = {"documents": fields.get("documents"), "reasoning_effort": effort}
        if effort is not None and "enable_thinking" not in given:
            own["enable_thinking"] = effort != "none"
        return given | _set(own)


class Sglang:
    """As SGLang renders.

    >>> Sglang().tools([{"function": {"parameters": {}, "name": "find"}}], {})
    [{'type': 'function', 'function': {'parameters': {}, 'name': 'find', 'description': None}, 'defer_loading': None}]
    >>> Sglang().variables({"reasoning_effort": "none"})
    {'reasoning_effort': 'none', 'thinking': False, 'enable_thinking': False}
    """

    separate_prefill = True

    def messages(self, messages: list[Message], template: ChatTemplate, fields: Mapping[str, Any]) -> list[Message]:
        """Each message with the keys that SGLang keeps; a last answer that is not continued is the user's."""
        parts = template.wants_parts("sglang")
        shaped = [_sglang_message(message, parts, template, f"messages[{i}]") for i, message in enumerate(messages)]
        last = shaped[-1] if shaped else {}
        if last.get("role") == "assistant" and isinstance(last.get("content"), str):
            shaped[-1] = {"role": "user", "content": last["content"]}
        return shaped

    def tools(self, tools: list[Any] | None, fields: Mapping[str, Any]) -> list[Any] | None:
        """The tools with the keys that SGLang knows, in the client's order; none or one of them by `tool_choice`."""
        choice = fields.get("tool_choice")
        if not tools or choice == "none":
            return None
        named = choice.get("function") if isinstance(choice, Mapping) else None
        name = named.get("name") if isinstance(named, Mapping) else None
        shaped = [_sglang_tool(tool) for tool in tools]
        return [tool for tool in shaped if name is None or _name_of(tool) == name] or None

    def variables(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The request's arguments, which win; a reasoning effort also switches thinking on or off, by both names."""
        reasoning = fields.get("reasoning") or {}
        effort = fields.get("reasoning_effort") if reasoning.get("effort") is None else reasoning["effort"]
        given = dict(fields.get("chat_template_kwargs") or {})
        thinking = effort != "none" if effort is not None else True if _is_on(reasoning) else None
        if thinking is not None:
            for name in SWITCHES:
                given.setdefault(name, thinking)
        effort = fields.get("template_effort") if effort is None else effort  # Anthropic's switches nothing
        return ({} if effort is None else {"reasoning_effort": effort}) | given


FORMS: dict[str, EngineForm] = {"vllm": Vllm(), "sglang": Sglang(), "raw": Raw()}


# -- vLLM ----------------------------------------------------------------------------------------------------------


# pydantic writes the declared keys of a call's function first; the Responses API does not go through its model
CALL_KEYS = ("arguments", "name")


def _vllm_message(message: Any, parts: bool, call_keys: tuple[str, ...], template: ChatTemplate, field: str) -> Message:
    role = _role(message, field)
    content = message.get("content")
    if not parts and len(message) == 2 and type(content) is str and not (role == "system" and BILLING in content):
        return message  # role and content: nearly all messages
    pieces = _pieces(content, f"{field}.content")
    if role == "system":
        pieces = _without_billing(pieces)
    as_parts = parts and template.takes_parts(role)
    new: Message = {"role": role, "content": _vllm_content(pieces, as_parts)}
    if role == "assistant":
        if message.get("tool_calls") is not None:
            _put_calls(new, message["tool_calls"], call_keys, template, f"{field}.tool_calls")
        reasoning = message.get("reasoning")
        reasoning = message.get("reasoning_content") if reasoning is None else reasoning
        if reasoning is not None:
            new |= {"reasoning": reasoning, "reasoning_content": reasoning}
    elif role == "tool":
        if "tool_call_id" in message:
            new["tool_call_id"] = message["tool_call_id"]
        new["content"] = _joined_if_text(new["content"], "\n")
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            new[key] = message[key]
    if role == "developer":
        new["tools"] = message.get("tools")
    return new


def _vllm_content(pieces: list[Any], as_parts: bool) -> Any:
    if as_parts:
        return [part for piece in pieces if (part := _vllm_part(piece)) is not None]
    return "\n".join(text for piece in pieces if (text := text_of(piece)))


def _vllm_part(piece: Any) -> Message | None:
    """A part of a content as vLLM wraps it; None for a text part without text."""
    if isinstance(piece, str):
        return {"type": "text", "text": piece}
    kind = kind_of(piece)
    extra = {key: value for key, value in piece.items() if key not in KNOWN_PART_KEYS}
    if kind in MEDIA_PARTS.values() or kind in MEDIA_PARTS:
        return {"type": MEDIA_PARTS.get(kind, kind), **extra}
    if kind == "tool_reference":
        return {"type": kind, "name": piece.get("name")}
    text = text_of(piece)
    return None if text is None else {"type": "text", "text": text, **extra}


# of the content parts of the OpenAI API and vLLM's own; vLLM hands all other keys of a part on to the template
KNOWN_PART_KEYS = frozenset((
    "type", "text", "image_url", "input_audio", "file", "refusal", "image_embeds", "audio_embeds", "video_embeds",
    "image_pil", "audio_url", "video_url", "uuid", "data", "thinking", "closed", "name", "detail",
    "prompt_cache_breakpoint",
))  # fmt: skip


def _without_billing(pieces: list[Any]) -> list[Any]:
    """The parts without Claude Code's billing line."""
    kept = []
    for piece in pieces:
        text = text_of(piece) if isinstance(piece, str) or kind_of(piece) == "text" else None
        if text is None or not text.startswith(BILLING):
            kept.append(piece)
        elif rest := text.partition("\n")[2]:
            kept.append(rest if isinstance(piece, str) else {**piece, "text": rest})
    return kept


def _put_calls(new: Message, calls: Any, keys: tuple[str, ...], template: ChatTemplate, field: str) -> None:
    """Set the tool calls, their arguments as objects, or as text where the template takes only that."""
    if not isinstance(calls, list):
        raise RowError("the tool calls are not a list.", field=field)
    objects = template.arguments == "objects"
    if calls:
        new["tool_calls"] = [_call(call, objects, keys, f"{field}[{index}]") for index, call in enumerate(calls)]


def _call(call: Any, objects: bool, keys: tuple[str, ...], field: str) -> Message:
    function = _function_of(call, field)
    arguments = function.get("arguments")
    if objects:
        parsed = as_object(arguments)
        arguments = parsed if isinstance(parsed, dict) else {}  # vLLM continues with an empty object
    else:
        arguments = as_string(arguments)
    function = _ordered({**function, "arguments": arguments}, *keys)
    outer = {**call, "function": function} if "function" in call else {"function": function}
    return _ordered({"type": "function", **outer}, "id", "function", "type")


def _ordered(values: Message, *first: str) -> Message:
    """The values with some keys first: pydantic writes declared keys before others, in their order."""
    return {
        key: values[key] for key in (*(key for key in first if key in values), *(k for k in values if k not in first))
    }


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that vLLM takes for set."""
    return {name: value for name, value in values.items() if value is not None and value != "auto"}


def _as_system(message: Message) -> Message:
    if message["role"] != "developer":
        return message
    return {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}


def _one_system_message(messages: list[Message]) -> list[Message]:
    """All system messages as one at the start, if one of them stands elsewhere."""
    places = [place for place, message in enumerate(messages) if message["role"] == "system"]
    if places in ([], [0]):
        return messages
    texts = [_all_text(messages[place].get("content", "")) for place in places]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in messages if message["role"] != "system")]


def _all_text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(piece if isinstance(piece, str) else piece["text"] for piece in content
                         if isinstance(piece, str) or "text" in piece)  # fmt: skip
    return content


def _vllm_tool(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        return tool  # not a function: vLLM refuses it
    shaped = {key: function.get(key) for key in ("name", "description", "parameters")}
    deferred = function.get("defer_loading", tool.get("defer_loading"))
    shaped |= {key: value for key, value in (("strict", function.get("strict")), ("defer_loading", deferred))
               if value is not None}  # fmt: skip
    outer = {"type": "function", "function": shaped}
    return outer if tool.get("defer_loading") is None else {**outer, "defer_loading": tool["defer_loading"]}


# -- SGLang --------------------------------------------------------------------------------------------------------


def _sglang_message(message: Any, parts: bool, template: ChatTemplate, field: str) -> Message:
    role = _role(message, field).lower()
    content = message.get("content")
    _pieces(content, f"{field}.content")
    keys = ("role", "content") if role == "user" else SGLANG_KEYS
    new = {key: message[key] for key in keys if message.get(key) is not None} | {"role": role}
    if isinstance(new.get("tool_calls"), list):
        new["tool_calls"] = [_sglang_call(call, template, f"{field}.tool_calls[{index}]")
                             for index, call in enumerate(new["tool_calls"])]  # fmt: skip
    new["content"] = "" if content is None else content
    if isinstance(content, list):
        new.pop("content")
        new["content"] = _sglang_content(content, parts and template.takes_parts(role))
    if role == "tool":
        new["content"] = _joined_if_text(new["content"], " ")
    return new


def _sglang_content(pieces: list[Any], as_parts: bool) -> Any:
    objects = [piece for piece in pieces if isinstance(piece, dict)]
    if not as_parts:
        texts = (piece.get("text") for piece in objects if kind_of(piece) in SGLANG_TEXTS)
        return " ".join(text for text in texts if isinstance(text, str))
    shaped = []
    for piece in objects:
        kind = kind_of(piece)
        if kind in SGLANG_TEXTS:
            shaped += [{"type": "text", "text": piece["text"]}] if isinstance(piece.get("text"), str) else []
        elif kind in MEDIA_PARTS or kind in MEDIA_PARTS.values():
            shaped.append({"type": MEDIA_PARTS.get(kind, kind)})
        elif kind == "tool_reference":
            shaped.append(piece)
    return shaped


def _sglang_call(call: Any, template: ChatTemplate, field: str) -> Message:
    function = _function_of(call, field)
    arguments = function.get("arguments")
    if template.arguments != "objects":
        arguments = as_string(arguments)
    elif isinstance(arguments, str):
        arguments = as_object(arguments)
    shaped = {"name": function.get("name"), "arguments": arguments}
    return {"id": call.get("id"), "index": call.get("index"), "type": "function", "function": shaped}


def _sglang_tool(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping):
        return tool
    deferred = function.get("defer_loading", tool.get("defer_loading"))
    values = {key: function.get(key) for key in ("description", "name", "parameters")}
    values |= {key: value for key, value in (("strict", function.get("strict")), ("defer_loading", deferred))
               if value is not None}  # fmt: skip
    order = [key for key in function if key in values]
    shaped = {key: values[key] for key in (*order, *(key for key in values if key not in order))}
    return {"type": tool.get("type", "function"), "function": shaped, "defer_loading": tool.get("defer_loading")}


def _name_of(tool: Any) -> Any:
    return tool["function"].get("name") if isinstance(tool.get("function"), Mapping) else None


def _is_on(reasoning: Mapping[str, Any]) -> bool:
    switch = reasoning.get("enabled")
    switch = reasoning.get("enable", False) if switch is None else switch
    return switch.strip().lower() in ("1", "true", "yes", "y", "on") if isinstance(switch, str) else bool(switch)


# -- both ----------------------------------------------------------------------------------------------------------


def _role(message: Any, field: str) -> str:
    if not isinstance(message, dict):
        raise RowError("a message is not a JSON object.", field=field)
    role = message.get("role")
    if not isinstance(role, str):
        raise RowError("the message has no role.", field=f"{field}.role")
    return role


def _function_of(call: Any, field: str) -> Message:
    """The function of a tool call, with or without the envelope around it; RowError."""
    if not isinstance(call, dict):
        raise RowError("a tool call is not a JSON object.", field=field)
    function = call.get("function", call)
    if not isinstance(function, dict):
        raise RowError("a tool call's function is not a JSON object.", field=f"{field}.function")
    return function


def _pieces(content: Any, field: str) -> list[Any]:
    """The parts of a content; a text is one of them."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise RowError("the content must be text, a list of parts or null.", field=field)
    for place, piece in enumerate(content):
        if not isinstance(piece, (str, dict)):
            raise RowError("a part of the content is not text or a JSON object.", field=f"{field}[{place}]")
        text = piece.get("text") if isinstance(piece, dict) and kind_of(piece) in SGLANG_TEXTS else None
        if text is not None and not isinstance(text, str):
            raise RowError("the text of a part is not a string.", field=f"{field}[{place}].text")
    return [piece for piece in content if isinstance(piece, str) or kind_of(piece) not in SGLANG_TEXTS
            or piece.get("text") is not None]  # fmt: skip


def _joined_if_text(content: Any, separator: str) -> Any:
    """The texts of a tool's result, joined; a list with other parts stays."""
    if not isinstance(content, list) or any(part.get("type") != "text" for part in content if isinstance(part, dict)):
        return content
    return separator.join(part if isinstance(part, str) else part.get("text", "") for part in content)


def tools_as_text(tools: list[Any]) -> str:
    """Tools as plain JSON, one a line, for a template that does not render them."""
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
