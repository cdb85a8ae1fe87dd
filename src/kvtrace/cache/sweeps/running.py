"""Run a sweep: plan the cells of its grid, run those that the checkpoint lacks, write the rows in order."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ..._base.errors import UsageError
from ..._base.files import NamedFile, is_regular, require_distinct
from ..._base.workers import cores
from ..policies import POLICIES
from .cells import Row, with_gaps
from .checkpoint import SweepCheckpoint, path_beside
from .grid import Cell, Grid, plan, stated
from .runners import local, on_ray
from .table import SweepTable, check_output
from .workload import forget

RUNNERS = ("local", "ray")


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
            done = (
                local(work, threads or cores(), on_progress)
                if runner == "local"
                else on_ray(work, requests, ray_address, threads, on_progress)
            )
            for number, row in done:
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
        self.rows: dict[int, Row] = {}

    def append(self, number: int, row: Row) -> None:
        """Store the row of a cell."""
        self.rows[number] = row

    def discard(self) -> None:
        """Delete all rows."""
        self.rows.clear()


def _refuse(grid, output, resume, runner, threads, ray_address) -> None:
    if runner not in RUNNERS:
        raise UsageError(f"{runner!r} is not a runner. Try {' or '.join(RUNNERS)}.")
    if ray_address is not None and runner != "ray":
        raise UsageError("--ray-address needs --runner ray.")
    if threads is not None and threads < 1:
        raise UsageError("--threads must be at least 1.")
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
    if ":" not in policy or module in POLICIES:
        return None
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def _pending(cells: list[Cell], done) -> list[tuple[int, Cell]]:
    """(number, cell) of each cell to run; cells of equal source, workload and demand are neighbours.

    Among them the policies in Python are last: one that is slow, or does not return, keeps no other cell waiting.
    """
    order: dict[Any, int] = {}  # source, then workload -> place
    for cell in cells:
        order.setdefault(cell.workload.source, len(order))
        order.setdefault(cell.workload, len(order))
    waiting = [(number, cell) for number, cell in enumerate(cells) if number not in done]

    def place(one):
        number, cell = one
        setting = cell.setting
        return order[cell.workload.source], order[cell.workload], setting.demand_options, setting.in_python, number

    return sorted(waiting, key=place)
