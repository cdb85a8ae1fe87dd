"""Where a gateway's row keeps the request and the response, for the readers of such pairs.

Flat: both in the row. Nested: {"request": {...}, "response": {...}}. As in OpenAI's Batch files, joined: {"custom_id":
..., "body": {...}, "response": {"body": {...}}}. Request or response may be JSON in a string.
"""

from __future__ import annotations

from typing import Any

import orjson

from .fields import Places, find


def split(row: dict) -> tuple[Places, Places]:
    """Where to look for the request's fields, and where for the response's: the row itself always comes first.

    >>> split({"body": {"model": "a"}, "response": {"body": {"created": 5}}})[1][1]
    ('response.body.', {'created': 5})
    """
    here = ("", row)
    request = _inside(row, "request") or _inside(row, "body")
    response = _inside(row, "response")
    return [here, *request], [here, *response]


def places(requests: Places, responses: Places) -> Places:
    """Where to look for what either may hold: the row, then the response, which names the model that really ran."""
    return [*responses, *requests[1:]]


def time_of(requests: Places, responses: Places) -> tuple[Any, str]:
    """The time as logged and its JSON path: the row's `timestamp`, else when the response was created."""
    time, path = find(requests[:1], "timestamp")
    if time is None and requests[0][1].get("timestamp") is None:
        created, where = find(responses, "created", "created_at")
        return (created, where) if created is not None else (None, path)
    return time, path


def small_unit(row: dict) -> str | None:
    """The unit of a time too small for an epoch: `created` holds seconds by the API's definition."""
    return None if row.get("timestamp") is not None else "s"


def first_choice(responses: Places) -> Places:
    """The first of the response's choices, where there is one."""
    choices, path = find(responses, "choices")
    is_there = type(choices) is list and choices and type(choices[0]) is dict
    return [(f"{path}[0].", choices[0])] if is_there else []


def usage(responses: Places) -> Places:
    """Where the server's own token counts stand."""
    found, path = find(responses, "usage")
    return [(f"{path}.", found)] if type(found) is dict else []


def unpacked(value: Any) -> dict | list | None:
    """The object or list that a value is, or that it holds as JSON text; None where it is and holds neither.

    >>> unpacked('[{"role": "user"}]'), unpacked("[broken")
    ([{'role': 'user'}], None)
    """
    if type(value) is str and value.startswith(("{", "[")):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None  # then it is text that only begins like JSON, or JSON that was cut
    return value if type(value) in (dict, list) else None


def inside(row: dict, name: str) -> Places:
    """The object of that name in the row, JSON in a string or not, and where it is: a list of one or none."""
    value = _object(row.get(name))
    return [] if value is None else [(f"{name}.", value)]


def _inside(row, name):
    """The object of that name in the row and the `body` in it, whichever holds the fields: a list of one or none."""
    value, path = _object(row.get(name)), f"{name}."
    if value is None:
        return []
    body = _object(value.get("body"))
    return [(path, value)] if body is None else [(f"{path}body.", body)]


def _object(value):
    value = unpacked(value)
    return value if type(value) is dict else None
