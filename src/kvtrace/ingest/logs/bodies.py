"""The bodies of a request and its response in the exports of gateways and tracing tools: of any API, or LangChain's.

python.langchain.com: `dumpd` writes {"lc": 1, "id": [..., "HumanMessage"], "kwargs": {"content", "type"}},
`message_to_dict` writes {"type": "human", "data": {"content"}}, and both write tool calls as {"name", "args", "id"}.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import RowError
from . import anthropic, fields, openai, responses
from .contents import opened_prompt
from .fieldmap import TARGETS, unpacked
from .record import Record

APIS = (responses, anthropic, openai)


def read_bodies(row: dict[str, Any], *, time: Any, request: str, response: str, **fields: Any) -> Record:
    """The Record of the bodies in these two fields of a row; RowError names the row's own fields.

    Args:
        time: the request's time.
        request, response: names of the fields; each holds an object, or JSON text of one.
        fields: other fields of the record, which a field map replaces.

    >>> row = {"ask": {"messages": [{"role": "user", "content": "Hello"}]}, "got": {"usage": {"completion_tokens": 7}}}
    >>> read_bodies(row, time=5, request="ask", response="got").output_length
    7
    """
    mapped = {name: row[name] for name in TARGETS if row.get(name) is not None}
    pair = {"timestamp": time, "request": _body(row, request), "response": _body(row, response)} | fields | mapped
    pair = {name: value for name, value in pair.items() if value is not None}
    reader = next((api for api in APIS if api.matches(pair)), openai)
    try:
        return reader.read(pair)
    except RowError as error:
        for name, field in (("request", request), ("response", response)):
            if error.field is not None and error.field.startswith(f"{name}."):
                error.field = field + error.field[len(name) :]
        raise


def number(value: Any) -> Any:
    """A count that a table has as text, as a number; any other value unchanged.

    >>> number("12"), number("12.0"), number(None)
    (12, 12, None)
    """
    if (
        type(value) is str
        and len(value) < 20
        and value.removesuffix(".0").isascii()
        and value.removesuffix(".0").isdigit()
    ):
        return int(value.removesuffix(".0"))
    return value


def _body(row, name):
    value = unpacked(row.get(name))
    return value if type(value) is dict else row.get(name)


ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "function": "tool",
         "developer": "developer", "HumanMessage": "user", "HumanMessageChunk": "user", "AIMessage": "assistant",
         "AIMessageChunk": "assistant", "SystemMessage": "system", "ToolMessage": "tool",
         "FunctionMessage": "tool"}  # fmt: skip


def put_prompt(record: Record, value: Any, path: str) -> None:
    """Like `fields.put_prompt`, also for LangChain messages, batches of one, and Anthropic content blocks; RowError.

    >>> record = Record()
    >>> put_prompt(record, [[{"type": "human", "data": {"content": "Hello"}}]], "inputs.messages")
    >>> record.messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    value, path, body = opened_prompt(value, path)
    if type(value) is list and len(value) == 1 and type(value[0]) is list:
        value, path = value[0], f"{path}[0]"
    if type(value) is list and value and type(value[0]) is dict:
        messages = [chat_message(message) for message in value]
        value = [
            turn
            for i, message in enumerate(messages)
            for turn in (
                [inner for inner, _ in anthropic.chat_messages(message, f"{path}[{i}]")]
                if anthropic.has_content_blocks(message)
                else [message]
            )
        ]
    if body:
        value = body | {"messages" if type(value) is list else "prompt": value}
        path = path.rpartition(".")[0]
    fields.put_prompt(record, value, path)


def chat_message(message: Any) -> Any:
    """A message of LangChain in the shape of chat completions; any other value unchanged.

    >>> kwargs = {"content": "", "tool_calls": [{"name": "find", "args": {"a": 1}, "id": "t1"}]}
    >>> chat_message({"lc": 1, "id": ["langchain", "schema", "messages", "AIMessage"], "kwargs": kwargs})["tool_calls"]
    [{'id': 't1', 'type': 'function', 'function': {'name': 'find', 'arguments': {'a': 1}}}]
    """
    if type(message) is not dict or "role" in message:
        return message
    inner = message.get("kwargs", message.get("data", message))
    names = message.get("id")
    kind = message.get("type") if "lc" not in message else None
    if type(names) is list and names and "lc" in message:
        kind = names[-1]
    if type(inner) is not dict or type(kind) is not str or kind not in ROLES:
        return message
    more = inner.get("additional_kwargs")
    calls = inner.get("tool_calls") or (more.get("tool_calls") if type(more) is dict else None)
    chat = {"role": ROLES[kind], "content": inner.get("content")}
    if type(calls) is list and calls:
        chat["tool_calls"] = [_call(call) for call in calls]
    if type(inner.get("tool_call_id")) is str:
        chat["tool_call_id"] = inner["tool_call_id"]
    return chat


def usage_of(message: Any) -> dict[str, Any]:
    """The token counts of a message, which LangChain calls its usage_metadata; empty if it has none.

    >>> usage_of({"lc": 1, "kwargs": {"content": "", "usage_metadata": {"input_token_details": {"cache_read": 64}}}})
    {'input_token_details': {'cache_read': 64}}
    """
    inner = message.get("kwargs", message.get("data", message)) if type(message) is dict else None
    usage = inner.get("usage_metadata") if type(inner) is dict else None
    return usage if type(usage) is dict else {}


def _call(call):
    if type(call) is not dict or "function" in call or type(call.get("name")) is not str:
        return call
    arguments = call.get("args")
    function = {"name": call["name"], "arguments": {} if arguments is None else arguments}
    return ({"id": call["id"]} if type(call.get("id")) is str else {}) | {"type": "function", "function": function}
