"""Where the cells of a sweep run: in threads of this process, or as tasks on a Ray cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from threading import Event

from ... import __version__
from ..._base.errors import UsageError
from ..._base.ray_cluster import connected, ordered
from ...trace.trace import Trace
from ..demand import Jobs, jobs
from .cells import Row, row_of
from .grid import Cell
from .workload import trace_of

Work = list[
    tuple[int, Cell]
]  # number in the table, and cell; those of one workload that ask the same follow each other
Done = Iterator[tuple[int, Row]]
TOGETHER = 8  # cells a Ray task: the trace is read once for them
RETRIES = 3  # of a Ray task whose worker was lost


def local(work: Work, threads: int, on_progress: Callable[[int], None] | None = None) -> Done:
    """(number, row) of each cell as it ends, run in so many threads; few more traces than those are in memory."""
    stopped = Event()

    def served(requests: int) -> None:
        if stopped.is_set():
            raise InterruptedError
        if on_progress is not None:
            on_progress(requests)

    running: set[Future] = set()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for number, cell, trace, asked in _prepared(work):
                while len(running) > threads:  # one waits, so that no thread does
                    ended, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (one.result() for one in ended)
                running.add(pool.submit(_numbered, number, cell, trace, asked, served))
            while running:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (one.result() for one in ended)
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise


def _prepared(work: Work) -> Iterator[tuple[int, Cell, Trace, Jobs]]:
    """Each cell with its trace and what its requests ask for, made anew only where the cell before had another."""
    for (workload, asks), cells in groupby(work, lambda one: (one[1].workload, one[1].setting.asks)):
        trace = trace_of(workload)
        asked = jobs(trace, *asks)
        for number, cell in cells:
            yield number, cell, trace, asked


def _numbered(number, cell, trace, asked, served) -> tuple[int, Row]:
    return number, row_of(cell, trace, asked, served)


@dataclass(frozen=True)
class Task:
    """Cells of one workload, for a worker on any machine that can read its file."""

    cells: tuple[tuple[int, Cell], ...]
    folder: str  # where the sweep was started: policies of the user may be there
    version: str = __version__


def on_ray(
    work: Work,
    requests: dict,
    address: str | None = None,
    in_flight: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Done:
    """(number, row) of each cell, run by a Ray cluster; `requests` says how many each workload has.

    UsageError where there is no Ray, or its nodes have another kvtrace; StoppedError where workers are lost for good.
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
    """(number, row) of each cell of a task, with the trace read from its file: what a Ray worker does."""
    if task.version != __version__:
        raise UsageError(f"a Ray worker has kvtrace {__version__}, and the sweep {task.version}. Install one version.")
    with _finding_modules_in(task.folder):
        return [_numbered(*one, None) for one in _prepared(list(task.cells))]


@contextmanager
def _finding_modules_in(folder):
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
