"""Digests and words of the bytes that pass by, and comparisons of two files without a second copy of either."""

from __future__ import annotations

import hashlib
import io
from typing import BinaryIO

import numpy as np

IN_WORDS = np.arange(256) >= 128  # byte -> whether words have it
IN_WORDS[[*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_\\"]] = True
MAX_WORD = 1000  # bytes of a word that are kept


class ByteDigest(io.RawIOBase):
    """A stream that keeps the number and the digest of the bytes written to it, and not the bytes.

    >>> one, other = ByteDigest(), ByteDigest()
    >>> one.write(b"ab"), other.write(b"a"), other.write(b"b"), one.equals(other), one.size
    (2, 1, 1, True, 2)
    """

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
    >>> same.write(b"ab"), same.is_complete(), same.write(b"c"), same.is_complete()
    (2, False, 1, True)
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
        """Whether all bytes of the other stream were written, and no others."""
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


class Words:
    """The distinct words in bytes: two letters or more, other bytes above 127, and escapes.

    >>> words = Words()
    >>> words.write(b'{"hash_ids": [1], "no'), words.write(b'te": "a"}'), sorted(words.words)
    (21, 9, [b'hash_ids', b'note'])
    """

    MAX_WORDS = 10_000

    def __init__(self) -> None:
        from .._native.words import WordFinder

        self._finder = WordFinder(IN_WORDS)
        self._words: set[bytes] = set()
        self._rest = b""  # a word that may go on in the next bytes

    def write(self, data) -> int:
        """Add bytes."""
        view = memoryview(data).cast("B")
        spans, end = self._finder.find(view)
        if end == 0:  # no bytes, or one word alone
            self._rest = (self._rest + bytes(view))[-MAX_WORD:]
            return len(view)
        words = [bytes(view[start:stop]) for start, stop in spans.tolist()]
        if len(spans) and spans[0, 0] == 0:
            words[0] = self._rest + words[0]
        else:
            words.append(self._rest)
        self._rest = bytes(view[end:])[-MAX_WORD:]
        if len(self._words) < self.MAX_WORDS:
            self._words.update(words)
        return len(view)

    @property
    def words(self) -> set[bytes]:
        """The words so far, at least MAX_WORDS of them if there are more."""
        return {word for word in (*self._words, self._rest) if len(word) > 1}


class SeenBytes:
    """The bytes of a file that was read: as they are there (`packed`), and decompressed (`plain`).

    Digests are kept of bytes that cannot be read again.
    """

    def __init__(self, *, repeats: bool = False) -> None:
        self.form: str | None = None  # gzip, zstd or None
        self.packed, self.plain = _Seen(not repeats), _Seen(not repeats)

    @property
    def words(self) -> set[bytes]:
        """The words of the decompressed bytes."""
        return (self.plain if self.form else self.packed).words.words


class _Seen:
    """The words of bytes, and perhaps their digest."""

    def __init__(self, is_digested: bool) -> None:
        self.words, self.digest = Words(), ByteDigest() if is_digested else None

    def write(self, data) -> int:
        """Add bytes."""
        if self.digest is not None:
            self.digest.write(data)
        return self.words.write(data)
