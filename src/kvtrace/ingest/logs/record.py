"""Record: a request of a raw log, with text or block hashes; and the names that logs have for measured fields.

Every reader returns Records. Readers name where their format has measured values (prompt tokens from the cache, times
to the first token and the end); the tables below hold the names that formats share. A value that is not valid
(negative, words, of months) counts as unknown, and is counted.

Some logs have block hashes in hexadecimal instead of text. They become 64-bit words, and show the block size.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..._base.errors import RowError
from ...formats.block_size import fitting
from ...trace.invariants import MAX_LENGTH
from .fieldmap import MISSING, wrong
from .fieldmap import find as find_path


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
    shaping: dict[str, Any] | None = None  # other fields that can change the prompt (`shaping_of` in contents.py)
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


Places = list[tuple[str, dict[str, Any]]]

SERVICE = {  # from the start of a request to its end -> seconds in the field's unit
    "service_s": 1.0, "service_ms": 1e-3, "e2e_s": 1.0, "e2e_ms": 1e-3,
    "duration_s": 1.0, "latency_s": 1.0, "e2e_latency_s": 1.0, "elapsed_s": 1.0,
    "duration_ms": 1e-3, "durationMs": 1e-3, "latency_ms": 1e-3, "latencyMs": 1e-3,
    "e2e_latency_ms": 1e-3, "elapsed_ms": 1e-3, "response_time_ms": 1e-3,
}  # fmt: skip
TTFT = {  # from the start to the first token, likewise
    "ttft_s": 1.0, "time_to_first_token_s": 1.0,
    "ttft_ms": 1e-3, "ttftMs": 1e-3, "time_to_first_token_ms": 1e-3, "timeToFirstTokenMs": 1e-3,
}  # fmt: skip
QUEUE = {  # from the start until the engine took the request up, likewise
    "queue_s": 1.0, "queue_time_s": 1.0, "time_in_queue_s": 1.0,
    "queue_ms": 1e-3, "queueMs": 1e-3, "queue_time_ms": 1e-3, "time_in_queue_ms": 1e-3,
}  # fmt: skip
FIRST_TOKEN = ("first_token_time", "firstTokenTime", "completionStartTime", "completion_start_time", "first_token_at")
CACHED = ("cached_tokens", "cachedTokens", "num_cached_tokens", "cache_read_input_tokens")  # prompt tokens
USAGE_CACHED = (  # in the usage of a response
    "prompt_tokens_details.cached_tokens",  # chat completions of OpenAI, vLLM and SGLang
    "input_tokens_details.cached_tokens",  # OpenAI's Responses
    "cache_read_input_tokens",  # Anthropic's Messages
    "input_token_details.cache_read",  # LangChain's usage_metadata
    "prompt_token_details.cache_read",  # LangSmith's runs
    "prompt_cache_hit_tokens",  # DeepSeek
    "cached_tokens",  # Moonshot
    "input_cached_tokens", "input_cache_read",  # Langfuse's integrations of OpenAI and of LangChain
)  # fmt: skip

_ROW = frozenset((*CACHED, *SERVICE, *TTFT, *QUEUE, *FIRST_TOKEN))
_NOTHING: Mapping[str, float] = {}

MAX_SERVICE_S = 30 * 86_400.0  # a longer request is a mistake of the log
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{0,9})?", re.ASCII)
_WHOLE = re.compile(r"-?[0-9]{1,18}(\.0*)?", re.ASCII)  # data frames write 12.0


def whole_number(value: Any) -> Any:
    """A whole number that a table has as text, or a data frame as 12.0, as an int; any other value unchanged.

    >>> whole_number("12.0"), whole_number(12.0), whole_number("12 tokens"), whole_number(None)
    (12, 12, '12 tokens', None)
    """
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is str and _WHOLE.fullmatch(value):
        return int(value.partition(".")[0])
    return value


def tokens_of(value: Any) -> int | None:
    """A number of tokens; None if the value is not one.

    >>> tokens_of("12"), tokens_of(-1), tokens_of(True)
    (12, None, None)
    """
    value = whole_number(value)
    return value if type(value) is int and 0 <= value <= MAX_LENGTH else None


def seconds_of(value: Any, unit: float = 1.0) -> float | None:
    """A duration in seconds, from a number of this many seconds, which may be text; None if it is not one.

    >>> seconds_of("250", 0.001), seconds_of(-1), seconds_of(1e300), seconds_of(float("nan"))
    (0.25, None, None, None)
    """
    if type(value) is str and len(value) < 20 and _DECIMAL.fullmatch(value):
        value = float(value)
    return value * unit if type(value) in (int, float) and 0 <= value * unit <= MAX_SERVICE_S else None


def service_in(places: Places, **seconds: float) -> float | None:
    """The seconds from the start of a request to its end, from a field of SERVICE or one of these; None if unknown.

    Args:
        places: Where to look.
        seconds: Other names, each with the seconds in its unit.

    >>> service_in([("", {"latency_ms": 250, "delay": 3})]), service_in([("", {"delay": 3})], delay=0.001)
    (0.25, 0.003)
    """
    for names in (SERVICE, seconds):
        for value, unit in _values(places, names):
            if (duration_s := seconds_of(value, unit)) is not None:
                return duration_s
    return None


def put_row(record: Record, row: dict[str, Any]) -> None:
    """Set the measured values that a row has under the names that all formats share.

    >>> record = Record()
    >>> put_row(record, {"ttft_ms": 250, "queue_s": "a while", "cached_tokens": "96"})
    >>> record.cached_tokens, record.ttft_s, record.queue_s, record.invalid
    (96, 0.25, None, {'queue_ms'})
    """
    if _ROW & row.keys():
        if record.service_s is None and any(_values([("", row)], SERVICE)):
            record.invalid.add("e2e_ms")
        put_measured(record, [("", row)], cached=CACHED, ttft=TTFT, queue=QUEUE, first_token=FIRST_TOKEN)


def put_measured(
    record: Record,
    places: Places,
    *,
    cached: tuple[str, ...] = (),
    ttft: Mapping[str, float] = _NOTHING,
    queue: Mapping[str, float] = _NOTHING,
    first_token: tuple[str, ...] = (),
) -> None:
    """Set the measured values that the record does not have yet; the first valid field counts.

    Args:
        record: The request; `invalid` gets the columns without a valid value.
        places: Where to look.
        cached: Paths of the prompt tokens that came from the cache.
        ttft, queue: Paths of durations, each with the seconds in its unit.
        first_token: Paths of the time of the first token, in the notation of the log's times.

    >>> record = Record()
    >>> put_measured(record, [("meta.", {"e2e": 3, "queue_time": 0.5})], queue={"queue_time": 1.0})
    >>> record.queue_s
    0.5
    """
    if cached and record.cached_tokens is None:
        counts = _values(places, dict.fromkeys(cached, 1.0))
        record.cached_tokens = _valid(record, "cached_tokens", [tokens_of(value) for value, _ in counts])
    if ttft and record.ttft_s is None:
        record.ttft_s = _valid(record, "ttft_ms", [seconds_of(value, unit) for value, unit in _values(places, ttft)])
    if queue and record.queue_s is None:
        record.queue_s = _valid(record, "queue_ms", [seconds_of(value, unit) for value, unit in _values(places, queue)])
    if first_token and record.first_token is None:
        record.first_token = next((value for value, _ in _values(places, dict.fromkeys(first_token, 1.0))), None)


def put_cached(record: Record, places: Places, *names: str) -> None:
    """Set the cached tokens from the usage of a response, or from these fields of it; no other value.

    >>> record = Record()
    >>> put_cached(record, [("usage.", {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}})])
    >>> record.cached_tokens
    4
    """
    if record.cached_tokens is None and places:
        put_measured(record, places, cached=names or USAGE_CACHED)


def put_spans(record: Record, place: Mapping[str, Any], **spans: tuple[str, str]) -> None:
    """Set durations from pairs of times on one clock, in seconds: `ttft_s=("arrived", "first_token")`.

    Engines write 0 for a time that they did not record.

    >>> record = Record()
    >>> put_spans(record, {"arrived": 10.0, "first": 10.5, "taken": 0}, ttft_s=("arrived", "first"),
    ...           queue_s=("arrived", "taken"))
    >>> record.ttft_s, record.queue_s
    (0.5, None)
    """
    for name, (since, until) in spans.items():
        span = span_s(place, since, until)
        if getattr(record, name) is None and span is not None:
            setattr(record, name, _valid(record, f"{name.removesuffix('_s')}_ms", [seconds_of(span)]))


def span_s(place: Mapping[str, Any], since: str, until: str) -> float | None:
    """The seconds between two times on one clock; None if one of them is missing or 0."""
    start, end = place.get(since), place.get(until)
    return end - start if type(start) in (int, float) and type(end) in (int, float) and start and end else None


def clear_measured(record: Record) -> None:
    """Leave out all measured values, those of the whole request too: they are not this request's."""
    record.end_time = record.service_s = record.cached_tokens = record.ttft_s = record.queue_s = None
    record.first_token, record.invalid = None, set()


def _values(places: Places, names: Mapping[str, float]) -> Iterator[tuple[Any, float]]:
    """The values that some place has under these names, in the order of the names, each with its unit."""
    for name, unit in names.items():
        for _, place in places:
            value = place.get(name)
            if value is None and "." in name:
                value = find_path(place, name)
            if value is not None and value is not MISSING and value != "":
                yield value, unit


def _valid(record, column, values):
    """The first valid one of the values of a column, where None is an invalid one; None if there is none."""
    valid = next((value for value in values if value is not None), None)
    if valid is not None:
        record.invalid.discard(column)
    elif values:
        record.invalid.add(column)
    return valid


WORD = 16  # hexadecimal digits of 64 bits


def hex_hashes(values: Any, path: str, *, digits: int) -> array[int]:
    """The hashes of a prompt's blocks as uint64 words, the words of a hash side by side; RowError, without content.

    Args:
        values: The list of the log.
        path: Its JSON path.
        digits: Of each hash, a multiple of 16.

    >>> hex_hashes(["00000000000000ff"], "hashes", digits=16)
    array('Q', [255])
    """
    if type(values) is not list:
        raise wrong(values, path, "a list of hashes")
    text = "".join(values) if all(type(value) is str and len(value) == digits for value in values) else ""
    if len(text) != digits * len(values) or not re.fullmatch("[0-9a-fA-F]*", text):
        raise RowError(f"is not a list of hashes: each must be a text of {digits} hexadecimal digits.", field=path)
    return array("Q", np.frombuffer(bytes.fromhex(text), dtype=">u8").astype(np.uint64).tobytes())


def is_hashes(values: Any, *, digits: int) -> bool:
    """Whether the value is a list of hashes, by its first one.

    >>> is_hashes(["00000000000000ff"], digits=16), is_hashes([7], digits=16)
    (True, False)
    """
    if type(values) is not list or not values or type(values[0]) is not str:
        return False
    return len(values[0]) == digits and re.fullmatch("[0-9a-fA-F]+", values[0]) is not None


def fitted_size(records: Sequence[Record], words: int, tail: str) -> int | None:
    """The block size that fits the lengths and hashes of these requests; None if no size does, or several do.

    Args:
        records: Requests with `hashes`; those without `input_length` show nothing.
        words: 64-bit words of a hash.
        tail: "kept" if the last, partial block of a prompt has a hash, "dropped" if it has none.

    >>> fitted_size([Record(input_length=1200, hashes=array("Q", [1, 2]))], 1, "dropped")
    512
    """
    samples = [
        (record.input_length, len(record.hashes) // words)
        for record in records
        if record.hashes and record.input_length
    ]
    if not samples:
        return None
    lengths, blocks = np.array(samples, dtype=np.int64).T
    sizes = fitting(lengths, blocks, tail)
    if sizes.rows < len(samples):
        return None
    candidates = [sizes.low] if sizes.low == sizes.high else sizes.powers()
    return candidates[0] if len(candidates) == 1 else None
