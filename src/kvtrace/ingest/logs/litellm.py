"""LiteLLM's log of a call: its StandardLoggingPayload (docs.litellm.ai/docs/proxy/logging_spec), or a spend log's row.

The prompt is `messages`, else the body in `proxy_server_request`, where spend logs keep it when they are told to.
Calls that generate no text (embeddings, images, ...) and calls that failed are no requests. Spend logs take the middle
out of each text of more than 2,048 characters and leave `(litellm_truncated skipped ... chars)` in its place.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import NotARequest, RowError
from . import anthropic, fields, pairs, responses
from .record import Record

REQUESTS = frozenset(
    ("completion", "acompletion", "text_completion", "atext_completion", "anthropic_messages", "responses",
     "aresponses", "generate_content", "agenerate_content", "generate_content_stream", "agenerate_content_stream")
)  # fmt: skip
COMPLETIONS = ("text_completion", "atext_completion")  # of a text that no chat template renders
REDACTED = "redacted-by-litellm"  # what stands in place of every text with turn_off_message_logging

SESSION = ("litellm_session_id", "trace_id")
USER = ("end_user", "user_api_key_end_user_id", "user_api_key_user_id", "user_api_key_hash", "user_api_key", "api_key")
TENANT = ("user_api_key_org_id", "organization_id", "user_api_key_team_id", "team_id")


def read(row: dict) -> Record:
    """The Record of one call; RowError where the row is not of this form, NotARequest where nothing was generated.

    >>> row = {"call_type": "acompletion", "startTime": 5.5, "completion_tokens": 7, "metadata": {}}
    >>> read(row | {"messages": [{"role": "user", "content": "Hello"}]}).output_length
    7
    """
    _require_generation(row)
    row = {name: value for name, value in row.items() if value not in ("", "{}", {})}  # spend logs write no nulls
    requests = [("", row)]
    for name in ("proxy_server_request", "model_parameters", "optional_params"):
        requests += pairs.inside(row, name)
    record = fields.common(requests, *_time(row))
    places = [*requests[:1], *pairs.inside(row, "metadata")]
    fields.fill(record, row, places, session=SESSION, user=USER, tenant=TENANT)
    _put_prompt(record, row, requests)
    _put_answer(record, row)
    return record


def matches(row: dict) -> bool:
    """Whether the row looks like one of this form."""
    return "startTime" in row and "call_type" in row


def small_unit(row: dict) -> str | None:
    """The unit of a time too small for an epoch: `startTime` holds seconds."""
    return None if row.get("timestamp") is not None else "s"


def _require_generation(row):
    call_type = row.get("call_type")
    if type(call_type) is str and call_type and call_type not in REQUESTS:
        raise NotARequest("is a call that generates no text.", field="call_type")
    if row.get("status") == "failure":
        raise NotARequest("is a call that failed: nothing was generated.", field="status")


def _time(row):
    time, path = fields.find([("", row)], "timestamp")
    return (time, path) if row.get("timestamp") is not None else fields.find([("", row)], "startTime")


def _put_prompt(record, row, requests):
    value, path = fields.find(requests, "input", "messages", "prompt")  # `input` is where a map puts the prompt
    if value is None:
        hint = "Spend logs hold it with store_prompts_in_spend_logs: true."
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
    """The messages, and their path; a text is a user's message, unless it is a completion's prompt."""
    if type(value) is str:
        found = pairs.unpacked(value)
        if found is None and value.startswith('[{"'):
            record.cut = path  # JSON that breaks off
        elif found is None and value and row.get("call_type") not in COMPLETIONS:
            value = [{"role": "user", "content": value}]
        value = value if found is None else found
    if type(value) is dict and type(value.get("messages")) is list:
        return value["messages"], f"{path}.messages"
    return ([value] if type(value) is dict and "role" in value else value), path


def _put_chat(record, row, requests, turns, path):
    """The messages in the chat form, after the instructions that two of the interfaces keep apart from them."""
    told, where = fields.find(requests[1:], "system", "instructions")
    messages = [] if told is None else [({"role": "system", "content": told}, where)]
    if row.get("call_type") in ("responses", "aresponses"):
        messages += responses.chat_messages(turns, path)
    elif row.get("call_type") == "anthropic_messages":
        for i, turn in enumerate(turns):
            messages += anthropic.chat_messages(turn, f"{path}[{i}]")
    else:
        messages += [(turn, f"{path}[{i}]") for i, turn in enumerate(turns)]
    for message, where in messages:
        fields.put_message(record, message, where)
    record.messages = [message for message, _ in messages]
    record.type = record.type or "text"


def _require_text(record, path):
    texts = [record.text] if record.messages is None else [message.get("content") for message in record.messages]
    if REDACTED in texts:
        hint = "Log with turn_off_message_logging: false."
        raise RowError("was redacted by LiteLLM: there is no prompt to read.", field=path, hint=hint)


def _put_answer(record, row):
    """The answer and its length; a count of 0 beside an answer means that nobody counted."""
    places = pairs.inside(row, "response")
    usage = pairs.usage(places) if places else []
    stated = record.output_length
    if stated is None:
        stated = fields.count(*fields.find([("", row), *usage], "completion_tokens", "output_tokens"))
    if record.prompt_tokens is None and usage:
        record.prompt_tokens = fields.count(*fields.find(usage, "prompt_tokens", "input_tokens"))
    record.prompt_tokens = record.prompt_tokens or None
    record.output_length = stated or None
    value, path = _answer(row, places)
    if value in (REDACTED, None, ""):
        record.output_length, value = stated, None
    if type(value) is list and value and type(value[0]) is dict:
        fields.put_spoken(record, [message for message, _ in responses.chat_messages(value, path)], path)
    else:
        fields.put_output(record, value, path)


def _answer(row, places) -> tuple[Any, str]:
    """What the model said, and where: a choice, a message, the items of the Responses API, or plain text."""
    value, path = fields.find([("", row)], "output")
    if value is not None or not places:
        return (value, path) if value is not None else fields.find([("", row)], "response")
    if choice := pairs.first_choice(places):
        return fields.find(choice, "message", "text")
    prefix, response = places[0]
    if "content" in response:
        return response, prefix.rstrip(".")
    return fields.find(places, "output", "text")
