"""AIPerf's custom data sets (docs.nvidia.com/aiperf, "Custom Dataset Guide"): prompts of a load test, without answers.

single_turn     {"text" or "texts", "image", ..., "timestamp" or "delay", "session_id", "output_length"}
multi_turn      {"session_id", "turns": [rows of single_turn]}
mooncake_trace  {"text_input", "messages" or "payload", "timestamp" or "delay", "session_id", "output_length"}

A text is the message of a user. `delay` is in milliseconds, before a turn and after the answer of the turn before it;
the first turn of a session has none. The later turns of multi_turn, and rows of `message_mode` delta, follow answers
that the file does not have: they are incomplete prompts. `output_length` is a limit.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import NotARequest, RowError
from . import fields
from .record import Record

SPELLINGS = False  # the reader knows all names
NOTE = "`output_length` of AIPerf's data sets is the limit of each request (max_tokens), not the length of its output"
MEDIA = {"image": "image_url", "audio": "audio_url", "video": "video_url"}  # field, plural with -s -> type of a part
CONTENT = ("text", "texts", *MEDIA, *(f"{name}s" for name in MEDIA))
PROMPTS_OF = ("messages", "payload", "text_input")  # of mooncake_trace
ANSWERS = "the answers of the turns before it"
DELTA = "the turns before it (message_mode: delta)"


def read_all(row: dict[str, Any]) -> list[Record]:
    """The Records of a row, one a turn; RowError if the row does not have this format.

    >>> turns = [{"text": "Hello"}, {"text": "Why?", "delay": 250}]
    >>> [(len(record.messages), record.delay_ms, record.lacks) for record in read_all({"turns": turns})]
    [(1, None, None), (2, 250, 'the answers of the turns before it')]
    """
    turns = row.get("turns")
    if turns is None:
        return [_single(row)]
    if type(turns) is not list or not all(type(turn) is dict for turn in turns):
        raise fields.wrong(turns, "turns", "a list of turns")
    messages: list[dict[str, Any]] = []
    records: list[Record] = []
    for i, turn in enumerate(turns):
        messages.append(_message(turn, f"turns[{i}]."))
        if turn.get("role") == "system":
            continue
        record = _described({name: value for name, value in row.items() if name != "turns"} | turn, f"turns[{i}].")
        fields.put_prompt(record, list(messages), "turns")
        record.lacks = ANSWERS if records else None
        records.append(record)
    if not records:
        raise NotARequest("has no turn of a user.", field="turns")
    return records


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    turns = row.get("turns")
    if type(turns) is list and turns and type(turns[0]) is dict:
        return any(name in turns[0] for name in CONTENT)
    if row.get("message_mode") is not None or type(row.get("text_input")) is str:
        return True
    if type(body := row.get("payload")) is dict and ("messages" in body or "prompt" in body):
        return True
    is_text = type(row.get("text")) is str or type(row.get("texts")) is list
    return is_text and not any(name in row for name in ("messages", "prompt", "input", "conversations"))


def small_unit(row: dict[str, Any]) -> str | None:
    """Milliseconds."""
    return "ms"


def _single(row) -> Record:
    record = _described(row, "")
    value, path = fields.find([("", row)], "input", *PROMPTS_OF)
    if path == "text_input" and type(value) is str:
        value = [{"role": "user", "content": value}]
    elif value is None:
        value, path = [_message(row, "")], "text"
    fields.put_prompt(record, value, path)
    if row.get("message_mode") == "delta":
        record.lacks = DELTA
    return record


def _described(row, prefix) -> Record:
    """The Record of a row without its prompt. Its time may be unknown."""
    record = fields.described([("", row)], row.get("timestamp"))
    if record.time is None:
        record.delay_ms = fields.delay_ms(row, prefix)
    return record


def _message(turn, prefix) -> dict[str, Any]:
    """The message of a turn: a text, or parts of texts and media."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": text} for text in _contents(turn, "text", prefix)]
    for name, kind in MEDIA.items():
        parts += [{"type": kind, kind: {"url": item}} for item in _contents(turn, name, prefix)]
    if not parts:
        raise RowError("is missing. It must hold the prompt.", field=f"{prefix}text", hint="Try --map input=FIELD.")
    role = turn.get("role") or "user"
    is_text = len(parts) == 1 and parts[0]["type"] == "text"
    return {"role": role, "content": parts[0]["text"] if is_text else parts}


def _contents(turn, name, prefix) -> list[str]:
    """The contents of `text` or `texts`: strings, or objects of a name with its contents."""
    value = turn.get(name)
    items = [] if value is None else [value]
    more = turn.get(f"{name}s")
    if more is not None:
        if type(more) is not list:
            raise fields.wrong(more, f"{prefix}{name}s", "a list")
        items += more
    contents: list[Any] = []
    for item in items:
        contents += item["contents"] if type(item) is dict and type(item.get("contents")) is list else [item]
    if not all(type(item) is str for item in contents):
        raise RowError("is not text.", field=f"{prefix}{name}")
    return contents
