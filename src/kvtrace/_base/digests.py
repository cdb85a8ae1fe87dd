"""Digests of the bytes that pass by, and comparisons of two files without a second copy of either."""

from __future__ import annotations

import hashlib
import io
from typing import Any, BinaryIO, Protocol

import numpy as np


class Sink(Protocol):
    """An object that takes bytes."""

    def write(self, data: Any, /) -> int:
        """Take some bytes; returns their number."""


class ByteDigest(io.RawIOBase):
    """A stream that keeps the number and the digest of the bytes written to it, and not the bytes.

    >>> one, other = ByteDigest(), ByteDigest()
    >>> one.write(b"ab"), other.write(b"a"), other.write(b"b"), one.equals(other), one.size
    (2, 1, 1, True, 2)
    """

    size: int

    def __init__(self) -> None:
        super().__init__()
        self._hash, self.size = hashlib.blake2b(), 0

    def writable(self) -> bool:
        """True, as for any output."""
        return True

    def write(self, data) -> int:
        """Add bytes."""
        self._hash.update(data)
        size = memoryview(data).nbytes
        self.size += size
        return size

    def tell(self) -> int:
        """The number of bytes so far."""
        return self.size

    def equals(self, other: ByteDigest) -> bool:
        """Whether the same bytes were written to both."""
        return (self.size, self._hash.digest()) == (other.size, other._hash.digest())


class SameBytes(io.RawIOBase):
    """A stream that compares the bytes written to it with those of another stream, which it closes.

    >>> same = SameBytes(io.BytesIO(b"abc"))
    >>> same.write(b"ab"), same.write(b"c"), same.is_complete()
    (2, 1, True)
    """

    def __init__(self, other: BinaryIO) -> None:
        super().__init__()
        self._other, self._is_same, self._size = other, True, 0
        self._buffer = bytearray()

    def writable(self) -> bool:
        """True, as for any output."""
        return True

    def write(self, data) -> int:
        """Compare bytes with the next ones of the other stream."""
        view = memoryview(data).cast("B")
        if self._is_same:
            self._is_same = np.array_equal(
                np.frombuffer(self._next(len(view)), np.uint8), np.frombuffer(view, np.uint8)
            )
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        """The number of bytes so far."""
        return self._size

    def is_complete(self) -> bool:
        """Whether all bytes of the other stream were written, and no others; to be called once, at the end."""
        return self._is_same and not self._other.read(1)

    def close(self) -> None:
        """Close the other stream."""
        self._other.close()
        super().close()

    def _next(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view, have = memoryview(self._buffer)[:size], 0
        while have < size and (more := self._other.readinto(view[have:])):  # type: ignore[attr-defined]
            have += more
        return view[:have]


class SeenBytes:
    """Objects that take the bytes of a file: as they are in the file (`packed`), and decompressed (`plain`)."""

    def __init__(self, packed: Sink | None = None, plain: Sink | None = None) -> None:
        self.form: str | None = None  # gzip, zstd or None
        self.packed, self.plain = packed, plain
