"""The conventions by which spans name prompts and answers: a function each, which returns a SpanContent.

OpenTelemetry's GenAI conventions, as of 1.37 (opentelemetry.io/docs/specs/semconv/gen-ai and its
gen-ai-input-messages.json): `gen_ai.input.messages`, each with a list of parts. System instructions and tools may have
attributes of their own. All are lists, or JSON in a string, on the span or on its event with the operation's details.

Span events, before messages became attributes (conventions 1.27 to 1.36): each message is an event
(`gen_ai.user.message` and others), and the answer is `gen_ai.choice`. Or all messages are JSON in the events
`gen_ai.content.prompt` and `gen_ai.content.completion`.

OpenInference, as of its specification of 2026 (arize-ai.github.io/openinference/spec; Phoenix, Arize):
`llm.input_messages.0.message.role`, `.message.content` or `.message.contents.0.message_content.text`,
`.message.tool_calls.0.tool_call.function.name`, `llm.tools.0.tool.json_schema`; also as lists of objects instead of
numbered names. A completion's prompt is `llm.prompts.0.prompt.text`.

OpenLLMetry's numbered attributes (Traceloop), before it adopted OpenTelemetry's messages: `gen_ai.prompt.0.role`,
`.content` and `.tool_calls.0.name`, `gen_ai.completion.0.content`, `llm.request.functions.0.name`, as in
opentelemetry-instrumentation-openai 0.40; `llm.prompts.0.content` of its first versions; `gen_ai.prompt` as one list,
in OpenTelemetry's conventions before 1.28.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import RowError
from . import otel_values
from .fields import as_text
from .otel_values import SpanContent, chat_message, tool

GENAI_INPUT: str = "gen_ai.input.messages"
GENAI_OUTPUT: str = "gen_ai.output.messages"
SYSTEM, GENAI_TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
DETAILS = "gen_ai.client.inference.operation.details"  # the event that may hold them instead of the span
GENAI_HINT = "Log with OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=SPAN_ONLY."
REASONING = ("reasoning", "thinking")


def genai_content(attributes: dict[str, Any], events: list[tuple[str, dict[str, Any]]]) -> SpanContent | None:
    """The content of a span in this convention; None if the span does not use it, RowError if it is malformed.

    >>> content = genai_content({GENAI_INPUT:
    ... '[{"role": "user", "parts": [{"type": "text", "content": "Hello"}]}]'}, [])
    >>> content.messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    for name, event in events:
        if name == DETAILS:
            attributes = event | attributes
    if attributes.get(GENAI_INPUT) is None:
        return None
    content = SpanContent(
        f"attributes.{GENAI_INPUT}", system_path=f"attributes.{SYSTEM}", output_path=f"attributes.{GENAI_OUTPUT}"
    )
    _put_prompt(content, attributes[GENAI_INPUT])
    _put_system(content, attributes.get(SYSTEM))
    _put_tools(content, attributes.get(GENAI_TOOLS))
    _put_output(content, attributes.get(GENAI_OUTPUT))
    return content


def _put_prompt(content, value):
    if otel_values.is_broken(value):
        content.cut, content.text = content.path, value
    else:
        content.messages = _messages(otel_values.loaded(value), content.path)


def _put_system(content, value):
    if otel_values.is_broken(value):
        content.cut = content.cut or content.system_path
        content.system = [{"role": "system", "content": value}]
        return
    parts = otel_values.loaded(value)
    if type(parts) is str:
        parts = [{"type": "text", "content": parts}] if parts else None
    if parts:
        content.system = _messages([{"role": "system", "parts": parts}], content.system_path)


def _put_tools(content, value):
    path = f"attributes.{GENAI_TOOLS}"
    definitions = otel_values.loaded(value)
    if otel_values.is_broken(value):
        content.cut = content.cut or path
    elif type(definitions) is list:
        content.tools = [
            tool(otel_values.loaded(definition), f"{path}[{i}]") for i, definition in enumerate(definitions)
        ]
    elif definitions is not None:
        raise RowError("is not a list of tool definitions.", field=path)


def _put_output(content, value):
    """Set the output to the first answer. One that was cut stays a text, which the reader detects."""
    parsed = otel_values.loaded(value)
    if otel_values.is_broken(value):
        content.output = value
    elif type(parsed) is list:
        messages = _messages(parsed[:1], content.output_path)
        content.output = messages[0] if messages else None
    else:
        content.output = parsed


def _messages(logged, path) -> Any:
    """The messages in chat format. Values that are not messages stay; the reader refuses them."""
    if type(logged) is not list:
        return logged
    messages: list[Any] = []
    for i, message in enumerate(logged):
        if type(message) is dict and message.get("parts") is not None:
            messages += _from_parts(message, f"{path}[{i}]")
        else:
            messages.append(chat_message(message) if type(message) is dict else message)
    return messages


def _from_parts(message, path) -> list[dict[str, Any]]:
    """The chat message of a list of parts, and one more for each tool result among them."""
    if type(message["parts"]) is not list or not all(type(part) is dict for part in message["parts"]):
        raise RowError("is not a list of parts.", field=f"{path}.parts")
    content, calls, results, reasoning = [], [], [], []
    for part in message["parts"]:
        kind = part.get("type")
        if kind == "text":
            content.append({"type": "text", "text": part.get("content")})
        elif kind == "tool_call":
            calls.append(_call(part))
        elif kind == "tool_call_response":
            results.append(_result(part, path))
        elif type(kind) is str and kind in REASONING:
            reasoning.append(part.get("content"))
        else:
            content.append(_medium(part))
    chat = {"role": message.get("role"), "content": _joined(content)}
    if reasoning:
        chat["reasoning_content"] = "".join(text for text in reasoning if type(text) is str)
    if calls:
        chat["tool_calls"] = calls
    if type(message.get("name")) is str:
        chat["name"] = message["name"]
    return results if results and not (content or calls or reasoning) else [chat, *results]


def _call(part):
    function = {name: part[name] for name in ("name", "arguments") if part.get(name) is not None}
    head = {"id": part["id"]} if part.get("id") is not None else {}
    return {**head, "type": "function", "function": function}


def _result(part, path):
    response = part.get("response", part.get("result"))  # `result` in the first drafts
    head = {"tool_call_id": part["id"]} if part.get("id") is not None else {}
    return {"role": "tool", **head, "content": as_text(response, path)}


def _medium(part):
    """A blob, a URI or a file, with its modality as its type."""
    if part.get("type") not in ("blob", "uri", "file", "file_data"):
        return part
    modality = part.get("modality")
    kind = modality if type(modality) is str and modality in ("image", "audio", "video") else "file"
    return part | {"type": kind}


def _joined(content):
    """A single text as a string, several parts as a list, no parts as None."""
    if len(content) == 1 and content[0].get("type") == "text":
        return content[0]["text"]
    return content or None


ROLES: dict[str, str] = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
CHOICE = "gen_ai.choice"
PROMPT: str = "gen_ai.content.prompt"
COMPLETION: str = "gen_ai.content.completion"
BODY = "gen_ai.event.content"  # the attribute of a span event that holds the body of a log event

FIELDS = ("role", "content", "tool_calls", "id", "message")


def events_content(attributes: dict[str, Any], events: list[tuple[str, dict[str, Any]]]) -> SpanContent | None:
    """The content of the span's events; None if they hold no prompt, or only the roles of its messages.

    >>> events_content({}, [("gen_ai.user.message", {"content": "Hello"})]).messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    content = SpanContent("events", messages=[], output_path="events")
    for name, event in events:
        if name in ROLES:
            content.messages.append(_event_message(content, event, ROLES[name]))
        elif name == CHOICE and content.output is None:
            choice = _event_message(content, event, "assistant")
            message = otel_values.loaded(choice.get("message", choice))
            content.output = chat_message(message) if type(message) is dict else message
        elif name == PROMPT:
            content.messages = _message_list(content, event.get("gen_ai.prompt"))
        elif name == COMPLETION and content.output is None:
            answers = _message_list(content, event.get("gen_ai.completion"))
            content.output = answers[0] if answers else None
    return content if content.messages and not any(map(_is_hidden, content.messages)) else None


def _is_hidden(message):
    """Whether content capture was off: what a user says is never empty otherwise."""
    is_theirs = type(message) is dict and message.get("role") in ("system", "user")
    return is_theirs and message.get("content") is None


def _event_message(content, event, role):
    """The message of an event: its body (an object, or JSON in a string), else its attributes."""
    if otel_values.is_broken(event.get(BODY)):
        content.cut = content.cut or f"events.{BODY}"
    body = otel_values.loaded(event.get(BODY))
    if body is None:
        body = {name: event[name] for name in FIELDS if name in event}
    elif type(body) is not dict:
        body = {"content": body}
    message = {"role": role} | body
    if role == "tool" and "id" in message:
        message["tool_call_id"] = message.pop("id")
    return chat_message(message)


def _message_list(content, value):
    """The messages of a list, or one user message for any other value."""
    if otel_values.is_broken(value):
        content.cut = content.cut or content.path
    messages = otel_values.loaded(value)
    if type(messages) is not list:
        return [] if messages is None else [{"role": "user", "content": messages}]
    return [chat_message(message) if type(message) is dict else message for message in messages]


OI_INPUT: str = "llm.input_messages"
OI_OUTPUT: str = "llm.output_messages"
OI_TOOLS: str = "llm.tools"
OI_PROMPTS: str = "llm.prompts"
CHOICES: str = "llm.choices"
HIDDEN = "__REDACTED__"
OI_HINT = "Log with OPENINFERENCE_HIDE_INPUTS=false."


def openinference_content(attributes: dict[str, Any], events: list[tuple[str, dict[str, Any]]]) -> SpanContent | None:
    """The content of a span in this convention; None if the span does not use it, RowError if it is hidden.

    >>> openinference_content({OI_INPUT: [{"message.role": "user", "message.content": "Hello"}]}, []).messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    attributes = attributes | {name: otel_values.loaded(attributes.get(name)) for name in (OI_INPUT, OI_OUTPUT)}
    messages, is_whole = otel_values.gathered(attributes, OI_INPUT)
    content = SpanContent(f"attributes.{OI_INPUT}", output_path=f"attributes.{OI_OUTPUT}")
    if messages:
        content.messages = [_message(message) for message in messages]
        content.lacks = None if is_whole else "messages (their numbers have gaps)"
    elif otel_values.is_broken(attributes.get(OI_INPUT)):
        content.text, content.cut = attributes[OI_INPUT], content.path
    elif (prompt := _prompt(attributes)) is not None:
        content.path, content.text = f"attributes.{OI_PROMPTS}", prompt
    else:
        return None
    _refuse_hidden(content)
    _put_openinference_tools(content, attributes)
    _put_openinference_output(content, attributes)
    return content


def _message(item) -> Any:
    """One message in chat format. A value that is not a message stays; the reader refuses it."""
    logged = item.get("message", item) if type(item) is dict else item
    if type(logged) is not dict:
        return logged
    message = {name: logged.get(name) for name in ("role", "content", "name", "tool_call_id")}
    if type(contents := logged.get("contents")) is list:
        message["content"] = [_part(part) for part in contents]
    if type(calls := logged.get("tool_calls")) is list:
        message["tool_calls"] = [call.get("tool_call", call) if type(call) is dict else call for call in calls]
    elif type(function := logged.get("function_call_name")) is str:
        arguments = logged.get("function_call_arguments_json")
        message["tool_calls"] = [{"name": function, "arguments": arguments}]
    return chat_message(message)


def _part(item):
    """A content part. Reasoning with a text counts as text."""
    part = item.get("message_content", item) if type(item) is dict else item
    is_reasoning = type(part) is dict and part.get("type") == "reasoning"
    return part | {"type": "text"} if is_reasoning and type(part.get("text")) is str else part


def _prompt(attributes):
    prompts, _ = otel_values.gathered(attributes, OI_PROMPTS)
    first = prompts[0] if prompts else None
    prompt = first.get("prompt") if type(first) is dict else first
    text = prompt.get("text") if type(prompt) is dict else prompt
    return text if type(text) is str else None


def _refuse_hidden(content):
    texts = [content.text]
    for message in content.messages or []:
        parts = message.get("content") if type(message) is dict else None
        texts += [part.get("text") for part in parts if type(part) is dict] if type(parts) is list else [parts]
    if HIDDEN in texts:
        raise RowError("was hidden by OpenInference.", field=content.path, hint=OI_HINT)


def _put_openinference_tools(content, attributes):
    definitions, _ = otel_values.gathered(attributes, OI_TOOLS)
    for i, definition in enumerate(definitions):
        path = f"attributes.{OI_TOOLS}.{i}.tool"
        logged = definition.get("tool", definition) if type(definition) is dict else None
        schema = logged.get("json_schema") if type(logged) is dict else None
        if otel_values.is_broken(schema):
            content.cut = content.cut or f"{path}.json_schema"
        else:
            parsed = otel_values.loaded(schema)
            content.tools.append(tool(parsed if type(parsed) is dict else logged, path))


def _put_openinference_output(content, attributes):
    answers, _ = otel_values.gathered(attributes, OI_OUTPUT)
    choices, _ = otel_values.gathered(attributes, CHOICES)
    if answers:
        content.output = _message(answers[0])
    elif choices:
        completion = choices[0].get("completion") if type(choices[0]) is dict else None
        content.output = completion.get("text") if type(completion) is dict else None
    elif attributes.get("output.mime_type") == "text/plain":
        content.output, content.output_path = attributes.get("output.value"), "attributes.output.value"
    if content.output == HIDDEN or (type(content.output) is dict and content.output.get("content") == HIDDEN):
        content.output = None


FLAT_PROMPTS: tuple[str, str] = ("gen_ai.prompt", "llm.prompts")
COMPLETIONS = ("gen_ai.completion", "llm.completions")
FLAT_TOOLS = "llm.request.functions"
FLAT_HINT = "Log with TRACELOOP_TRACE_CONTENT=true."


def flat_content(attributes: dict[str, Any], events: list[tuple[str, dict[str, Any]]]) -> SpanContent | None:
    """The content of a span in this convention; None if the span does not use it.

    >>> flat_content({"gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hello"}, []).messages
    [{'role': 'user', 'content': 'Hello'}]
    """
    for prompt, completion in zip(FLAT_PROMPTS, COMPLETIONS, strict=True):
        messages, is_whole = _numbered(attributes, prompt)
        if not messages:
            continue
        content = SpanContent(f"attributes.{prompt}", output_path=f"attributes.{completion}")
        content.messages = [chat_message(message) if type(message) is dict else message for message in messages]
        content.lacks = None if is_whole else "messages (their numbers have gaps)"
        if otel_values.is_broken(attributes.get(prompt)):
            content.cut = content.path
        if attributes.get("llm.request.type") == "completion" and len(messages) == 1 and type(messages[0]) is dict:
            content.messages, content.text = None, messages[0].get("content")  # no chat template applies
        _put_flat_tools(content, attributes)
        _put_flat_output(content, attributes, completion)
        return content
    return None


def _numbered(attributes, name):
    """The messages of that name (numbered, one list, or one user message), and whether the numbers have no gaps."""
    value = otel_values.loaded(attributes.get(name))
    if type(value) is list:
        return value, True
    if type(value) is str:
        return [{"role": "user", "content": value}], True
    return otel_values.gathered(attributes, name)


def _put_flat_tools(content, attributes):
    definitions, _ = otel_values.gathered(attributes, FLAT_TOOLS)
    for i, definition in enumerate(definitions):
        path = f"attributes.{FLAT_TOOLS}.{i}"
        schema = definition.get("parameters", definition.get("input_schema")) if type(definition) is dict else None
        if otel_values.is_broken(schema):
            content.cut = content.cut or path
        content.tools.append(tool(definition, path))


def _put_flat_output(content, attributes, name):
    answers, _ = _numbered(attributes, name)
    if answers:
        content.output = chat_message(answers[0]) if type(answers[0]) is dict else answers[0]
