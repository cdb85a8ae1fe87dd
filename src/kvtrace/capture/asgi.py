"""ASGI applications (asgi.readthedocs.io): their types, and one of a few paths that take POST requests.

The body of a request is read within limits of size and time, and decompressed within the limit of size. Each request
gets a status and a short body.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from .._base.input_files import inflated
from .._base.json_values import SMALL

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


IN_THREAD = 1 << 12  # compressed bytes, which can hold a thousand times as many; other requests go on meanwhile


class Refusal(Exception):
    """A request that is refused: the status of the answer, and a reason without any content of the request."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


class Budget:
    """The memory of all bodies at a time, in bytes."""

    def __init__(self, total: int):
        self.left = total

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """A function that takes bytes for one request, until its end; it raises Refusal with 503 if none are left."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            if size > self.left:
                raise Refusal(503, "Too many requests at a time. Try again later.")
            self.left -= size
            taken += size

        try:
            yield take
        finally:
            self.left += taken


async def read_body(
    receive: Receive, length: str | None, take: Callable[[int], None], *, max_body: int, timeout_s: float
) -> bytes:
    """The body of a request; Refusal with 400, 408, 413 or 503.

    Args:
        receive: The request's channel, of ASGI.
        length: Its Content-Length, if it has one.
        take: Takes memory for the parts that came.
        max_body: The largest body, in bytes.
        timeout_s: Seconds in which all of it must come.
    """
    if length is not None and length.isdigit() and int(length) > max_body:
        raise too_large(max_body)
    body = bytearray()  # a list of tiny chunks would take forty times their bytes
    try:
        async with asyncio.timeout(timeout_s):
            more = True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise Refusal(400, "The client closed the connection.")
                chunk = message.get("body", b"")
                body += chunk
                take(len(chunk))
                more = message.get("more_body", False)
                if len(body) > max_body:
                    raise too_large(max_body)
    except TimeoutError:
        raise Refusal(408, "The body did not arrive in time.") from None
    return bytes(body)


async def decompressed(body: bytes, encoding: str, *, max_body: int) -> bytes:
    """The body without its Content-Encoding; Refusal with 400, 413 (larger than `max_body`) or 415."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in _DECODERS:
        raise Refusal(415, f"The content encoding is not supported. Use one of: {', '.join(_DECODERS)}.")
    if len(body) > IN_THREAD:
        return await asyncio.to_thread(_DECODERS[encoding], body, max_body)
    return _DECODERS[encoding](body, max_body)


def too_large(max_body: int) -> Refusal:
    """The refusal of a body that is too large."""
    return Refusal(413, f"The body is larger than {max_body:,} bytes.")


def _gzip(body, max_body):
    return _inflated(body, max_body, 31)


def _deflate(body, max_body):
    """RFC 9110 means zlib's format; some clients send the stream alone."""
    is_zlib = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    return _inflated(body, max_body, 15 if is_zlib else -15)


def _inflated(body, max_body, window_bits):
    plain, is_whole = b"", None
    with suppress(zlib.error):
        plain, is_whole = inflated(body, window_bits, max_body)
    if len(plain) > max_body:
        raise too_large(max_body)
    if not is_whole:  # raised outside the handler: zlib's error may quote the body
        raise Refusal(400, f"The compressed body is {'not valid' if is_whole is None else 'incomplete'}.")
    return plain


_DECODERS = {"gzip": _gzip, "deflate": _deflate}


MAX_BODY = 64 << 20  # bytes, before and after decompression
TIMEOUT_S = 30.0
RETRY_AFTER_S = 5
BODIES_IN_FLIGHT = 4  # as many bodies of the largest size may be in memory at a time, and as many decompressed


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Route(Protocol):
    """What one path does with the bodies that it gets."""

    @property
    def content_types(self) -> tuple[str, ...]:
        """The content types that it takes."""
        ...

    def take(self, body: bytes, content_type: str) -> Answer:
        """The answer to a body; Refusal if it is not valid."""
        ...

    def refuse(self, refusal: Refusal, content_type: str) -> Answer:
        """The answer to a request that was refused."""
        ...


def routed(routes: Mapping[str, Route], *, max_body: int = MAX_BODY, timeout_s: float = TIMEOUT_S) -> App:
    """The ASGI application of these paths.

    Args:
        routes: Path -> what it does.
        max_body: The largest body, in bytes, before and after decompression.
        timeout_s: Seconds in which a body must come.

    Statuses: 404, 405, 408, 413 and 415 for requests that no route sees, 503 while too many bodies are in memory.
    """
    budget, turns = Budget(BODIES_IN_FLIGHT * max_body), asyncio.Semaphore(BODIES_IN_FLIGHT)

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await _send(send, await _answer(scope, receive))
        else:
            await send({"type": "websocket.close", "code": 1003})

    async def _answer(scope, receive) -> Answer:
        route = routes.get(scope["path"])
        if route is None:
            return plain(404, "Not found.")
        if scope["method"] != "POST":
            return plain(405, "Use POST.", allow="POST")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type not in route.content_types:
            return plain(415, f"Use one of these content types: {', '.join(route.content_types)}.")
        try:
            with budget.share() as take:
                length = headers.get("content-length")
                body = await read_body(receive, length, take, max_body=max_body, timeout_s=timeout_s)
                async with turns:  # decompressed bodies are not in the budget
                    body = await decompressed(body, headers.get("content-encoding", ""), max_body=max_body)
                    if len(body) > SMALL:
                        return await asyncio.to_thread(route.take, body, content_type)
                    return route.take(body, content_type)
        except Refusal as refusal:
            return route.refuse(refusal, content_type)

    return app


def plain(status: int, reason: str, **headers: str) -> Answer:
    """An answer of one sentence."""
    return Answer(status, reason.encode(), "text/plain; charset=utf-8", headers)


def retry_later(status: int = 503) -> Refusal:
    """The refusal of a request that may come again."""
    return Refusal(status, "The queue is full. Try again later.")


def with_retry(answer: Answer) -> Answer:
    """The answer, with Retry-After if the client may try again."""
    if answer.status not in (429, 503):
        return answer
    return Answer(answer.status, answer.body, answer.content_type, {"retry-after": str(RETRY_AFTER_S)})


async def _lifespan(receive, send):
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _send(send, answer: Answer):
    answer = with_retry(answer)
    headers = {"content-type": answer.content_type, "content-length": str(len(answer.body)), **answer.headers}
    pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": pairs})
    await send({"type": "http.response.body", "body": answer.body})
