"""What the service measured of a request: prompt tokens from its cache, and times to the first token and the end.

Readers name where their format has these values; the tables below hold the names that formats share. A value that is
not valid (negative, words, of months) counts as unknown, and is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from .fieldmap import MISSING
from .fieldmap import find as find_path
from .record import Record

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
MAX_TOKENS = 2**31
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
    return value if type(value) is int and 0 <= value < MAX_TOKENS else None


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
            if (found := seconds_of(value, unit)) is not None:
                return found
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
