"""Read the prompts of a log as `anonymize` does, as numbers of chunks in a table."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import orjson

from ..encoding import Encoder
from ..logs.fields import identity_of
from ..logs.record import Record
from . import segments
from .chunks import ChunkTable, plain
from .segments import Segment

MIN_ANSWER = 20  # characters of an answer that tells a conversation from others


class Tools(NamedTuple):
    """Numbers that stand for the tools of a request: as they are sent, and without their order and that of keys."""

    sent: int
    sorted: int


@dataclass(slots=True, repr=False)
class Prompt:
    """The prompt of one request: its chunks, and the message and role of each."""

    chunks: np.ndarray  # int32
    starts: np.ndarray  # segment -> its first chunk
    messages: list[int]  # segment -> message
    roles: list[str]  # segment -> role
    regions: list[int]  # segment -> region
    last_answer: int | None  # the first chunk of the last assistant message; None = it has none
    session: str | None
    time_ns: int
    tools: Tools | None = None  # None = the log has none
    output: int | None = None  # a number that stands for the answer; None = unknown, or too short to tell
    answers: frozenset[int] = frozenset()  # those of the answers in the prompt


class PromptReader(Encoder):
    """Encodes pieces of a log as `anonymize` does; its records keep their messages and tools."""

    keeps_messages = True


def prompt_of(record: Record, time_ns: int, table: ChunkTable) -> Prompt | None:
    """The prompt of a request; None if it holds no text."""
    text = _with_media(record)
    if not text:
        return None
    if record.messages is None:
        parts = segments.of_text(text)
        answers = [part.message for part in parts[:-1] if part.role == "assistant"]
    else:
        parts = segments.of_messages(text, record.messages)
        answers = [place for place, message in enumerate(record.messages) if message.get("role") == "assistant"]
    chunks, starts = array("i"), []
    for part in parts:
        starts.append(len(chunks))
        chunks.extend(table.cut(part.text))
    return Prompt(
        np.array(chunks, np.int32), np.array(starts, np.int32), [part.message for part in parts],
        [part.role for part in parts], [part.region for part in parts],
        _start_of(answers[-1], parts, starts) if answers else None, record.session, time_ns,
        _tools(record.tools), _answer(record.output_text), frozenset(_answers(record, parts)),
    )  # fmt: skip


def _with_media(record: Record) -> str | None:
    """The text of the prompt, with a word in the place of each medium, which is another one for another medium."""
    if not record.placed:
        return record.text
    words = [_word(medium.part) for medium in record.placed]
    texts = record.texts or []
    return "".join(piece for pair in zip(texts, [*words, ""], strict=True) for piece in pair)


def _word(part: dict[str, Any] | None) -> str:
    if part is None:
        return ""
    digest = int.from_bytes(sha256(identity_of(part, "messages")).digest()[:8], "big")
    return "\ufffc" + "".join(chr(0xE100 + (digest >> shift) % 4096) for shift in range(0, 48, 12)) + "\n"


def _answers(record: Record, parts: list[Segment]) -> Iterator[int]:
    """The numbers of the answers in a request's messages, or in its text between the marks of roles."""
    if record.messages is None:
        texts: list[Any] = [part.text for part in parts if part.role == "assistant"]
    else:
        texts = [message.get("content") for message in record.messages if message.get("role") == "assistant"]
    for text in texts:
        if (number := _answer(text)) is not None:
            yield number


def _answer(text: Any) -> int | None:
    short = plain(segments.without_marks(text)) if type(text) is str else ""
    return hash(short) if len(short) >= MIN_ANSWER else None


def _tools(tools: list[dict[str, Any]] | None) -> Tools | None:
    if not tools:
        return None
    kept = [orjson.dumps(tool, option=orjson.OPT_SORT_KEYS) for tool in tools]
    return Tools(hash(orjson.dumps(tools)), hash(tuple(sorted(kept))))


def _start_of(answer: int, parts: list[Segment], starts: list[int]) -> int:
    """The first chunk of an answer, or of the template's text before it, which a cue for the answer may change."""
    place = next((place for place, part in enumerate(parts) if part.message >= answer), len(parts) - 1)
    return starts[max(0, place - 1)] if parts[max(0, place - 1)].role == "template" else starts[place]
