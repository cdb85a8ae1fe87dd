"""Map a function over items in several processes, with results in the order of the items."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from threading import Event
from typing import Any

from .core_dumps import forbid_core_dumps, prctl
from .errors import KvtraceError, StoppedError

PR_SET_PDEATHSIG = 1


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable[..., Any], items: Iterable[Any], workers: int) -> Generator[Any, Any, Any]:
    """function(item) for each item, in order, computed by `workers` processes (or in this one if it is 1).

    Forked workers share the function's data; on other systems it is pickled once for each worker. Each worker has only
    a few pending items, which bounds the memory. If the function raises anything but a KvtraceError, the run ends with
    the place of the error only, because its message could contain content. If the system kills a worker, for example
    when memory runs out, the error is a StoppedError.
    """
    if workers <= 1:
        for item in items:
            yield guarded(function, item).value()
        return
    with ProcessPoolExecutor(
        workers, mp_context=_context(), initializer=_start, initargs=(function, os.getpid())
    ) as pool:
        waiting: deque[Any] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(_run, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result().value()
            while waiting:
                yield waiting.popleft().result().value()
        except BrokenProcessPool:
            raise StoppedError(
                "a worker process was killed, perhaps for lack of memory; nothing was written. Use fewer --workers."
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def retrying_map(
    function: Callable[..., Any], items: Iterable[Any], workers: int, attempts: int = 3
) -> Generator[Any, Any, Any]:
    """Like `ordered_map`, for a function that may run again: the items of a killed worker are repeated.

    StoppedError if workers are killed `attempts` times on the same items.
    """
    left = deque(items)
    tried = 0
    while left:
        with ProcessPoolExecutor(
            workers, mp_context=_context(), initializer=_start, initargs=(function, os.getpid())
        ) as pool:
            waiting: deque[Any] = deque()
            try:
                while left:
                    while len(waiting) < min(2 * workers, len(left)):
                        waiting.append(pool.submit(_run, left[len(waiting)]))
                    result = waiting[0].result()
                    waiting.popleft()
                    left.popleft()
                    tried = 0
                    yield result.value()
            except BrokenProcessPool:
                tried += 1
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        if tried >= attempts:
            raise StoppedError(
                f"a worker process was killed {tried} times on the same task, perhaps for lack of memory; nothing "
                "was written. Use fewer --workers or more --partitions."
            )


def thread_map(function: Callable[..., Any], items: Iterable[Any], threads: int | None = None) -> Iterator[Any]:
    """function(item) for each item, in order, computed by threads (default: one per core) a few items ahead.

    For functions that release the interpreter lock most of the time. The first item is computed without threads.

    >>> list(thread_map(abs, [1, -2, 3]))
    [1, 2, 3]
    """
    left, threads = iter(items), threads or cores()
    yield from map(function, islice(left, 1))
    waiting: deque[Any] = deque()
    with ThreadPoolExecutor(threads) as pool:  # it starts a thread for each of its first items
        for item in left:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def stoppable_threads(
    threads: int | None, on_progress: Callable[[int], None] | None
) -> Iterator[tuple[ThreadPoolExecutor, Callable[[int], None]]]:
    """A pool of threads, and the function by which their work reports progress: it stops them after the first error."""
    stopped = Event()

    def report(done: int) -> None:
        if stopped.is_set():
            raise InterruptedError
        if on_progress:
            on_progress(done)

    with ThreadPoolExecutor(threads) as pool:
        try:
            yield pool, report
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise


@dataclass
class _Result:
    """The result of a call, or the place of its failure; it can be pickled, and contains no content."""

    returned: Any = None
    error: KvtraceError | None = None
    fault: str | None = None

    def value(self):
        if self.error is not None:
            raise self.error
        if self.fault is not None:
            raise KvtraceError(f"internal error: {self.fault}. Please report it; the message contains no content.")
        return self.returned


def guarded(function, item) -> _Result:
    """The result of function(item), or the place of its failure for any exception."""
    try:
        return _Result(function(item))
    except KvtraceError as error:
        return _Result(error=error.with_traceback(None))
    except MemoryError:
        return _Result(error=StoppedError("out of memory; no output file was written. Use fewer --workers."))
    except Exception as error:
        return _Result(fault=place_of(error))


def place_of(error: BaseException) -> str:
    """The place of an unexpected exception without content: type, file and line."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return type(error).__name__
    return f"{type(error).__name__} at {os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}"


def _context():
    """Fork on Linux: workers start in a millisecond and share the parent's memory."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


_function: Any = None  # this worker's function


def _start(function, parent):
    global _function
    for stop in (number for number in signal.Signals if number.name in ("SIGINT", "SIGHUP")):
        signal.signal(stop, signal.SIG_IGN)  # the parent handles these
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handler inherited from the parent
    forbid_core_dumps()
    _die_with(parent)
    _function = function


def _run(item) -> _Result:
    return guarded(_function, item)


def _die_with(parent):
    """Make Linux kill this process when its parent ends."""
    if sys.platform != "linux":
        return
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent has already ended
        os._exit(1)
