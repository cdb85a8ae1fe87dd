"""The checkpoint of a sweep: the rows of the cells that are done, in a file beside its table, so that it can go on.

    header   one line of JSON: versions, the grid by its options, and the traces by name and SHA-256
    lines    one a cell, as it ended: its number in the plan, and its row

A row is a pure function of trace and setting, so a sweep that finds some of them here gives the same table as one that
runs them all. What was being written when a sweep was killed is a torn last line, and is cut off.
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

FORMAT = 1
MARK = b'{"kvtrace_sweep": '  # what each begins with
PATIENCE = 2.0  # seconds that a killed run may take to let go of the lock
GOES_ON = "what was done is kept: --resume goes on."


class SweepCheckpoint:
    """Keeps the rows of a sweep until its table has its name: a block that ends well deletes it, any other keeps it.

    `settings` and `traces` (name -> SHA-256) are what the rows depend on. With `resume`, the rows of an earlier run of
    the same sweep are taken up, in `rows`; without, a file that one left is a UsageError. It is locked while open.

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
        self._stated = {
            "kvtrace_sweep": FORMAT, "version": __version__, "settings": settings, "traces": list(traces.items()),
        }  # fmt: skip
        self.rows: dict[int, Row] = {}  # number of the cell -> its row
        self._handle = -1
        self._end = 0  # of the lines that are whole

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
        """Keep the row of a cell. StoppedError where the disk is full; the rows before it stay whole."""
        self._write(json.dumps({"cell": number, "row": row}).encode() + b"\n")
        self.rows[number] = row

    def discard(self) -> None:
        """Keep nothing, however the block ends."""
        self.rows.clear()

    def __exit__(self, _kind, error, _traceback) -> None:
        try:
            if error is None or not self.rows:
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            else:
                with contextlib.suppress(OSError):
                    os.fsync(self._handle)
                error.add_note(GOES_ON)
        finally:
            os.close(self._handle)

    def _take_up(self) -> None:
        with open(self._handle, "rb", closefd=False) as file:
            header = file.readline()
            if not (header.startswith(MARK) or MARK.startswith(header)):
                raise UsageError(f"{self.path}: is no file of kvtrace's, and the run needs this name. Name another -o.")
            if header.endswith(b"\n"):
                if not self._resume:
                    raise UsageError(
                        f"{self.path}: is there: it holds what an unfinished sweep did. --resume goes on with it; "
                        "remove it to begin anew."
                    )
                self._require_same(_parsed(header))
                self._end = len(header)
                for line in file:
                    if not self._take(line):
                        break
        with named_errors(self.path):
            os.ftruncate(self._handle, self._end)
        if not self._end:  # new, or killed before it had stated all
            self._write(json.dumps(self._stated).encode() + b"\n")

    def _take(self, line) -> bool:
        """Whether a line is a row of ours; what follows one that is not was written in vain."""
        found = _parsed(line) if line.endswith(b"\n") else {}
        number, row = found.get("cell"), found.get("row")
        if not (isinstance(number, int) and isinstance(row, dict) and tuple(row) == COLUMNS):
            return False
        self.rows[number] = row
        self._end += len(line)
        return True

    def _require_same(self, found) -> None:
        anew, now = f"Remove {self.path} to begin anew.", json.loads(json.dumps(self._stated))
        if any(found.get(name) != now[name] for name in ("kvtrace_sweep", "version")):
            raise UsageError(f"{self.path}: another version of kvtrace began it. {anew}")
        before, settings = found.get("settings", {}), now["settings"]
        others = sorted(name for name in before.keys() | settings.keys() if before.get(name) != settings.get(name))
        if others:
            raise UsageError(f"{self.path}: was begun with another {', '.join(others)}. {anew}")
        traces = dict(found.get("traces", []))
        if list(traces) != [name for name, _ in now["traces"]]:
            raise UsageError(f"{self.path}: was begun with other traces, or in another order. {anew}")
        for name, sha256 in now["traces"]:
            if traces[name] != sha256:
                raise InputError(f"{name}: has changed since the sweep that is to be resumed began. {anew}")

    def _write(self, data: bytes) -> None:
        """Append the bytes, or leave the file as it was."""
        self._end = append_whole(self._handle, data, self._end, self.path)


def path_beside(output: str) -> str:
    """Where the checkpoint of a table is.

    >>> path_beside("table.csv")
    'table.csv.cells.jsonl'
    """
    return f"{output}.cells.jsonl"


def _locked(path) -> int:
    """The file, made if missing, open and locked for this run alone."""
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
            raise UsageError(f"{path}: another run is writing this table. Wait for it, or name another -o.")
        time.sleep(0.02)


def _lock(handle) -> bool:
    """Whether nobody else has it; a system without such locks lets everybody have it."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # some network file systems have none
    return os.fstat(handle).st_nlink > 0  # else the run that had it ended well, and deleted it


def _parsed(line) -> dict:
    """A line's object; an empty one where it holds none."""
    found = None
    with contextlib.suppress(ValueError):
        found = json.loads(line)
    return found if isinstance(found, dict) else {}
