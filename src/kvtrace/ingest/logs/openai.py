"""OpenAI chat completion requests with their responses, from gateways and Batch files (see pairs.py).

Request: `messages` with tool calls, null contents and content parts (or `prompt`, text or ids, of the older
completions), `tools`, `user` or `safety_identifier`. Response: `created` in seconds (the row's `timestamp` takes
precedence); `model`, else the request's; `choices[0]`, its message or its `text`; `usage.prompt_tokens` and
`usage.completion_tokens`, which takes precedence over counting the text; `usage.prompt_tokens_details.cached_tokens`
(platform.openai.com/docs/guides/prompt-caching), which vLLM and SGLang write if they are told to.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import RowError
from . import contents, fields, pairs
from .pairs import small_unit as small_unit
from .record import Record


def read(row: dict[str, Any]) -> Record:
    """The Record of one request and its response; RowError if the row does not have this format.

    >>> row = {"created": 5, "messages": [{"role": "user", "content": "Hello"}], "usage": {"completion_tokens": 7}}
    >>> read(row).output_length
    7
    """
    requests, responses, record = pairs.opened(row)
    _put_prompt(record, requests)
    fields.put_usage(record, pairs.usage(responses))
    _put_answer(record, responses)
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    requests, _ = pairs.split(row)
    return fields.find(requests, "messages", "prompt")[0] is not None


def _put_prompt(record, requests):
    value, path = fields.find(requests[:1], "input")  # a field map puts the prompt there
    if value is None:
        value, path = fields.find(requests, "messages", "prompt")
    if value is None and "custom_id" in requests[0][1]:
        hint = "A Batch has its requests and responses in two files: give both."
        raise RowError("is missing. It must hold the prompt.", field=path, hint=hint)
    if type(value) is list and value and type(value[0]) in (str, list) and path.endswith("prompt"):  # one or more
        if len(value) > 1:
            raise RowError(f"holds {len(value)} prompts; expected one.", field=path, hint=SEVERAL)
        value = value[0]
    fields.put_prompt(record, value, path)
    # a completion's text gets the tokenizer's start token, unless the request asks for none
    record.add_special_tokens = record.text is not None and (record.shaping or {}).get("add_special_tokens", True)


SEVERAL = "Write a row for each prompt: the engine serves each as a request of its own."


def _put_answer(record, responses):
    value, path = fields.find(responses[:1], "output")
    if value is None:
        value, path = fields.find(pairs.first_choice(responses) or [("choices[0].", {})], "message", "text")
    if value is None:
        value, path = _other_answer(responses) or (value, path)
    fields.put_output(record, value, path)


def _other_answer(responses):
    """An answer outside `choices`, and its JSON path: a message or text in the response, or a text in the row."""
    row = responses[0][1]
    if type(row.get("response")) is str and len(responses) == 1:
        return row["response"], "response"
    for prefix, place in reversed(responses):
        for name in contents.TEXTS:
            if type(place.get(name)) is str:
                return place[name], prefix + name
    prefix, response = responses[-1]
    is_answer = contents.is_assistant(response) or type(response.get("message")) is dict
    return (response, prefix.rstrip(".")) if is_answer and len(responses) > 1 else None
