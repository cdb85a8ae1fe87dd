"""Portkey's exports of logs, JSON Lines (portkey.ai/docs/product/observability/logs-export).

`request` and `response` are bodies as the provider's API has them, under their names, under `body` in them, or under
`request.body` and `response.body`. `created_at` is the time, `req_units` and `res_units` are token counts, and `_user`
in `metadata` is the user. A trace id is new for each request unless the client sets it: it is not read as a session.
An export has `response_time` in milliseconds, and no time of the first token. Cached tokens are those of the response.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import FailedCall, RowError
from . import fields
from .bodies import number, read_bodies
from .fieldmap import unpacked
from .record import Record

SPELLINGS = False  # the reader knows all names
MARKS = ("ai_model", "ai_org", "req_units", "res_units", "is_success")


def read(row: dict[str, Any]) -> Record:
    """The Record of one request; NotARequest if it failed, RowError if the row does not have this format.

    >>> row = {"created_at": "2031-03-04T05:06:07Z", "ai_model": "m", "res_units": 7}
    >>> read(row | {"request": {"messages": [{"role": "user", "content": "Hello"}]}}).output_length
    7
    """
    if row.get("is_success") in (0, False, "0", "false"):
        raise FailedCall(field="is_success")
    time, path = fields.time_in([("", row)], "created_at")
    if time is None:
        raise RowError(fields.MISSING_TIME, field=path, hint="Try --map timestamp=FIELD.")
    metadata = unpacked(row.get("metadata"))
    metadata = metadata if type(metadata) is dict else {}
    dotted = "request.body" in row
    row = row | {"prompt_tokens": row.get("prompt_tokens") or number(row.get("req_units")) or None}
    return read_bodies(
        row, time=time, request="request.body" if dotted else "request",
        response="response.body" if dotted else "response", model=fields.plain_key(row, "ai_model"),
        user=fields.plain_key(metadata, "_user"), session=fields.plain_key(metadata, "session_id"),
        output_length=number(row.get("res_units")) or None,
        service_s=fields.service_in([("", row)], response_time=1e-3),
    )  # fmt: skip


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    has_body = row.get("request") is not None or row.get("request.body") is not None
    return has_body and "created_at" in row and any(name in row for name in MARKS)


def small_unit(row: dict[str, Any]) -> str | None:
    """None: times are ISO 8601."""
    return None
