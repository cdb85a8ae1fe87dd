"""BurstGPT's CSV: a time in seconds, a model and token counts a row, without prompts. Later releases have a session.

https://github.com/HPMLL/BurstGPT: Timestamp, (Session ID, Elapsed time,) Model, Request tokens, Response tokens, Total
tokens, Log Type. A row without response tokens is a failed request. It is left out, as in the `without_fails` files.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import EmptyPrompt, FailedCall
from . import fields, layouts
from .record import Record

PROMPTS = False  # lengths only


def read(row: dict[str, Any]) -> Record:
    """The Record of one row, with its lengths only; NotARequest if it failed, RowError if the format is another.

    >>> read({"Timestamp": "5", "Model": "ChatGPT", "Request tokens": "472", "Response tokens": "18"}).input_length
    472
    """
    places = [("", {"session": row.get("Session ID"), "model": row.get("Model")} | row)]
    record = fields.common(places, *fields.find(places, "timestamp", "Timestamp"))
    record.input_length = layouts.token_count(row, "Request tokens")
    record.output_length = layouts.token_count(row, "Response tokens")
    record.type = record.type or "text"
    if not record.input_length:
        raise EmptyPrompt("the prompt is empty.", field="Request tokens")
    if not record.output_length:
        raise FailedCall("is 0: the request failed.", field="Response tokens")
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    return "Request tokens" in row and "Response tokens" in row


def small_unit(row: dict[str, Any]) -> str | None:
    """Seconds, unless a field map sets the time."""
    return None if row.get("timestamp") is not None else "s"
