"""Calls of LiteLLM: what its callbacks log of each, one line a call. They come from Python, or as POST /litellm."""

from __future__ import annotations

import orjson

from ..._base.errors import RowError
from ..litellm_calls import is_packed, unpacked
from ..source import Lines, Source


class LiteLLMRows(Lines):
    """Turns packed calls into lines of the log format `litellm`; payloads of POST /litellm are lines already.

    >>> from kvtrace.capture.litellm_calls import packed
    >>> LiteLLMRows().of(packed({"id": "a"})), LiteLLMRows().of(b'{"id":"a"}')
    ([b'{"id":"a"}'], [b'{"id":"a"}'])
    """

    def of(self, payload: bytes) -> list[bytes]:
        """The lines of the payload; RowError if a call has no JSON."""
        if not is_packed(payload):
            return super().of(payload)
        try:
            return [orjson.dumps(unpacked(payload), default=str, option=orjson.OPT_NON_STR_KEYS)]
        except (ValueError, TypeError, LookupError, RecursionError):  # of both libraries
            raise RowError("cannot be written as JSON.") from None


SOURCE: Source = Source("litellm", log_format="litellm", time_unit="s", rows=LiteLLMRows)
