"""Write files by name so that they appear complete or not at all; suffixes select gzip or zstd, `-` is stdout."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import re
import secrets
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from .errors import KvtraceError, StoppedError
from .files import BUFFER, SUFFIXES, is_regular, is_std

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space: on the disk, for this user, in this file


@contextmanager
def write_atomically(path: str | Path) -> Iterator[BinaryIO]:
    """A stream that becomes the file if the block succeeds, and disappears if it fails.

    The suffixes .gz and .zst compress it; `-` is stdout. Errors are KvtraceErrors.

    >>> import tempfile
    >>> from kvtrace._base.input_files import open_read
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with write_atomically(f"{folder}/note.gz") as stream:
    ...         _ = stream.write(b"read again")
    ...     with open_read(f"{folder}/note.gz") as stream:
    ...         print(stream.read())
    b'read again'
    """
    with write_together(path) as (stream,):
        yield stream


@contextmanager
def write_together(*paths: str | Path) -> Iterator[list[BinaryIO]]:
    """Streams of files that belong together: if the block succeeds, all get their names, in order."""
    with outputs_together(*paths) as outputs:
        yield [output.stream for output in outputs]


@contextmanager
def outputs_together(*paths: str | Path) -> Iterator[list[Output]]:
    """As `write_together`, but as Outputs, so that one can be read again before it gets its name."""
    outputs: list[Output] = []
    try:
        for path in paths:
            outputs.append(Output(path))
        yield outputs
        for output in outputs:
            output.finish()
        for output in outputs:
            output.appear()
    except BaseException:
        for output in outputs:
            output.discard()
        raise


def unwritable(path: str | Path, error: OSError, rest: str = "") -> KvtraceError:
    """The error for a file that cannot be written; a StoppedError if the disk is full, because that can be fixed.

    >>> raise unwritable("day.jsonl", OSError(errno.ENOSPC, "No space left on device"))
    Traceback (most recent call last):
    kvtrace._base.errors.StoppedError: day.jsonl: cannot be written (No space left on device).
    """
    kind = StoppedError if error.errno in FULL else KvtraceError
    return kind(f"{path}: cannot be written ({error.strerror or type(error).__name__}).{rest}")


@contextmanager
def named_errors(path: str | Path) -> Iterator[None]:
    """Turn errors of a file that is written into errors with its name."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from None


def append_whole(handle: int, data: bytes, end: int, path: str | Path) -> int:
    """Append bytes to an open file of size `end`, or leave it unchanged on failure; returns its new size."""
    written = 0
    try:
        with named_errors(path):
            while written < len(data):
                written += os.pwrite(handle, data[written:] if written else data, end + written)
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, end)
        raise
    return end + len(data)


def remove_stale(path: str | Path) -> None:
    """Delete temporary files that killed runs left; no other run may be writing this file now."""
    if not is_regular(path):
        return
    folder, base = os.path.split(os.path.realpath(path))
    before, _, after = _part_of(base, "NUMBER").rpartition("NUMBER")
    temporary = re.compile(re.escape(before) + "[0-9a-f]{12}" + re.escape(after))
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if temporary.fullmatch(name):
                os.unlink(os.path.join(folder, name))


def temporary_name(path: str) -> str:
    """A unique name in the folder of a path, for a file that is renamed to the path when it is complete."""
    folder, base = os.path.split(path)
    return os.path.join(folder, _part_of(base, secrets.token_hex(6)))


def keep_names(folder: str) -> None:
    """Flush the names in a folder to the disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems do not support fsync of a folder
            os.fsync(opened)
    finally:
        os.close(opened)


class Output:
    """A file under a temporary name until it is complete; stdout, pipes and devices are written directly."""

    def __init__(self, path):
        self.name = "stdout" if is_std(path) else str(path)
        self._owned = not is_std(path)  # stdout must stay open
        self._part, self._is_std, self._finished = None, is_std(path), False
        with self._named_errors():
            self._open(path)
        self._packed = packed_stream(self._file, None if is_std(path) else SUFFIXES.get(Path(path).suffix))
        self._sink = _Sink(self._packed, self._named_errors)
        self.stream = io.BufferedWriter(self._sink, BUFFER)

    def _open(self, path):
        if self._is_std:
            if sys.stdout is None:
                raise KvtraceError("stdout is closed.")
            self._file = sys.stdout.buffer
        elif not is_regular(path):
            self._file = open(path, "wb")  # noqa: SIM115 (it lives as long as this object)
        else:
            self._final = os.path.realpath(path)  # follows links
            folder, base = os.path.split(self._final)
            self._part = os.path.join(folder, _part_of(base, secrets.token_hex(6)))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
            self._file = os.fdopen(os.open(self._part, flags, 0o666), "wb")

    def finish(self) -> str | None:
        """Flush all bytes to the disk; returns the temporary name, None if there is none."""
        if self._finished:
            return self._part
        self._finished = True
        with self._named_errors():
            self.stream.flush()
            if self._packed is not self._file:
                self._packed.close()
            self._file.flush()
            if self._part:
                os.fsync(self._file.fileno())
            if self._owned:
                self._file.close()
        return self._part

    def appear(self):
        """Give the file its name, and flush the folder."""
        if not self._part:
            return
        with self._named_errors():
            os.replace(self._part, self._final)
            self._part = None
            keep_names(os.path.dirname(self._final))

    def discard(self):
        """Delete the temporary file."""
        self._sink.detached = True  # discards buffered bytes
        for stream in (self.stream, self._packed, self._file):
            if self._owned or stream is not self._file:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()
        if self._part:
            with contextlib.suppress(OSError):
                os.unlink(self._part)

    @contextmanager
    def _named_errors(self):
        """Turn system errors, such as a full disk, into one line with the file's name."""
        try:
            yield
        except BrokenPipeError:
            raise  # the reader of stdout has closed it; the command line ends quietly
        except OSError as error:
            raise unwritable(self.name, error, " No file was written." if self._part else "") from None


def packed_stream(file: Any, form: str | None) -> Any:
    """A stream that compresses into a file as gzip or zstd, None = not at all; equal bytes give equal files."""
    if form == "gzip":
        return gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0)
    if form == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(level=3, write_checksum=True).stream_writer(file, closefd=False)
    return file


# -- helpers -----------------------------------------------------------------------------------------------------


def _part_of(base: str, number: str) -> str:
    """The temporary name of a file: unique, and not too long."""
    short = base if len(base) <= 100 else f"{base[:90]}~{zlib.crc32(os.fsencode(base)):08x}"
    return f".{short}.{number}.part"


class _Sink(io.RawIOBase):
    """Writes bytes into a file, compressed or not."""

    def __init__(self, packed, named_errors):
        self._packed, self._named_errors, self.detached = packed, named_errors, False

    def writable(self):
        return True

    def write(self, data):
        if not self.detached:
            with self._named_errors():
                self._packed.write(data)
        return len(data)
