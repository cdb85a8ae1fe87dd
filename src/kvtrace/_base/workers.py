"""Map a function over items in several processes, with results in the order of the items."""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from .errors import KvtraceError, StoppedError
from .process import STOPPING, forbid_core_dumps, prctl, uninterrupted

if TYPE_CHECKING:  # loaded by the functions that start workers: small inputs have none
    from concurrent.futures import Executor, Future

PR_SET_PDEATHSIG = 1


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """An executor that a signal can stop at any instruction of the main thread.

    The exception of a signal handler can leave a lock taken inside `Executor.submit`, `Future.result` or `wait`, and
    then the pool never ends. Here signals are handled before or after these, or while the main thread waits for a queue
    that ended tasks fill.

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with WorkerPool(ThreadPoolExecutor(2)) as pool:
    ...     task = pool.submit(abs, -3)
    ...     pool.result(task)
    3
    """

    def __init__(self, executor: Executor):
        self._executor = executor
        self._queue: SimpleQueue[Future] = SimpleQueue()  # of ended tasks
        self._ended: set[Future] = set()  # taken from it, and not asked for
        self.running = 0  # tasks that neither `result` nor `ended` returned

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        end = Thread(target=self._executor.shutdown, kwargs={"cancel_futures": True})
        with uninterrupted():
            end.start()
        end.join()

    def submit(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future:
        """Run function(*arguments, **options) in a worker."""
        with uninterrupted(), _blocked_in_children():
            return self.watch(self._executor.submit(function, *arguments, **options))

    def watch(self, task: Future) -> Future:
        """Count a task of another executor among those of this one; to be called within `uninterrupted`."""
        self.running += 1
        task.add_done_callback(self._queue.put)
        return task

    def result(self, task: Future) -> Any:
        """The result of a task, or its exception, when it has ended."""
        while task not in self._ended:
            self._ended.add(self._queue.get())
        self._ended.remove(task)
        self.running -= 1
        with uninterrupted():
            return task.result()

    def ended(self, *, wait: bool) -> Iterator[Any]:
        """The results of the tasks that have ended, the first to end first; with `wait`, of one at least."""
        with suppress(Empty):
            while True:
                task = self._queue.get(block=wait)
                wait = False
                self.running -= 1
                with uninterrupted():
                    result = task.result()
                yield result


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
    from concurrent.futures.process import BrokenProcessPool

    with _processes(function, workers) as pool:
        waiting: deque[Any] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(_run, item))
                if len(waiting) > 2 * workers:
                    yield pool.result(waiting.popleft()).value()
            while waiting:
                yield pool.result(waiting.popleft()).value()
        except BrokenProcessPool:
            raise StoppedError(
                "a worker process was killed, perhaps for lack of memory; nothing was written. Use fewer --workers."
            ) from None


def retrying_map(
    function: Callable[..., Any], items: Iterable[Any], workers: int, attempts: int = 3
) -> Generator[Any, Any, Any]:
    """Like `ordered_map`, for a function that may run again: the items of a killed worker are repeated.

    StoppedError if workers are killed `attempts` times on the same items.
    """
    from concurrent.futures.process import BrokenProcessPool

    left = deque(items)
    tried = 0
    while left:
        with _processes(function, min(workers, len(left))) as pool:
            waiting: deque[Any] = deque()
            try:
                while left:
                    while len(waiting) < min(2 * workers, len(left)):
                        waiting.append(pool.submit(_run, left[len(waiting)]))
                    result = pool.result(waiting.popleft())
                    left.popleft()
                    tried = 0
                    yield result.value()
            except BrokenProcessPool:
                tried += 1
        if tried >= attempts:
            raise StoppedError(
                f"a worker process was killed {tried} times on the same task, perhaps for lack of memory; nothing "
                "was written. Use fewer --workers or more --partitions."
            )


def thread_map(function: Callable[..., Any], items: Iterable[Any], threads: int | None = None) -> Iterator[Any]:
    """function(item) for each item, in order, computed by threads (default: one per core) a few items ahead.

    For functions that release the interpreter lock most of the time. A single item is computed without threads.

    >>> list(thread_map(abs, [1, -2, 3]))
    [1, 2, 3]
    """
    items, threads = iter(items), threads or cores()
    first = list(islice(items, 2))
    if len(first) < 2 or threads == 1:
        yield from map(function, chain(first, items))
        return
    waiting: deque[Any] = deque()
    from concurrent.futures import ThreadPoolExecutor

    with WorkerPool(ThreadPoolExecutor(threads)) as pool:
        for item in chain(first, items):
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * threads:
                yield pool.result(waiting.popleft())
        while waiting:
            yield pool.result(waiting.popleft())


@contextmanager
def stoppable_threads(
    threads: int | None, on_progress: Callable[[int], None] | None
) -> Iterator[tuple[WorkerPool, Callable[[int], None]]]:
    """A pool of threads, and the function by which their work reports progress: it stops them after the first error."""
    stopped = Event()

    def report(requests: int) -> None:
        if stopped.is_set():
            raise InterruptedError
        if on_progress:
            on_progress(requests)

    from concurrent.futures import ThreadPoolExecutor

    with WorkerPool(ThreadPoolExecutor(threads)) as pool:
        try:
            yield pool, report
        except BaseException:
            stopped.set()
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


def _processes(function, workers) -> WorkerPool:
    """A pool of processes for _run."""
    from concurrent.futures import ProcessPoolExecutor

    arguments = (function, os.getpid())
    return WorkerPool(ProcessPoolExecutor(workers, mp_context=_context(), initializer=_start, initargs=arguments))


@contextmanager
def _blocked_in_children():
    """Signals wait in processes that are started in the block, until _start has set what they do."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _context():
    """Fork on Linux: workers start in a millisecond and share the parent's memory."""
    import multiprocessing

    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


_function: Any = None  # this worker's function


def _start(function, parent):
    global _function
    for stop in (number for number in signal.Signals if number.name in ("SIGINT", "SIGHUP")):
        signal.signal(stop, signal.SIG_IGN)  # the parent handles these
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handler inherited from the parent
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
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
