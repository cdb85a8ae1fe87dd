"""Rows without an answer, as of a log of prompts: the length of their output is unknown.

A row is such a row only if it has no field of an answer, or an empty one. An answer of a shape that its reader does not
know is an error, and so are messages that end with the assistant's: they may be the answer, and not the prompt.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import RowError
from .fieldmap import MISSING
from .record import Record

ANSWERS = (
    "output", "response", "choices", "outputs", "answer", "completion", "generation", "generated_text", "output_text",
    "reply", "response_body", "response.body",
)  # fmt: skip
EMPTY = (None, MISSING, "", "{}")
UNREAD = "is not an answer that this log format reads."
ASSISTANT = (
    "end with a message of the assistant, and the row has no other answer: is it the answer, or a part of the prompt?"
)
ASSISTANT_HINT = "For the answer, use --log-format conversations; for a part of the prompt, log the body as `request`."


def require_no_answer(record: Record, row: dict[str, Any]) -> None:
    """RowError if the row of a record without output may hold its answer.

    >>> require_no_answer(Record(text="Hello"), {"prompt": "Hello", "response": None})
    >>> require_no_answer(Record(text="Hello"), {"prompt": "Hello", "response": {"status": 200}})
    Traceback (most recent call last):
    kvtrace._base.errors.RowError: response: is not an answer that this log format reads. Try --map output=response.
    """
    for name in ANSWERS:
        value = row.get(name)
        if value not in EMPTY and (value != {} or name == "choices"):
            raise RowError(UNREAD, field=name, hint=f"Try --map output={name}.")
    messages = record.messages
    if messages and messages[-1].get("role") == "assistant" and _is_flat(row):
        raise RowError(ASSISTANT, field="messages", hint=ASSISTANT_HINT)


def _is_flat(row) -> bool:
    """Whether the row itself has the messages, and does not say that the last one is a part of the prompt."""
    has_messages = any(type(row.get(name)) in (list, str) for name in ("messages", "input"))
    return has_messages and row.get("continue_final_message") is not True
