"""Request/response pairs as gateways log them, for the readers of such logs; and requests without a response.

Flat: both in the row. Nested: {"request": {...}, "response": {...}}. OpenAI's Batch files, joined: {"custom_id": ...,
"body": {...}, "response": {"body": {...}}}. Request and response may be JSON in a string.

The length of the output of a row without an answer is unknown. A row is such a row only if it has no field of an
answer, or an empty one. An answer of a shape that its reader does not know is an error, and so are messages that end
with the assistant's: they may be the answer, and not the prompt.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import FailedCall, OtherCall, RowError
from .fieldmap import MISSING, unfolded
from .fieldmap import unpacked as unpacked
from .fields import Places, common, find
from .record import Record


def split(row: dict[str, Any]) -> tuple[Places, Places]:
    """The places of the request's fields and of the response's fields. The row itself is the first place of both.

    >>> split({"body": {"model": "a"}, "response": {"body": {"created": 5}}})[1][1]
    ('response.body.', {'created': 5})
    """
    request = _inside(row, "request") or _inside(row, "body")
    response = _inside(row, "response")
    return [("", row), *request], [("", row), *response]


def opened(row: dict[str, Any]) -> tuple[Places, Places, Record]:
    """The places of `split`, and a Record with the time, the names and the counts that all APIs have."""
    requests, responses = split(row)
    _require_generation(requests, responses)
    return requests, responses, common(places(requests, responses), *time_of(requests, responses))


OTHER_PATHS = ("embeddings", "rerank", "score", "classify", "moderations", "images/generations", "audio/speech",
               "audio/transcriptions", "models", "tokenize", "detokenize")  # fmt: skip  # of APIs that generate no text
PATHS = ("url", "path", "endpoint", "route", "request_path", "call_type")  # fields with the path of a call
STATUSES = ("status_code", "http_status", "response_status", "status")


def _require_generation(requests: Places, responses: Places) -> None:
    """OtherCall for a call of another kind than a generation, FailedCall for one that was answered with an error.

    >>> _require_generation([("", {"url": "/v1/embeddings", "input": "Hello"})], [])
    Traceback (most recent call last):
    kvtrace._base.errors.OtherCall: url: is a call that generates no text.
    >>> _require_generation([], [("response.", {"status_code": 503})])
    Traceback (most recent call last):
    kvtrace._base.errors.FailedCall: response.status_code: the call failed; nothing was generated.
    """
    for prefix, place in requests:
        for name in PATHS:
            path = place.get(name)
            if type(path) is str and path.partition("?")[0].rstrip("/").endswith(OTHER_PATHS):
                raise OtherCall("is a call that generates no text.", field=prefix + name)
    for prefix, place in responses:
        data = place.get("data")
        if type(data) is list and data and type(data[0]) is dict and "embedding" in data[0]:
            raise OtherCall("is a call that generates no text.", field=f"{prefix}data")
        for name in STATUSES:
            status = place.get(name)
            if type(status) is int and 400 <= status < 600:
                raise FailedCall(field=prefix + name)
        if place.get("error") and not any(place.get(name) for name in ANSWERS if name != "response"):
            raise FailedCall(field=f"{prefix}error")


def places(requests: Places, responses: Places) -> Places:
    """The places of fields that either may have: the row, the response (it names the model that ran), the request."""
    return [*responses, *requests[1:]]


def time_of(requests: Places, responses: Places) -> tuple[Any, str]:
    """The logged time and its JSON path: the row's `timestamp`, else the response's time of creation."""
    time, path = find(requests[:1], "timestamp")
    if time is None and requests[0][1].get("timestamp") is None:
        created, where = find(responses, "created", "created_at")
        return (created, where) if created is not None else (None, path)
    return time, path


def small_unit(row: dict[str, Any]) -> str | None:
    """Seconds for `created`, as the API defines it; None for `timestamp`."""
    return None if row.get("timestamp") is not None else "s"


def first_choice(responses: Places) -> Places:
    """The place of the response's first choice: a list of one or none."""
    choices, path = find(responses, "choices")
    has_choice = type(choices) is list and choices and type(choices[0]) is dict
    return [(f"{path}[0].", choices[0])] if has_choice else []


def usage(responses: Places) -> Places:
    """The place of the server's token counts: a list of one or none."""
    counts, path = find(responses, "usage")
    return [(f"{path}.", counts)] if type(counts) is dict else []


def inside(row: dict[str, Any], name: str) -> Places:
    """The place of the object of that name in the row, which may be JSON in a string: a list of one or none."""
    value = _object(row.get(name))
    return [] if value is None else [(f"{name}.", value)]


def _inside(row, name):
    """The place of the object of that name in the row, or of its `body`: a list of one or none."""
    value, path = _object(row.get(name)), f"{name}."
    if value is None:
        return []
    body = _object(value.get("body"))
    return [(path, value)] if body is None else [(f"{path}body.", body)]


def _object(value):
    value = unpacked(value)
    return unfolded(value) if type(value) is dict else None


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
