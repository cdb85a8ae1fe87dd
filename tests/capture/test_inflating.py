"""Compressed bodies, files and JSON: linear work and memory, and other requests are answered meanwhile."""

import asyncio
import gzip
import threading
import zlib

import orjson
import pytest
import zstandard

from kvtrace._base.errors import RowError
from kvtrace._base.input_files import open_read
from kvtrace._base.json_values import MAX_VALUES, TooManyValues, parsed_json
from kvtrace.capture import asgi
from kvtrace.capture.proxy.exchange import Exchange
from kvtrace.capture.proxy.rows import ExchangeRows, decoded
from kvtrace.ingest.logs import open_reader
from kvtrace.ingest.logs.fieldmap import unpacked
from kvtrace.ingest.logs.kv_events import row_lines
from kvtrace.ingest.logs.sse import EventStream
from kvtrace.ingest.logs.streamed import chat_answer

MEMBER = gzip.compress(b"", mtime=0)


def of_file(packed, folder):
    (folder / "a.gz").write_bytes(packed)
    with open_read(folder / "a.gz") as stream:
        return stream.read()


READERS = {
    "an export": (MEMBER, lambda packed, folder: asyncio.run(asgi.decompressed(packed, "gzip", max_body=1 << 20))),
    "a proxied body": (MEMBER, lambda packed, folder: decoded(packed, "gzip")),
    "a proxied body, deflate": (zlib.compress(b""), lambda packed, folder: decoded(packed, "deflate")),
    "a file": (MEMBER, of_file),
    "a padded file": (MEMBER + b"\0", of_file),
}


@pytest.mark.parametrize("reader", READERS)
def test_the_work_on_empty_members_is_linear_in_their_bytes(monkeypatch, tmp_path, reader):
    """200,000 empty members took 20 s: after each, zlib copied all that followed."""
    seen, (member, read) = 0, READERS[reader]

    class Counted:
        def __init__(self, *arguments, make=zlib.decompressobj, **named):
            self._part = make(*arguments, **named)

        def decompress(self, data, *arguments):
            nonlocal seen
            seen += len(data)
            return self._part.decompress(data, *arguments)

        def __getattr__(self, name):
            return getattr(self._part, name)

    monkeypatch.setattr(zlib, "decompressobj", Counted)
    for count in (1_000, 16_000):
        packed, seen = member * count, 0
        assert read(packed, tmp_path) == b""
        assert len(packed) <= seen < 130 * len(packed)
    assert read(packed + zlib.compress(b"ab", wbits=31 if member[0] == 31 else 15), tmp_path) == b"ab"


def test_zstd_frames_cost_what_their_bytes_cost(tmp_path):
    frames = zstandard.ZstdCompressor().compress(b"") * 100_000
    (tmp_path / "a.zst").write_bytes(frames)
    with open_read(tmp_path / "a.zst") as stream:
        assert stream.read() == decoded(frames, "zstd") == b""


def test_a_body_of_many_codings_is_an_error():
    """Each of a thousand codings could hold 256 MB for the next one."""
    with pytest.raises(RowError, match="more than 4 content codings"):
        decoded(b"", ",".join(["gzip"] * 5))


def test_other_requests_go_on_while_a_body_is_decompressed(monkeypatch):
    """The decoder of a body of 5 kB, which can hold 5 MB, waits until the event loop goes on."""
    goes_on = threading.Event()
    monkeypatch.setitem(asgi._DECODERS, "gzip", lambda body, max_body: b"plain" if goes_on.wait(5) else b"")

    async def both():
        large = asyncio.create_task(asgi.decompressed(bytes(5_000), "gzip", max_body=1 << 20))
        await asyncio.sleep(0)
        goes_on.set()
        return await large

    assert asyncio.run(both()) == b"plain"


LISTS = b"[%b0]" % (b"[]," * MAX_VALUES)
TOO_LARGE = {
    "a row": lambda: open_reader("openai", [], time_unit="s").records(b'{"messages":%b}' % LISTS),
    "a text in a row": lambda: unpacked(LISTS.decode()),
    "an event of a stream": lambda: list(EventStream(b'data: {"choices":%b}\n\n' % LISTS)),
    "KV events": lambda: refused(next(row_lines([LISTS]))),
    "a proxied request": lambda: ExchangeRows(chat_answer).of(
        Exchange(b'{"a":%b}' % LISTS, b"{}", arrived_ns=1, ended_ns=2, complete=True, streamed=False).packed()
    ),
}


def refused(line):
    raise RowError(line.decode())


@pytest.mark.parametrize("place", TOO_LARGE)
def test_json_of_tiny_values_is_refused_before_it_takes_thirty_times_its_bytes(place):
    with pytest.raises(RowError, match="has more than 500,000 values"):
        TOO_LARGE[place]()


def test_values_are_counted_outside_of_strings():
    """Prompts hold code, and JSON in strings: their brackets and quotes are text."""
    for text in (rb"[[{", rb"\"[", rb"\\\\", rb"\\\"{["):
        whole = b'["%b",1]' % (text * (MAX_VALUES + 1))
        assert parsed_json(whole) == parsed_json(whole.decode()) == orjson.loads(whole)
    assert parsed_json(b"[%b0]" % (b"1," * 2 * MAX_VALUES))[-1] == 0  # a prompt of token ids
    with pytest.raises(TooManyValues):
        parsed_json(b'["%b"' % (b'\\\\","' * MAX_VALUES))
