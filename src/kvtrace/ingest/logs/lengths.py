"""Logs of lengths only: a time and two token counts a row, as JSON or CSV, without prompts and without hashes.

{"timestamp": 0, "input_length": 4808, "output_length": 10}, as in GuideLLM's `trace_synthetic` and in AIPerf's Mooncake
traces without `hash_ids`; Vidur's CSV (`arrived_at`, `num_prefill_tokens`, `num_decode_tokens`); other spellings. Which
prompts share a prefix is unknown.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import EmptyPrompt
from . import fields, layouts
from .record import Record

PROMPTS = False  # lengths only
TIME = ("timestamp", "arrived_at", "arrival_time")
INPUT = (
    "input_length", "input_tokens", "prompt_tokens", "input_len", "prompt_len", "prompt_length", "num_prompt_tokens",
    "num_input_tokens", "num_prefill_tokens", "context_tokens", "request_tokens", "isl",
)  # fmt: skip
OUTPUT = (
    "output_length", "output_tokens", "completion_tokens", "output_len", "completion_len", "completion_length",
    "num_completion_tokens", "num_output_tokens", "num_decode_tokens", "generated_tokens", "response_tokens", "osl",
)  # fmt: skip
OTHER_FORMS = frozenset(  # fields of rows with a prompt, with hashes or with an answer
    ("messages", "prompt", "input", "inputs", "text", "texts", "text_input", "turns", "payload", "request", "body",
     "request_body", "request.body", "conversations", "conversation", "prompt_token_ids", "hash_ids", "hashes",
     "block_hashes", "attributes", "choices", "response", "response_body", "output", "outputs", "event")
)  # fmt: skip


def read(row: dict[str, Any]) -> Record:
    """The Record of one row, with its lengths only; RowError if the row does not have this format.

    >>> record = read({"timestamp": 0, "input_tokens": 4808, "output_tokens": 10})
    >>> record.input_length, record.output_length
    (4808, 10)
    """
    record = fields.common([("", row)], *fields.find([("", row)], *TIME))
    record.prompt_tokens = None  # it is the length itself
    record.input_length = layouts.token_count(row, *INPUT)
    if record.output_length is None:
        record.output_length = fields.count(*fields.find([("", row)], *OUTPUT))
    record.type = record.type or "text"
    if not record.input_length:
        raise EmptyPrompt("the prompt is empty.", field=next(name for name in INPUT if row.get(name) is not None))
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    if OTHER_FORMS & row.keys() or not any(name in row for name in INPUT):
        return False
    return any(name in row for name in (*OUTPUT, *TIME))


def small_unit(row: dict[str, Any]) -> str | None:
    """Seconds for Vidur's `arrived_at`; None for `timestamp`."""
    return "s" if row.get("timestamp") is None and row.get("arrived_at") is not None else None
