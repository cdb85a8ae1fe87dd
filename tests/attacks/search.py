"""The search for digests in what a run leaves: raw, cut, turned around, as numbers, hexadecimal or base64.

Every digest is looked for by its first and last 8 bytes, in both orders, at each byte of each view of a file: the bytes
themselves, what they are decompressed, and what runs of hexadecimal or base64 in them decode to. A whole number in a
text is a view too, as the bytes of its 64 bits and more. Of 4 bytes some are found by chance: they count where there
are many more.
"""

from __future__ import annotations

import base64
import gzip
import io
import re
import struct
from collections.abc import Iterable, Iterator, Mapping

HEX = re.compile(rb"[0-9a-fA-F]{8,}")
BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{11,}")
WHOLE = re.compile(rb"-?\d{7,}")
REAL = re.compile(rb"-?\d+(?:\.\d+)?[eE][+-]?\d+|-?\d{15,}\.\d+")
MANY = 2**20  # numbers below it are counts and ids


class Needles:
    """What is looked for: digests and who made them."""

    def __init__(self, digests: Mapping[bytes, str]):
        self.eight: dict[bytes, str] = {}
        self.four: dict[bytes, str] = {}
        self.real: dict[float, str] = {}
        for digest, scheme in digests.items():
            for order in (digest, digest[::-1]):
                for part in (order[:8], order[-8:]):
                    self.eight[part] = scheme
                    self.four[part[:4]] = self.four[part[-4:]] = scheme
                    for number in (int.from_bytes(part, "big"), int.from_bytes(part, "big", signed=True)):
                        self.real[float(number)] = scheme


def found_in(files: Mapping[str, bytes], needles: Needles) -> list[str]:
    """Which file holds which scheme's digests, a line each, sorted; empty where there is nothing."""
    found = set()
    for name, data in files.items():
        for view in views(data):
            found |= {f"{name}: {needles.eight[part]}" for part in windows(view, 8) if part in needles.eight}
            cut = windows(view, 4)
            hits = [part for part in cut if part in needles.four]
            expected = len(cut) * len(needles.four) / 2**32
            if len(hits) > 4 + 6 * expected:
                found |= {f"{name}: {needles.four[part]}, cut to 32 bits" for part in hits}
        found |= {f"{name}: {needles.real[number]}, as a real number" for number in reals(data) & needles.real.keys()}
    return sorted(found)


def views(data: bytes) -> Iterator[bytes]:
    """The data in every way that it may have been written."""
    for plain in unpacked(data):
        yield plain
        yield b"\0\0".join(_numbers(plain))
        yield b"\0\0".join(_hexadecimal(plain))
        yield b"\0\0".join(_base64(plain))


def unpacked(data: bytes) -> Iterable[bytes]:
    """The bytes themselves, and what they are when they are decompressed or, for Parquet, printed."""
    yield data
    if data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)
    if data[:4] == b"\x28\xb5\x2f\xfd":
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)) as stream:
            yield stream.read()
    if data[:4] == b"PAR1":
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(io.BytesIO(data))
        yield repr(table.to_pylist()).encode() + repr(table.schema.metadata).encode()


def windows(data: bytes, width: int) -> set[bytes]:
    """All runs of so many bytes."""
    return {data[start : start + width] for start in range(len(data) - width + 1)}


def reals(data: bytes) -> set[float]:
    """The real numbers that are too large for times."""
    return {float(text) for plain in unpacked(data) for text in REAL.findall(plain) if abs(float(text)) >= 2**53}


def _numbers(data):
    for text in set(WHOLE.findall(data)):
        number = int(text[:4000])
        if abs(number) < MANY:
            continue
        for width in (4, 8, 16, 32):
            if -(256**width) // 2 <= number < 256**width:
                yield (number % 256**width).to_bytes(width, "big")
                break
        if abs(number) >= 2**53:  # what is left of a number that went through a double
            yield struct.pack(">d", float(number))


def _hexadecimal(data):
    for text in set(HEX.findall(data)):
        for start in (0, 1):
            yield bytes.fromhex(text[start : start + (len(text) - start) // 2 * 2].decode())


def _base64(data):
    for text in set(BASE64.findall(data)):
        text = text.replace(b"-", b"+").replace(b"_", b"/")
        for start in range(4):
            yield base64.b64decode(text[start : start + (len(text) - start) // 4 * 4])
