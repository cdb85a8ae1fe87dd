"""A file beside an output that holds the finished work of a run, so that the run can be resumed.

    header     one line of JSON: the kind of checkpoint, versions, and all that the entries depend on
    entries    one per finished piece of work, each appended whole

The file is locked while a run uses it. A run that succeeds deletes it. A run that fails keeps it if it holds an entry.
A kill may leave an incomplete entry at the end, which the next run cuts off.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, BinaryIO, ClassVar, Self, TypeVar

from .errors import UsageError, named_errors
from .file_locks import locked_file
from .output_files import append_whole
from .own_files import OTHER_OUTPUT

CONTINUES = "finished work is saved: continue with --resume."
STARTS = "no work was finished: --resume starts from the beginning."
SYNC_ENTRIES = 16  # entries between two fsyncs: a power cut loses at most this many

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class CheckpointKind:
    """The first bytes of a command's checkpoints, and the command's own messages, which name the file as {path}."""

    magic: bytes  # the first bytes of each header
    exists: str  # the run does not resume, but there is work to continue
    foreign: str  # the file is not such a checkpoint
    busy: str  # another run has locked the file
    remedy: str = OTHER_OUTPUT  # what to do about a link, or a file that is another user's, or that others can read
    unlockable: str | None = None  # the file system has no locks ({fault}); None = run without a lock


class CheckpointFile:
    """The checkpoint of one kind of run; a subclass defines the kind, the header and the entries.

    Enter it before any work. When the settings are known, compare them with the header of the `earlier` run, `start`,
    read all saved `entries`, and append new ones.

    Args:
        resume: continue the checkpoint of an earlier run. Without it, an existing checkpoint is a UsageError.

    >>> import tempfile
    >>> class Lines(CheckpointFile):
    ...     kind = CheckpointKind(b'{"lines": ', exists="{path}: resume it.", foreign="", busy="")
    >>> def next_line(file, remaining):
    ...     return file.readline() or None
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for resume in (False, True):
    ...         with contextlib.suppress(OSError), Lines(f"{folder}/work", resume=resume) as checkpoint:
    ...             checkpoint.start({"lines": 1})
    ...             print(list(checkpoint.entries(next_line)))
    ...             checkpoint.append_entry(b"one piece\\n")
    ...             raise OSError("no room for the output")
    []
    [b'one piece\\n']
    """

    path: str

    kind: ClassVar[CheckpointKind]

    def __init__(self, path: str | os.PathLike[str], *, resume: bool = False):
        self.path, self._resume = os.fspath(path), resume
        self.earlier: dict[str, Any] | None = None  # the header of an earlier run
        self._handle = -1
        self._is_ours = False  # the file belongs to this run, or the earlier run had the same settings
        self._start = self._end = 0  # bytes: start of the first entry, end of the last complete one
        self._count = 0  # entries read or appended

    def __enter__(self) -> Self:
        kind = self.kind
        self._handle = locked_file(self.path, busy=kind.busy, remedy=kind.remedy, unlockable=kind.unlockable)
        try:
            self.earlier, self._start = _header(self._handle, self.path, self.kind)
            self._is_ours, self._end = self.earlier is None, self._start
            if self.earlier is not None and not self._resume:
                raise UsageError(self.kind.exists.format(path=self.path))
            self._entered()
        except BaseException:
            os.close(self._handle)
            raise
        return self

    def _entered(self) -> None:
        """Called when the file is open and locked; an error closes the file and leaves it as it is."""

    def start(self, header: dict[str, Any]) -> None:
        """Write the header, unless an earlier run has; its header was compared, so the file now belongs to this run."""
        if self.earlier is None:
            with named_errors(self.path):
                os.ftruncate(self._handle, 0)
            self._write(json.dumps(header).encode() + b"\n")
            self._start = self._end
        self._is_ours = True

    def entries(self, read: Callable[[BinaryIO, int], Entry | None]) -> Iterator[Entry]:
        """Yield the saved entries in order, then cut off an incomplete one at the end.

        Args:
            read: Takes the file and its number of unread bytes; returns the next entry, or None if it is incomplete.
        """
        size = os.fstat(self._handle).st_size
        with open(self._handle, "rb", closefd=False) as file:
            file.seek(self._start)
            while (entry := read(file, size - self._end)) is not None:
                self._end = file.tell()
                self._count += 1
                yield entry
        with named_errors(self.path):
            os.ftruncate(self._handle, self._end)

    def append_entry(self, data: bytes) -> None:
        """Save the next entry. StoppedError if the disk is full; earlier entries stay intact."""
        self._write(data)
        self._count += 1
        if self._count % SYNC_ENTRIES == 0:
            with named_errors(self.path):
                os.fsync(self._handle)

    def discard(self) -> None:
        """Delete all entries; the file goes when the `with` block ends."""
        with named_errors(self.path):
            os.ftruncate(self._handle, self._start)
        self._end, self._count = self._start, 0

    def __exit__(self, _kind, error: BaseException | None, _traceback) -> None:
        holds_work = os.fstat(self._handle).st_size > self._start > 0
        try:
            if self._is_ours and error is not None and holds_work:
                with contextlib.suppress(OSError):
                    os.fsync(self._handle)
                error.add_note(CONTINUES)
            elif self._is_ours:
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            if not (error is None or holds_work or isinstance(error, Exception)):
                error.add_note(STARTS)  # a signal came before the first entry was saved
        finally:
            os.close(self._handle)

    def _write(self, data: bytes) -> None:
        """Append all of the bytes, or none."""
        self._end = append_whole(self._handle, data, self._end, self.path)


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The names of the settings that differ, sorted.

    >>> differing({"--k": 5, "--tail": "kept"}, {"--k": 5, "--tail": "unique", "--outputs": True})
    ['--outputs', '--tail']
    """
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def sealed(values: dict[str, Any], key: bytes = b"") -> dict[str, Any]:
    """The values with their digest, so that changes are detected; with a key, nobody without the key can compute it.

    >>> is_sealed(sealed({"cell": 3})), is_sealed(sealed({"cell": 3}) | {"cell": 4}), is_sealed({"digest": 5})
    (True, False, False)
    """
    return values | {"digest": _digest(values, key)}


def is_sealed(values: dict[str, Any], key: bytes = b"") -> bool:
    """Whether the values have the digest that `sealed` gave them."""
    others = {name: value for name, value in values.items() if name != "digest"}
    return isinstance(values.get("digest"), str) and compare_digest(values["digest"], _digest(others, key))


def _digest(values: dict[str, Any], key: bytes) -> str:
    return blake2b(json.dumps(values).encode(), key=key, digest_size=16).hexdigest()


def parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; {} if the line is not one.

    >>> parsed(b'{"cell": 3}'), parsed(b'{"cell": 3, "ro')
    ({'cell': 3}, {})
    """
    value = None
    with contextlib.suppress(ValueError):
        value = json.loads(line)
    return value if isinstance(value, dict) else {}


def _header(handle: int, path: str, kind: CheckpointKind) -> tuple[dict[str, Any] | None, int]:
    """The header of an earlier run, and the start of its entries; None and 0 if the header is incomplete."""
    with open(handle, "rb", closefd=False) as file:
        line = file.readline()
    if not (line.startswith(kind.magic) or kind.magic.startswith(line)):
        raise UsageError(kind.foreign.format(path=path))
    if not line.endswith(b"\n"):
        return None, 0  # killed while writing the header
    header = parsed(line)
    if not header:
        raise UsageError(f"{path}: the checkpoint is damaged. Delete it to start over.")
    return header, len(line)
