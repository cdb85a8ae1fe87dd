"""The Azure LLM inference traces as CSV: a time and two token counts a row, and nothing of the prompts.

https://github.com/Azure/AzurePublicDataset: TIMESTAMP, ContextTokens, GeneratedTokens. Times of 2023 have no
zone, those of 2024 do.
"""

from __future__ import annotations

from ..._base.errors import EmptyPrompt
from . import fields, tables
from .record import Record

PROMPTS = False  # lengths only


def read(row: dict) -> Record:
    """The Record of one row, its lengths alone; RowError where the row is not of this form.

    >>> read({"TIMESTAMP": "2023-11-16 18:17:03", "ContextTokens": "4808", "GeneratedTokens": "10"}).input_length
    4808
    """
    time, path = fields.find([("", row)], "timestamp", "TIMESTAMP")
    record = fields.common([("", row)], time, path)
    record.input_length = tables.tokens(row, "ContextTokens")
    record.output_length = tables.tokens(row, "GeneratedTokens")
    record.type = record.type or "text"
    if not record.input_length:
        raise EmptyPrompt("the prompt is empty.", field="ContextTokens")
    return record


def matches(row: dict) -> bool:
    """Whether the row looks like one of this form."""
    return "ContextTokens" in row and "GeneratedTokens" in row


def small_unit(row: dict) -> str | None:
    """The unit of a time too small for an epoch, where the field's name says it: here times are dates."""
    return None
