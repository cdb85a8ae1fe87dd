"""Tokenised requests, as vLLM logs them with return_token_ids. They need no tokenizer and are exact.

`prompt_token_ids` in the row, the response, its first choice or the request; `token_ids` or `output_token_ids`
likewise, else a length (`output_length`, `usage.completion_tokens`). Rows are flat or pairs (see pairs.py). Times and
the other fields are read as in openai.py.
"""

from __future__ import annotations

from typing import Any

from . import fields, pairs
from .pairs import small_unit as small_unit
from .record import Record


def read(row: dict[str, Any]) -> Record:
    """The Record of one tokenised request; RowError if the row does not have this format.

    >>> read({"timestamp": 0, "prompt_token_ids": [1, 2, 3], "token_ids": [4]}).token_ids
    array('I', [1, 2, 3])
    """
    requests, responses, record = pairs.opened(row)
    _put_media(record, requests)
    mapped, path = fields.find(requests[:1], "input")  # a field map puts the prompt there
    fields.put_prompt(record, *((mapped, path) if mapped is not None else _prompt_ids(requests, responses)))
    if record.output_length is None:
        usage = pairs.usage(responses)
        record.output_length = fields.count(*fields.find(usage, "completion_tokens", "output_tokens"))
    fields.put_output(record, *_output(requests, responses))
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    requests, responses = pairs.split(row)
    return _prompt_ids(requests, responses)[0] is not None


def _prompt_ids(requests, responses):
    return fields.find([*pairs.places(requests, responses), *pairs.first_choice(responses)], "prompt_token_ids")


def _output(requests, responses):
    places = [*pairs.places(requests, responses), *pairs.first_choice(responses)]
    value, path = fields.find(places, "output_token_ids", "token_ids")
    return (value, path) if value is not None else fields.find(requests[:1], "output")


def _put_media(record, requests):
    """Take the identity of media from the messages: in token ids, all images are the same placeholder tokens."""
    messages, path = fields.find(requests, "messages")
    if messages is not None:
        fields.put_messages(record, messages, path)
        record.messages = record.cut = None
