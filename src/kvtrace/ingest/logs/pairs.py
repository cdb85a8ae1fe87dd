"""Request/response pairs as gateways log them, for the readers of such logs.

Flat: both in the row. Nested: {"request": {...}, "response": {...}}. OpenAI's Batch files, joined: {"custom_id": ...,
"body": {...}, "response": {"body": {...}}}. Request and response may be JSON in a string.
"""

from __future__ import annotations

from typing import Any

from .fields import Places, common, find
from .json_values import unfolded
from .json_values import unpacked as unpacked
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
    return requests, responses, common(places(requests, responses), *time_of(requests, responses))


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
