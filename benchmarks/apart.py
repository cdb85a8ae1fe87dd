"""A measurement in a fresh process: no warm caches, no threads and no memory of the one before."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's other threads spin for 0.1 s after its import
QUIET = 0.5  # load of the machine, above which figures are not to be trusted


def apart(function: Callable, *arguments):
    """function(*arguments), called in a process of its own, which ends with it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def medians(contenders: dict[str, tuple], rounds: int) -> dict[str, float]:
    """The median of what each contender (function, arguments ...) gives, run in turn, each time in a process apart."""
    given: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (function, *arguments) in contenders.items():
            given[name].append(apart(function, *arguments))
    return {name: statistics.median(values) for name, values in given.items()}


def wait_for_quiet(seconds: float = 60) -> float:
    """Wait, for so long at most, until the machine is quiet; returns its load."""
    end = time.monotonic() + seconds
    while os.getloadavg()[0] > QUIET and time.monotonic() < end:
        time.sleep(1)
    return os.getloadavg()[0]
