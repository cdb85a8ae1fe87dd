"""The Azure LLM inference traces as CSV: a time and two token counts a row, without prompts.

https://github.com/Azure/AzurePublicDataset: TIMESTAMP, ContextTokens, GeneratedTokens. The 2023 files have no time
zone, the 2024 files have one.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import EmptyPrompt
from . import fields, layouts
from .record import Record

PROMPTS = False  # lengths only


def read(row: dict[str, Any]) -> Record:
    """The Record of one row, with its lengths only; RowError if the row does not have this format.

    >>> read({"TIMESTAMP": "2023-11-16 18:17:03", "ContextTokens": "4808", "GeneratedTokens": "10"}).input_length
    4808
    """
    time, path = fields.find([("", row)], "timestamp", "TIMESTAMP")
    record = fields.common([("", row)], time, path)
    record.input_length = layouts.token_count(row, "ContextTokens")
    record.output_length = layouts.token_count(row, "GeneratedTokens")
    record.type = record.type or "text"
    if not record.input_length:
        raise EmptyPrompt("the prompt is empty.", field="ContextTokens")
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    return "ContextTokens" in row and "GeneratedTokens" in row


def small_unit(row: dict[str, Any]) -> str | None:
    """None: times are dates."""
    return None
