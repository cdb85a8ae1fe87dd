"""Locks of files that end with their process, also after SIGKILL, and the temporary files that they mark as in use.

The lock is `flock`, where the system has it. A temporary file or folder beside an output is `.NAME.NUMBER.part`; one
without a lock was left by a killed run. `.NAME.lock` lets one run at a time write an output.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import KvtraceError, UsageError, unwritable
from .files import PLAIN, FolderHandle, is_regular, is_std

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


def temporary_name(path: str) -> str:
    """A unique name in the folder of a path, for a file that is renamed to the path when it is complete."""
    folder, base = os.path.split(path)
    return os.path.join(folder, part_of(base))


def part_of(base: str) -> str:
    """A unique temporary name for a file.

    >>> len(part_of("day.jsonl")), part_of("day.jsonl").startswith(".day.jsonl."), len(part_of("x" * 200)) < 130
    (28, True, True)
    """
    return f".{_short(base)}.{secrets.token_hex(6)}.part"


def set_aside(base: str) -> str:
    """A unique name for a folder that is about to be replaced."""
    return f".{_short(base)}.{secrets.token_hex(6)}.old"


def lock_name(base: str) -> str:
    """The name of the lock of an output."""
    return f".{_short(base)}.lock"


def create_part(folder: FolderHandle, base: str, mode: int) -> tuple[str, int]:
    """Create a temporary file that no other run removes; returns its name and its handle."""
    while True:
        name = part_of(base)
        handle = folder.create(name, mode)
        is_free = True
        with contextlib.suppress(OSError):  # no locks: other runs cannot lock it either, and leave it
            is_free = try_lock(handle)
        if is_free and _is_there(folder, name, handle):
            return name, handle
        os.close(handle)  # another run took it for a leftover in the moment before it was locked


def remove_stale(path: str | Path) -> None:
    """Delete the temporary files and folders of killed runs beside an output of this run."""
    if not is_regular(path) and not os.path.isdir(path):
        return
    place, base = os.path.split(os.path.realpath(path))
    with contextlib.suppress(OSError), FolderHandle(place) as folder:
        names = [name for name in folder.names() if _pattern(base, os.path.exists(path)).fullmatch(name)]
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while names := [name for name in names if not _removed(folder, name)]:
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)


# -- helpers -----------------------------------------------------------------------------------------------------


def _short(base: str) -> str:
    """A name that is not too long."""
    return base if len(base) <= 100 else f"{base[:90]}~{zlib.crc32(os.fsencode(base)):08x}"


def _pattern(base: str, is_there: bool) -> re.Pattern[str]:
    """Temporary names of a file; those set aside only if what replaced them is there."""
    ends = "part|old" if is_there else "part"
    return re.compile(rf"\.{re.escape(_short(base))}\.[0-9a-f]{{12}}\.(?:{ends})")


def _removed(folder: FolderHandle, name: str) -> bool:
    """Remove a leftover; False if a run has locked it now. Those of other users and without locks stay."""
    try:
        about = folder.about(name)
        is_folder = stat.S_ISDIR(about.st_mode)
        if not (is_folder or stat.S_ISREG(about.st_mode)) or not is_own(about, others=0):
            return True
        handle = folder.open(name, os.O_RDONLY)
        try:
            if not try_lock(handle):
                return False
            if is_folder:
                folder.remove_folder(name)
            else:
                folder.unlink(name)
        finally:
            os.close(handle)
    except OSError:
        pass
    return True


def _is_there(folder: FolderHandle, name: str, handle: int) -> bool:
    try:
        return os.path.samestat(folder.about(name), os.fstat(handle))
    except OSError:
        return False


EXPOSED = "{path}: this lock belongs to another user, or others can write to it. Delete it, or choose another output."


@contextmanager
def only_writer(output: str | Path, beside: Iterable[str | Path] = ()) -> Iterator[None]:
    """Lock an output for this run, and remove what killed runs left of it and of the files beside it.

    UsageError if another run writes it. A killed run leaves its lock file, which locks nothing. Stdout, pipes and
    devices have no lock.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, only_writer(f"{folder}/day.jsonl"):
    ...     print(os.listdir(folder))
    ['.day.jsonl.lock']
    """
    if is_std(output) or not (is_regular(output) or os.path.isdir(output)):
        yield
        return
    folder, base = os.path.split(os.path.realpath(output))
    path = os.path.join(folder, lock_name(base))
    busy = f"{_quoted(output)}: another run is writing this output. Wait for it, or choose another output."
    handle = locked_file(path, busy=busy, foreign=EXPOSED, exposed=EXPOSED)
    try:
        for name in (output, *beside):
            remove_stale(name)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(handle)


def _quoted(path: str | Path) -> str:
    """A name in a message with placeholders."""
    return str(path).replace("{", "{{").replace("}", "}}")
