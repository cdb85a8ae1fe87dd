"""A log file that grows: its new lines, as `tail -F` reads them. A rotated or truncated file is read from its start."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from ..._base.errors import UsageError, unwritable
from ..._base.files import MAX_LINE
from ..._base.own_files import MOVE, open_own
from ..source import Lines, Put, Source

SOURCE = Source("follow", log_format="auto", time_unit="auto", rows=Lines)

CHUNK = 1 << 20  # bytes read at a time
POLL_S = 0.2
TOO_LONG = b"\0"  # stands for a line that is too long; no reader accepts it


class Follower:
    """Reads what is appended to a file, and puts its whole lines into the queue.

    The file waits for us, so nothing is dropped: lines are read when the queue has room for them.

    Args:
        path: The file. It may be made later.
        put: Takes payloads.
        has_room: Whether the queue has room for a payload of so many bytes.
        state: Folder where the position in the file is kept, so that a restart goes on there.
        from_start: Also read what the file holds already. The default is what is appended from now on.
    """

    def __init__(
        self, path: str | Path, put: Put, has_room: Callable[[int], bool], *, state: Path | None, from_start: bool
    ):
        self._path, self._put, self._has_room = os.fspath(path), put, has_room
        require_no_folder(path)
        self._position = Position(None if state is None else state / f"follow-{_digest(self._path)}")
        self._from_start = from_start or not os.path.exists(self._path)  # a file that is made later is new
        self._file: BinaryIO | None = None
        self._rest = b""  # of a line without its end
        self._is_skipping = False  # inside a line that is too long
        self._open()  # takes the end of the file now: all that is appended from here on is read

    def run(self, stop: threading.Event) -> None:
        """Follow the file until `stop` is set."""
        try:
            while True:
                stopping = stop.is_set()
                if not self._read() and (stopping or stop.wait(POLL_S)) and stopping:
                    return
        finally:
            if self._file is not None:
                self._file.close()

    def _read(self) -> bool:
        """Read a chunk and put its lines into the queue; False if there is nothing to read, or no room."""
        if not self._open() or not self._has_room(2 * CHUNK + len(self._rest)):
            return False
        assert self._file is not None
        data = self._file.read(CHUNK)
        if not data:
            return False
        lines = self._whole_lines(data)
        if lines:
            self._put(SOURCE.name, lines, lines.count(b"\n"))
        self._position.offset = self._file.tell() - len(self._rest)
        return True

    def _whole_lines(self, data: bytes) -> bytes:
        """The lines that are complete with this data; the rest is kept for later."""
        lines, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._rest += rest
            lines = b""
        else:
            lines, self._rest = self._rest + lines + newline, rest
            if self._is_skipping:
                lines, self._is_skipping = lines.partition(b"\n")[2], False
        if len(self._rest) > MAX_LINE:
            self._rest = b""
            if not self._is_skipping:
                self._is_skipping = True
                return lines + TOO_LONG + b"\n"
        return lines

    def _open(self) -> bool:
        """Have the file open that the path names; False if there is none."""
        try:
            about = os.stat(self._path)
        except OSError:
            about = None
        if self._file is not None and (about is None or about.st_ino != self._position.file):
            if self._file.tell() < os.fstat(self._file.fileno()).st_size:
                return True  # read a renamed file to its end first
            self._file.close()
            self._file = None
        if about is None:
            return self._file is not None
        if self._file is None:
            self._begin(about)
        elif about.st_size < self._file.tell():  # truncated
            self._file.seek(0)
            self._rest, self._is_skipping = b"", False
        return self._file is not None

    def _begin(self, about: os.stat_result) -> None:
        try:
            self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 (it stays open)
        except OSError:
            return
        goes_on = self._position.file == about.st_ino and self._position.offset <= about.st_size
        is_later = self._position.file != 0  # the file replaced another one: all of it is new
        offset = self._position.offset if goes_on else 0 if self._from_start or is_later else about.st_size
        self._file.seek(offset)
        self._position.file, self._position.offset = about.st_ino, offset
        self._rest, self._is_skipping = b"", False


def require_no_folder(path: str | Path) -> None:
    """UsageError if a path is a folder, which cannot be followed."""
    if os.path.isdir(path):
        raise UsageError(f"{path}: this is a folder. Name the file that grows.")


class Position:
    """The number of a file and a place in it, in a small file of mode 0600 that is mapped into memory."""

    def __init__(self, path: Path | None):
        try:
            handle = -1 if path is None else open_own(path, private=True, remedy=MOVE)
            if path is not None:
                os.ftruncate(handle, 16)
            self._map = mmap.mmap(handle, 16)
            if path is not None:
                os.close(handle)
        except OSError as error:
            raise unwritable(path or "the position of a followed file", error) from None
        self._values = memoryview(self._map).cast("Q")

    @property
    def file(self) -> int:
        """The file's inode; 0 = none yet."""
        return self._values[0]

    @file.setter
    def file(self, number: int) -> None:
        self._values[0] = number

    @property
    def offset(self) -> int:
        """Bytes of the file that were put into the queue."""
        return self._values[1]

    @offset.setter
    def offset(self, offset: int) -> None:
        self._values[1] = offset


def _digest(path: str) -> str:
    return blake2b(os.path.realpath(path).encode(), digest_size=8).hexdigest()
