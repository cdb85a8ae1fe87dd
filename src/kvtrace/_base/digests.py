"""Digests of the bytes that pass by, to compare two files without a second copy of either."""

from __future__ import annotations

import hashlib
import io


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


class SeenBytes:
    """The bytes of a file that was read: as they are there (`packed`), and decompressed (`plain`)."""

    def __init__(self) -> None:
        self.form: str | None = None  # gzip, zstd or None
        self.packed, self.plain = ByteDigest(), ByteDigest()
