"""Run a sweep: plan the cells of its grid, run those that the checkpoint lacks, write the rows in order.

Cells run in threads of this process, or as tasks on a Ray cluster. The checkpoint has the rows of the finished cells,
in a file beside the table:

    header   versions, the grid by its options, and the traces by name and SHA-256
    lines    one per finished cell: its number in the plan, its row, and a digest of both

A row is a pure function of trace and setting, so a resumed sweep writes the same table as an uninterrupted one.
`_base/checkpoint.py` has what all checkpoints share.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

from ... import __version__
from ..._base.checkpoint import CheckpointFile, CheckpointKind, differing, is_sealed, parsed, sealed
from ..._base.errors import InputError, UsageError, wrong_word
from ..._base.file_locks import remove_stale
from ..._base.files import NamedFile, is_regular, require_distinct
from ..._base.ray_cluster import connected, ordered
from ..._base.workers import cores, stoppable_threads
from ...trace.trace import Trace
from ..demand import BlockDemand, block_demand
from ..policies import is_users
from ..setup import Grid
from .grid import Cell, forget, plan, stated, trace_of
from .table import COLUMNS, SweepRow, SweepTable, check_output, row_of, with_gaps

RUNNERS = ("local", "ray")
NOTEBOOK = "__main__"  # the module of a class in a notebook or a script


def sweep(
    grid: Grid,
    output: str | None = None,
    *,
    resume: bool = False,
    runner: str = "local",
    threads: int | None = None,
    ray_address: str | None = None,
    on_total: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> SweepTable:
    """Simulate all cells of a grid; return their table and write it to `output`.

    The bytes of the table depend neither on threads and runner nor on interruptions. A cell that fails has an `error`.

    Args:
        grid: The grid.
        output: The file of the table; None writes none.
        resume: Continue an interrupted sweep from its checkpoint.
        runner: "local" for threads, "ray" for tasks on a Ray cluster.
        threads: Cells (with Ray: tasks) at once.
        ray_address: The Ray cluster; None starts one.
        on_total: Receives the number of requests of all cells together.
        on_progress: Receives the number of requests served since its last call, from any thread.

    Raises:
        UsageError: An argument is not valid, or all cells fail.
        InputError: A trace cannot be read.
        StoppedError: The sweep was interrupted and can be resumed.

    >>> import tempfile, kvtrace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = kvtrace.write(kvtrace.toy("0 1", "2", "0 1"), f"{folder}/trace.jsonl")
    ...     table = sweep(Grid((f"{folder}/trace.jsonl",), capacity="2,3"))
    >>> [(row["capacity"], row["hit_blocks"]) for row in table.rows]
    [(2, 1), (3, 2)]
    """
    _refuse(grid, output, resume, runner, threads, ray_address)
    requests: dict[Any, Any] = {}  # workload -> requests
    try:
        cells = plan(grid, lambda workload, trace: requests.setdefault(workload, len(trace)))
        if on_total is not None:
            on_total(sum(requests[cell.workload] for cell in cells))
        with _checkpoint(grid, cells, output, resume) as checkpoint:
            work = _pending(cells, checkpoint.rows)
            if on_progress is not None:
                on_progress(sum(requests[cells[number].workload] for number in checkpoint.rows))
            rows = (
                local(work, threads or cores(), on_progress)
                if runner == "local"
                else on_ray(work, requests, ray_address, threads, on_progress)
            )
            for number, row in rows:
                checkpoint.append(number, row)
            table = SweepTable(with_gaps(cells, [checkpoint.rows[number] for number in range(len(cells))]))
            if len(table.failed) == len(table.rows):
                checkpoint.discard()
                raise UsageError(f"All cells of the sweep failed. The first error: {table.rows[0]['error']}")
            if output is not None:
                table.write(output)
    finally:
        forget()
    return table


class MemoryCheckpoint:
    """A checkpoint in memory, for a sweep without an output file."""

    def __init__(self):
        self.rows: dict[int, SweepRow] = {}

    def append(self, number: int, row: SweepRow) -> None:
        """Store the row of a cell."""
        self.rows[number] = row

    def discard(self) -> None:
        """Delete all rows."""
        self.rows.clear()


def _refuse(grid, output, resume, runner, threads, ray_address) -> None:
    if runner not in RUNNERS:
        raise wrong_word(runner, "a runner", RUNNERS)
    if ray_address is not None and runner != "ray":
        raise UsageError("--ray-address needs --runner ray.")
    if threads is not None and threads < 1:
        raise UsageError("--threads must be at least 1.")
    if runner == "ray" and (own := [policy for policy in grid.policies if policy.startswith(f"{NOTEBOOK}:")]):
        raise UsageError(f"--runner ray needs the policy {own[0]} in a module that every node can import.")
    if output is not None:
        check_output(output)
        outputs = [NamedFile("the table", output), NamedFile("the table", path_beside(output), "checkpoint")]
        require_distinct([NamedFile("the trace", path) for path in grid.traces], outputs)
    if resume and (output is None or not is_regular(output)):
        raise UsageError("--resume needs -o FILE: only a sweep with an output file has a checkpoint.")


def _checkpoint(grid: Grid, cells: list[Cell], output: str | None, resume: bool):
    if output is None or not is_regular(output):
        return nullcontext(MemoryCheckpoint())
    policies = [[policy, _code(policy)] for policy in grid.policies]
    traces = {cell.workload.source.name: cell.workload.source.sha256 for cell in cells}
    return SweepCheckpoint(output, stated(grid) | {"--policy": policies}, traces, resume=resume)


def _code(policy: str) -> str | None:
    """SHA-256 of the file of a user's policy: rows of another version of the file are not valid."""
    module = policy.partition(":")[0]
    if not is_users(policy):
        return None
    if module == NOTEBOOK:  # its class may change from run to run
        return os.urandom(8).hex()
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def _pending(cells: list[Cell], finished: Container[int]) -> list[tuple[int, Cell]]:
    """(number, cell) of each cell to run; cells of equal source, workload and demand are neighbours.

    Among them the policies in Python are last: one that is slow, or does not return, keeps no other cell waiting.
    """
    order: dict[Any, int] = {}  # source, then workload -> place
    for cell in cells:
        order.setdefault(cell.workload.source, len(order))
        order.setdefault(cell.workload, len(order))
    waiting = [(number, cell) for number, cell in enumerate(cells) if number not in finished]

    def place(waiting_cell):
        number, cell = waiting_cell
        setting = cell.setting
        return order[cell.workload.source], order[cell.workload], setting.demand_options, setting.in_python, number

    return sorted(waiting, key=place)


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
        remedy="Choose another -o.",
    )

    def __init__(self, output: str, settings: dict[str, Any], traces: dict[str, str], *, resume: bool = False):
        super().__init__(path_beside(output), resume=resume)
        self._output = output
        self._header = sealed({
            "kvtrace_sweep": FORMAT, "version": __version__, "settings": settings, "traces": list(traces.items()),
        })  # fmt: skip
        self.rows: dict[int, SweepRow] = {}  # number of the cell -> its row

    def _entered(self) -> None:
        remove_stale(self._output)
        if self.earlier is not None:
            _require_same(self.path, self.earlier, json.loads(json.dumps(self._header)))
        self.start(self._header)
        self.rows = dict(self.entries(_cell))

    def append(self, number: int, row: SweepRow) -> None:
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


def _cell(file: BinaryIO, _remaining: int) -> tuple[int, SweepRow] | None:
    """The number and the row of the next finished cell; None if the line is not a complete row."""
    line = file.readline()
    values = parsed(line) if line.endswith(b"\n") else {}
    number, row = values.get("cell"), values.get("row")
    if is_sealed(values) and isinstance(number, int) and isinstance(row, dict) and tuple(row) == COLUMNS:
        return number, row
    return None


Work = list[tuple[int, Cell]]  # number in the table, and cell; cells with equal workload and demand are neighbours
Done = Iterator[tuple[int, SweepRow]]
TOGETHER = 8  # cells per Ray task, which reads the trace once
RETRIES = 3  # of a Ray task that lost its worker


def local(work: Work, threads: int, on_progress: Callable[[int], None] | None = None) -> Done:
    """(number, row) of each finished cell, run in threads; at most one trace per thread and two more are in memory.

    A policy in Python runs in the calling thread, which Ctrl-C interrupts.
    """
    with stoppable_threads(threads, on_progress) as (pool, served):
        for number, cell, trace, demand in _prepared(work):
            while pool.running > threads:  # one cell is queued, so that no thread idles
                yield from pool.ended(wait=True)
            if cell.setting.in_python:
                yield from pool.ended(wait=False)  # saved before a policy that may not return
                try:
                    row = _numbered(number, cell, trace, demand, served)
                except BaseException:  # Ctrl-C: the cells that threads finished meanwhile are not lost
                    with suppress(Exception):
                        yield from pool.ended(wait=False)
                    raise
                yield row
                continue
            pool.submit(_numbered, number, cell, trace, demand, served)
        while pool.running:
            yield from pool.ended(wait=True)


def _prepared(work: Work) -> Iterator[tuple[int, Cell, Trace, BlockDemand]]:
    """Each cell with its trace and block demand, which neighbours share."""
    for (workload, options), cells in groupby(work, lambda item: (item[1].workload, item[1].setting.demand_options)):
        trace = trace_of(workload)
        demand = block_demand(trace, *options)
        for number, cell in cells:
            yield number, cell, trace, demand


def _numbered(number, cell, trace, demand, served) -> tuple[int, SweepRow]:
    return number, row_of(cell, trace, demand, served)


@dataclass(frozen=True)
class Task:
    """Cells of one workload, for a worker on any machine that can read its file."""

    cells: tuple[tuple[int, Cell], ...]
    folder: str  # where the sweep started: the user's policies may be there
    version: str = __version__


def on_ray(
    work: Work,
    requests: dict[Any, int],
    address: str | None = None,
    in_flight: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Done:
    """Run the cells on a Ray cluster; yields (number, row) of each.

    Args:
        work: The cells.
        requests: Workload -> its number of requests.
        address: The cluster; None starts one on this machine.
        in_flight: Tasks at once; the default is two per CPU.
        on_progress: Receives the number of requests served since its last call.

    Raises:
        UsageError: Ray is missing, or a node has another version of kvtrace.
        StoppedError: A task lost its worker too often.
    """
    tasks = [
        Task(tuple(cells[start : start + TOGETHER]), os.getcwd())
        for cells in (list(group) for _, group in groupby(work, lambda item: item[1].workload))
        for start in range(0, len(cells), TOGETHER)
    ]
    if not tasks:
        return
    with connected(address) as ray:
        in_flight = in_flight or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
        rows_of_tasks = ordered(rows_of, tasks, in_flight=in_flight, retries=RETRIES)
        for task, rows in zip(tasks, rows_of_tasks, strict=True):
            yield from rows
            if on_progress is not None:
                on_progress(sum(requests[cell.workload] for _, cell in task.cells))


def rows_of(task: Task) -> list[tuple[int, SweepRow]]:
    """The work of a Ray worker: run the cells of a task, with the trace read from its file; (number, row) of each."""
    if task.version != __version__:
        raise UsageError(f"A Ray worker has kvtrace {__version__}, the sweep has {task.version}. Install one version.")
    with _finding_modules_in(task.folder):
        return [_numbered(*prepared, None) for prepared in _prepared(list(task.cells))]


@contextmanager
def _finding_modules_in(folder):
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
