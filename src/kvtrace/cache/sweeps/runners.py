"""Where the cells of a sweep run: in threads of this process, or as tasks on a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ... import __version__
from ..._base.errors import UsageError
from ..._base.ray_cluster import connected, ordered
from ..._base.workers import stoppable_threads
from ...trace.trace import Trace
from ..demand import BlockDemand, block_demand
from .cells import Row, row_of
from .grid import Cell
from .workload import trace_of

Work = list[tuple[int, Cell]]  # number in the table, and cell; cells with equal workload and demand are neighbours
Done = Iterator[tuple[int, Row]]
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
    for (workload, options), cells in groupby(work, lambda one: (one[1].workload, one[1].setting.demand_options)):
        trace = trace_of(workload)
        demand = block_demand(trace, *options)
        for number, cell in cells:
            yield number, cell, trace, demand


def _numbered(number, cell, trace, demand, served) -> tuple[int, Row]:
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
        for cells in (list(group) for _, group in groupby(work, lambda one: one[1].workload))
        for start in range(0, len(cells), TOGETHER)
    ]
    if not tasks:
        return
    with connected(address) as ray:
        in_flight = in_flight or 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
        done = ordered(rows_of, tasks, in_flight=in_flight, retries=RETRIES)
        for task, rows in zip(tasks, done, strict=True):
            yield from rows
            if on_progress is not None:
                on_progress(sum(requests[cell.workload] for _, cell in task.cells))


def rows_of(task: Task) -> list[tuple[int, Row]]:
    """The work of a Ray worker: run the cells of a task, with the trace read from its file; (number, row) of each."""
    if task.version != __version__:
        raise UsageError(f"A Ray worker has kvtrace {__version__}, the sweep has {task.version}. Install one version.")
    with _finding_modules_in(task.folder):
        return [_numbered(*one, None) for one in _prepared(list(task.cells))]


@contextmanager
def _finding_modules_in(folder):
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
