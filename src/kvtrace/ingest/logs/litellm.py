"""LiteLLM's call log: its StandardLoggingPayload (docs.litellm.ai/docs/proxy/logging_spec), or rows of its spend logs.

The prompt is `messages`, else the body in `proxy_server_request`, where spend logs store it if configured to. Failed
calls and calls that generate no text (embeddings, images, ...) are left out. Spend logs remove the middle of each text
of more than 2,048 characters and put `(litellm_truncated skipped ... chars)` in its place. `completionStartTime` is the
time of the first token, and the end if the answer was not streamed. Cached tokens are in the response's `usage`, or in
the metadata: `usage_object` of the payload, `additional_usage_values` of spend logs (spend_tracking_utils.py).
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import FailedCall, OtherCall, RowError
from . import anthropic, fields, pairs, responses
from .record import Record, put_cached

REQUESTS = frozenset(
    ("completion", "acompletion", "text_completion", "atext_completion", "anthropic_messages", "responses",
     "aresponses", "generate_content", "agenerate_content", "generate_content_stream", "agenerate_content_stream")
)  # fmt: skip
COMPLETIONS = ("text_completion", "atext_completion")  # the prompt is a text without a chat template
REDACTED = "redacted-by-litellm"  # replaces every text with turn_off_message_logging

PROMPT = ("input", "messages", "prompt")  # a field map puts it into `input`
SESSION = ("litellm_session_id", "trace_id")
ACCOUNT = ("user_api_key_user_id", "user_api_key_hash", "user_api_key", "api_key")
USER = ("end_user", "user_api_key_end_user_id", *ACCOUNT)
USAGE = ("usage_object", "additional_usage_values")  # in the metadata
TENANT = ("user_api_key_org_id", "organization_id", "user_api_key_team_id", "team_id")


def read(row: dict[str, Any]) -> Record:
    """The Record of one call; NotARequest if nothing was generated, RowError if the row does not have this format.

    >>> row = {"call_type": "acompletion", "startTime": 5.5, "completion_tokens": 7, "metadata": {}}
    >>> read(row | {"messages": [{"role": "user", "content": "Hello"}]}).output_length
    7
    """
    record, row, requests = call(row)
    _put_prompt(record, row, requests)
    put_answer(record, row)
    return record


def call(row: dict[str, Any]) -> tuple[Record, dict[str, Any], fields.Places]:
    """The Record of a call without prompt and answer, its row without empty values, and the places of its request."""
    _require_generation(row)
    row, requests = _opened(row)
    record = fields.common(requests, *_time(row))
    places = [*requests[:1], *pairs.inside(row, "metadata")]
    record.service_s = fields.service_in(requests[:1], response_time=1.0) if record.end_time is None else None
    _put_cached(record, row)
    fields.fill(record, row, places, session=SESSION, user=USER, account=ACCOUNT, tenant=TENANT)
    return record, row, requests


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    return "startTime" in row and "call_type" in row


def small_unit(row: dict[str, Any]) -> str | None:
    """Seconds for `startTime`; None for `timestamp`."""
    return None if row.get("timestamp") is not None else "s"


def _require_generation(row):
    call_type = row.get("call_type")
    if type(call_type) is str and call_type and call_type not in REQUESTS:
        raise OtherCall("is not a text generation call.", field="call_type")
    if row.get("status") == "failure":
        raise FailedCall(field="status")


def _time(row):
    time, path = fields.find([("", row)], "timestamp")
    return (time, path) if row.get("timestamp") is not None else fields.find([("", row)], "startTime")


def has_prompt(row: dict[str, Any]) -> bool:
    """Whether the row holds its prompt.

    >>> has_prompt({"messages": "{}", "proxy_server_request": '{"messages": []}'}), has_prompt({"messages": "{}"})
    (True, False)
    """
    return fields.find(_opened(row)[1], *PROMPT)[0] is not None


def _opened(row):
    """The row without empty values, and the places of its request."""
    row = {name: value for name, value in row.items() if value not in ("", "{}", {})}  # null in spend logs
    requests = [("", row)]
    for name in ("proxy_server_request", "model_parameters", "optional_params"):
        requests += pairs.inside(row, name)
    return row, requests


def _put_prompt(record, row, requests):
    value, path = fields.find(requests, *PROMPT)
    if value is None:
        hint = "For spend logs, set store_prompts_in_spend_logs: true."
        raise RowError("is missing: the prompt was not logged.", field=path, hint=hint)
    value, path = _unpacked(record, row, value, path)
    if type(value) is list and value and type(value[0]) is dict:
        _put_chat(record, row, requests, value, path)
    else:
        fields.put_prompt(record, value, path)
    _require_text(record, path)
    if fields.find(requests[1:], "previous_response_id")[0] is not None:
        record.lacks = "the turns before it (previous_response_id)"


def _unpacked(record, row, value, path):
    """The messages and their path. A text is a user message, unless it is a completion's prompt."""
    if type(value) is str:
        parsed = pairs.unpacked(value)
        if parsed is None and value.startswith('[{"'):
            record.cut = path  # incomplete JSON
        elif parsed is None and value and row.get("call_type") not in COMPLETIONS:
            value = [{"role": "user", "content": value}]
        value = value if parsed is None else parsed
    if type(value) is dict and type(value.get("messages")) is list:
        return value["messages"], f"{path}.messages"
    return ([value] if type(value) is dict and "role" in value else value), path


def _put_chat(record, row, requests, turns, path):
    """Set the messages, in chat format. Two of the APIs have instructions outside the messages: they come first."""
    instructions, instructions_path = fields.find(requests[1:], "system", "instructions")
    messages = [] if instructions is None else [({"role": "system", "content": instructions}, instructions_path)]
    if row.get("call_type") in ("responses", "aresponses"):
        messages += responses.chat_messages(turns, path)
    elif row.get("call_type") == "anthropic_messages":
        for i, turn in enumerate(turns):
            messages += anthropic.chat_messages(turn, f"{path}[{i}]")
    else:
        messages += [(turn, f"{path}[{i}]") for i, turn in enumerate(turns)]
    for message, message_path in messages:
        fields.put_message(record, message, message_path)
    record.messages = [message for message, _ in messages]
    record.type = record.type or "text"


def _put_cached(record, row):
    """Set the cached tokens. If LiteLLM answered from a cache of its own, nothing was measured."""
    if str(row.get("cache_hit")).lower() == "true":
        record.cached_tokens = record.first_token = record.ttft_s = None
        return
    usage = [entry for place in pairs.inside(row, "response") for entry in pairs.usage([place])]
    metadata = pairs.inside(row, "metadata")
    for name in USAGE:
        counts, path = fields.find(metadata, name)
        counts = pairs.unpacked(counts)
        usage += [(f"{path}.", counts)] if type(counts) is dict else []
    put_cached(record, usage)


def _require_text(record, path):
    texts = [record.text] if record.messages is None else [message.get("content") for message in record.messages]
    if REDACTED in texts:
        hint = "Log with turn_off_message_logging: false."
        raise RowError("was redacted by LiteLLM.", field=path, hint=hint)


def put_answer(record: Record, row: dict[str, Any]) -> None:
    """Set the output and its length. A count of 0 beside an answer means unknown."""
    places = pairs.inside(row, "response")
    usage = pairs.usage(places) if places else []
    logged_length = record.output_length
    if logged_length is None:
        logged_length = fields.count(*fields.find([("", row), *usage], "completion_tokens", "output_tokens"))
    if record.prompt_tokens is None and usage:
        record.prompt_tokens = fields.count(*fields.find(usage, "prompt_tokens", "input_tokens"))
    record.prompt_tokens = record.prompt_tokens or None
    record.output_length = logged_length or None
    value, path = _answer(row, places)
    if value in (REDACTED, None, ""):
        record.output_length, value = logged_length, None
    if type(value) is list and value and type(value[0]) is dict:
        fields.put_assistant_messages(record, [message for message, _ in responses.chat_messages(value, path)], path)
    else:
        fields.put_output(record, value, path)


def _answer(row, places) -> tuple[Any, str]:
    """The answer and its JSON path: a choice, a message, the items of the Responses API, or plain text."""
    value, path = fields.find([("", row)], "output")
    if value is not None or not places:
        return (value, path) if value is not None else fields.find([("", row)], "response")
    if choice := pairs.first_choice(places):
        return fields.find(choice, "message", "text")
    prefix, response = places[0]
    if "content" in response:
        return response, prefix.rstrip(".")
    return fields.find(places, "output", "text")
