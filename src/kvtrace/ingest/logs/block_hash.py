"""The block-hash format: {"timestamp": ..., "input": ..., "output": ...}. `--map` turns other logs into it.

`input` is a list of messages, a templated text, or a list of token ids. `output` is a text, a list of token ids, a
length in tokens, or an assistant's message. Optional: session (session_id, conversation_id), user (user_id,
safety_identifier, tenant), type, model, adapter, tools, output_length, prompt_tokens, id.
"""

from __future__ import annotations

from typing import Any

from . import fields
from .record import Record


def read(row: dict[str, Any]) -> Record:
    """The Record of one row; RowError if the row does not have this format.

    >>> read({"timestamp": 0, "input": "Hello", "output": [5, 6]}).output_length
    2
    """
    places = [("", row)]
    record = fields.common(places, *fields.find(places, "timestamp"))
    fields.put_prompt(record, *fields.find(places, "input"))
    fields.put_output(record, *fields.find(places, "output"))
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    return row.get("input") is not None


def small_unit(row: dict[str, Any]) -> str | None:
    """None: the field's name does not tell the unit of small times."""
    return None
