"""OpenAI Responses requests with their responses, as gateways log them (see pairs.py).

Request: `input`, text or items, `instructions`, flat `tools`, `safety_identifier` or `user`. Response: `created_at` in
seconds, `model`, `output` items, `usage`. Items become chat messages: an answer, its reasoning and its function calls
are one assistant message, as chat completions have it. A request that goes on from what the server keeps
(previous_response_id, conversation, item_reference, a stored prompt) lacks what it does not repeat.
"""

from __future__ import annotations

from ..._base.errors import EmptyPrompt, NotARequest
from . import fields, pairs
from .pairs import small_unit as small_unit
from .record import Record

KEPT = {  # what a request may go on from -> what its log lacks then
    "previous_response_id": "the turns before it (previous_response_id)",
    "conversation": "the turns before it (conversation)",
    "prompt": "the stored prompt it names (prompt)",
}
NAMED = {  # item -> what it stands for, which the log does not hold
    "item_reference": "an item it only names (item_reference)",
    "compaction": "the turns that were compacted (compaction)",
}


def read(row: dict) -> Record:
    """The Record of one request and its response; NotARequest where it is of another API, RowError where it is broken.

    >>> row = {"object": "response", "created_at": 5, "instructions": "Be brief.", "input": "Hello", "output": [
    ...     {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}]}
    >>> read(row).messages
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hello'}]
    """
    requests, responses = pairs.split(row)
    kind, path = fields.find(responses, "object")
    if type(kind) is str and kind != "response":  # embeddings have an input too
        raise NotARequest("the object is no response of a model.", field=path)
    places = pairs.places(requests, responses)
    record = fields.common(places, *pairs.time_of(requests, responses))
    record.tools = record.tools and [_tool(tool) for tool in record.tools]
    _put_session(record, places)
    _put_prompt(record, requests, responses)
    _put_usage(record, pairs.usage(responses))
    _put_answer(record, responses)
    return record


def matches(row: dict) -> bool:
    """Whether the row looks like one of this form."""
    requests, responses = pairs.split(row)
    if fields.find(requests, "input")[0] is None:
        return False
    usage, output = pairs.usage(responses), fields.find(responses, "output")[0]
    return (
        fields.find(responses, "object")[0] == "response"
        or fields.find(requests, "instructions", "previous_response_id")[0] is not None
        or (type(output) is list and bool(output) and type(output[0]) is dict and "type" in output[0])
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
    if type(value) is list and type(value[0]) is int:  # a map's, or a row's own: token ids
        fields.put_prompt(record, value, path)
        return
    places = pairs.places(requests, responses)  # a response repeats what its request went on from
    for name, lacked in KEPT.items():
        found, _ = fields.find(places, name)
        record.lacks = record.lacks or (lacked if found is not None and found != "" else None)
    record.messages = []
    told, where = fields.find(requests, "instructions")
    if told is None:
        told, where = fields.find(responses, "instructions")
    for message, place in [*_messages(record, told, where, "system"), *_messages(record, value, path, "user")]:
        fields.put_message(record, message, place)
        record.messages.append(message)
    if not record.messages and not record.lacks:
        raise EmptyPrompt("the prompt is empty.", field=path)
    record.messages = record.messages or [{"role": "user", "content": ""}]
    record.type = record.type or "text"


def _messages(record, value, path, role):
    """Text, as said by `role`, or items, as chat messages with their JSON paths; what they only name is noted."""
    if value is None or value == "":
        return []
    if type(value) is str:
        return [({"role": role, "content": value}, path)]
    if type(value) is not list:
        raise fields.wrong(value, path, "text or a list of items")
    for item in value:
        kind = item.get("type") if type(item) is dict else None
        record.lacks = record.lacks or (NAMED.get(kind) if type(kind) is str else None)
    return chat_messages(value, path)


def chat_messages(items: list, path: str) -> list[tuple[dict, str]]:
    """Items as chat messages, each with the JSON path of its first item; RowError.

    >>> call = {"type": "function_call", "call_id": "c1", "name": "find", "arguments": "{}"}
    >>> found = chat_messages([call, {"type": "function_call_output", "call_id": "c1", "output": "no"}], "input")
    >>> [(message["role"], where) for message, where in found]
    [('assistant', 'input[0]'), ('tool', 'input[1]')]
    """
    found: list[tuple[dict, str]] = []
    for i, item in enumerate(items):
        where = f"{path}[{i}]"
        if type(item) is not dict:
            raise fields.wrong(item, where, "an item")
        kind = item.get("type", "message")
        if type(kind) is not str:
            raise fields.wrong(kind, f"{where}.type", "a string")
        if kind in NAMED:
            continue
        if kind == "message":
            _say(found, item, where)
        elif kind == "reasoning":
            _spoken(found, where)["reasoning_content"] = _reasoning(item, where)
        elif kind.endswith("_call"):
            _spoken(found, where).setdefault("tool_calls", []).append(_call(item, kind, where))
        else:  # *_call_output, and what else the server says of its tools
            answered = item.get("call_id")
            name = {"tool_call_id": answered} if type(answered) is str else {}
            found.append(({"role": "tool", "content": _result(item, where)} | name, where))
    return found


def _say(found, item, path):
    role, content = item.get("role"), item.get("content")
    if type(role) is not str:
        raise fields.wrong(role, f"{path}.role", "a string")
    if role != "assistant":
        found.append(({"role": role, "content": content}, path))
        return
    spoken = _spoken(found, path)
    if spoken["content"] is not None or spoken.get("tool_calls"):  # a second answer is a message of its own
        spoken = {"role": "assistant", "content": None}
        found.append((spoken, path))
    spoken["content"] = content


def _spoken(found, path):
    """The assistant's message that is being put together, or a new one."""
    if not found or found[-1][0]["role"] != "assistant":
        found.append(({"role": "assistant", "content": None}, path))
    return found[-1][0]


def _reasoning(item, path):
    """The words of the reasoning where the log has them; a summary is not what the model wrote."""
    parts = item.get("content")
    if parts is None:
        return None
    if type(parts) is not list or not all(type(part) is dict for part in parts):
        raise fields.wrong(parts, f"{path}.content", "a list of parts")
    return "".join(part["text"] for part in parts if type(part.get("text")) is str) or None


def _call(item, kind, path):
    """A function call, or a call of a tool that the server has, with what it was given."""
    name, given = item.get("name", kind), item.get("arguments", item.get("input", item.get("action")))
    if type(name) is not str:
        raise fields.wrong(name, f"{path}.name", "a string")
    arguments = fields.as_text({} if given is None else given, f"{path}.arguments")
    identity = {"id": item["call_id"]} if type(item.get("call_id")) is str else {}
    return identity | {"type": "function", "function": {"name": name, "arguments": arguments}}


def _result(item, path):
    """What a tool answered: text, parts, or the JSON of anything else."""
    output = item.get("output")
    if type(output) is str or (type(output) is list and all(type(part) is dict and "type" in part for part in output)):
        return output
    return fields.as_text(item if output is None else output, path)


def _tool(tool):
    """A tool as templates know it; those that the server has are known by their type."""
    if "function" in tool:
        return tool
    known = {name: tool[name] for name in ("name", "description", "parameters") if tool.get(name) is not None}
    return {"type": "function", "function": {"name": tool.get("type")} | known}


def _put_usage(record, usage):
    """The server's counts, where neither the row nor a map gave any."""
    if record.prompt_tokens is None:
        record.prompt_tokens = fields.count(*fields.find(usage, "input_tokens"))
    if record.output_length is None:
        record.output_length = fields.count(*fields.find(usage, "output_tokens"))


def _put_answer(record, responses):
    value, path = fields.find(responses, "output", "output_text")
    if type(value) is list and (not value or type(value[0]) is dict):
        fields.put_spoken(record, [message for message, _ in chat_messages(value, path)], path)
    else:
        fields.put_output(record, value, path)
