"""Files by name, `-` for stdin and stdout: packed ones read and written as if plain, outputs whole or absent."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import re
import secrets
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from .errors import InputError, KvtraceError, StoppedError

MAGIC = {b"\x1f\x8b\x08": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
SUFFIXES = {".gz": "gzip", ".zst": "zstd"}
CHUNK = 1 << 16  # packed bytes that are unpacked at a time
BUFFER = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room: for anybody, for this user, for this file


def open_read(path: str | Path) -> io.BufferedReader:
    """A stream of a file's bytes, unpacked if they are gzip or zstd; `-` is stdin.

    Whatever goes wrong, now or while reading, is an InputError that names the file.
    """
    name = name_of(path)
    source = _open(path)
    try:
        head = _read(source, name, 4)
        form = _form(head)
        named = None if is_std(path) else SUFFIXES.get(Path(path).suffix)
        if named and form != named:
            raise InputError(f"{name}: is not {named} data, whatever its name says.")
        raw: io.RawIOBase = _Source(source, name, head, owned=not is_std(path))
        return io.BufferedReader(_Unpacked(raw, name, form) if form else raw, BUFFER)
    except BaseException:
        if not is_std(path):
            source.close()
        raise


def size_of(stream: io.BufferedReader) -> int | None:
    """How many bytes a stream of open_read gives from its beginning to its end; None where only reading tells."""
    return getattr(stream.raw, "size", None)


@contextmanager
def write_atomically(path: str | Path) -> Iterator[BinaryIO]:
    """A stream that becomes the file when the block ends well, and leaves no trace when it does not.

    The name's suffix says if it is packed (.gz, .zst); `-` is stdout. What goes wrong is a KvtraceError.

    >>> import tempfile
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
    """Streams of files that belong together: all get their names when the block ends well, the first path first."""
    with outputs_together(*paths) as outputs:
        yield [output.stream for output in outputs]


@contextmanager
def outputs_together(*paths: str | Path) -> Iterator[list[Output]]:
    """Outputs of files that belong together, where one is to be read again before it gets its name."""
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


def is_std(path: str | Path) -> bool:
    """Whether a path stands for stdin or stdout."""
    return str(path) == "-"


def is_regular(path: str | Path) -> bool:
    """Whether something written there is, or will be, a regular file: not stdout, a pipe or a device."""
    if is_std(path):
        return False
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def unwritable(path: str | Path, error: OSError, rest: str = "") -> KvtraceError:
    """What to raise where a file can't be written; StoppedError where there is no room, since room can be made.

    >>> raise unwritable("day.jsonl", OSError(errno.ENOSPC, "No space left on device"))
    Traceback (most recent call last):
    kvtrace._base.errors.StoppedError: day.jsonl: cannot be written (No space left on device).
    """
    kind = StoppedError if error.errno in FULL else KvtraceError
    return kind(f"{path}: cannot be written ({error.strerror or type(error).__name__}).{rest}")


@contextmanager
def named_errors(path: str | Path) -> Iterator[None]:
    """What goes wrong with a file that is written, told with its name."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from None


def append_whole(handle: int, data: bytes, end: int, path: str | Path) -> int:
    """Append the bytes to an open file that ends at `end`, or leave it as it was; returns where it ends then."""
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
    """Remove what killed runs left of a file under temporary names; no other run may be writing it now."""
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
    """A name beside a path that nothing else has, for what is renamed to the path once it is whole."""
    folder, base = os.path.split(path)
    return os.path.join(folder, _part_of(base, secrets.token_hex(6)))


def keep_names(folder: str) -> None:
    """Tell the disk to keep the names that were given in a folder."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems know no fsync of a folder
            os.fsync(opened)
    finally:
        os.close(opened)


def name_of(path: str | Path) -> str:
    """What messages call the file that is read."""
    return "stdin" if is_std(path) else str(path)


# -- reading -----------------------------------------------------------------------------------------------------


def _open(path) -> BinaryIO:
    if is_std(path):
        if sys.stdin is None:
            raise InputError("stdin: is closed.")
        return sys.stdin.buffer
    try:
        return open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: {_why(error)}") from None


def _why(error: OSError) -> str:
    """What the system says, without the path that it repeats."""
    if isinstance(error, FileNotFoundError):
        return "no such file."
    if isinstance(error, IsADirectoryError):
        return "is a folder, not a file."
    return f"cannot be read ({error.strerror or type(error).__name__})."


def _form(head: bytes) -> str | None:
    """How a file is packed, by its first four bytes; zstd files may begin with a frame to be skipped."""
    if head[1:] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F:
        return "zstd"
    return next((form for magic, form in MAGIC.items() if head.startswith(magic)), None)


def _read(source, name, size) -> bytes:
    """Exactly `size` bytes, fewer at the end of the file only."""
    found = b""
    try:
        while len(found) < size and (more := source.read(size - len(found))):
            found += more
    except OSError as error:
        raise InputError(f"{name}: {_why(error)}") from None
    return found


class _Source(io.RawIOBase):
    """The bytes of an open file, its head included though it was read before."""

    def __init__(self, source, name, head, *, owned):
        self._source, self._name, self._head, self._owned = source, name, head, owned
        about = os.fstat(source.fileno()) if owned else None
        self.size = about.st_size if about and stat.S_ISREG(about.st_mode) else None

    def readable(self):
        return True

    def readinto(self, buffer):
        if self._head:
            size = min(len(buffer), len(self._head))
            buffer[:size], self._head = self._head[:size], self._head[size:]
            return size
        try:
            return self._source.readinto(buffer)
        except OSError as error:
            raise InputError(f"{self._name}: {_why(error)}") from None

    def close(self):
        if self._owned:
            self._source.close()
        super().close()


class _Unpacked(io.RawIOBase):
    """What gzip members or zstd frames hold, end to end.

    Not gzip.open or zstandard.open: the second takes a file that was cut short for a whole one.
    """

    def __init__(self, packed, name, form):
        self._packed, self._name, self._form = packed, name, form
        self._new, self._errors = _unpacker(form)
        self._part, self._rest, self._ready = self._new(), b"", b""  # member or frame under way, packed and plain bytes

    def readable(self):
        return True

    def readinto(self, buffer):
        while not self._ready:
            if not self._rest:
                self._rest = self._packed.read(CHUNK)
            if not self._rest:
                self._verify_end()
                return 0
            self._unpack()
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _unpack(self):
        if self._part is None:
            self._rest = self._rest.lstrip(b"\0")  # gzip files may be padded
            if not self._rest:
                return
            self._part = self._new()
        packed, self._rest = self._rest, b""
        try:
            self._ready = memoryview(self._part.decompress(packed))
        except self._errors:
            raise InputError(f"{self._name}: its {self._form} data is damaged.") from None
        if self._part.eof:
            self._rest, self._part = self._part.unused_data, None

    def _verify_end(self):
        if self._part is not None:
            raise InputError(f"{self._name}: its {self._form} data ends early; the file was cut short.")

    def close(self):
        self._packed.close()
        super().close()


def _unpacker(form) -> tuple[Any, Any]:
    """What makes a decompressor of one member or frame, and the error it raises on damaged data."""
    if form == "gzip":
        return lambda: zlib.decompressobj(wbits=31), zlib.error
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj, zstandard.ZstdError


# -- writing -----------------------------------------------------------------------------------------------------


class Output:
    """A file on its way to its name; stdout, pipes and devices have theirs already and are written directly."""

    def __init__(self, path):
        self.name = "stdout" if is_std(path) else str(path)
        self._owned = not is_std(path)  # stdout is not ours to close
        self._part, self._is_std, self._finished = None, is_std(path), False
        with self._named_errors():
            self._open(path)
        self._packed = _packed(self._file, path)
        self._sink = _Sink(self._packed, self._named_errors)
        self.stream = io.BufferedWriter(self._sink, BUFFER)

    def _open(self, path):
        if self._is_std:
            if sys.stdout is None:
                raise KvtraceError("stdout: is closed.")
            self._file = sys.stdout.buffer
        elif not is_regular(path):
            self._file = open(path, "wb")  # noqa: SIM115 (it lives as long as this object)
        else:
            self._final = os.path.realpath(path)  # through a link, to what it leads to
            folder, base = os.path.split(self._final)
            self._part = os.path.join(folder, _part_of(base, secrets.token_hex(6)))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
            self._file = os.fdopen(os.open(self._part, flags, 0o666), "wb")

    def finish(self) -> str | None:
        """All bytes are on the disk, under the temporary name, which is returned; None for what has no such name."""
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
        """The file gets its name, and the folder is told to keep it."""
        if not self._part:
            return
        with self._named_errors():
            os.replace(self._part, self._final)
            self._part = None
            keep_names(os.path.dirname(self._final))

    def discard(self):
        """Forget what was written."""
        self._sink.detached = True  # what is buffered goes nowhere
        for stream in (self.stream, self._packed, self._file):
            if self._owned or stream is not self._file:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()
        if self._part:
            with contextlib.suppress(OSError):
                os.unlink(self._part)

    @contextmanager
    def _named_errors(self):
        """A full disk, a missing folder: one line, and nothing half-written under the final name."""
        try:
            yield
        except BrokenPipeError:
            raise  # whoever reads stdout has had enough; the command line ends quietly
        except OSError as error:
            raise unwritable(self.name, error, " No file was written." if self._part else "") from None


def _part_of(base: str, number: str) -> str:
    """The temporary name of a file: that of no other file, and not too long."""
    short = base if len(base) <= 100 else f"{base[:90]}~{zlib.crc32(os.fsencode(base)):08x}"
    return f".{short}.{number}.part"


class _Sink(io.RawIOBase):
    """Bytes on their way into a file, packed or not."""

    def __init__(self, packed, named_errors):
        self._packed, self._named_errors, self.detached = packed, named_errors, False

    def writable(self):
        return True

    def write(self, data):
        if not self.detached:
            with self._named_errors():
                self._packed.write(data)
        return len(data)


def _packed(file, path):
    """A stream that packs into the file as the name's suffix says; the same bytes give the same file."""
    form = None if is_std(path) else SUFFIXES.get(Path(path).suffix)
    if form == "gzip":
        return gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0)
    if form == "zstd":
        import zstandard

        return zstandard.ZstdCompressor(level=3, write_checksum=True).stream_writer(file, closefd=False)
    return file
