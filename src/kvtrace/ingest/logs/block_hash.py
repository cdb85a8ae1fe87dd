"""The block-hash form: {"timestamp": ..., "input": ..., "output": ...}, and what any other log becomes by --map.

`input` is a list of messages, a text that is already templated, or a list of token ids; `output` a text, a list of
token ids, a length in tokens, or an assistant's message. Optional: session (session_id, conversation_id), user
(user_id, safety_identifier, tenant), type, model, adapter, tools, output_length, prompt_tokens, id.
"""

from __future__ import annotations

from . import fields
from .record import Record


def read(row: dict) -> Record:
    """The Record of one row; RowError where the row is not of this form.

    >>> read({"timestamp": 0, "input": "Hello", "output": [5, 6]}).output_length
    2
    """
    places = [("", row)]
    record = fields.common(places, *fields.find(places, "timestamp"))
    fields.put_prompt(record, *fields.find(places, "input"))
    fields.put_output(record, *fields.find(places, "output"))
    return record


def matches(row: dict) -> bool:
    """Whether the row looks like one of this form."""
    return row.get("input") is not None


def small_unit(row: dict) -> str | None:
    """The unit of a time too small for an epoch, where the field's name says it: here it does not."""
    return None
