"""vLLM's own log, with --enable-log-requests (vllm/entrypoints/logger.py): lines `Received request ID: prompt: ...`.

The forms of 2023 to 2025 have the prompt in that line, before the sampling parameters; the one with
--enable-log-request-prompts has it after them, with at most 4,096 characters or 512 ids. A line has no year and whole
seconds, unless a container's log puts a time before it. It has no output length: a request with `ignore_eos` generates
`max_tokens`; for others it is unknown, or `--map output_length=max_tokens` takes the limit. Other lines are left out.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

import orjson

from ..._base.errors import NotARequest
from . import fields
from .record import Record

SPELLINGS = False  # the fields are ours
CONVERSATION = False
MAX_PREVIEW = {"prompt": 4096, "prompt_token_ids": 512}
YEAR = 2000  # a leap year; the log names none, and a trace counts from its first request
MARK = b"Received request "
_LINE = re.compile(r"Received request (\S+): (.*)", re.DOTALL)
_LITERAL = re.compile(r"""\bprompt: (None|'[^'\\]*+(?:\\.[^'\\]*+)*+'|"[^"\\]*+(?:\\.[^"\\]*+)*+")""", re.DOTALL)
_ID = r"(?:0|[1-9][0-9]{0,9})"
_IDS = re.compile(rf"\bprompt_token_ids: \[({_ID}(?:, ?{_ID})*)\]")
_STAMP = re.compile(r"\s*(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s")
_TIME = re.compile(r"\b(?:(\d{4})-)?(\d\d-\d\d \d\d:\d\d:\d\d)\b")


def row_of_line(line: bytes) -> dict[str, Any] | None:
    """The fields of a line that logs a request; None for any other line.

    >>> line = b"INFO 06-10 23:35:35 [x.py:39] Received request a: prompt: 'Hi', params: SamplingParams(max_tokens=5)."
    >>> row_of_line(line)["prompt"], row_of_line(line)["max_tokens"], row_of_line(line)["timestamp"]
    ('Hi', 5, '2000-06-10 23:35:35')
    """
    if MARK not in line:
        return None
    text = line.decode("utf-8", "replace")
    match = _LINE.search(text)
    if match is None:
        return None
    identity, rest = match.groups()
    literal = _LITERAL.search(rest)
    parameters = rest if literal is None else rest[: literal.start()] + rest[literal.end() :]
    ids = _IDS.search(parameters)
    row = {"vllm": "request", "id": identity, "timestamp": _time(text[: match.start()])}
    row["prompt"] = None if literal is None else _text(literal[1])
    row["prompt_token_ids"] = orjson.loads(f"[{ids[1]}]") if ids else None
    row["is_preview"] = literal is not None and "params: " in rest[: literal.start()]
    row["max_tokens"] = _number(parameters, "max_tokens")
    row["ignore_eos"] = "ignore_eos=True" in parameters
    adapter = re.search(r"lora_name='([^']*)'", parameters)
    row["adapter"] = adapter[1] if adapter else None
    return {name: value for name, value in row.items() if value is not None}


def read(row: dict[str, Any]) -> Record:
    """The Record of one line; NotARequest if it has no prompt.

    >>> read({"vllm": "request", "timestamp": "2000-06-10 23:35:35", "prompt": "Hi", "output_length": 5}).text
    'Hi'
    """
    if row.get("vllm") != "request":
        raise NotARequest("is not a line that logs a request.")
    value, path = fields.find([("", row)], "input", "prompt_token_ids", "prompt")
    if value is None:
        raise NotARequest("logs a request without its prompt.", field="prompt")
    record = fields.common([("", row)], *fields.time_in([("", row)], "timestamp"))
    fields.put_prompt(record, value, path)
    if row.get("is_preview") and len(value) == MAX_PREVIEW.get(path):
        record.cut = path
    if record.output_length is None and row.get("ignore_eos") is True:
        record.output_length = fields.count(row.get("max_tokens"), "max_tokens")
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row is of such a line."""
    return row.get("vllm") == "request"


def small_unit(row: dict[str, Any]) -> str | None:
    """None: times are dates."""
    return None


def _time(prefix):
    """The time of a line, from a container's stamp or the logger's own, as ISO 8601; None if it has neither."""
    if stamp := _STAMP.match(prefix):
        return stamp[1]
    match = _TIME.search(prefix)
    return None if match is None else f"{match[1] or YEAR}-{match[2]}"


def _text(literal):
    """The text of a Python literal; None if it is not one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = ast.literal_eval(literal)
    except (SyntaxError, ValueError, MemoryError):
        return None
    return text if type(text) is str else None


def _number(parameters, name):
    match = re.search(rf"\b{name}=([0-9]{{1,9}})\b", parameters)
    return int(match[1]) if match else None
