"""BurstGPT's CSV: seconds, a model, and token counts a row, in later releases a session too; nothing of the prompts.

https://github.com/HPMLL/BurstGPT: Timestamp, (Session ID, Elapsed time,) Model, Request tokens, Response tokens, Total
tokens, Log Type. A row without response tokens is a request that failed: the files named `without_fails` leave it out,
and so do we.
"""

from __future__ import annotations

from ..._base.errors import EmptyPrompt, NotARequest
from . import fields, tables
from .record import Record

PROMPTS = False  # lengths only


def read(row: dict) -> Record:
    """The Record of one row, its lengths alone; NotARequest where the request failed, RowError where it is no such row.

    >>> read({"Timestamp": "5", "Model": "ChatGPT", "Request tokens": "472", "Response tokens": "18"}).input_length
    472
    """
    places = [("", {"session": row.get("Session ID"), "model": row.get("Model")} | row)]
    record = fields.common(places, *fields.find(places, "timestamp", "Timestamp"))
    record.input_length = tables.tokens(row, "Request tokens")
    record.output_length = tables.tokens(row, "Response tokens")
    record.type = record.type or "text"
    if not record.input_length:
        raise EmptyPrompt("the prompt is empty.", field="Request tokens")
    if not record.output_length:
        raise NotARequest("the request failed: it has no response tokens.", field="Response tokens")
    return record


def matches(row: dict) -> bool:
    """Whether the row looks like one of this form."""
    return "Request tokens" in row and "Response tokens" in row


def small_unit(row: dict) -> str | None:
    """The unit of a time too small for an epoch: BurstGPT counts seconds."""
    return None if row.get("timestamp") is not None else "s"
