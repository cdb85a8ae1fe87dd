"""LangSmith's runs, one a row, as its API gives them (docs.langchain.com/langsmith/run-data-format).

A run of type `llm` is a request: `inputs` with messages (as the provider's API has them, or LangChain's, in a batch of
one) or prompts, `outputs` with choices, generations or a message, `start_time`, token counts. Other runs (chains,
tools, retrievers) are left out. A thread is in `extra.metadata`: `session_id`, `thread_id` or `conversation_id`. The
run's own `session_id` is its project, and `tenant_id` the workspace of the log's owner; neither is read. Measured are
`first_token_time`, and `cache_read` in the run's `prompt_token_details` or in the message's `usage_metadata`
(reference.langchain.com, langsmith.schemas.InputTokenDetails).
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import FailedCall, NotARequest
from . import bodies, fields
from .bodies import number
from .fieldmap import unpacked
from .record import Record, put_cached

SPELLINGS = False  # the reader knows all names
THREAD = ("session_id", "thread_id", "conversation_id")
NOT_OURS = ("session_id", "tenant_id", "session_name")
PROMPT_TOKENS = ("input_tokens", "prompt_tokens")
PROMPTS = ("messages", "prompts", "prompt", "input", "contents")


def read(row: dict[str, Any]) -> Record:
    """The Record of one run; NotARequest if it is of another type or failed, RowError if it is bad.

    >>> row = {"run_type": "llm", "start_time": "2031-03-04T05:06:07Z", "outputs": {"content": "Hi"}}
    >>> read(row | {"inputs": {"messages": [{"role": "user", "content": "Hello"}]}}).output_text
    'Hi'
    """
    if row.get("run_type") != "llm":
        raise NotARequest("is not a run of a model.", field="run_type")
    if row.get("error") and not row.get("outputs"):
        raise FailedCall(field="error")
    extra = _object(row, "extra")
    metadata, invocation = _object(extra, "metadata"), _object(extra, "invocation_params")
    place = {name: value for name, value in row.items() if name not in NOT_OURS}
    time, path = fields.time_in([("", row)], "start_time")
    record = fields.common([("", place | {"prompt_tokens": number(row.get("prompt_tokens")) or None})], time, path)
    record.output_length = record.output_length or fields.count(
        number(row.get("completion_tokens")), "completion_tokens"
    )
    record.output_length = record.output_length or None
    fields.fill(
        record, row, [("extra.metadata.", metadata)], session=THREAD, user=("user_id",), model=("ls_model_name",)
    )
    fields.fill(record, row, [("extra.invocation_params.", invocation)], model=("model", "model_name"))
    put_cached(record, [("", row)], "prompt_token_details.cache_read")
    _put_prompt(record, row, invocation)
    _put_answer(record, row)
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    return type(row.get("run_type")) is str and "start_time" in row and ("inputs" in row or "outputs" in row)


def small_unit(row: dict[str, Any]) -> str | None:
    """None: times are ISO 8601, or milliseconds since 1970."""
    return None


def _object(place, name):
    value = unpacked(place.get(name))
    return value if type(value) is dict else {}


def _put_prompt(record, row, invocation):
    value, path = fields.find([("", row)], "input", "inputs")  # a field map puts the prompt into `input`
    inputs = unpacked(value)
    if type(inputs) is dict and path == "inputs":
        tools = unpacked(inputs.get("tools", invocation.get("tools")))
        if record.tools is None and type(tools) is list and all(type(tool) is dict for tool in tools):
            record.tools = tools or None
        value, path = fields.find([("inputs.", inputs)], *PROMPTS)
        if path == "inputs.prompts" and type(value) is list and len(value) == 1:
            value, path = value[0], "inputs.prompts[0]"
        elif path == "inputs.messages" and inputs.get("system") is not None:  # Anthropic's
            value, path = inputs, "inputs"
    bodies.put_prompt(record, value, path)


def _put_answer(record, row):
    value, path = fields.find([("", row)], "output", "outputs")
    outputs = unpacked(value)
    if type(outputs) is dict and path == "outputs":
        for name in ("usage_metadata", "usage"):
            fields.put_usage(record, [(f"outputs.{name}.", _object(outputs, name))], prompt=PROMPT_TOKENS)
        usage = _object(_object(outputs, "llm_output"), "token_usage")
        fields.put_usage(record, [("outputs.llm_output.token_usage.", usage)], prompt=PROMPT_TOKENS)
        value = outputs
        generation = outputs.get("generations")
        while type(generation) is list and generation:
            generation, path = generation[0], "outputs.generations"
        if type(generation) is dict:
            put_cached(record, [("", bodies.usage_of(generation.get("message")))])
            message = bodies.chat_message(generation.get("message"))
            value = message if type(message) is dict and "role" in message else generation
        else:
            put_cached(record, [("", bodies.usage_of(value))])
            value = bodies.chat_message(value)
    fields.put_output(record, value, path)
