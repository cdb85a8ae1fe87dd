"""Lines of the table, and how they are measured: in turn, in fresh processes, beside a rival or a reference loop."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's other threads spin for 0.1 s after its import
QUIET = 0.5  # load of the machine, above which figures are not to be trusted
TIMES = {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}  # of a second
SIZES = {"MB": 1e-6, "bytes": 1}  # of a byte
FRESH = multiprocessing.get_context("forkserver")  # forks of a process that has done nothing but these imports
FRESH.set_forkserver_preload(["kvtrace.ingest.pipeline", "kvtrace.cache.simulation", "kvtrace.serving.simulation"])
WIDTH = 58  # of a name
SHARED = Path(os.environ.get("KVTRACE_SHARED", Path(__file__).parents[2] / "shared"))
CLIENTS = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder"))


@dataclass(frozen=True)
class Line:
    """A figure of ours beside a rival's: each a number of seconds or bytes, or (function, arguments ...) for one."""

    name: str
    unit: str
    ours: tuple | float | None
    rival: tuple | float | None = None
    most: float | None = None  # the largest ours / rival that we promise
    needs: str = ""  # what the rival lacks here, or ours if that is None

    def __post_init__(self):
        if len(self.name) > WIDTH:
            raise ValueError(f"{self.name!r} is longer than {WIDTH} characters")

    @property
    def is_time(self) -> bool:
        """Whether the machine's speed and other work change the figure."""
        return self.unit in TIMES

    def measure(self, rounds: int) -> list[float | None]:
        """Medians of ours and the rival's, run in turn; memory is measured once."""
        pair = (self.ours, None if self.needs else self.rival)
        taken = [[value_of(one) for one in pair] for _ in range(rounds if self.is_time else 1)]
        return [None if None in values else statistics.median(values) for values in zip(*taken, strict=True)]


def value_of(source):
    """A number as it is; otherwise what the function gives, in a process of its own unless it starts one itself."""
    if not isinstance(source, tuple):
        return source
    function, *arguments = source
    return function(*arguments) if function in HERE else apart(function, *arguments)


def apart(function: Callable, *arguments):
    """function(*arguments) in a fresh process: no warm caches, no threads and no memory of the one before."""
    with ProcessPoolExecutor(1, mp_context=FRESH) as pool:
        return pool.submit(function, *arguments).result()


def wait_for_quiet(seconds: float = 60) -> float:
    """Wait, for so long at most, until the machine is quiet; returns its load."""
    end = time.monotonic() + seconds
    while os.getloadavg()[0] > QUIET and time.monotonic() < end:
        time.sleep(1)
    return os.getloadavg()[0]


def client(name: str) -> tuple[Path, str]:
    """The programs of a rival's environment in KVTRACE_CLIENTS, and what is missing."""
    programs = CLIENTS / name / "bin"
    return programs, "" if programs.exists() else f"KVTRACE_CLIENTS/{name}"


# -- whole commands ------------------------------------------------------------------------------------------------


class Spent(NamedTuple):
    """What a command took, with all processes that it waited for."""

    wall_s: float
    processor_s: float
    peak: float  # bytes
    notes: str  # what it wrote to stderr


def spent(*command: str, folder: str | None = None) -> Spent:
    """Run a command; RuntimeError with its last line if it fails."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stderr is not None
        notes = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"status {process.returncode}: {notes.strip().splitlines()[-1:] or command}")
    return Spent(time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, notes)


def kvtrace(*arguments: str) -> Spent:
    """Run `kvtrace`."""
    return spent(sys.executable, "-m", "kvtrace", *arguments)


def wall(*arguments: str) -> float:
    """Seconds of a kvtrace command, from start to exit."""
    return kvtrace(*arguments).wall_s


def processor(*arguments: str) -> float:
    """Processor seconds of a kvtrace command."""
    return kvtrace(*arguments).processor_s


def peak(*arguments: str) -> float:
    """The largest resident memory of a kvtrace command."""
    return kvtrace(*arguments).peak


# -- reference loops -----------------------------------------------------------------------------------------------


def python_start() -> float:
    """Processor seconds of a process that starts Python and imports NumPy."""
    return spent(sys.executable, "-c", "import numpy").processor_s


def python_step(steps: int = 1) -> float:
    """Seconds of so many steps of a loop in Python, which moves an entry of an OrderedDict to its end."""
    order = OrderedDict.fromkeys(range(1_000))

    def run() -> None:
        for key in range(100_000):
            key %= 1_000
            del order[key]
            order[key] = None

    return steps * best(run) / 100_000


def look_up(times: int = 1) -> float:
    """Seconds of so many look-ups in compiled code: NumPy gathers a million numbers from random places of 32 MB."""
    table = _table()
    return times * best(lambda: table[table[: 1 << 20]]) / (1 << 20)


@cache
def _table():
    import numpy as np

    return np.random.default_rng(0).permutation(1 << 22)


def best(run: Callable[[], object], times: int = 5) -> float:
    """The least processor seconds of some runs."""

    def once() -> float:
        start = time.process_time()
        run()
        return time.process_time() - start

    return min(once() for _ in range(times))


HERE = (wall, processor, python_start, python_step, look_up)
