"""The checkpoint of a sweep: the rows of its finished cells, in a file beside the table, from which a sweep can resume.

    header   one line of JSON: versions, the grid by its options, and the traces by name and SHA-256
    lines    one per finished cell: its number in the plan, and its row

A row is a pure function of trace and setting, so a resumed sweep writes the same table as an uninterrupted one. A run
that is killed may leave a torn last line, which is cut off.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

from ... import __version__
from ..._base.errors import InputError, UsageError
from ..._base.output_files import append_whole, named_errors, remove_stale, unwritable
from .cells import COLUMNS, Row

FORMAT = 2  # version of the lines
MARK = b'{"kvtrace_sweep": '  # how each header begins
PATIENCE = 2.0  # seconds until a killed run has released the lock
CAN_RESUME = "the finished work is saved; continue with --resume."


class SweepCheckpoint:
    """Keeps the rows of a sweep until its table is complete; a `with` block that succeeds deletes the file.

    The rows depend on `settings` and `traces` (name -> SHA-256). With `resume`, `rows` holds the rows of an earlier run
    of the same sweep; without it, an existing file raises UsageError. The file is locked while it is open.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with SweepCheckpoint(f"{folder}/table.csv", {}, {}) as checkpoint:
    ...         print(os.listdir(folder))
    ...     print(os.listdir(folder))
    ['table.csv.cells.jsonl']
    []
    """

    def __init__(self, output: str, settings: dict[str, Any], traces: dict[str, str], *, resume: bool = False):
        self.path, self._output, self._resume = path_beside(output), output, resume
        self._header = {
            "kvtrace_sweep": FORMAT, "version": __version__, "settings": settings, "traces": list(traces.items()),
        }  # fmt: skip
        self.rows: dict[int, Row] = {}  # number of the cell -> its row
        self._handle = -1
        self._end = 0  # bytes of complete lines

    def __enter__(self) -> SweepCheckpoint:
        self._handle = _locked(self.path)
        try:
            self._take_up()
        except BaseException:
            os.close(self._handle)
            raise
        if self._resume:
            remove_stale(self._output)
        return self

    def append(self, number: int, row: Row) -> None:
        """Store the row of a cell. StoppedError if the disk is full; earlier rows are kept."""
        self._write(json.dumps({"cell": number, "row": row}).encode() + b"\n")
        self.rows[number] = row

    def discard(self) -> None:
        """Delete all rows; the file goes when the block ends."""
        self.rows.clear()

    def __exit__(self, _kind, error, _traceback) -> None:
        try:
            if error is None or not self.rows:
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            else:
                with contextlib.suppress(OSError):
                    os.fsync(self._handle)
                error.add_note(CAN_RESUME)
        finally:
            os.close(self._handle)

    def _take_up(self) -> None:
        with open(self._handle, "rb", closefd=False) as file:
            header = file.readline()
            if not (header.startswith(MARK) or MARK.startswith(header)):
                raise UsageError(f"{self.path} exists and is not a checkpoint of kvtrace. Choose another -o.")
            if header.endswith(b"\n"):
                if not self._resume:
                    raise UsageError(
                        f"{self.path} holds the finished cells of an interrupted sweep. Continue with --resume, or "
                        "delete the file to start again."
                    )
                self._require_same(_parsed(header))
                self._end = len(header)
                for line in file:
                    if not self._take(line):
                        break
        with named_errors(self.path):
            os.ftruncate(self._handle, self._end)
        if not self._end:  # new, or without a complete header
            self._write(json.dumps(self._header).encode() + b"\n")

    def _take(self, line) -> bool:
        """Read a line into `rows`; False if it is not a complete row, which ends the file."""
        values = _parsed(line) if line.endswith(b"\n") else {}
        number, row = values.get("cell"), values.get("row")
        if not (isinstance(number, int) and isinstance(row, dict) and tuple(row) == COLUMNS):
            return False
        self.rows[number] = row
        self._end += len(line)
        return True

    def _require_same(self, header) -> None:
        anew, now = f"Delete {self.path} to start again.", json.loads(json.dumps(self._header))
        if any(header.get(name) != now[name] for name in ("kvtrace_sweep", "version")):
            raise UsageError(f"{self.path} was written by another version of kvtrace. {anew}")
        before, settings = header.get("settings", {}), now["settings"]
        others = sorted(name for name in before.keys() | settings.keys() if before.get(name) != settings.get(name))
        if others:
            raise UsageError(f"{self.path} was written with another {', '.join(others)}. {anew}")
        traces = dict(header.get("traces", []))
        if list(traces) != [name for name, _ in now["traces"]]:
            raise UsageError(f"{self.path} was written with other traces, or in another order. {anew}")
        for name, sha256 in now["traces"]:
            if traces[name] != sha256:
                raise InputError(f"{name} has changed since the interrupted sweep began. {anew}")

    def _write(self, data: bytes) -> None:
        """Append the bytes, or leave the file unchanged."""
        self._end = append_whole(self._handle, data, self._end, self.path)


def path_beside(output: str) -> str:
    """The path of a table's checkpoint.

    >>> path_beside("table.csv")
    'table.csv.cells.jsonl'
    """
    return f"{output}.cells.jsonl"


def _locked(path) -> int:
    """Open the file, create it if it is missing, and lock it for this run."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as error:
            raise unwritable(path, error) from None
        if _lock(handle):
            return handle
        os.close(handle)
        if time.monotonic() > deadline:
            raise UsageError(f"{path} is locked: another run writes this table. Wait for it, or choose another -o.")
        time.sleep(0.02)


def _lock(handle) -> bool:
    """Lock the file; False if another process holds the lock. Always True on a system without such locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # some network file systems have no locks
    return os.fstat(handle).st_nlink > 0  # 0: the run that held the lock finished and deleted it


def _parsed(line) -> dict:
    """The JSON object of a line; {} if the line is not one."""
    value = None
    with contextlib.suppress(ValueError):
        value = json.loads(line)
    return value if isinstance(value, dict) else {}
