"""Guards against code that is not ours: a trial in a forked child, and panics of Rust libraries kept off stderr.

The child tries what a file of the user's may do; it may crash, hang, or take all memory instead of us. The message of a
panic may quote the text that was being tokenised.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .._base.errors import UsageError

hides_panics = False  # set where a command runs as one: other programs may write to stderr from their own threads


@contextmanager
def panics_hidden() -> Iterator[None]:
    """Inside the `with` block, what is written to stderr is lost, in commands and in worker processes only."""
    multiprocessing = sys.modules.get("multiprocessing")  # loaded in a worker
    if not (hides_panics or (multiprocessing is not None and multiprocessing.parent_process())):
        yield
        return
    saved = None
    with suppress(OSError):  # stderr is closed
        saved = os.dup(2)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
    try:
        yield
    finally:
        if saved is not None:
            os.dup2(saved, 2)
            os.close(saved)


SECONDS = 20
MEMORY = 4 << 30  # bytes beyond what the process has mapped already
WALL = 10  # seconds on the clock for each of processor time
FAILED = 100  # the exit status of a task that raised


def in_child(task: Callable[[], int], *, seconds: int = SECONDS, memory: int = MEMORY) -> int:
    """The exit status of a child that runs the task: its result, FAILED if it raised, -N if signal N ended it.

    The child prints nothing: a library that crashes may quote the text that it was given.

    Raises:
        UsageError: This system cannot fork (Windows).

    >>> in_child(lambda: 7), in_child(lambda: 1 // 0), in_child(lambda: os.kill(os.getpid(), 9))
    (7, 100, -9)
    """
    return _run(task, seconds, memory, read=None)[0]


def result_in_child(task: Callable[[], bytes], *, seconds: int, memory: int) -> bytes | None:
    """What the task returns in a child; None if it raised, took longer, or took more memory. Nothing is written.

    The seconds are of processor time, so that a busy machine gives the same result; the child also ends after ten times
    as many on the clock.

    Raises:
        UsageError: This system cannot fork (Windows).

    >>> result_in_child(lambda: b"Boats", seconds=1, memory=64 << 20)
    b'Boats'
    >>> result_in_child(lambda: bytes(1 << 30), seconds=1, memory=64 << 20) is None
    True
    """
    read, write = os.pipe()

    def send() -> int:
        os.close(read)
        result = memoryview(task())
        while result:
            result = result[os.write(write, result) :]
        return 0

    status, result = _run(send, WALL * seconds, memory, read=(read, write), cpu=seconds)
    return result if status == 0 else None


def _run(
    task: Callable[[], int], seconds: int, memory: int, read: tuple[int, int] | None, cpu: int | None = None
) -> tuple[int, bytes]:
    """The exit status of a child that runs the task, and what it wrote into the pipe."""
    if not hasattr(os, "fork"):
        raise UsageError(
            "a tokenizer or chat template of your own is first tried in a forked child process, and this system cannot "
            "fork. Use Linux, macOS or WSL."
        )
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; the child runs one task and exits without cleanup
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = FAILED
        try:
            faulthandler.disable()  # it may write into a copy of stderr, as pytest's does
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            _limit(seconds, memory, cpu)
            status = task()
        finally:
            os._exit(status)
    result = b""
    if read is not None:
        os.close(read[1])
        with open(read[0], "rb") as pipe:
            result = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), result


def why(status: int, seconds: int = SECONDS) -> str | None:
    """A negative exit status of `in_child` in words; None for other statuses."""
    if status >= 0:
        return None
    if -status == signal.SIGALRM:
        return f"takes more than {seconds} s"
    return f"crashes ({signal.Signals(-status).name})"


def _limit(seconds, memory, cpu):
    import resource  # not on Windows

    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process
    signal.alarm(seconds)
    if cpu is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))
    with suppress(OSError, ValueError):  # systems without /proc have no limit
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        own, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit_bytes = mapped + memory if own == resource.RLIM_INFINITY else min(mapped + memory, own)
        # what this process itself may not have fails in the child
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, hard))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
