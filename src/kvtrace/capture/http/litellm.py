"""The route of LiteLLM's callback `generic_api`: POST /litellm, a JSON array, or lines, of StandardLoggingPayloads.

docs.litellm.ai/docs/observability/generic_api. The payload of the queue is one line for each call, with the fields that
the reader of such logs needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from ..litellm_fields import needed
from ..source import Put
from .bodies import Refusal
from .otlp import JSON
from .routes import Answer, Route, plain, retry_later

NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")


def litellm_routes(put: Put, *, keep: Iterable[str] = ()) -> Mapping[str, Route]:
    """The path of LiteLLM's callback, which puts payloads of the source `litellm` into the queue.

    Args:
        put: Puts a payload into the queue.
        keep: Names of more fields of a call, or of its metadata, to keep.
    """
    return {"/litellm": _Calls(put, frozenset(keep))}


class _Calls:
    content_types = (JSON, *NDJSON)  # LiteLLM sends lines as application/json, too

    def __init__(self, put: Put, keep: frozenset[str]):
        self.put, self.keep = put, keep

    def take(self, body: bytes, content_type: str) -> Answer:
        """Puts the calls into the queue as one payload."""
        lines = [orjson.dumps(needed(call, self.keep)) for call in calls_of(body)]
        if lines and not self.put("litellm", b"\n".join(lines), len(lines)):
            raise retry_later()
        return Answer(200, b"{}")

    def refuse(self, refusal: Refusal, content_type: str) -> Answer:
        """The refusal in one sentence."""
        return plain(refusal.status, refusal.reason)


def calls_of(body: bytes) -> list[dict[str, Any]]:
    """The objects of a JSON array, of lines of JSON, or one; Refusal if it is something else.

    >>> calls_of(b'[{"id": "a"}, null]'), calls_of(b'{"id": "a"}\\n{"id": "b"}\\n')
    ([{'id': 'a'}], [{'id': 'a'}, {'id': 'b'}])
    """
    try:
        if body.lstrip()[:1] == b"[":
            calls = orjson.loads(body)
        else:
            calls = [orjson.loads(line) for line in body.splitlines() if line.strip()]
    except orjson.JSONDecodeError:
        calls = [0]
    if not all(type(call) is dict or call is None for call in calls):  # LiteLLM may send null for a call
        raise Refusal(400, "The body is not a JSON array or lines of JSON objects.")
    return [call for call in calls if call is not None]
