"""Read files by name, gzip and zstd files as if they were plain; `-` is stdin."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

from .digests import SeenBytes
from .errors import InputError
from .files import BUFFER, SUFFIXES, is_std, name_of
from .folder_handle import PLAIN

MAGIC = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
HEAD = 1 << 12  # bytes that are read first: the compression, and of a pipe also what a reader may peek at
CHUNK = 1 << 16  # compressed bytes to read at a time
ZSTD_STEP = 1 << 11  # of them to decompress at a time: 4 bytes can hold 128 KiB of equal bytes, so 2 KiB hold 64 MiB
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
        return InputError(f"{path}: no such file.")
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
        self._part = self._new()  # of the current member or frame
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
            if self._rest[:1] == b"\0":  # gzip files may be padded
                self._rest = memoryview(bytes(self._rest).lstrip(b"\0"))
            if not self._rest:
                return
            self._part = self._new()
        packed, fault, unread = self._rest[: CHUNK if self.form == "gzip" else ZSTD_STEP], None, b""
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
