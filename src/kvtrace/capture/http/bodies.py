"""The body of an HTTP request: read within limits of size and time, and decompressed within the limit of size."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..asgi import Receive

IN_THREAD = 1 << 16  # compressed bytes; zlib releases the interpreter lock


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
    chunks, size = [], 0
    try:
        async with asyncio.timeout(timeout_s):
            more = True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    raise Refusal(400, "The client closed the connection.")
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                take(len(chunks[-1]))
                more = message.get("more_body", False)
                if size > max_body:
                    raise too_large(max_body)
    except TimeoutError:
        raise Refusal(408, "The body did not arrive in time.") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


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
    parts, size = [], 0
    while True:  # a gzip file may have several members
        inflater = zlib.decompressobj(window_bits)
        try:
            part = inflater.decompress(body, max_body - size + 1)
        except zlib.error:
            raise Refusal(400, "The compressed body is not valid.") from None
        parts.append(part)
        size += len(part)
        if size > max_body:
            raise too_large(max_body)
        if not inflater.eof:
            raise Refusal(400, "The compressed body is incomplete.")
        body = inflater.unused_data
        if not body or window_bits != 31:
            return b"".join(parts)


_DECODERS = {"gzip": _gzip, "deflate": _deflate}
