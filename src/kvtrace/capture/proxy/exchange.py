"""One request and its answer as the proxy saw them: the payload of its sources.

A payload is one line of JSON (times, sizes, codings), the bytes of the request's body, and the bytes of the answer's.
No header is part of it, except the values of those that the user names as session and user.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from ..._base.errors import RowError

MAX_ARRIVALS = 64  # pieces of an answer whose time is kept: the first token is in one of the first


@dataclass(frozen=True, slots=True, repr=False)
class Exchange:
    """A request and its answer, as bytes. It holds text, so its repr shows nothing of it."""

    request: bytes  # the body, in its content coding
    answer: bytes  # likewise, as far as it came and was kept
    arrived_ns: int  # since 1970: the request's headers were there
    ended_ns: int  # the last byte of the answer was there
    complete: bool  # all bytes of the answer are here
    streamed: bool  # the answer is a stream of events
    arrivals: list[tuple[int, int]] = field(default_factory=list)  # (bytes of the answer so far, time in ns)
    request_coding: str = ""  # the values of Content-Encoding
    answer_coding: str = ""
    session: str | None = None
    user: str | None = None

    def packed(self) -> bytes:
        """The exchange as a payload.

        >>> exchange = Exchange(b"{}", b"[]", arrived_ns=1, ended_ns=2, complete=True, streamed=False)
        >>> Exchange.unpacked(exchange.packed()) == exchange
        True
        """
        head = {name: getattr(self, name) for name in _HEAD}
        return b"".join((orjson.dumps(head | {"size": len(self.request)}), b"\n", self.request, self.answer))

    @classmethod
    def unpacked(cls, payload: bytes) -> Exchange:
        """The exchange of a payload; RowError if the payload is damaged."""
        head, newline, bodies = payload.partition(b"\n")
        try:
            values = orjson.loads(head)
            size = values.pop("size")
            arrivals = [(offset, time_ns) for offset, time_ns in values.pop("arrivals")]
            exchange = cls(request=bodies[:size], answer=bodies[size:], arrivals=arrivals, **values)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
            exchange = None
        if exchange is None or not newline:
            raise RowError("the payload of the proxy is damaged.")
        return exchange


_HEAD = (
    "arrived_ns", "ended_ns", "complete", "streamed", "arrivals", "request_coding", "answer_coding", "session", "user",
)  # fmt: skip
