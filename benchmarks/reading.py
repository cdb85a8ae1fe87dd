"""Reading a trace into columns beside a loop of orjson.loads that fills the same arrays, each in a fresh process.

A process touches its memory for the first time: for 300 MB of trace that is 230 MB of columns, which the kernel has to
allocate. Run in turn in one process, the second contender would find memory that the first has given back.
"""

from __future__ import annotations

import os
import time

from .apart import apart, medians
from .read_write import orjson_read, synthetic_file
from .table import Claim


def claims(folder: str, megabytes: float, rounds: int) -> list[Claim]:
    """The speed of one thread, and what a second one adds."""
    path = apart(synthetic_file, folder, megabytes)
    small = apart(synthetic_file, _folder(folder, "small"), 0.1)
    taken = medians({"rival": (rival, path), "one": (ours, path, small, 1), "two": (ours, path, small, 2)}, rounds)
    return [
        Claim(f"read {megabytes:.0f} MB, 1 thread / orjson", taken["one"], taken["rival"], "s", 1 / 4),
        Claim(f"read {megabytes:.0f} MB, 2 threads / 1 thread", taken["two"], taken["one"], "s", 1 / 1.7),
    ]


def ours(path: str, small: str, threads: int) -> float:
    """Seconds to read a trace in a process that has read a small one: imports are not counted, memory is."""
    from kvtrace.formats.reading import read_columns

    read_columns(small, threads=threads)
    start = time.perf_counter()
    read_columns(path, threads=threads)
    return time.perf_counter() - start


def rival(path: str) -> float:
    """Seconds of the loop of orjson.loads."""
    start = time.perf_counter()
    orjson_read(path)
    return time.perf_counter() - start


def _folder(folder: str, name: str) -> str:
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    return os.path.join(folder, name)
