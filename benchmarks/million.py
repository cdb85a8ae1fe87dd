"""`kvtrace release` and `kvtrace report` of a million requests, beside a bare loop of orjson.loads over the same file.

Processor seconds of whole processes, which other work on the machine changes less than seconds. `python -m
benchmarks.million [PYTHON ...]` also runs the release of other interpreters in turn, such as one with an older kvtrace.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from kvtrace.formats import writing

from .analyze import bare
from .apart import apart, medians
from .large_trace import copies, original
from .table import Claim

COPIES = 83  # of the conversation trace, as in large_trace: 998,573 requests, 23.9 million block references, 296 MB
PEAK = 600e6  # the most memory that a release may take


class Spent(NamedTuple):
    """What a command took."""

    processor_s: float
    seconds: float
    peak: float  # bytes


def claims(folder: str, count: int, rounds: int) -> list[Claim]:
    """Processor seconds of the commands beside the loop, and the memory of a release."""
    many = apart(written, folder, count)
    taken = medians(
        {
            "bare": (bare, many), "release": (processor_seconds, "release", many),
            "report": (processor_seconds, "report", many),
        },
        rounds,
    )  # fmt: skip
    peak = apart(command, sys.executable, "release", many).peak
    size = f"{os.path.getsize(many) / 1e6:.0f} MB"
    return [
        Claim(f"release {size}, processor / bare orjson.loads", taken["release"], taken["bare"], "s", 4),
        Claim(f"release {size}, peak memory", peak / 1e6, PEAK / 1e6, "MB", 1),
        Claim(f"report {size}, processor / bare orjson.loads", taken["report"], taken["bare"], "s", 8),
    ]


def written(folder: str, count: int) -> str:
    """So many copies of the conversation trace, or of one that is made up, as rows of JSON."""
    once, path = original(), os.path.join(folder, "million.jsonl")
    writing.write_chunks(copies(once, count), path, block_size=once.block_size, tail=once.tail)
    return path


def processor_seconds(name: str, path: str) -> float:
    """Processor seconds of a command."""
    return command(sys.executable, name, path).processor_s


def command(python: str, name: str, path: str) -> Spent:
    """Run `kvtrace release` or `kvtrace report` of an interpreter; it must be the first child of this process."""
    output = f"{path}.{'html' if name == 'report' else 'released.jsonl'}"
    start = time.perf_counter()
    call = [python, "-m", "kvtrace", name, path, "-o", output, "-q"]
    subprocess.run(call, check=True, cwd=os.path.dirname(path))  # so that no folder here hides an installed kvtrace
    seconds, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Spent(used.ru_utime + used.ru_stime, seconds, used.ru_maxrss * 1024)


def show(pythons: list[str], count: int = COPIES, rounds: int = 3) -> None:
    """Print the medians of each interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        many = apart(written, folder, count)
        print(f"load {os.getloadavg()[0]:.1f} before; medians of {rounds}")
        for name, run_by in (("release", pythons), ("report", pythons[:1])):
            taken: dict[str, list[Spent]] = {python: [] for python in run_by}
            for _ in range(rounds):
                for python in run_by:
                    taken[python].append(apart(command, python, name, many))
            for python, runs in taken.items():
                processor_s, seconds, peak = map(statistics.median, zip(*runs, strict=True))
                print(f"{name:8} {processor_s:6.2f} s processor {seconds:6.2f} s {peak / 1e6:6.0f} MB  {python}")


if __name__ == "__main__":
    show([sys.executable, *sys.argv[1:]])
