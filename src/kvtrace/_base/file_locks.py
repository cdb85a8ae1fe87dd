"""Locks of files that end with their process, also after SIGKILL, and the temporary files that they mark as in use.

The lock is `flock`, where the system has it. A temporary file or folder beside an output is `.NAME.NUMBER.part`; one
without a lock was left by a killed run. `.NAME.lock` lets one run at a time write an output; a work folder,
`.NAME.NUMBER.work`, has no lock but this one.
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

from .errors import KvtraceError, UsageError, named_errors
from .files import FolderHandle, is_regular, is_std
from .own_files import OTHER_OUTPUT, followed, is_own, open_own

LOCK_TIMEOUT_S = 2.0  # workers of a killed run may hold its locks for a moment


def locked_file(
    path: str, *, busy: str, remedy: str = OTHER_OUTPUT, unlockable: str | None = None, private: bool = False
) -> int:
    """Open a file of this user alone, create it if it is missing, and lock it for this run; returns its handle.

    Args:
        path: The file.
        busy: The message if another run has locked it, which names it as {path}.
        remedy, private: As in `open_own`.
        unlockable: The message if the file system has no locks ({fault}); None = run without a lock.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        with named_errors(path):
            handle = open_own(path, private=private, remedy=remedy)
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


def _free(handle: int, path: str, unlockable: str | None) -> bool:
    """As `try_lock`; True without locks, or a KvtraceError if the caller needs them."""
    try:
        return try_lock(handle)
    except OSError as error:
        if unlockable is not None:
            raise KvtraceError(unlockable.format(path=path, fault=error.strerror)) from None
    return True


def temporary_name(path: str, end: str = "part") -> str:
    """A unique name in the folder of a path, for a file that is renamed to the path when it is complete."""
    folder, base = os.path.split(path)
    return os.path.join(folder, part_of(base, end))


def part_of(base: str, end: str = "part") -> str:
    """A unique temporary name for a file.

    >>> len(part_of("day.jsonl")), part_of("day.jsonl").startswith(".day.jsonl."), len(part_of("x" * 200)) < 130
    (28, True, True)
    """
    return f".{_short(base)}.{secrets.token_hex(6)}.{end}"


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
    """Delete the temporary files and folders of killed runs beside an output that this run has locked."""
    if not is_regular(path) and not os.path.isdir(path):
        return
    place, base = os.path.split(os.path.realpath(path))
    with contextlib.suppress(OSError), FolderHandle(place) as folder:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while remove_leftovers(folder, base, "part|work") and time.monotonic() < deadline:
            time.sleep(0.02)


def remove_leftovers(folder: FolderHandle, base: str, ends: str = "part") -> list[str]:
    """Delete what killed runs left of an output in a folder; returns the temporary files that a run has locked now."""
    with contextlib.suppress(OSError):
        names = folder.names()
        pattern = _pattern(base, f"{ends}|old" if base in names else ends)
        return [name for name in names if pattern.fullmatch(name) and not _removed(folder, name)]
    return []  # a folder whose names cannot be read


# -- helpers -----------------------------------------------------------------------------------------------------


def _short(base: str) -> str:
    """A name that is not too long."""
    return base if len(base) <= 100 else f"{base[:90]}~{zlib.crc32(os.fsencode(base)):08x}"


def _pattern(base: str, ends: str) -> re.Pattern[str]:
    """Temporary names of a file; those set aside (`old`) go only if what replaced them is there."""
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
    folder, base = os.path.split(followed(output))
    path = os.path.join(folder, lock_name(base))
    busy = f"{_quoted(output)}: another run is writing this output. Wait for it, or choose another output."
    handle = locked_file(path, busy=busy)
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
