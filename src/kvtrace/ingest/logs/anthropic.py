"""Anthropic Messages requests with their responses, as gateways log them (see pairs.py).

Request: `system`, `messages` of content blocks, `tools` with an input_schema, `metadata.user_id`. Response: `content`
blocks, `model`, `usage`, whose input_tokens are those that no cache had. Blocks become the chat messages that templates
know: the system prompt first, tool_use as tool calls, tool_result as messages of the role `tool`.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import EmptyPrompt
from . import fields, pairs
from .pairs import small_unit as small_unit
from .record import Record

CALLS = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))
UNREADABLE = frozenset(("redacted_thinking",))  # encrypted: nobody outside can tell its tokens
BLOCKS = CALLS | UNREADABLE | {"thinking", "tool_result"}  # what no other API's messages hold


def read(row: dict) -> Record:
    """The Record of one request and its response; RowError where the row is not of this form.

    >>> row = {"timestamp": 0, "system": "Be brief.", "messages": [{"role": "user", "content": "Hello"}],
    ...        "content": [{"type": "text", "text": "Hi"}], "usage": {"input_tokens": 9, "output_tokens": 1}}
    >>> [message["role"] for message in read(row).messages]
    ['system', 'user']
    """
    requests, responses = pairs.split(row)
    record = fields.common(pairs.places(requests, responses), *pairs.time_of(requests, responses))
    record.type = None if row.get("type") == "message" else record.type  # what every response calls itself
    record.tools = record.tools and [_tool(tool) for tool in record.tools]
    _put_user(record, requests)
    _put_prompt(record, requests)
    _put_usage(record, pairs.usage(responses))
    _put_answer(record, responses)
    return record


def matches(row: dict) -> bool:
    """Whether the row looks like one of this form."""
    requests, responses = pairs.split(row)
    messages, _ = fields.find(requests, "messages")
    if type(messages) is not list or fields.find(responses, "choices")[0] is not None:
        return False
    usage = pairs.usage(responses)
    return (
        fields.find(requests, "system", "anthropic_version")[0] is not None
        or fields.find(responses, "stop_reason")[0] is not None
        or (bool(usage) and "input_tokens" in usage[0][1] and "prompt_tokens" not in usage[0][1])
        or any(_is_ours(tool, "input_schema") for tool in _listed(requests, "tools"))
        or any(_holds_blocks(message) for message in messages)
    )


def _listed(places, name):
    value, _ = fields.find(places, name)
    return value if type(value) is list else []


def _is_ours(value, name):
    return type(value) is dict and name in value


def _holds_blocks(message):
    content = message.get("content") if type(message) is dict else None
    blocks = content if type(content) is list else []
    return any(type(block) is dict and str(block.get("type")) in BLOCKS for block in blocks)


def _put_user(record, requests):
    """Claude Code writes its session into the user's id, as text or JSON; the user is the rest."""
    metadata, path = fields.find(requests[1:] or requests, "metadata")
    if type(metadata) is not dict or type(name := metadata.get("user_id")) is not str:
        return
    parts = pairs.unpacked(name)
    if type(parts) is dict:
        session, user = parts.pop("session_id", None), fields.as_text(parts, f"{path}.user_id")
    else:
        user, _, session = name.partition("_session_")
    told = [(f"{path}.user_id.", {"user": user, "session": session})]
    fields.fill(record, requests[0][1], told, user=("user",), session=("session",))


def _put_prompt(record, requests):
    value, path = fields.find(requests[:1], "input")  # where a map puts the prompt
    if value is not None:
        fields.put_prompt(record, value, path)
        return
    turns, path = fields.find(requests, "messages")
    if type(turns) is not list:
        raise fields.wrong(turns, path, "a list of messages")
    if not turns:
        raise EmptyPrompt("the prompt is empty.", field=path)
    record.messages = []
    system, where = fields.find(requests, "system")
    if system:
        parts = system if type(system) is str else [_without_marker(part) for part in _blocks(system, where)]
        _add(record, {"role": "system", "content": parts}, where)
    for i, turn in enumerate(turns):
        for message, where in chat_messages(turn, f"{path}[{i}]"):
            _add(record, message, where)
    record.type = record.type or "text"


def _add(record, message, path):
    fields.put_message(record, message, path)
    record.messages.append(message)


def chat_messages(turn: Any, path: str) -> list[tuple[dict, str]]:
    """One turn as chat messages, each with the JSON path it comes from; RowError.

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
    found: list[tuple[dict, str]] = []
    for i, block in enumerate(_blocks(content, f"{path}.content")):
        where = f"{path}.content[{i}]"
        kind = _kind(block, where)
        if kind.endswith("tool_result"):  # mcp_tool_result, web_search_tool_result: what a call came back with
            found.append(({"role": "tool", "content": _result(block, where)} | _call_id(block), where))
        elif kind not in UNREADABLE:
            if not found or found[-1][0]["role"] != role:
                found.append(({"role": role, "content": None}, path))
            _add_block(found[-1][0], block, kind, where)
    return found or [({"role": role, "content": ""}, path)]


def _add_block(message, block, kind, path):
    """One block of what a user or the assistant says, put where chat messages keep it."""
    if kind in CALLS:
        name, given = block.get("name"), block.get("input")
        if type(name) is not str:
            raise fields.wrong(name, f"{path}.name", "a string")
        if given is not None and type(given) not in (dict, str):
            raise fields.wrong(given, f"{path}.input", "an object")
        call = {"type": "function", "function": {"name": name, "arguments": {} if given is None else given}}
        identity = {"id": block["id"]} if type(block.get("id")) is str else {}
        message.setdefault("tool_calls", []).append(identity | call)
    elif kind == "thinking":
        thought = block.get("thinking")
        if type(thought) is not str:
            raise fields.wrong(thought, f"{path}.thinking", "a string")
        message["reasoning_content"] = message.get("reasoning_content", "") + thought
    else:
        message["content"] = [*(message["content"] or []), _without_marker(block)]


def _result(block, path):
    """What a tool answered: text, parts of text and images, or the JSON of anything else."""
    content = block.get("content")
    if content is None or type(content) is str:
        return content or ""
    if type(content) is list and all(type(part) is dict and part.get("type") in PARTS for part in content):
        return [_without_marker(part) for part in content]
    return fields.as_text(content, f"{path}.content")


PARTS = ("text", "image", "document")  # that a tool's result may hold, and that are told apart by their bytes


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
    """The block without what moves from turn to turn, or stands in no prompt."""
    return {name: value for name, value in block.items() if name not in ("cache_control", "citations")}


def _tool(tool):
    """A tool as templates know it; those that Anthropic runs itself have a name and no schema."""
    if "function" in tool:
        return tool
    known = {name: tool[name] for name in ("name", "description") if name in tool}
    schema = {"parameters": tool["input_schema"]} if "input_schema" in tool else {}
    return {"type": "function", "function": known | schema}


def _put_usage(record, usage):
    """The server's counts, where neither the row nor a map gave any."""
    if record.prompt_tokens is None:
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        counts = [fields.count(*fields.find(usage, name)) for name in names]
        record.prompt_tokens = None if counts[0] is None else sum(count or 0 for count in counts)
    if record.output_length is None:
        record.output_length = fields.count(*fields.find(usage, "output_tokens"))


def _put_answer(record, responses):
    value, path = fields.find(responses[:1], "output")
    if value is None:
        value, path = fields.find(responses, "content")
        if type(value) is list:
            said = chat_messages({"role": "assistant", "content": value}, path.removesuffix("content").rstrip("."))
            fields.put_spoken(record, [message for message, _ in said] if value else [], path)
            return
    if value is None and type(responses[0][1].get("response")) is str:
        value, path = responses[0][1]["response"], "response"
    fields.put_output(record, value, path)
