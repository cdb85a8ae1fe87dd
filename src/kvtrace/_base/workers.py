"""A function mapped over items by several processes, its results in the items' order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from .errors import KvtraceError, StoppedError


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(function: Callable, items: Iterable, workers: int) -> Generator:
    """function(item) for each item, in order, computed by so many processes (or here, when it is one).

    Forked workers share what the function holds already; elsewhere it is pickled once for each worker. At most a few
    items a worker are under way, so that memory stays bounded. A function that raises anything but a KvtraceError ends
    the run with the place of the fault and no more: its message could hold content. A worker that the system kills, for
    want of memory say, is a StoppedError.
    """
    if workers <= 1:
        for item in items:
            yield guarded(function, item).value()
        return
    with ProcessPoolExecutor(
        workers, mp_context=_context(), initializer=_start, initargs=(function, os.getpid())
    ) as pool:
        waiting: deque = deque()
        try:
            for item in items:
                waiting.append(pool.submit(_run, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result().value()
            while waiting:
                yield waiting.popleft().result().value()
        except BrokenProcessPool:
            raise StoppedError(
                "a worker process was killed, perhaps for want of memory; nothing was written. Try fewer --workers."
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def retrying_map(function: Callable, items: Iterable, workers: int, attempts: int = 3) -> Generator:
    """The same for a function that may be called again: what a worker that died was doing is done anew.

    Items that were under way so many times when a worker died are a StoppedError.
    """
    left = deque(items)
    tried = 0
    while left:
        with ProcessPoolExecutor(
            workers, mp_context=_context(), initializer=_start, initargs=(function, os.getpid())
        ) as pool:
            waiting: deque = deque()
            try:
                while left:
                    while len(waiting) < min(2 * workers, len(left)):
                        waiting.append(pool.submit(_run, left[len(waiting)]))
                    given = waiting[0].result()
                    waiting.popleft()
                    left.popleft()
                    tried = 0
                    yield given.value()
            except BrokenProcessPool:
                tried += 1
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        if tried >= attempts:
            raise StoppedError(
                f"a worker process was killed {tried} times over the same task, perhaps for want of memory; nothing "
                "was written. Try fewer --workers or more --partitions."
            )


@dataclass
class _Result:
    """What a call gave, or where it failed, in a form that can cross processes and holds no content."""

    given: Any = None
    error: KvtraceError | None = None
    fault: str | None = None

    def value(self):
        if self.error is not None:
            raise self.error
        if self.fault is not None:
            raise KvtraceError(f"internal error: {self.fault}. Please report it; the message holds no content.")
        return self.given


def guarded(function, item) -> _Result:
    """What function(item) gave or where it failed, whatever it raised, in a form that can cross processes."""
    try:
        return _Result(function(item))
    except KvtraceError as error:
        return _Result(error=error.with_traceback(None))
    except MemoryError:
        return _Result(error=StoppedError("out of memory; no output file was written. Try fewer --workers."))
    except Exception as error:
        return _Result(fault=place_of(error))


def place_of(error: BaseException) -> str:
    """Where an unexpected exception came from, in words that hold no content: type, file and line."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    if frame is None:
        return type(error).__name__
    return f"{type(error).__name__} at {os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}"


def _context():
    """Fork where it is safe: workers then start in a millisecond and share what the parent has loaded."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


_function: Any = None  # this worker's function


def _start(function, parent):
    global _function
    for stop in (number for number in signal.Signals if number.name in ("SIGINT", "SIGHUP")):
        signal.signal(stop, signal.SIG_IGN)  # the parent decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the parent's way to end, which a fork passes on
    _die_with(parent)
    _function = function


def _run(item) -> _Result:
    return guarded(_function, item)


def _die_with(parent):
    """Ask Linux to end this process when its parent ends, however that happens."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)
