"""A folder by its open handle: files in it are opened, renamed and deleted there, even if its path changes meanwhile.

No name in it is followed if it is a link. Another user who can write to a folder around it, or who plants a link in it,
therefore cannot lead a run to other files.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import Any, Self

HAS_HANDLES = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY")  # not on Windows: paths are used there
PLAIN = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK"))  # flags of each open


class FolderHandle:
    """An open folder. OSError if its path is not a folder, or its last name is a link.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path, FolderHandle(path) as folder:
    ...     os.close(folder.create("note", 0o600))
    ...     os.symlink("note", os.path.join(path, "link"))
    ...     folder.open("link", os.O_RDONLY)
    Traceback (most recent call last):
    OSError: [Errno 40] Too many levels of symbolic links: 'link'
    """

    def __init__(self, path: str | os.PathLike[str], parent: FolderHandle | None = None):
        self._path: str = os.fspath(path) if parent is None else os.path.join(parent._path, path)
        self._handle = -1
        if HAS_HANDLES:
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | PLAIN, **({} if parent is None else parent._at))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the handle; the folder stays."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def folder(self, name: str) -> FolderHandle:
        """A folder in it."""
        return FolderHandle(name, self)

    def make_folder(self, name: str) -> None:
        """Make a folder that only its owner can enter, unless there is one."""
        with suppress(FileExistsError):
            os.mkdir(self._name(name), 0o700, **self._at)

    def open(self, name: str, flags: int, mode: int = 0o600) -> int:
        """A handle of a file in it; OSError if the name is a link."""
        return os.open(self._name(name), flags | PLAIN, mode, **self._at)

    def create(self, name: str, mode: int) -> int:
        """A handle of a new file, to write; OSError if the name exists."""
        return self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)

    def about(self, name: str) -> os.stat_result:
        """The status of the file with a name; links are not followed."""
        return os.lstat(self._name(name)) if self._handle < 0 else os.stat(name, follow_symlinks=False, **self._at)

    def replace(self, old: str, new: str) -> None:
        """Rename a file; it replaces a file or link of that name."""
        if self._handle < 0:
            os.replace(self._name(old), self._name(new))
        else:
            os.replace(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def unlink(self, name: str) -> None:
        """Delete a file or a link."""
        os.unlink(self._name(name), **self._at)

    def remove_folder(self, name: str) -> None:
        """Delete a folder with its files."""
        shutil.rmtree(self._name(name), ignore_errors=True, **self._at)

    def names(self) -> list[str]:
        """The names of the files in it."""
        return os.listdir(self._path if self._handle < 0 else self._handle)

    def sync(self) -> None:
        """Flush the names in it to the disk."""
        if self._handle >= 0:
            with suppress(OSError):  # some file systems do not support fsync of a folder
                os.fsync(self._handle)

    @property
    def _at(self) -> dict[str, Any]:
        """The handle as an argument of os's functions."""
        return {} if self._handle < 0 else {"dir_fd": self._handle}

    def _name(self, name: str) -> str:
        return name if self._handle >= 0 else os.path.join(self._path, name)
