"""The checkpoint of a sweep: the rows of its finished cells, in a file beside the table, from which a sweep can resume.

    header   versions, the grid by its options, and the traces by name and SHA-256
    lines    one per finished cell: its number in the plan, its row, and a digest of both

A row is a pure function of trace and setting, so a resumed sweep writes the same table as an uninterrupted one.
`_base/checkpoint.py` has what all checkpoints share.
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO

from ... import __version__
from ..._base.checkpoint import CheckpointFile, CheckpointKind, differing, is_sealed, parsed, sealed
from ..._base.errors import InputError, UsageError
from ..._base.file_locks import remove_stale
from .cells import COLUMNS, Row

FORMAT = 3  # version of the lines


class SweepCheckpoint(CheckpointFile):
    """Keeps the rows of a sweep until its table is complete; a `with` block that succeeds deletes the file.

    The rows depend on `settings` and `traces` (name -> SHA-256). With `resume`, `rows` holds the rows of an earlier run
    of the same sweep; without it, an existing file raises UsageError. The file is locked while it is open.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with SweepCheckpoint(f"{folder}/table.csv", {}, {}) as checkpoint:
    ...         print(os.listdir(folder))
    ...     print(os.listdir(folder))
    ['table.csv.cells.jsonl']
    []
    """

    kind = CheckpointKind(
        magic=b'{"kvtrace_sweep": ',
        exists="{path} holds the finished cells of an interrupted sweep. Continue with --resume, or delete the file to "
        "start again.",
        foreign="{path} exists and is not a checkpoint of kvtrace. Choose another -o.",
        busy="{path} is locked: another run writes this table. Wait for it, or choose another -o.",
        exposed="{path} is not a checkpoint of kvtrace: it belongs to another user, or others can read or write it. "
        "Choose another -o.",
    )

    def __init__(self, output: str, settings: dict[str, Any], traces: dict[str, str], *, resume: bool = False):
        super().__init__(path_beside(output), resume=resume)
        self._output = output
        self._header = sealed({
            "kvtrace_sweep": FORMAT, "version": __version__, "settings": settings, "traces": list(traces.items()),
        })  # fmt: skip
        self.rows: dict[int, Row] = {}  # number of the cell -> its row

    def _entered(self) -> None:
        remove_stale(self._output)
        if self.earlier is not None:
            _require_same(self.path, self.earlier, json.loads(json.dumps(self._header)))
        self.start(self._header)
        self.rows = dict(self.entries(_cell))

    def append(self, number: int, row: Row) -> None:
        """Store the row of a cell. StoppedError if the disk is full; earlier rows are kept."""
        self.append_entry(json.dumps(sealed({"cell": number, "row": row})).encode() + b"\n")
        self.rows[number] = row

    def discard(self) -> None:
        """Delete all rows; the file goes when the block ends."""
        super().discard()
        self.rows.clear()


def path_beside(output: str) -> str:
    """The path of a table's checkpoint.

    >>> path_beside("table.csv")
    'table.csv.cells.jsonl'
    """
    return f"{output}.cells.jsonl"


def _require_same(path: str, earlier: dict[str, Any], header: dict[str, Any]) -> None:
    """UsageError or InputError if the earlier run was not the same sweep of the same traces."""
    anew = f"Delete {path} to start again."
    if any(earlier.get(name) != header[name] for name in ("kvtrace_sweep", "version")):
        raise UsageError(f"{path} was written by another version of kvtrace. {anew}")
    if not is_sealed(earlier):  # from here on, its values have our types
        raise UsageError(f"{path} is damaged. {anew}")
    if changed := differing(earlier.get("settings", {}), header["settings"]):
        raise UsageError(f"{path} was written with another {', '.join(changed)}. {anew}")
    traces = dict(earlier.get("traces", []))
    if list(traces) != [name for name, _ in header["traces"]]:
        raise UsageError(f"{path} was written with other traces, or in another order. {anew}")
    for name, sha256 in header["traces"]:
        if traces[name] != sha256:
            raise InputError(f"{name} has changed since the interrupted sweep began. {anew}")


def _cell(file: BinaryIO, _remaining: int) -> tuple[int, Row] | None:
    """The number and the row of the next finished cell; None if the line is not a complete row."""
    line = file.readline()
    values = parsed(line) if line.endswith(b"\n") else {}
    number, row = values.get("cell"), values.get("row")
    if is_sealed(values) and isinstance(number, int) and isinstance(row, dict) and tuple(row) == COLUMNS:
        return number, row
    return None
