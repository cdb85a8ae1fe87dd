"""OpenAI Responses requests with their responses, as gateways log them (see pairs.py).

Request: `input`, text or items, `instructions`, flat `tools`, `safety_identifier` or `user`. Response: `created_at` in
seconds, `model`, `output` items, `usage` with `input_tokens_details.cached_tokens`. Items become chat messages: an
answer, its reasoning and its function calls form one assistant message, as in chat completions. A request that refers
to state on the server (previous_response_id, conversation, item_reference, a stored prompt) is incomplete.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import EmptyPrompt, NotARequest
from . import contents, fields, pairs
from .pairs import small_unit as small_unit
from .record import Record

SERVER_STATE = {  # field that refers to state on the server -> missing part of the prompt
    "previous_response_id": "the turns before it (previous_response_id)",
    "conversation": "the turns before it (conversation)",
    "prompt": "the stored prompt (prompt)",
}
REFERENCES = {  # item that refers to state on the server -> missing part of the prompt
    "item_reference": "a referenced item (item_reference)",
    "compaction": "the compacted turns (compaction)",
}


def read(row: dict[str, Any]) -> Record:
    """The Record of one request and its response; NotARequest if it is of another API, RowError if it is bad.

    >>> row = {"object": "response", "created_at": 5, "instructions": "Be brief.", "input": "Hello", "output": [
    ...     {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}]}
    >>> read(row).messages
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hello'}]
    """
    requests, responses = pairs.split(row)
    kind, path = fields.find(responses, "object")
    if type(kind) is str and kind != "response":  # embeddings have an input too
        raise NotARequest("is not a model response.", field=path)
    places = pairs.places(requests, responses)
    record = fields.common(places, *pairs.time_of(requests, responses))
    record.tools = record.tools and [_tool(tool) for tool in record.tools]
    _put_session(record, places)
    record.add_special_tokens = True  # vLLM asks for the start token here, also after a template that writes one
    _put_prompt(record, requests, responses)
    instructions, _ = fields.find(requests, "instructions")
    record.shaping = (record.shaping or {}) | {"api": "responses"}
    if instructions == "":
        record.shaping["instructions"] = ""  # no message, but Harmony writes their heading
    fields.put_usage(record, pairs.usage(responses), prompt=("input_tokens",), output=("output_tokens",))
    _put_answer(record, responses)
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    requests, responses = pairs.split(row)
    if fields.find(requests, "input")[0] is None:
        return False
    usage, output = pairs.usage(responses), fields.find(responses, "output")[0]
    return (
        fields.find(responses, "object")[0] == "response"
        or fields.find(requests, "instructions", "previous_response_id")[0] is not None
        or (type(output) is list and bool(output) and contents.is_item(output[0]))
        or (bool(usage) and "input_tokens" in usage[0][1] and "output_tokens" in usage[0][1])
    )


def _put_session(record, places):
    conversation, path = fields.find(places, "conversation")
    name = conversation.get("id") if type(conversation) is dict else conversation
    fields.fill(record, places[0][1], [(f"{path}.", {"id": name})], session=("id",))


def _put_prompt(record, requests, responses):
    value, path = fields.find(requests, "input")
    if type(value) not in (str, list):
        raise fields.wrong(value, path, "text or a list of items")
    if not value:
        raise EmptyPrompt("the prompt is empty.", field=path)
    if type(value) is list and type(value[0]) is int:  # token ids
        fields.put_prompt(record, value, path)
        return
    places = pairs.places(requests, responses)  # a response repeats these fields of its request
    for name, missing_part in SERVER_STATE.items():
        reference, _ = fields.find(places, name)
        record.lacks = record.lacks or (missing_part if reference is not None and reference != "" else None)
    record.messages = []
    instructions, instructions_path = fields.find(requests, "instructions")
    if instructions is None:
        instructions, instructions_path = fields.find(responses, "instructions")
    system_messages = _messages(record, instructions, instructions_path, "system")
    for message, message_path in [*system_messages, *_messages(record, value, path, "user")]:
        fields.put_message(record, message, message_path)
        record.messages.append(message)
    if not record.messages and not record.lacks:
        raise EmptyPrompt("the prompt is empty.", field=path)
    record.messages = record.messages or [{"role": "user", "content": ""}]
    record.type = record.type or "text"


def _messages(record, value, path, role):
    """Chat messages with their JSON paths, from a text of `role` or from items. References are noted in the record."""
    if value is None or value == "":
        return []
    if type(value) is str:
        return [({"role": role, "content": value}, path)]
    if type(value) is not list:
        raise fields.wrong(value, path, "text or a list of items")
    for item in value:
        kind = item.get("type") if type(item) is dict else None
        record.lacks = record.lacks or (REFERENCES.get(kind) if type(kind) is str else None)
    return chat_messages(value, path)


def chat_messages(items: list[Any], path: str) -> list[tuple[dict[str, Any], str]]:
    """Items as chat messages, each with the JSON path of its first item; RowError.

    >>> call = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"}
    >>> items = [call, {"type": "function_call_output", "call_id": "c1", "output": "no"}]
    >>> [(message["role"], path) for message, path in chat_messages(items, "input")]
    [('assistant', 'input[0]'), ('tool', 'input[1]')]
    """
    messages: list[tuple[dict[str, Any], str]] = []
    for i, item in enumerate(items):
        item_path = f"{path}[{i}]"
        if type(item) is not dict:
            raise fields.wrong(item, item_path, "an item")
        kind = item.get("type", "message")
        if type(kind) is not str:
            raise fields.wrong(kind, f"{item_path}.type", "a string")
        if kind in REFERENCES:
            continue
        if kind == "message":
            _add_message(messages, item, item_path)
        elif kind == "reasoning":
            _assistant_message(messages, item_path)["reasoning_content"] = _reasoning(item, item_path)
        elif kind.endswith("_call"):
            calls = _assistant_message(messages, item_path).setdefault("tool_calls", [])
            calls.append(_call(item, kind, item_path))
        else:  # *_call_output, and other results of the server's tools
            call_id = item.get("call_id")
            identity = {"tool_call_id": call_id} if type(call_id) is str else {}
            messages.append(({"role": "tool", "content": _result(item, item_path)} | identity, item_path))
    return messages


def _add_message(messages, item, path):
    role, content = item.get("role"), item.get("content")
    if type(role) is not str:
        raise fields.wrong(role, f"{path}.role", "a string")
    if role != "assistant":
        messages.append(({"role": role, "content": content}, path))
        return
    message = _assistant_message(messages, path)
    if message["content"] is not None or message.get("tool_calls"):  # a second answer is a new message
        message = {"role": "assistant", "content": None}
        messages.append((message, path))
    message["content"] = content


def _assistant_message(messages, path):
    """The last message if it is the assistant's, else a new assistant message."""
    if not messages or messages[-1][0]["role"] != "assistant":
        messages.append(({"role": "assistant", "content": None}, path))
    return messages[-1][0]


def _reasoning(item, path):
    """The text of the reasoning if the log has it. A summary does not count: the model did not write it."""
    parts = item.get("content")
    if parts is None:
        return None
    if type(parts) is not list or not all(type(part) is dict for part in parts):
        raise fields.wrong(parts, f"{path}.content", "a list of parts")
    texts = [part["text"] for part in parts if type(part.get("text")) is str]
    return "".join(texts) if texts else None


def _call(item, kind, path):
    """A call of a function or of a server tool, with its arguments."""
    name, value = item.get("name", kind), item.get("arguments", item.get("input", item.get("action")))
    if type(name) is not str:
        raise fields.wrong(name, f"{path}.name", "a string")
    arguments = fields.as_text({} if value is None else value, f"{path}.arguments")
    identity = {"id": item["call_id"]} if type(item.get("call_id")) is str else {}
    return identity | {"type": "function", "function": {"name": name, "arguments": arguments}}


def _result(item, path):
    """The result of a tool: text, parts, or any other value as JSON."""
    output = item.get("output")
    if type(output) is str or (type(output) is list and all(type(part) is dict and "type" in part for part in output)):
        return output
    return fields.as_text(item if output is None else output, path)


def _tool(tool):
    """A tool definition for the template. A server tool's name is its type."""
    if "function" in tool:
        return tool
    function = {
        name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None
    }
    return {"type": "function", "function": {"name": tool.get("type")} | function}


def _put_answer(record, responses):
    value, path = fields.find(responses, "output", "output_text")
    if type(value) is list and (not value or type(value[0]) is dict):
        fields.put_assistant_messages(record, [message for message, _ in chat_messages(value, path)], path)
    else:
        fields.put_output(record, value, path)
