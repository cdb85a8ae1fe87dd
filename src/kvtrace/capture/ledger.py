"""Counts that survive a crash of their process: 64-bit numbers in a small file that is mapped into memory."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from pathlib import Path

from .._base.errors import unwritable
from .._base.file_locks import is_own
from .._base.folder_handle import PLAIN

BYTES = 8 * 5  # a new count goes to the end: the files of earlier versions have the first ones


class _Count:
    """One of the numbers."""

    def __init__(self, place: int):
        self._place = place

    def __get__(self, ledger: Ledger, _: type) -> int:
        return ledger._values[self._place]

    def __set__(self, ledger: Ledger, count: int) -> None:
        ledger._values[self._place] = count


class Ledger:
    """What became of the requests that came, as numbers in a file of mode 0600; without a path in memory.

    Each request that comes is accepted, dropped (nobody sends it again), or refused (its client sends it again).

    A kill of the process loses no count. A power cut loses those that the system had not written yet.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Ledger(f"{folder}/counts").accepted += 3
    ...     Ledger(f"{folder}/counts").accepted
    3
    """

    accepted = _Count(0)  # requests that the queue took
    dropped = _Count(1)  # requests that are missing: the queue was full, or their copies found no memory
    refused = _Count(2)  # requests that a full queue refused, and that their clients send again; each time counts
    uncopied = _Count(3)  # dropped requests whose copies found no memory in the proxy
    ended = _Count(4)  # requests that were accepted before the newest window began

    def __init__(self, path: str | Path | None = None):
        is_older = False
        if path is None:
            self._map = mmap.mmap(-1, BYTES)
        else:
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | PLAIN, 0o600)
                with suppress(OSError):
                    if not is_own(os.fstat(handle)):
                        os.fchmod(handle, 0o600)
                is_older = 0 < os.fstat(handle).st_size < BYTES  # a file without the last count
                os.ftruncate(handle, BYTES)
                self._map = mmap.mmap(handle, BYTES)
                os.close(handle)
            except OSError as error:
                raise unwritable(path, error) from None
        self._values = memoryview(self._map).cast("Q")
        if is_older:
            self.ended = self.accepted
