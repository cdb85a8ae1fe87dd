"""Temporary files and folders beside an output, `.NAME.NUMBER.part`, and those that killed runs left.

A live run has locked each of them, or the output (output_lock.py). The system drops the locks of a killed run.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import time
import zlib
from pathlib import Path

from .file_locks import LOCK_TIMEOUT_S, is_own, try_lock
from .files import is_regular
from .folder_handle import FolderHandle


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
