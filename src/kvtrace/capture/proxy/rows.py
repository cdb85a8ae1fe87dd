"""Payloads of the proxy to rows of a log: {"timestamp", "end_time", "request": {...}, "response": {...}}.

The bodies of the request and of an answer without streaming stay as they came. A streamed answer is put together as
the API would have given it without streaming. An answer that ended early, because the client left or the server
failed, counts with the output that came; without any, its request is left out, since nobody knows whether it ran.

Content codings (RFC 9110, 8.4): gzip, deflate, zstd, and br if the package `brotli` is installed.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson

from ..._base.errors import NotARequest, RowError
from ..._base.input_files import inflated
from ..._base.json_values import parsed_json
from ...ingest.logs.sse import ENDED, StreamedAnswer
from .exchange import Exchange

Assemble = Callable[[bytes], StreamedAnswer]


class ExchangeRows:
    """Rows of one API.

    Args:
        assemble: Puts a streamed answer of the API together.

    >>> rows = ExchangeRows(lambda stream: StreamedAnswer())
    >>> rows.of(Exchange(b"{}", b'{"a": 1}', arrived_ns=5, ended_ns=7, complete=True, streamed=False).packed())
    [b'{"timestamp":5,"end_time":7,"request":{},"response":{"a": 1}}']
    """

    def __init__(self, assemble: Assemble) -> None:
        self._assemble = assemble
        self.counts: Counter[str] = Counter()  # requests, and those whose answer ended early

    def of(self, payload: bytes) -> list[bytes]:
        """The row of one request; RowError if its bodies cannot be read, NotARequest if it was not answered."""
        exchange = Exchange.unpacked(payload)
        request = _json_object(decoded(exchange.request, exchange.request_coding), "request")
        answer = decoded(exchange.answer, exchange.answer_coding)
        head: dict[str, Any] = {"timestamp": exchange.arrived_ns, "end_time": exchange.ended_ns}
        head |= {name: key for name in ("session", "user") if (key := getattr(exchange, name)) is not None}
        if exchange.streamed:
            whole = self._assemble(answer)
            self._require_output(whole)
            response = _dumped(whole.response)
            if not exchange.answer_coding and (first := _time_of(exchange, whole.first_token)) is not None:
                head["first_token_time"] = first
        else:
            if not exchange.complete:
                raise NotARequest("the answer ended early, and was not streamed.")
            response = _json_object(answer, "response")
        self.counts["requests"] += 1
        return [b"".join((orjson.dumps(head)[:-1], b',"request":', request, b',"response":', response, b"}"))]

    def rest(self) -> list[bytes]:
        """Nothing: each payload is a whole request."""
        return []

    def _require_output(self, whole):
        if not whole.is_answer:
            raise NotARequest(ENDED)
        if whole.failed or not whole.finished:
            self.counts["ended_early"] += 1


def _time_of(exchange, offset):
    """When the stream had come up to this place; None if that is unknown."""
    if offset is None:
        return None
    return next((time_ns for size, time_ns in exchange.arrivals if size >= offset), None)


def _json_object(body, name):
    """The body, on one line. It is parsed, because a row that is not valid could be read as another row."""
    try:
        is_object = type(parsed_json(body, name)) is dict
    except orjson.JSONDecodeError:
        is_object = None
    if not is_object:  # raised outside the handler: orjson's error holds the body and must not be chained
        raise RowError("is not an object." if is_object is False else "is not valid JSON.", field=name)
    return body.replace(b"\n", b" ").replace(b"\r", b" ")  # in valid JSON they are between values only


def _dumped(response):
    try:
        return orjson.dumps(response)
    except orjson.JSONEncodeError:
        pass
    raise RowError("is nested too deeply.", field="response")


MAX_PLAIN = 1 << 28  # bytes of a decoded body: a few kilobytes can hold gigabytes of equal bytes
MAX_CODINGS = 4  # of one body; each may give MAX_PLAIN bytes to the next


def decoded(body: bytes, coding: str) -> bytes:
    """The plain body. A body that was cut short gives what can be decoded of it.

    Args:
        body: The coded bytes.
        coding: The value of Content-Encoding; codings were applied from left to right.

    Raises:
        RowError: A coding is unknown, there are more than four, the body is damaged, or longer than 256 MiB when
            decoded.

    >>> decoded(zlib.compress(b"Hello"), "deflate"), decoded(b"Hello", "identity")
    (b'Hello', b'Hello')
    """
    names = coding.lower().replace(" ", "").split(",")
    if len(names) > MAX_CODINGS:
        raise RowError(f"the body has more than {MAX_CODINGS} content codings.")
    for name in reversed(names):
        if name not in _DECODERS:
            raise RowError("the content coding of the body is not one of gzip, deflate, br and zstd.")
        plain = _plain(_DECODERS[name], body)
        if plain is None:
            raise RowError(f"the body is not valid {name} data.")
        if len(plain) > MAX_PLAIN:
            raise RowError(f"the decoded body is longer than {MAX_PLAIN >> 20} MiB.")
        body = plain
    return body


def _plain(decoder, body):
    """The decoded body, or a little more than MAX_PLAIN bytes of it; None if it is damaged. Errors hold content."""
    try:
        return decoder(body)
    except (zlib.error, ValueError, EOFError):
        return None


def _identity(body):
    return body


def _gzip(body):
    return inflated(body, zlib.MAX_WBITS | 16, MAX_PLAIN)[0]


def _deflate(body):
    """zlib data, or bare deflate data, which old servers send under the same name."""
    is_zlib = len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return inflated(body, zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS, MAX_PLAIN)[0]


def _zstd(body):
    import zstandard

    try:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body, read_across_frames=True)
        return reader.read(MAX_PLAIN + 1)
    except zstandard.ZstdError:
        return None


def _br(body):
    try:
        import brotli
    except ImportError:
        brotli = None
    if brotli is None:
        raise RowError("the body is in the content coding br.", hint="To read it: pip install brotli.")
    decoder, plain = brotli.Decompressor(), bytearray()
    try:
        plain += decoder.process(body, output_buffer_limit=MAX_PLAIN + 1)
        while len(plain) <= MAX_PLAIN and not decoder.can_accept_more_data():
            plain += decoder.process(b"", output_buffer_limit=MAX_PLAIN + 1)
    except brotli.error:
        return None
    return bytes(plain)


_DECODERS = {
    "": _identity, "identity": _identity, "gzip": _gzip, "x-gzip": _gzip, "deflate": _deflate, "zstd": _zstd, "br": _br,
}  # fmt: skip
