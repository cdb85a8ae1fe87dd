"""A log file that grows: its new lines, as `tail -F` reads them. A rotated or truncated file is read from its start."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ..._base.errors import UsageError
from ..._base.files import MAX_LINE
from ..intake import Ledger
from ..source import Lines, Source

SOURCE: Source = Source("follow", log_format="auto", time_unit="auto", rows=Lines)

CHUNK = 1 << 20  # bytes read at a time
POLL_S = 0.2
UNREADABLE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)  # it may come later
TOO_LONG = b"\0"  # stands for a line that is too long; no reader accepts it


class Follower:
    """Reads what is appended to a file, and puts its whole lines into the queue.

    The file waits for us, so nothing is dropped: lines are read when the queue has room for them.

    Args:
        path: The file. It may be made later.
        put: Takes payloads, with the position behind each.
        has_room: Whether the queue has room for a payload of so many bytes.
        ledger: Keeps the position in the file, so that a restart goes on there; None = in memory.
        from_start: Also read what the file holds already. The default is what is appended from now on.
    """

    def __init__(
        self,
        path: str | Path,
        put: Callable[..., bool],
        has_room: Callable[[int], bool],
        *,
        ledger: Ledger | None,
        from_start: bool,
    ):
        self._path, self._put, self._has_room = os.fspath(path), put, has_room
        require_no_folder(path)
        self._ledger, self._is_own = ledger or Ledger(), ledger is None
        self._position = self._ledger.position(self._path)
        self._from_start = from_start or not os.path.exists(self._path)  # a file that is made later is new
        self._file: BinaryIO | None = None
        self._rest = b""  # of a line without its end
        self._is_skipping = False  # inside a line that is too long
        with suppress(OSError):  # `run` tries again
            self._open()  # takes the end of the file now: all that is appended from here on is read

    def run(self, stop: threading.Event, on_round: Callable[[], None] = lambda: None) -> None:
        """Follow the file until `stop` is set. After an exception, it can be called again, and goes on.

        `on_round` is called after each look at the file.
        """
        while True:
            stopping = stop.is_set()
            has_read = self._read_or_undo()
            on_round()
            if not has_read and (stopping or stop.wait(POLL_S)) and stopping:
                break
        if self._file is not None:
            self._file.close()

    def _read_or_undo(self) -> bool:
        """Read, or go back to where it was before."""
        file, rest, is_skipping = self._file, self._rest, self._is_skipping
        offset = 0 if file is None else file.tell()
        try:
            return self._read()
        except BaseException:
            if file is not None and file is self._file:
                file.seek(offset)
                self._rest, self._is_skipping = rest, is_skipping
            raise

    def _read(self) -> bool:
        """Read a chunk and put its lines into the queue; False if there is nothing to read, or no room."""
        if not self._open() or not self._has_room(2 * CHUNK + len(self._rest)):
            return False
        assert self._file is not None
        data = self._file.read(CHUNK)
        if not data:
            return False
        lines = self._whole_lines(data)
        moved = self._position.at(self._position.file, self._file.tell() - len(self._rest))
        if lines:
            shared = {} if self._is_own else {"moved": moved}  # places of another ledger mean nothing to the queue
            self._put(SOURCE.name, lines, lines.count(b"\n"), **shared)
        if self._is_own or not lines:
            self._ledger.set(moved)
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
        except UNREADABLE:
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
        except UNREADABLE:
            return
        goes_on = self._position.file == about.st_ino and self._position.offset <= about.st_size
        is_later = self._position.file != 0  # the file replaced another one: all of it is new
        offset = self._position.offset if goes_on else 0 if self._from_start or is_later else about.st_size
        self._file.seek(offset)
        self._ledger.set(self._position.at(about.st_ino, offset))
        self._rest, self._is_skipping = b"", False


def require_no_folder(path: str | Path) -> None:
    """UsageError if a path is a folder, which cannot be followed."""
    if os.path.isdir(path):
        raise UsageError(f"{path}: this is a folder. Name the file that grows.")
