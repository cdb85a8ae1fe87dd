"""Content codings of HTTP bodies (RFC 9110, 8.4): gzip, deflate, zstd, and br if the package `brotli` is installed."""

from __future__ import annotations

import zlib

from ..._base.errors import RowError

MAX_PLAIN = 1 << 28  # bytes of a decoded body: a few kilobytes can hold gigabytes of equal bytes


def decoded(body: bytes, coding: str) -> bytes:
    """The plain body. A body that was cut short gives what can be decoded of it.

    Args:
        body: The coded bytes.
        coding: The value of Content-Encoding; codings were applied from left to right.

    Raises:
        RowError: The coding is unknown, the body is damaged, or longer than 256 MiB when decoded.

    >>> decoded(zlib.compress(b"Hello"), "deflate"), decoded(b"Hello", "identity")
    (b'Hello', b'Hello')
    """
    for name in reversed(coding.lower().replace(" ", "").split(",")):
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
    return _inflated(body, zlib.MAX_WBITS | 16)


def _deflate(body):
    """zlib data, or bare deflate data, which old servers send under the same name."""
    is_zlib = len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _inflated(body, zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)


def _inflated(body, window_bits):
    plain = bytearray()
    while body and len(plain) <= MAX_PLAIN:  # gzip allows several members
        member = zlib.decompressobj(window_bits)
        plain += member.decompress(body, MAX_PLAIN + 1 - len(plain))
        body = member.unused_data
    return bytes(plain)


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
