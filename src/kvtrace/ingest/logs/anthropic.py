"""Anthropic Messages requests with their responses, as gateways log them (see pairs.py).

Request: `system`, `messages` of content blocks, `tools` with an input_schema, `metadata.user_id`. Response: `content`
blocks, `model`, `usage`, whose input_tokens exclude those that the cache had (cache_read_input_tokens) and those that
were written to it (cache_creation_input_tokens). Content blocks become chat messages: the system
prompt first, tool_use as tool calls, tool_result as messages of the role `tool`.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import EmptyPrompt
from . import fields, pairs
from .pairs import small_unit as small_unit
from .record import Record, put_cached, tokens_of

CALLS = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))
UNREADABLE = frozenset(("redacted_thinking",))  # encrypted: its tokens are unknown
BLOCKS = CALLS | UNREADABLE | {"thinking", "tool_result"}  # content blocks of this API only


def read(row: dict[str, Any]) -> Record:
    """The Record of one request and its response; RowError if the row does not have this format.

    >>> row = {"timestamp": 0, "system": "Be brief.", "messages": [{"role": "user", "content": "Hello"}],
    ...        "content": [{"type": "text", "text": "Hi"}], "usage": {"input_tokens": 9, "output_tokens": 1}}
    >>> [message["role"] for message in read(row).messages]
    ['system', 'user']
    """
    requests, responses, record = pairs.opened(row)
    record.type = None if row.get("type") == "message" else record.type  # the type of every response
    record.tools = record.tools and [_tool(tool) for tool in record.tools]
    _put_user(record, requests)
    _put_prompt(record, requests)
    record.shaping = (record.shaping or {}) | {"api": "messages"}
    _put_usage(record, pairs.usage(responses))
    _put_answer(record, responses)
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    requests, responses = pairs.split(row)
    messages, _ = fields.find(requests, "messages")
    if type(messages) is not list or fields.find(responses, "choices")[0] is not None:
        return False
    usage = pairs.usage(responses)
    return (
        fields.find(requests, "system", "anthropic_version")[0] is not None
        or fields.find(responses, "stop_reason")[0] is not None
        or (bool(usage) and "input_tokens" in usage[0][1] and "prompt_tokens" not in usage[0][1])
        or any(type(tool) is dict and "input_schema" in tool for tool in _list_of(requests, "tools"))
        or any(has_content_blocks(message) for message in messages)
    )


def _list_of(places, name):
    value, _ = fields.find(places, name)
    return value if type(value) is list else []


def _put_user(record, requests):
    """Set user and session. Claude Code writes its session into the user's id, as text or JSON."""
    metadata, path = fields.find(requests[1:] or requests, "metadata")
    if type(metadata) is not dict or type(name := metadata.get("user_id")) is not str:
        return
    parts = pairs.unpacked(name)
    if type(parts) is dict:
        session, user = parts.pop("session_id", None), fields.as_text(parts, f"{path}.user_id")
    else:
        user, _, session = name.partition("_session_")
    places = [(f"{path}.user_id.", {"user": user, "session": session})]
    fields.fill(record, requests[0][1], places, user=("user",), session=("session",))


def _put_prompt(record, requests):
    value, path = fields.find(requests[:1], "input")  # a field map puts the prompt there
    if value is not None:
        fields.put_prompt(record, value, path)
        return
    turns, path = fields.find(requests, "messages")
    if type(turns) is not list:
        raise fields.wrong(turns, path, "a list of messages")
    if not turns:
        raise EmptyPrompt("the prompt is empty.", field=path)
    record.messages = []
    system, system_path = fields.find(requests, "system")
    if system:
        parts = system if type(system) is str else [_without_marker(part) for part in _blocks(system, system_path)]
        _add(record, {"role": "system", "content": parts}, system_path)
    for i, turn in enumerate(turns):
        for message, message_path in chat_messages(turn, f"{path}[{i}]"):
            _add(record, message, message_path)
    record.type = record.type or "text"


def _add(record, message, path):
    fields.put_message(record, message, path)
    record.messages.append(message)


def has_content_blocks(message: Any) -> bool:
    """Whether a message has content blocks of this API only: tool use, results, thinking."""
    content = message.get("content") if type(message) is dict else None
    blocks = content if type(content) is list else []
    return any(type(block) is dict and str(block.get("type")) in BLOCKS for block in blocks)


def chat_messages(turn: Any, path: str) -> list[tuple[dict[str, Any], str]]:
    """One turn as chat messages, each with its JSON path; RowError.

    >>> block = {"type": "tool_use", "id": "t1", "name": "find", "input": {"a": 1}}
    >>> [message["tool_calls"] for message, _ in chat_messages({"role": "assistant", "content": [block]}, "")]
    [[{'id': 't1', 'type': 'function', 'function': {'name': 'find', 'arguments': {'a': 1}}}]]
    """
    if type(turn) is not dict:
        raise fields.wrong(turn, path, "a message")
    role, content = turn.get("role"), turn.get("content")
    if type(role) is not str:
        raise fields.wrong(role, f"{path}.role", "a string")
    if content is None or type(content) is str:
        return [({"role": role, "content": content}, path)]
    messages: list[tuple[dict[str, Any], str]] = []
    for i, block in enumerate(_blocks(content, f"{path}.content")):
        block_path = f"{path}.content[{i}]"
        kind = _kind(block, block_path)
        if kind.endswith("tool_result"):  # also mcp_tool_result and web_search_tool_result
            messages.append(({"role": "tool", "content": _result(block, block_path)} | _call_id(block), block_path))
        elif kind not in UNREADABLE:
            if not messages or messages[-1][0]["role"] != role:
                messages.append(({"role": role, "content": None}, path))
            _add_block(messages[-1][0], block, kind, block_path)
    return messages or [({"role": role, "content": ""}, path)]


def _add_block(message, block, kind, path):
    """Add one content block of a user or the assistant to a chat message."""
    if kind in CALLS:
        name, arguments = block.get("name"), block.get("input")
        if type(name) is not str:
            raise fields.wrong(name, f"{path}.name", "a string")
        if arguments is not None and type(arguments) not in (dict, str):
            raise fields.wrong(arguments, f"{path}.input", "an object")
        call = {"type": "function", "function": {"name": name, "arguments": {} if arguments is None else arguments}}
        identity = {"id": block["id"]} if type(block.get("id")) is str else {}
        message.setdefault("tool_calls", []).append(identity | call)
    elif kind == "thinking":
        reasoning = block.get("thinking")
        if type(reasoning) is not str:
            raise fields.wrong(reasoning, f"{path}.thinking", "a string")
        message["reasoning_content"] = message.get("reasoning_content", "") + reasoning
    else:
        message["content"] = [*(message["content"] or []), _without_marker(block)]


def _result(block, path):
    """The result of a tool: text, a list of text and image parts, or any other value as JSON."""
    content = block.get("content")
    if content is None or type(content) is str:
        return content or ""
    if type(content) is list and all(type(part) is dict and part.get("type") in PARTS for part in content):
        return [_without_marker(part) for part in content]
    return fields.as_text(content, f"{path}.content")


PARTS = ("text", "image", "document")  # part types of a tool's result


def _call_id(block):
    return {"tool_call_id": block["tool_use_id"]} if type(block.get("tool_use_id")) is str else {}


def _blocks(content, path):
    if type(content) is not list:
        raise fields.wrong(content, path, "text or a list of content blocks")
    for i, block in enumerate(content):
        if type(block) is not dict:
            raise fields.wrong(block, f"{path}[{i}]", "a content block")
    return content


def _kind(block, path):
    kind = block.get("type", "text")
    if type(kind) is not str:
        raise fields.wrong(kind, f"{path}.type", "a string")
    return kind


def _without_marker(block):
    """The block without its cache marker, which moves from turn to turn, and its citations, which are not rendered."""
    return {name: value for name, value in block.items() if name not in ("cache_control", "citations")}


def _tool(tool):
    """A tool definition for the template. Tools that Anthropic runs have a name but no schema."""
    if "function" in tool:
        return tool
    function = {name: tool[name] for name in ("name", "description", "strict", "defer_loading") if name in tool}
    schema = {"parameters": tool["input_schema"]} if "input_schema" in tool else {}
    return {"type": "function", "function": function | schema}


def _put_usage(record, usage):
    """Set the token counts from the server's usage, unless the row has them."""
    if record.prompt_tokens is None:
        uncached = fields.count(*fields.find(usage, "input_tokens"))
        logged = [fields.find(usage, name)[0] for name in ("cache_read_input_tokens", "cache_creation_input_tokens")]
        counts = [uncached, *(0 if value is None else tokens_of(value) for value in logged)]
        record.prompt_tokens = None if None in counts else sum(filter(None, counts))
    if record.output_length is None:
        record.output_length = fields.count(*fields.find(usage, "output_tokens"))
    put_cached(record, usage)


def _put_answer(record, responses):
    value, path = fields.find(responses[:1], "output")
    if value is None:
        value, path = fields.find(responses, "content")
        if type(value) is list:
            messages = chat_messages({"role": "assistant", "content": value}, path.removesuffix("content").rstrip("."))
            fields.put_assistant_messages(record, [message for message, _ in messages] if value else [], path)
            return
    if value is None and type(responses[0][1].get("response")) is str:
        value, path = responses[0][1]["response"], "response"
    fields.put_output(record, value, path)
