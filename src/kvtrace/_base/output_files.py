"""Write files and folders by name so that they appear complete or not at all.

Suffixes select gzip or zstd; `-` is stdout. A folder replaces an older one of its kind.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Self

from .errors import KvtraceError, UsageError, named_errors, unwritable
from .file_locks import create_part, remove_leftovers, set_aside, temporary_name, try_lock
from .files import BUFFER, SUFFIXES, FolderHandle, is_regular, is_std
from .own_files import current_user, followed, is_own, make_folders, open_own, own_folder
from .process import uninterrupted

Paths = Sequence[str | Path]


class Role(Enum):
    """The role of a file in its run, which decides what happens to a link of its name."""

    RESULT = "named by the user: a link of the user's own is followed, a pipe or device is written directly"
    ASIDE = "named by the user, such as a list of rejects: replaces a link"
    BESIDE = "named after a result, such as its sidecar: replaces a link, a pipe or a device"
    SECRET = "named after a result, likewise, and only its owner can read it"


@contextmanager
def write_atomically(path: str | Path, role: Role = Role.RESULT) -> Iterator[BinaryIO]:
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
    with outputs_together(path, role=role) as (output,):
        yield output.stream


@contextmanager
def write_together(path: str | Path, beside: Paths = ()) -> Iterator[list[BinaryIO]]:
    """Streams of a file and of those beside it: if the block succeeds, all get their names."""
    with outputs_together(path, beside) as outputs:
        yield [output.stream for output in outputs]


@contextmanager
def outputs_together(
    path: str | Path, beside: Paths = (), *, role: Role = Role.RESULT, folder: FolderHandle | None = None
) -> Iterator[list[Output]]:
    """Like `write_together`, but as Outputs, so that one can be read again before it gets its name.

    Files beside it, such as its sidecar, get their names first. `folder` is that of the path, if it is open.
    """
    outputs: list[Output] = []
    try:
        outputs.append(Output(path, role, folder))
        for name in beside:
            outputs.append(Output(name, Role.BESIDE))
        yield outputs
        for output in outputs:
            output.finish()
        _appear([*outputs[1:], outputs[0]])
    except BaseException:
        for output in outputs:
            output.discard()
        raise


@contextmanager
def appear_together() -> Iterator[None]:
    """All files that are written in the block get their names when it ends, or none does."""
    outputs: list[Output] = []
    token = _WAITING.set(outputs)
    try:
        yield
        _WAITING.set(None)
        _appear(outputs)
    except BaseException:
        for output in outputs:
            output.discard()
        raise
    finally:
        _WAITING.reset(token)


_WAITING: ContextVar[list[Output] | None] = ContextVar("finished files without their names", default=None)
_RESULTS: list[str] = []


def count_results() -> int:
    """The number of results that have their final names."""
    return len(_RESULTS)


def forget_results() -> None:
    """Count from 0: a new command begins."""
    _RESULTS.clear()


def note_result(name: str) -> None:
    """Count a result that has its name."""
    _RESULTS.append(name)


def _appear(outputs: list[Output]) -> None:
    """Give finished files their names, unless they wait for others; a signal comes before or after all of them."""
    waiting = _WAITING.get()
    if waiting is not None:
        waiting.extend(outputs)
        return
    with uninterrupted():
        for output in outputs:
            output.appear()


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


class Output:
    """A file under a temporary name until it is complete; stdout, pipes and devices are written directly."""

    def __init__(self, path, role: Role = Role.RESULT, folder: FolderHandle | None = None):
        self._role, self._inside = role, folder
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
        elif self._role not in (Role.BESIDE, Role.SECRET) and not is_regular(path):
            self._file = os.fdopen(_open_device(path), "wb")
        else:
            self._place, self._base = os.path.split(followed(path) if self._role is Role.RESULT else _unfollowed(path))
            self._folder = FolderHandle(self._place) if self._inside is None else self._inside.folder(".")
            try:
                if self._inside is None:
                    remove_leftovers(self._folder, self._base)
                mode = 0o600 if self._role is Role.SECRET else 0o666
                self._part, handle = create_part(self._folder, self._base, mode)
            except BaseException:
                self._folder.close()
                raise
            self._lock = os.dup(handle)  # the file stays locked until it has its name
            self._file = os.fdopen(handle, "wb")

    def finish(self) -> str | None:
        """Flush all bytes to the disk; returns the temporary name, None if there is none."""
        if self._finished:
            return self._part_path
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
        return self._part_path

    @property
    def _part_path(self):
        return self._part and os.path.join(self._place, self._part)

    def appear(self):
        """Give the file its name, and flush the folder."""
        if not self._part:
            return
        with self._named_errors():
            self._folder.replace(self._part, self._base)
            if self._role is Role.RESULT:
                note_result(self.name)
            self._part = None
            self._folder.sync()
        self._release()

    def discard(self):
        """Delete the temporary file."""
        self._sink.detached = True  # discards buffered bytes
        for stream in (self.stream, self._packed, self._file):
            if self._owned or stream is not self._file:
                with contextlib.suppress(OSError, ValueError):
                    stream.close()
        if self._part:
            with contextlib.suppress(OSError):
                self._folder.unlink(self._part)
            self._part = None
            self._release()

    def _release(self):
        """Give up the lock and the folder."""
        os.close(self._lock)
        self._folder.close()

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


def _open_device(path) -> int:
    """A handle of a pipe or a device, which is written directly; UsageError for a pipe of another user."""
    _require_device(path, os.stat(path))
    handle = os.open(path, os.O_WRONLY)  # waits for the reader of a pipe
    try:
        _require_device(path, os.fstat(handle))  # another program may have put a file there
    except BaseException:
        os.close(handle)
        raise
    return handle


def _require_device(path, about: os.stat_result) -> None:
    if stat.S_ISREG(about.st_mode):
        raise KvtraceError(f"{path}: the file has changed during the run. Run the command again.")
    if stat.S_ISFIFO(about.st_mode) and about.st_uid not in (0, current_user()):
        raise UsageError(f"{path}: this is a pipe of another user. Name one of your own, or a file.")


def _unfollowed(path) -> str:
    """A path whose last name is not followed if it is a link."""
    folder, base = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), base)


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


class OutputFolder:
    """A folder under a temporary name until its block ends without an error.

    `require_place` raises an error if the folder cannot be written, or would replace files of another kind; it is
    called before the first file, and again before the folder gets its name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with OutputFolder(f"{place}/day", lambda path: None) as folder, folder.file("note") as stream:
    ...         _ = stream.write(b"text")
    ...     os.listdir(place), os.listdir(f"{place}/day")
    (['day'], ['note'])
    """

    name: str
    path: str  # of the temporary folder

    def __init__(self, folder: str | Path, require_place: Callable[[str], None]) -> None:
        self.name, self._require_place = str(folder), require_place
        require_place(self.name)
        self._final = followed(folder)

    def __enter__(self) -> Self:
        self.path = temporary_name(self._final)
        place, base = os.path.split(self._final)
        try:
            with FolderHandle(place) as around:
                remove_leftovers(around, base)
            os.mkdir(self.path)
            self._folder = FolderHandle(self.path)
            about = self._folder.status()
            self._mode = stat.S_IMODE(about.st_mode)  # of the finished folder
            self._folder.chmod(0o700)
            self._lock = self._folder.open(".", os.O_RDONLY)
        except OSError as error:
            raise unwritable(self.name, error, " No file was written.") from None
        with suppress(OSError):  # no locks: other runs leave the folder
            try_lock(self._lock)
        self._require_unchanged(is_own(about, others=0) and not self._folder.names())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._appear()
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the temporary folder, if it did not get its name."""
        shutil.rmtree(self.path, ignore_errors=True)  # already renamed on success
        os.close(self._lock)
        self._folder.close()

    def _require_unchanged(self, is_unchanged: bool) -> None:
        if not is_unchanged:
            raise KvtraceError(f"{self.name}: another program has changed the temporary folder beside it.")

    @contextmanager
    def file(self, name: str) -> Iterator[BinaryIO]:
        """A file in the folder; errors name the final folder."""
        failed = None
        try:
            outputs = outputs_together(os.path.join(self.path, name), role=Role.BESIDE, folder=self._folder)
            with outputs as (output,):
                yield output.stream
        except KvtraceError as error:
            failed = error
        if failed:
            raise type(failed)(str(failed).replace(self.path, self.name))

    def _appear(self) -> None:
        self._require_place(self.name)  # again: another program may have written there
        place, base = os.path.split(self._final)
        old = os.path.join(place, set_aside(base))
        is_exchanged = False
        try:
            self._require_unchanged(os.path.samestat(os.lstat(self.path), self._folder.status()))
            self._folder.chmod(self._mode)
            has_old = os.path.isdir(self._final)
            is_exchanged = has_old and _exchanged(self.path, self._final)
            if not is_exchanged:
                if has_old:
                    os.rename(self._final, old)
                os.rename(self.path, self._final)
            note_result(self.name)
            with FolderHandle(place) as folder:
                folder.sync()
        except BaseException as error:
            if is_exchanged:
                with suppress(OSError):
                    _exchanged(self.path, self._final)
            elif os.path.isdir(old) and not os.path.isdir(self._final):
                try:
                    os.rename(old, self._final)
                except OSError as again:
                    raise unwritable(self.name, again, f" What it held is now in {old}.") from None
            if isinstance(error, OSError):
                raise unwritable(self.name, error, " No file was written.") from None
            raise
        shutil.rmtree(old, ignore_errors=True)


HERE, EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


def _exchanged(one: str, other: str) -> bool:
    """Exchange two folders in one step: at each moment one of them has the name. False where the system cannot.

    Python has no function for it. On Linux `renameat2` does it, on most file systems.
    """
    import ctypes  # only data sets that replace others need it

    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if exchange is None:
        return False
    if exchange(HERE, os.fsencode(one), HERE, os.fsencode(other), EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(number, os.strerror(number), other)


def write_cached(path: str | Path, data: bytes) -> bool:
    """Write a file of the cache, in a private folder; False if it cannot be written, or its folder is not this user's.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     write_cached(f"{place}/cache/verdict", b"true"), read_cached(f"{place}/cache/verdict")
    (True, b'true')
    """
    place, base = os.path.split(os.path.abspath(path))
    try:
        make_folders(os.path.dirname(place))
        with own_folder(place, others=0) as folder:
            remove_leftovers(folder, base)
            with outputs_together(path, role=Role.SECRET, folder=folder) as (output,):
                output.stream.write(data)
    except (KvtraceError, OSError):
        return False
    return True


def read_cached(path: str | Path) -> bytes | None:
    """The bytes of a file of the cache; None if it is missing, or another user could have changed it."""
    try:
        with own_folder(os.path.dirname(os.path.abspath(path)), make=False, others=0):
            handle = open_own(path, os.O_RDONLY, private=True)
    except (KvtraceError, OSError):
        return None
    with open(handle, "rb") as file:
        return file.read()


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder of this run alone, among the system's temporary files; the next run deletes that of a killed one."""
    import tempfile

    folder = OutputFolder(os.path.join(tempfile.gettempdir(), "kvtrace"), lambda path: None).__enter__()
    try:
        yield folder.path
    finally:
        folder.discard()


def require_folder_place(
    path: str | Path, is_replaceable: Callable[[str | Path], bool], *, is_file: str, has_others: str
) -> None:
    """UsageError or KvtraceError if a folder cannot be written at a path, or would replace files of another kind.

    Args:
        path: The folder, which may exist.
        is_replaceable: Whether an existing folder has only files of the same kind.
        is_file: The rest of the sentence if the path is a file.
        has_others: The rest of the sentence if the folder is not replaceable.
    """
    around = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(around):
        raise UsageError(f"{path}: the folder {os.path.dirname(str(path).rstrip('/')) or around} does not exist.")
    if os.path.exists(path) and not os.path.isdir(path):
        raise UsageError(f"{path}: this is a file{is_file}")
    if os.path.isdir(path) and not is_replaceable(path):
        raise UsageError(f"{path}: the folder has files that are {has_others}")
    if not os.access(around, os.W_OK | os.X_OK):
        raise KvtraceError(f"{path}: the folder around it is not writable.")
