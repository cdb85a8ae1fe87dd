"""Write a folder of files so that it appears complete or not at all; it replaces an older one of its kind."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from .errors import KvtraceError, UsageError
from .file_locks import try_lock
from .folder_handle import FolderHandle
from .output_errors import unwritable
from .output_files import note_result, write_atomically
from .temporary_files import set_aside, temporary_name


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
        self._final = os.path.realpath(folder)

    def __enter__(self) -> Self:
        self.path = temporary_name(self._final)
        try:
            os.mkdir(self.path)
            self._mode = stat.S_IMODE(os.stat(self.path).st_mode)  # of the finished folder
            os.chmod(self.path, 0o700)
            self._lock = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise unwritable(self.name, error, " No file was written.") from None
        with suppress(OSError):  # no locks: other runs leave the folder
            try_lock(self._lock)
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

    @contextmanager
    def file(self, name: str) -> Iterator[BinaryIO]:
        """A file in the folder; errors name the final folder."""
        failed = None
        try:
            with write_atomically(os.path.join(self.path, name)) as stream:
                yield stream
        except KvtraceError as error:
            failed = error
        if failed:
            raise type(failed)(str(failed).replace(self.path, self.name))

    def _appear(self) -> None:
        self._require_place(self.name)  # again: another program may have written there
        place, base = os.path.split(self._final)
        old = os.path.join(place, set_aside(base))
        try:
            os.chmod(self.path, self._mode)
            if os.path.isdir(self._final):
                os.rename(self._final, old)
            os.rename(self.path, self._final)
            note_result(self.name)
            with FolderHandle(place) as folder:
                folder.sync()
        except BaseException as error:
            if os.path.isdir(old) and not os.path.isdir(self._final):
                os.rename(old, self._final)
            if isinstance(error, OSError):
                raise unwritable(self.name, error, " No file was written.") from None
            raise
        shutil.rmtree(old, ignore_errors=True)


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
