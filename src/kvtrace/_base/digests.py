"""Digests of the bytes that pass by, to compare two files without a second copy of either."""

from __future__ import annotations

import hashlib
import io

IN_WORDS = {*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_\\", *range(128, 256)}
SPACED = bytes(byte if byte in IN_WORDS else 32 for byte in range(256))  # translates all other bytes to spaces
MAX_WORD = 1000  # bytes of a word that are kept


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


class WordDigest(ByteDigest):
    """A digest that also keeps the distinct words: two letters or more, other bytes above 127, and escapes.

    >>> digest = WordDigest()
    >>> digest.write(b'{"hash_ids": [1], "no'), digest.write(b'te": "a"}'), sorted(digest.words)
    (21, 9, [b'hash_ids', b'note'])
    """

    MAX_WORDS = 10_000

    def __init__(self) -> None:
        super().__init__()
        self._words: set[bytes] = set()
        self._rest = b""  # a word that may go on in the next bytes

    def write(self, data) -> int:
        """Add bytes."""
        words = (self._rest + bytes(data)).translate(SPACED).rsplit(b" ", 1)
        self._rest = words.pop()[-MAX_WORD:]
        if words and len(self._words) < self.MAX_WORDS:
            self._words.update(words[0].split())
        return super().write(data)

    @property
    def words(self) -> set[bytes]:
        """The words so far, at least MAX_WORDS of them if there are more."""
        return {word for word in (*self._words, self._rest) if len(word) > 1}


class SeenBytes:
    """The bytes of a file that was read: as they are there (`packed`), and decompressed (`plain`)."""

    packed: WordDigest
    plain: WordDigest

    def __init__(self) -> None:
        self.form: str | None = None  # gzip, zstd or None
        self.packed, self.plain = WordDigest(), WordDigest()

    @property
    def words(self) -> set[bytes]:
        """The words of the decompressed bytes."""
        return (self.plain if self.form else self.packed).words
