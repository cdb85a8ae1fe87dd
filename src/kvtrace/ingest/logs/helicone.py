"""Helicone's exports of requests (npx @helicone/export --include-body, and the answers of its request API).

github.com/Helicone/helicone, examples/export/typescript/index.ts; docs.helicone.ai/tools/export: `request_body` and
`response_body` as the provider's API has them, `request_created_at`, `request_user_id`, `request_properties` with
`Helicone-Session-Id`, and token counts, `prompt_cache_read_tokens` among them. `time_to_first_token` and `delay_ms` are
in milliseconds. CSV has no response bodies. Exports without --include-body have no prompts.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import FailedCall, RowError
from . import fields
from .bodies import number, read_bodies
from .fieldmap import unpacked
from .record import Record

SPELLINGS = False  # the reader knows all names
SESSION = ("Helicone-Session-Id", "helicone-session-id")


def read(row: dict[str, Any]) -> Record:
    """The Record of one request; NotARequest if it failed, RowError if the row does not have this format.

    >>> row = {"request_created_at": "2031-03-04T05:06:07Z", "completion_tokens": 7}
    >>> read(row | {"request_body": {"messages": [{"role": "user", "content": "Hello"}]}}).output_length
    7
    """
    status = number(row.get("response_status"))
    if type(status) is int and (status >= 400 or status < 0):
        raise FailedCall(field="response_status")
    if row.get("request_body") is None and row.get("input") is None:
        hint = "Export with --include-body."
        raise RowError("is missing: the prompt was not exported.", field="request_body", hint=hint)
    properties = unpacked(row.get("request_properties"))
    time, path = fields.time_in([("", row)], "request_created_at")
    if time is None:
        raise RowError(fields.MISSING_TIME, field=path, hint="Try --map timestamp=FIELD.")
    row = row | {"prompt_tokens": number(row.get("prompt_tokens"))}
    return read_bodies(
        row, time=time, request="request_body", response="response_body",
        session=fields.plain_key(properties, *SESSION) if type(properties) is dict else None,
        user=fields.plain_key(row, "request_user_id", "helicone_user"),
        model=fields.plain_key(row, "response_model", "request_model"),
        id=fields.plain_key(row, "request_id", "response_id"),
        output_length=number(row.get("completion_tokens")) or None,
        service_s=fields.service_in([("", row)], delay_ms=1e-3), end_time=row.get("response_created_at"),
        ttft_ms=row.get("time_to_first_token"), cached_tokens=row.get("prompt_cache_read_tokens"),
    )  # fmt: skip


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    return "request_created_at" in row and ("request_body" in row or "response_status" in row)


def small_unit(row: dict[str, Any]) -> str | None:
    """None: times are ISO 8601."""
    return None
