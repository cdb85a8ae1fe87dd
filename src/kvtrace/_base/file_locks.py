"""Locks of files that end with their process, also after SIGKILL: `flock`, where the system has it."""

from __future__ import annotations

import errno
import os
import stat
import time

from .errors import KvtraceError, UsageError
from .folder_handle import PLAIN
from .output_errors import unwritable

HAS_USERS = hasattr(os, "geteuid")  # not on Windows
LOCK_TIMEOUT_S = 2.0  # workers of a killed run may hold its locks for a moment


def locked_file(
    path: str, *, busy: str, foreign: str, exposed: str | None = None, unlockable: str | None = None
) -> int:
    """Open a file, create it if it is missing, and lock it for this run; returns its handle.

    The arguments are messages, which name the file as {path}.

    Args:
        path: The file. Links are not followed.
        busy: Another run has locked it.
        foreign: It is not a regular file.
        exposed: It belongs to another user, or others can read or write it; None = as `foreign`.
        unlockable: The file system has no locks ({fault}); None = run without a lock.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        handle = _opened(path, foreign, exposed or foreign)
        try:
            is_free = _free(handle, path, unlockable)
            if is_free and has_name(handle, path):
                return handle  # else the run that held the lock has finished and deleted the file
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        if not is_free and time.monotonic() > deadline:
            raise UsageError(busy.format(path=path))
        time.sleep(0.02)


def try_lock(handle: int) -> bool:
    """Lock an open file or folder; False if another run has locked it. OSError if there are no locks here."""
    try:
        import fcntl
    except ImportError:
        raise OSError(errno.ENOTSUP, "no file locks") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def has_name(handle: int, path: str) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


def is_own(about: os.stat_result, others: int = 0o077) -> bool:
    """Whether a file belongs to this user and its mode gives other users none of these permissions.

    True on systems without users (Windows), where modes do not say who may read a file.
    """
    return not HAS_USERS or (about.st_uid == current_user() and not about.st_mode & others)


def current_user() -> int:
    """The number of this user; 0 on systems without users, where files have owner 0."""
    return os.geteuid() if HAS_USERS else 0


def _free(handle: int, path: str, unlockable: str | None) -> bool:
    """As `try_lock`; True without locks, or a KvtraceError if the caller needs them."""
    try:
        return try_lock(handle)
    except OSError as error:
        if unlockable is not None:
            raise KvtraceError(unlockable.format(path=path, fault=error.strerror)) from None
    return True


def _opened(path: str, foreign: str, exposed: str) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | PLAIN, 0o600)
    except OSError as error:
        raise unwritable(path, error) from None
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or not is_own(about):
        os.close(handle)
        raise UsageError((exposed if stat.S_ISREG(about.st_mode) else foreign).format(path=path))
    return handle
