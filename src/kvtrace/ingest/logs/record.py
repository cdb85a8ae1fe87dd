"""Record: one request of a raw log with its text. Every reader returns Records."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Record:
    """One request as logged. The prompt is one of `messages`, `text`, `token_ids`, `hashes` or `input_length`."""

    time: Any = None  # as logged: a number or a string (times.py finds its unit); None = unknown
    delay_ms: float | None = None  # without a time: ms from the end of the session's request before it to this one
    end_time: Any = None  # when the answer was complete, as logged, in the unit of `time`; None = unknown
    service_s: float | None = None  # seconds from the start to the end, if the log has them; wins over `end_time`
    first_token: Any = None  # when the first token was there, as logged, likewise
    ttft_s: float | None = None  # seconds from the start to the first token; wins over `first_token`
    queue_s: float | None = None  # seconds in the queue of the engine
    cached_tokens: int | None = None  # prompt tokens that the service had in its cache, by its own tokenizer
    invalid: set[str] = field(default_factory=set)  # measured columns whose logged value is not valid
    messages: list[dict[str, Any]] | None = None  # chat messages, to be rendered by the chat template
    tools: list[dict[str, Any]] | None = None  # tool definitions, rendered with the messages
    shaping: dict[str, Any] | None = None  # other fields that can change the prompt (shaping.py)
    text: str | None = None  # a templated prompt
    texts: list[str] | None = None  # the rendered prompt, cut where its media stand
    placed: list[Any] = field(default_factory=list)  # the media between `texts`
    add_special_tokens: bool = False  # the engine adds the tokenizer's start token to this text
    not_rendered: frozenset[str] = (
        frozenset()
    )  # fields of the request that are not in the prompt as the engine has them
    token_ids: array[int] | None = None  # a tokenised prompt, uint32
    hashes: array[int] | None = None  # an engine's chained hashes, uint64 words of each block; as secret as the prompt
    block_size: int | None = None  # tokens per block of `hashes`; None = the row does not state it
    media_at: list[tuple[int, bytes]] = field(default_factory=list)  # first token and identity of media in `token_ids`
    input_length: int | None = None  # prompt tokens, with `hashes` or if the log holds lengths only
    output_text: str | None = None
    output_ids: array[int] | None = None  # uint32
    output_length: int | None = None  # as logged, tokens; wins over counting output_text
    session: str | None = None  # conversation key; secret: only its keyed digest leaves a worker
    user: str | None = None  # user key, which the client may choose; secret likewise
    account: str | None = None  # key of the account or API key that the service checked; secret likewise
    tenant: str | None = None  # key of the account's organisation; secret likewise
    type: str | None = None  # request type: text, image, file, search, ...
    model: str | None = None  # part of the chain's root: caches of two models share nothing
    adapter: str | None = None
    salts: list[bytes] = field(default_factory=list)  # cache_salt, extra_key: other salts, other blocks; secret
    domain: str | None = None  # isolation domain that --map names; secret likewise
    media: list[bytes] = field(
        default_factory=list
    )  # identity of each image, audio or file without a place in the prompt
    prompt_tokens: int | None = None  # the log's own count, to check tokenizer and template
    features: int = 0  # tools, media and template arguments (usage.py), once it is rendered
    turns: int = 0  # messages of the prompt, likewise
    id: str | None = None  # the request's id; secret like the session
    cut: str | None = None  # JSON path of a text that the logger cut short
    lacks: str | None = None  # the missing part of an incomplete prompt, in words ("the system prompt")

    @property
    def has_output(self) -> bool:
        """Whether the length of the output is known, or can be counted.

        >>> Record(output_text="").has_output, Record().has_output
        (True, False)
        """
        return self.output_length is not None or self.output_text is not None or self.output_ids is not None
