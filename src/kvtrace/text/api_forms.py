"""Requests of Anthropic's Messages API and of OpenAI's Responses API as the chat requests that an engine makes of them.

The readers of logs turn content blocks and items into chat messages. vLLM and SGLang do the same before they render,
and differ in how they join texts, in the tools' keys and in what switches thinking:

    vllm    vLLM 0.33: entrypoints/anthropic/serving.py, entrypoints/openai/responses/utils.py
    sglang  SGLang 0.5.23: entrypoints/anthropic/serving.py, entrypoints/openai/serving_responses.py

SGLang is taken for a server without a parser of reasoning: earlier thinking in Anthropic's blocks is dropped there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .messages import is_medium, text_of

if TYPE_CHECKING:
    from .templates import ChatTemplate

Message = dict[str, Any]
BILLING = "x-anthropic-billing-header"  # a block of Claude Code that changes with each request; vLLM drops it
DEVELOPER = "Developer instructions:"  # SGLang writes it before the instructions of a developer


class ChatRequest(NamedTuple):
    """The parts of a chat request that reach the prompt."""

    messages: list[Message]
    tools: list[Any] | None
    fields: Mapping[str, Any]


def as_chat(request: ChatRequest, template: ChatTemplate, engine: str) -> ChatRequest:
    """The chat request that an engine makes of a request; `fields["api"]` names the API, "chat" if it is absent.

    >>> blocks = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    >>> request = ChatRequest([{"role": "system", "content": blocks}], None, {"api": "messages"})
    >>> as_chat(request, None, "vllm").messages
    [{'role': 'system', 'content': 'Be brief.Be kind.'}]
    """
    convert = CONVERSIONS.get((engine, request.fields.get("api", "chat")))
    if convert is None or not all(isinstance(message, dict) for message in request.messages):
        return request
    return convert(request, template)


def _vllm_anthropic(request: ChatRequest, template: ChatTemplate) -> ChatRequest:
    messages: list[Message] = []
    for message in request.messages:
        role, content = message.get("role"), message.get("content")
        if role == "system":
            texts = [text for text in _texts(content) if text and not text.startswith(BILLING)]
            messages += [{**message, "content": "".join(texts)}] if texts else []
        elif role == "tool" and isinstance(content, list):
            messages.append({**message, "content": "\n".join(_texts(content))})
            media = [part for part in content if isinstance(part, dict) and is_medium(part)]
            messages += [{"role": "user", "content": media}] if media else []
        else:
            messages.append(_without_empty(message))
    messages = _system_first(messages, "", template, merges=lambda: not template.takes_inline_system)
    tools = request.tools and [_with_object_schema(tool) for tool in request.tools]
    return ChatRequest(messages, tools, {**request.fields, **_vllm_effort(request.fields)})


def _vllm_effort(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The reasoning effort of Anthropic's fields: thinking that is disabled wins."""
    if (fields.get("thinking") or {}).get("type") == "disabled":
        return {"reasoning_effort": "none"}
    effort = (fields.get("output_config") or {}).get("effort")
    return {} if effort is None else {"reasoning_effort": effort}


def _sglang_anthropic(request: ChatRequest, template: ChatTemplate) -> ChatRequest:
    messages: list[Message] = []
    for message in request.messages:
        role, content = message.get("role"), message.get("content")
        if role == "system":
            texts = [text for text in _texts(content) if text]
            messages += [{**message, "content": "\n".join(texts)}] if texts else []
        elif role == "tool":
            messages.append(_without_empty(message))
        else:
            kept = {key: value for key, value in message.items() if key != "reasoning_content"}
            messages.append(kept | {"content": _one_text(content)})
    messages = _system_first(messages, "\n", template, merges=lambda: not template.writes_inline_system)
    tools = request.tools and [_sglang_anthropic_tool(_with_object_schema(tool)) for tool in request.tools]
    effort = (request.fields.get("output_config") or {}).get("effort")
    effort = {} if effort is None else {"template_effort": "max" if effort == "xhigh" else effort}
    return ChatRequest(messages, tools, {**request.fields, **effort})


def _sglang_anthropic_tool(tool: Any) -> Any:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    shaped = {
        "name": function.get("name"), "description": function.get("description") or "",
        "parameters": function.get("parameters"), "strict": function.get("strict") or False,
    }  # fmt: skip
    return {**tool, "function": shaped}


def _vllm_responses(request: ChatRequest, template: ChatTemplate) -> ChatRequest:
    messages = []
    for message in request.messages:
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, list):
            message = {**message, "content": next(iter(_texts(content)), None)}  # vLLM takes the first part alone
        messages.append(message)
    return request._replace(messages=messages)


def _sglang_responses(request: ChatRequest, template: ChatTemplate) -> ChatRequest:
    messages = []
    for message in request.messages:
        if message.get("role") == "developer":
            message = {**message, "role": "system", "content": _labelled(message.get("content"))}
        messages.append(message)
    messages = _system_first(messages, "\n\n", template, merges=lambda: not template.writes_inline_system)
    tools = request.tools and [_sglang_responses_tool(tool) for tool in request.tools]
    return ChatRequest(messages, tools, request.fields)


def _sglang_responses_tool(tool: Any) -> Any:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return tool
    return {**tool, "function": {key: function.get(key) for key in ("name", "description", "parameters", "strict")}}


def _labelled(content: Any) -> Any:
    if isinstance(content, list):
        for place, part in enumerate(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                return [*content[:place], {**part, "text": f"{DEVELOPER}\n{part['text']}"}, *content[place + 1 :]]
        return [{"type": "text", "text": DEVELOPER}, *content]
    return f"{DEVELOPER}\n{content}" if isinstance(content, str) else content


CONVERSIONS: dict[tuple[str, str], Callable[[ChatRequest, ChatTemplate], ChatRequest]] = {
    ("vllm", "messages"): _vllm_anthropic,
    ("sglang", "messages"): _sglang_anthropic,
    ("vllm", "responses"): _vllm_responses,
    ("sglang", "responses"): _sglang_responses,
}


def _system_first(messages, separator, template, *, merges: Callable[[], bool]) -> list[Message]:
    """The messages, with all system messages as one at the start if some stand elsewhere and the template needs it."""
    places = [place for place, message in enumerate(messages) if message.get("role") == "system"]
    if places in ([], [0]) or not merges():
        return messages
    text = separator.join(text for place in places for text in _texts(messages[place].get("content")))
    return [{"role": "system", "content": text}, *(m for m in messages if m.get("role") != "system")]


def _without_empty(message: Message) -> Message:
    """The message without empty text parts; its content is text if one text is left."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": _one_text([part for part in content if text_of(part) != ""])}


def _one_text(content: Any) -> Any:
    """A content of one text as text."""
    if isinstance(content, list) and len(content) < 2 and all(text_of(part) is not None for part in content):
        return text_of(content[0]) if content else ""
    return content


def _texts(content: Any) -> list[str]:
    pieces = content if isinstance(content, list) else [content]
    return [text for piece in pieces if isinstance(piece, (str, dict)) and (text := text_of(piece)) is not None]


def _with_object_schema(tool: Any) -> Any:
    """The tool, whose schema is an object's if it does not say: both engines add that."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    schema = function.get("parameters") if isinstance(function, Mapping) else None
    if not isinstance(schema, Mapping) or "type" in schema:
        return tool
    return {**tool, "function": {**function, "parameters": {**schema, "type": "object"}}}  # type: ignore[dict-item]
