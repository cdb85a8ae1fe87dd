"""The limits of client connections: how large and how slow a head may be, and how many connections are open.

uvicorn's protocols parse HTTP/1.1, with httptools or h11. A class over each adds what they lack: limits for the head of
a request and for trailers, a time in which a head must come, and one for clients that do not take their answer. Over
the limit of connections, the one that has waited longest for a request is closed in favour of a new one.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from .._base.errors import UsageError
from .asgi import Receive, Scope, Send, plain, with_retry


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """What the clients of a server may send, and how long they may take; SECURITY.md states the figures."""

    head: int = 64 << 10  # bytes of a request line and headers; and of extensions or trailers between pieces of a body
    headers: int = 256  # of a request, and of its trailers
    head_s: float = 30.0  # from the first byte of a head to its end; a new connection may be silent as long
    idle_s: float = 75.0  # a request fails where the server closes a connection that a client still uses
    take_s: float = 30.0  # a client may take nothing of its answer for this long
    linger_s: float = 2.0  # a refused client may go on sending, so that it can read the refusal
    pipelined: int = 16  # requests of a connection that wait for the answer to an earlier one
    heads: int = 32 << 20  # bytes of the heads of all requests at a time
    connections: int = 8192  # of all servers together
    reserve: int = 64  # file descriptors that connections leave for windows, their seals and the digester
    kept: int = 4  # connections that each server accepts, however many the others have


ACCEPT_AT_ONCE = 8  # asyncio accepts so many connections before it looks at one; they come out of the reserve
REASONS = {
    400: "The request is not valid HTTP/1.1.",
    408: "The head of the request did not arrive in time.",
    431: "The head of the request is too large.",
    503: "Too many requests at a time. Try again later.",
}


def free_descriptors(limits: HttpLimits) -> int:
    """The file descriptors that connections may use; UsageError if they are too few."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 2 * limits.connections
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return 2 * limits.connections
    used = len(os.listdir("/dev/fd"))
    if most < used + limits.reserve + 4 * limits.kept:
        needed = used + 2 * limits.reserve
        raise UsageError(f"the limit of open files is {most}, and servers need {needed}. Run `ulimit -n {needed}`.")
    return most - used - limits.reserve


class Connections:
    """The connections to all servers of a process, in their event loop.

    Args:
        limits: What clients may do.
        descriptors: How many file descriptors connections may use.
        clock: Seconds.
    """

    def __init__(self, limits: HttpLimits, descriptors: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self.clock = limits, clock
        self.free, self.heads_left = descriptors, limits.heads
        self.open: set[Any] = set()
        self.waiting: OrderedDict[Any, float] = OrderedDict()  # connection without a request -> since when

    def add(self, connection: Any) -> None:
        """Take a new connection. If there are too many, close others that wait for a request, or refuse it."""
        self.open.add(connection)
        self.free -= connection.descriptors
        self.wait(connection)
        while self.free < 0 or len(self.open) > self.limits.connections:
            oldest = next(iter(self.waiting))
            if oldest is not connection:
                self._close(oldest)
                continue
            if len(connection.connections) > self.limits.kept:
                connection.turn_away()
            return

    def _close(self, connection):
        connection.transport.abort()  # the descriptor is free at once, whatever the client has not taken
        connection.hold(-connection.held)
        self.remove(connection)

    def remove(self, connection: Any) -> None:
        """Forget a connection that is closed."""
        if connection in self.open:
            self.open.remove(connection)
            self.free += connection.descriptors
            self.waiting.pop(connection, None)

    def has_room_for_heads(self, connection: Any) -> bool:
        """Whether all heads are within their limit; the oldest half heads of others are closed if they are not."""
        while self.heads_left < 0:
            others = (other for other in self.waiting if other.held and other is not connection)
            oldest = next(others, None)
            if oldest is None:
                return False
            self._close(oldest)
        return True

    def wait(self, connection: Any, *, last: bool = True) -> None:
        """From now on, the connection has no request."""
        self.waiting[connection] = self.clock()
        self.waiting.move_to_end(connection, last)

    def sweep(self) -> None:
        """Close the connections whose time is over; to be called every second."""
        now = self.clock()
        for connection in list(self.open):
            connection.check(now)


_Protocol: Any = object  # one of uvicorn's, which a subclass names as its second base


class Limited(_Protocol):
    """The limits of one connection, over a protocol of uvicorn. A subclass for each parser reports what it parsed.

    Args:
        shared: All connections.
        descriptors: How many file descriptors a request on this connection needs.
        options: Those of uvicorn's protocol.
    """

    app: Any
    bad_head: type[Exception]  # which uvicorn takes as an invalid request

    def __init__(self, shared: Connections, descriptors: int, **options: Any) -> None:
        super().__init__(**options)
        self.shared, self.limits, self.descriptors = shared, shared.limits, descriptors
        self.app = partial(_with_informational, self.app, self.send_informational)
        self._fed = 0  # bytes since the parser last had something whole: a head, a piece of a body
        self._has_parsed = False  # something whole
        self.held = 0  # bytes of `shared.heads_left`
        self._has_begun = False  # a head has begun, and is not complete
        self._rejected = 0  # status for a head that the parser took
        self._refused = 0  # status of the refusal that ends this connection
        self._has_ended = False  # the refusal is sent
        self._untaken, self._taken_at = 0, 0.0  # bytes that the client has not taken, since when they are as many

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.shared.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.hold(-self.held)
        self.shared.remove(self)

    @property
    def is_active(self) -> bool:
        """Whether a request has come whose answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def is_within_head(self) -> bool:
        """Whether a part of a head has come."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        while data and not self._refused and not self.transport.is_closing():
            room = self.limits.head - self._fed
            piece, data = (data, b"") if len(data) <= room else (data[:room], data[room:])
            self._has_parsed = False
            super().data_received(piece)
            if self._has_parsed:
                self.hold(-self._fed)
                self._fed = 0
            elif not self._refused:
                self._fed += len(piece)
                if not self.hold(len(piece)):
                    self._refuse(503)
                elif self._fed >= self.limits.head:
                    self._refuse(431)
        if not self._refused and not self._has_begun and self in self.shared.waiting:
            self._has_begun = True
            self.shared.wait(self)

    def hold(self, size: int) -> bool:
        """Whether all heads have room for so many bytes more of this connection."""
        self.held += size
        self.shared.heads_left -= size
        return size <= 0 or self.shared.has_room_for_heads(self)

    def _head_is_complete(self, version, target, headers):
        """A head is parsed, but its request is not with the application yet."""
        self._has_parsed = True
        if version not in ("1.0", "1.1") or b"#" in target:
            self._reject(400)
        if len(headers) > self.limits.headers:
            self._reject(431)
        if not self.hold(len(target) + sum(len(name) + len(value) for name, value in headers)):
            self._reject(503)
        self.shared.waiting.pop(self, None)
        self._has_begun = False

    def _reject(self, status):
        """Let the parser fail; uvicorn then calls `send_400_response`."""
        self._rejected = status
        raise self.bad_head("the head is refused")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.is_active:
            return
        self.hold(self._fed - self.held)
        if self._refused and not self._has_ended:
            self._end()
        elif not self._has_ended:
            self._has_begun = self.is_within_head()
            self.shared.wait(self)

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._rejected or getattr(sys.exception(), "error_status_hint", 400))

    def _refuse(self, status):
        """Send a refusal once the answers to earlier requests are sent, and close the connection."""
        self._refused = status
        if not self.is_active:
            self._end()
        elif self.cycle.more_body and not getattr(self, "pipeline", None):  # the request itself cannot be read
            if self.cycle.response_started:
                self.transport.close()
            else:
                self.cycle.disconnected = True
                self.cycle.message_event.set()
                self._end()
        else:
            self.flow.pause_reading()

    def _end(self):
        self._has_ended = True
        self.flow.resume_reading()  # what comes is thrown away: unread bytes would reset the connection
        self.transport.write(_refusal(self._refused))
        with suppress(OSError, RuntimeError):
            self.transport.write_eof()
        self.shared.wait(self, last=False)

    def turn_away(self) -> None:
        """Refuse a connection for which there is no descriptor."""
        self._refused, self._has_ended = 503, True
        self.transport.write(_refusal(503))
        self.transport.close()

    def send_informational(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send an informational response (103 Early Hints) before the answer to the active request."""
        if not self.transport.is_closing() and not self.flow.write_paused:
            self.transport.write(
                _head(status, [field for field in headers if not re.search(rb"[\r\n\0]", b"".join(field))])
            )

    def resume_writing(self) -> None:
        super().resume_writing()
        self._untaken = 0

    def check(self, now: float) -> None:
        """Close the connection if the time of its client is over."""
        limits, untaken = self.limits, self.transport.get_write_buffer_size()
        is_writing = self.is_active and not self.flow.write_paused and not self.transport.is_closing()
        if is_writing or not untaken or untaken != self._untaken:
            self._untaken, self._taken_at = untaken, now
        elif now - self._taken_at >= limits.take_s:
            self.transport.abort()
        waited_s = now - self.shared.waiting.get(self, now)
        if self._has_ended:
            if waited_s >= limits.linger_s:
                self.transport.close()
        elif self._has_begun and waited_s >= limits.head_s:
            self._refuse(408)
        elif waited_s >= (limits.head_s if self.cycle is None else limits.idle_s):
            self.transport.close()


async def _with_informational(app, send_informational, scope: Scope, receive: Receive, send: Send) -> None:
    scope["extensions"] = {INFORMATIONAL: send_informational}
    await app(scope, receive, send)


INFORMATIONAL = "kvtrace.informational"  # extension of a scope: sends the status and headers of such a response


def _refusal(status):
    answer = with_retry(plain(status, REASONS.get(status, REASONS[400])))
    headers = {"content-type": answer.content_type, "content-length": str(len(answer.body)), "connection": "close"}
    headers |= answer.headers
    return _head(status, [(name.encode(), value.encode()) for name, value in headers.items()]) + answer.body


def _head(status, headers):
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {status} {phrase}".encode(), *(b"%b: %b" % field for field in headers), b"", b""]
    return b"\r\n".join(lines)


def protocol() -> type[Limited]:
    """uvicorn's protocol with limits: over httptools where it is installed, else over h11."""
    try:
        return _over_httptools()
    except ImportError:
        return _over_h11()


def _over_httptools():
    import httptools
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class LimitedHttpTools(Limited, HttpToolsProtocol):
        bad_head = httptools.HttpParserError
        is_partial = False

        def is_within_head(self):
            return self.is_partial

        def on_message_begin(self):
            self.is_partial = True
            super().on_message_begin()

        def on_header(self, name, value):
            if len(self.headers) >= self.limits.headers:
                self._reject(431)
            super().on_header(name, value)

        def on_headers_complete(self):
            self.is_partial = False
            self._head_is_complete(self.parser.get_http_version(), self.url, self.headers)
            if len(self.pipeline) >= self.limits.pipelined:
                self._reject(503)
            super().on_headers_complete()
            self.headers = []  # trailers are not headers

        def on_body(self, body):
            self._has_parsed = True
            super().on_body(body)

        def on_message_complete(self):
            self._has_parsed = True
            super().on_message_complete()

    return LimitedHttpTools


def _over_h11():
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class LimitedH11(Limited, H11Protocol):
        bad_head = h11.RemoteProtocolError

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self._next_event, self.conn.next_event = self.conn.next_event, self.next_event

        def is_within_head(self):
            return self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] != b""

        def next_event(self):
            event = self._next_event()
            if isinstance(event, h11.Request):
                self._head_is_complete(event.http_version.decode(), event.target, event.headers)
            elif event is not h11.NEED_DATA:
                self._has_parsed = True
            return event

    return LimitedH11
