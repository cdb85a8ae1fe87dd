"""Record: one request of a raw log, still with its text, in the one shape that every reader returns."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Record:
    """One request as logged: one of `messages`, `text`, `token_ids`, `hashes`, `input_length` tells the prompt."""

    time: Any = None  # as logged: a number or a string; logs/times.py knows its unit; None where the log has no times
    messages: list[dict] | None = None  # chat messages, to be rendered by the chat template
    tools: list[dict] | None = None  # tool definitions, rendered with the messages
    text: str | None = None  # a prompt that is already templated
    token_ids: array[int] | None = None  # a prompt that is already tokenised, uint32
    hashes: array[int] | None = None  # an engine's own chained hashes, uint64, one a block: as secret as the prompt
    block_size: int | None = None  # tokens a block, where `hashes` were made with it
    input_length: int | None = None  # the prompt's tokens, beside `hashes`, or where the log holds lengths only
    output_text: str | None = None
    output_ids: array[int] | None = None  # uint32
    output_length: int | None = None  # as logged, tokens; wins over counting output_text
    session: str | None = None  # conversation key, secret: only its keyed digest leaves a worker
    user: str | None = None  # user key, secret likewise
    tenant: str | None = None  # tenant key, secret likewise; the organisation that a user belongs to
    type: str | None = None  # request type: text, image, file, search, ...
    model: str | None = None  # part of the root key: caches of two models share nothing
    adapter: str | None = None
    media: list[bytes] = field(default_factory=list)  # what identifies each image, audio or file part
    prompt_tokens: int | None = None  # the log's own count, to check tokenizer and template against
    id: str | None = None  # the request's own name, secret as the session is
    cut: str | None = None  # JSON path of a text that the logger cut short; to be refused, or counted
    lacks: str | None = None  # what the logged prompt lacks, in words ("the system prompt"); treated likewise
