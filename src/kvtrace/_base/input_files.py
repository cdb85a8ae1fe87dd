"""Read files by name, gzip and zstd files as if they were plain; `-` is stdin.

A reader can look at the bytes that pass by: digests compare two files without a second copy of either. Small JSON files
are read whole; each of their errors is one line and shows none of the file's values.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from .errors import InputError, KvtraceError, MissingFileError, MissingPathError, UsageError
from .files import BUFFER, PLAIN, SUFFIXES, is_std, name_of


class ByteSink(Protocol):
    """An object that takes bytes."""

    def write(self, data: Any, /) -> int:
        """Take some bytes; returns their number."""


class ByteDigest(io.RawIOBase):
    """A stream that keeps the number and the digest of the bytes written to it, and not the bytes.

    >>> first, second = ByteDigest(), ByteDigest()
    >>> first.write(b"ab"), second.write(b"a"), second.write(b"b"), first.equals(second), first.size
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

    def __init__(self, packed: ByteSink | None = None, plain: ByteSink | None = None) -> None:
        self.form: str | None = None  # gzip, zstd or None
        self.packed, self.plain = packed, plain


MAX_BYTES = 1 << 24  # a description is a page or two; a log given by mistake is not read to its end
UNREAD = object()


def read_object(path: str | Path, wrong: type[KvtraceError], hint: str) -> dict[str, Any]:
    """Read the JSON object of a file.

    Args:
        path: The file.
        wrong: The error if the file holds something else.
        hint: What to try; it ends each message.

    Raises:
        MissingPathError: The file does not exist.
    """
    import orjson

    text, value, reason, missing = b"", UNREAD, None, False
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason, missing = error.strerror or "cannot be read", isinstance(error, FileNotFoundError)
    except ValueError:  # a name that no file can have
        reason = "cannot be read"
    if reason:
        raise (MissingPathError if missing else UsageError)(f"{path}: {reason}. {hint}")
    with suppress(orjson.JSONDecodeError):
        value = orjson.loads(text)
    if len(text) > MAX_BYTES or value is UNREAD:  # raised here, without orjson's error, which holds the text
        raise wrong(f"{path}: not valid JSON of a page or two. {hint}")
    if not isinstance(value, dict):
        raise wrong(f"{path}: not a JSON object. {hint}")
    return value


MAGIC = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
HEAD = 1 << 12  # bytes that are read first: the compression, and of a pipe also what a reader may peek at
CHUNK = 1 << 16  # compressed bytes to read at a time
ZSTD_STEP = 1 << 11  # of them to decompress at a time: 4 bytes can hold 128 KiB of equal bytes, so 2 KiB hold 64 MiB
ZLIB_STEP = 1 << 10  # of a new gzip member: zlib copies what follows the member, and an empty one has 20 bytes
MAX_STEP = 1 << 24  # plain bytes that zlib gives at a time
MAX_WINDOW = 1 << 28  # bytes of memory that a zstd frame may need: zstd --long=28


def open_read(path: str | Path, *, seen: SeenBytes | None = None) -> io.BufferedReader:
    """A stream of a file's bytes, decompressed if they are gzip or zstd; `-` is stdin.

    The stream of a plain file can seek. All errors, now or during reading, are InputErrors that name the file. `seen`
    takes all bytes that are read.
    """
    name = name_of(path)
    source = _open(path)
    try:
        head = _read(source, name, HEAD)
        form = _form(head)
        named = None if is_std(path) else SUFFIXES.get(Path(path).suffix)
        if named and form is None and len(head) < 4:
            form = named  # truncated; reading it is an error
        if named and form != named:
            raise InputError(f"{name}: the file is not {named} data, but its name has that suffix. Rename it.")
        seen = seen or SeenBytes()
        seen.form = form
        raw = _FileBytes(source, name, head, owned=not is_std(path), see=seen.packed.write if seen.packed else None)
        plain = _Decompressed(raw, name, form, see=seen.plain.write if seen.plain else None) if form else raw
        return io.BufferedReader(plain, BUFFER)
    except BaseException:
        if not is_std(path):
            source.close()
        raise


def read_unfollowed(path: str | Path) -> bytes:
    """The bytes of a file that stands beside another, such as its sidecar; OSError if it is a link, a pipe or a device.

    Whoever can write to the folder could otherwise have another of the reader's files read, and published.
    """
    handle = os.open(path, os.O_RDONLY | PLAIN)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file")
    with open(handle, "rb") as file:
        return file.read()


def inflated(data: bytes, window_bits: int, most: int) -> tuple[bytes, bool]:
    """Decompress the members of gzip data, or the streams of zlib or bare deflate data, in time linear in the bytes.

    Args:
        data: The compressed bytes.
        window_bits: The format, as zlib names it: 31 is gzip, 15 zlib, -15 bare deflate data.
        most: Plain bytes to give; one more shows that the data hold more.

    Returns:
        The plain bytes, and whether the data end where a member ends.

    Raises:
        zlib.error: The data are damaged. The error may quote them.

    >>> member = zlib.compress(b"ab", wbits=31)
    >>> inflated(member * 2, 31, 10), inflated(member[:-1], 31, 10), inflated(member * 9, 31, 3)
    ((b'abab', True), (b'ab', False), (b'abab', False))
    """
    plain, rest, part, step = bytearray(), memoryview(data), None, 0
    while rest and len(plain) <= most:
        part, step = (part, min(2 * step, CHUNK)) if part else (zlib.decompressobj(window_bits), ZLIB_STEP)
        packed = rest[:step]
        plain += part.decompress(packed, most + 1 - len(plain))
        rest = rest[len(packed) - len(part.unused_data) :]
        part = None if part.eof else part
    return bytes(plain), part is None and not rest and len(data) > 0


def size_of(stream: io.BufferedReader) -> int | None:
    """The number of bytes in a stream of open_read; None if it is known only after reading."""
    return getattr(_raw(stream), "size", None)


def form_of(stream: io.BufferedReader) -> str | None:
    """The compression of the file behind a stream of open_read: gzip, zstd or None."""
    return getattr(_raw(stream), "form", None)


def bytes_read(stream: io.BufferedReader) -> int:
    """The number of bytes that a stream of open_read has read from its file, compressed as they are there."""
    return getattr(_raw(stream), "bytes_read", 0)


def unreadable(path: str | Path, error: OSError) -> InputError:
    """The error for a file or a folder that cannot be read.

    >>> raise unreadable("day.jsonl", PermissionError(13, "Permission denied"))
    Traceback (most recent call last):
    kvtrace._base.errors.InputError: day.jsonl: cannot be read (Permission denied).
    """
    if isinstance(error, FileNotFoundError):
        return MissingFileError(f"{path}: no such file.")
    if isinstance(error, IsADirectoryError):
        return InputError(f"{path}: this is a folder, not a file.")
    if error.errno == errno.ELOOP:
        return InputError(f"{path}: this is a link, which is not followed. Replace it by a copy of its file.")
    return InputError(f"{path}: cannot be read ({error.strerror or type(error).__name__}).")


OnRead = Callable[[int, int | None], None]  # receives bytes that were read, and the size of their file if it is known
_on_read: ContextVar[OnRead | None] = ContextVar("_on_read", default=None)


@contextmanager
def reads_reported(on_read: OnRead | None) -> Iterator[None]:
    """Report the bytes of input files that are opened meanwhile, as they are read, possibly from other threads.

    >>> import tempfile
    >>> from pathlib import Path
    >>> seen = []
    >>> with tempfile.TemporaryDirectory() as folder, reads_reported(lambda size, total: seen.append((size, total))):
    ...     _ = Path(folder, "a").write_bytes(b"12345")
    ...     with open_read(Path(folder, "a")) as stream:
    ...         _ = stream.read()
    >>> sum(size for size, _ in seen), seen[0][1]
    (5, 5)
    """
    token = _on_read.set(on_read)
    try:
        yield
    finally:
        _on_read.reset(token)


# -- helpers -----------------------------------------------------------------------------------------------------


def _raw(stream: Any) -> io.RawIOBase | None:
    return getattr(stream, "raw", None)


def _open(path) -> BinaryIO:
    if is_std(path):
        if sys.stdin is None:
            raise InputError("stdin is closed.")
        return sys.stdin.buffer
    try:
        return open(path, "rb")
    except OSError as error:
        raise unreadable(path, error) from None


def _form(head: bytes) -> str | None:
    """The compression of a file, by its first bytes; zstd files may begin with a skippable frame."""
    if head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F:
        return "zstd"
    return next((form for magic, form in MAGIC.items() if head.startswith(magic)), None)


def _read(source, name, size) -> bytes:
    """Exactly `size` bytes; fewer only at the end of the file."""
    data = b""
    try:
        while len(data) < size and (more := source.read(size - len(data))):
            data += more
    except OSError as error:
        raise unreadable(name, error) from None
    return data


class _FileBytes(io.RawIOBase):
    """The bytes of an open file, including the head that was read before; a regular file is read again from 0."""

    def __init__(self, source, name, head, *, owned, see=None):
        self._see = see
        self._source, self._name, self._head, self._owned = source, name, head, owned
        about = os.fstat(source.fileno()) if owned else None
        self.size = about.st_size if about and stat.S_ISREG(about.st_mode) else None
        self.bytes_read, self._on_read = 0, _on_read.get()
        if self.size is not None:
            self._head = b""
            source.seek(0)

    def readable(self):
        return True

    def readinto(self, buffer):
        size = min(len(buffer), len(self._head))
        buffer[:size], self._head = self._head[:size], self._head[size:]
        if size < len(buffer):  # with the head, so that `peek` shows more than that
            try:
                size += self._source.readinto(memoryview(buffer)[size:])
            except OSError as error:
                raise unreadable(self._name, error) from None
        self.bytes_read += size
        if self._on_read:
            self._on_read(size, self.size)
        if self._see:
            self._see(memoryview(buffer)[:size])
        return size

    def seekable(self):
        return self.size is not None

    def seek(self, offset, whence=os.SEEK_SET):
        return self._source.seek(offset, whence)

    def close(self):
        if self._owned:
            self._source.close()
        super().close()


class _Decompressed(io.RawIOBase):
    """The concatenated content of gzip members or zstd frames.

    zstandard.open is not used because it accepts a truncated file.
    """

    def __init__(self, packed, name, form, *, see=None):
        self._see = see
        self._packed, self._name, self.form = packed, name, form
        self._new, self._errors = _unpacker(form)
        self._part, self._step = self._new(), ZLIB_STEP  # of the current member or frame, and the bytes it gets next
        self._rest, self._ready = memoryview(b""), memoryview(b"")  # compressed and plain bytes

    @property
    def bytes_read(self):
        return self._packed.bytes_read

    def readable(self):
        return True

    def readinto(self, buffer):
        while not self._ready:
            if not self._rest:
                self._rest = memoryview(self._packed.read(CHUNK))
            is_end = not self._rest
            self._unpack()
            if is_end and not self._ready:
                self._verify_end()
                return 0
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        if self._see:
            self._see(memoryview(buffer)[:size])
        return size

    def _unpack(self):
        if self._part is None:
            while self._rest[:1] == b"\0":  # gzip files may be padded
                padding = bytes(self._rest[:ZLIB_STEP])
                self._rest = self._rest[len(padding) - len(padding.lstrip(b"\0")) :]
            if not self._rest:
                return
            self._part, self._step = self._new(), ZLIB_STEP
        packed, fault, unread = self._rest[: self._step if self.form == "gzip" else ZSTD_STEP], None, b""
        self._step = min(2 * self._step, CHUNK)
        try:
            if self.form == "gzip":
                self._ready = memoryview(self._part.decompress(packed, MAX_STEP))
                unread = self._part.unconsumed_tail
            else:
                self._ready = memoryview(self._part.decompress(packed))
        except self._errors as error:
            fault = "needs too much memory" if "too much memory" in str(error) else "is damaged"
        if fault:  # raised outside the handler: the library's error may quote data and must not be its context
            hint = " Compress it again, without --long or with --long=28 at most." if "memory" in fault else ""
            raise InputError(f"{self._name}: the {self.form} data {fault}.{hint}")
        if self._part.eof:
            unread, self._part = self._part.unused_data, None
        self._rest = self._rest[len(packed) - len(unread) :]

    def _verify_end(self):
        if self._part is not None:
            raise InputError(f"{self._name}: the {self.form} data ends early; the file is truncated.")

    def close(self):
        self._packed.close()
        super().close()


def _unpacker(form) -> tuple[Any, Any]:
    """A function that makes a decompressor for one member or frame, and its error for damaged data."""
    if form == "gzip":
        return lambda: zlib.decompressobj(wbits=31), zlib.error
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW).decompressobj, zstandard.ZstdError
