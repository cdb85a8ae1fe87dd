"""Files and folders of this user alone: made or reused without following links, and refused if others could plant them.

A private folder (`.recording`, a work folder, a cache) belongs to this user, and no other may write to it: nobody can
replace the files in it. A private file beside an output (a lock, a checkpoint) may stand in a folder that others can
write to, so each run looks at the file that it opened: its owner, its mode, its kind and its names.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from .errors import UsageError, unwritable
from .files import PLAIN, FolderHandle

HAS_USERS = hasattr(os, "geteuid")  # not on Windows
OTHER_OUTPUT = "Delete it, or choose another output."
MOVE = "Move it away, or choose another folder."


def current_user() -> int:
    """The number of this user; 0 on systems without users, where files have owner 0."""
    return os.geteuid() if HAS_USERS else 0


def is_own(about: os.stat_result, others: int = 0o077) -> bool:
    """Whether a file belongs to this user and its mode gives other users none of these permissions.

    True on systems without users (Windows), where modes do not say who may read a file.
    """
    return not HAS_USERS or (about.st_uid == current_user() and not about.st_mode & others)


def own_folder(path: str | Path, *, make: bool = True, others: int = 0o022) -> FolderHandle:
    """Open a private folder, and close it to other users.

    Args:
        path: The folder. A link of this name is not followed.
        make: Make it, mode 0700, if it is missing; the folder around it must exist.
        others: What its mode must not give other users; all else is corrected.

    Raises:
        UsageError: It is a link or a file, belongs to another user, or others can write to it.
        KvtraceError: It cannot be made.
        OSError: It cannot be opened, if it is not to be made.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, own_folder(f"{place}/state") as folder:
    ...     os.chmod(f"{place}/state", 0o777)
    ...     own_folder(f"{place}/state", make=False)
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: ...state: other users can write to this folder (mode 777)...
    """
    try:
        if make:
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
        folder = FolderHandle(path)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.lexists(path):
            raise UsageError(f"{path}: {_kind(os.lstat(path))}. {MOVE}") from None
        if make:
            raise unwritable(path, error) from None
        raise
    about = folder.status()
    if not stat.S_ISDIR(about.st_mode) or not is_own(about, others):
        folder.close()
        raise UsageError(f"{path}: {_fault(about, 'folder', 'write to')}. {MOVE}")
    if HAS_USERS and about.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def open_own(
    path: str | Path, flags: int = os.O_RDWR | os.O_CREAT, *, private: bool = False,
    remedy: str = OTHER_OUTPUT,
) -> int:  # fmt: skip
    """Open a file of this user alone, or create it with mode 0600; returns its handle. It is never truncated.

    Args:
        path: The file. A link of this name is not followed.
        flags: Those of `os.open`.
        private: The file is in a private folder, which is opened and looked at first. Modes that let others read are
            then corrected, as nobody else could enter.
        remedy: What to do about a file that is refused.

    Raises:
        UsageError: It is a link, a pipe or a device, it has a second name (a hard link), it belongs to another user, or
            others can read or write it.
        OSError: It cannot be opened.
    """
    try:
        if private:
            place, base = os.path.split(os.path.abspath(path))
            with own_folder(place, make=False) as folder:
                handle = folder.open(base, flags)
        else:
            handle = os.open(path, flags | PLAIN, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, or a pipe without a reader
            raise UsageError(f"{path}: {_kind(os.lstat(path))}. {remedy}") from None
        raise
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1 or not is_own(about, 0o022 if private else 0o077):
        os.close(handle)
        raise UsageError(f"{path}: {_fault(about, 'file', 'write' if private else 'read or write')}. {remedy}")
    if private and HAS_USERS and about.st_mode & 0o077:
        os.fchmod(handle, 0o600)
    return handle


def followed(path: str | Path) -> str:
    """The file or folder that the path of an output leads to; UsageError for a link that another user made."""
    link = os.fspath(path).rstrip(os.sep)
    if os.path.islink(link) and os.lstat(link).st_uid not in (0, current_user()):
        raise UsageError(f"{path}: this is a link of another user. Name the file itself.")
    return os.path.realpath(path)


def make_folders(path: str | Path) -> list[str]:
    """Make a folder that the user named, and those around it; returns the ones that were missing, the innermost first.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     made = make_folders(f"{place}/a/b")
    ...     remove_folders(made), len(made), os.listdir(place)
    (None, 2, [])
    """
    missing, inner = [], os.path.abspath(path)
    while not os.path.lexists(inner):
        missing.append(inner)
        inner = os.path.dirname(inner)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        remove_folders(missing)
        raise
    return missing


def remove_folders(folders: list[str]) -> None:
    """Delete folders that a run has made, the innermost first, as far as they are empty."""
    with suppress(OSError):
        for folder in folders:
            os.rmdir(folder)


# -- helpers -----------------------------------------------------------------------------------------------------


def _fault(about: os.stat_result, what: str, access: str) -> str:
    """What makes a file or a folder unfit; it is one of the faults."""
    if (what == "folder" and stat.S_ISDIR(about.st_mode)) or stat.S_ISREG(about.st_mode):
        if about.st_uid != current_user():
            return f"this {what} belongs to another user"
        if what == "file" and about.st_nlink > 1:
            return "this file has a second name (a hard link)"
        return f"other users can {access} this {what} (mode {stat.S_IMODE(about.st_mode):03o})"
    return _kind(about)


def _kind(about: os.stat_result) -> str:
    """What a name is that should be that of a file or a folder."""
    if stat.S_ISLNK(about.st_mode):
        return "this is a link, which is not followed"
    if stat.S_ISDIR(about.st_mode):
        return "this is a folder"
    return "this is a file, not a folder" if stat.S_ISREG(about.st_mode) else "this is a pipe or a device"
