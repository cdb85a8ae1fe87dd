"""Ray, for several machines: a quiet connection, and tasks with ordered results."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from .errors import StoppedError, UsageError
from .process import forbid_core_dumps, uninterrupted
from .workers import WorkerPool, guarded

TIMEOUT_S = 10  # for a cluster to accept a connection


def connect(address: str | None = None) -> ModuleType:
    """The module ray, connected to the cluster at an address (`auto`, `host:6379`), or to a new local cluster.

    An existing connection is reused. UsageError if Ray is missing or the cluster cannot be reached. Workers' output
    stays on their machines. Ray starts no dashboard and sends no usage statistics. Its Python side logs nothing here;
    its C++ core may log an error to stderr when tasks are cancelled, and has no setting that is silent itself.
    """
    ray = _ray()
    if ray.is_initialized():
        return ray
    if address is not None and not _is_reachable(address):
        raise UsageError(
            f"Cannot reach a Ray cluster at {address}. Use the host:port that `ray start --head` prints, or auto."
        )
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address is None:
        address, options["include_dashboard"] = "local", False  # overrides RAY_ADDRESS
    fault: str | None = None
    with _our_signals():
        try:
            ray.init(address=address, **options)
        except Exception as error:  # the type depends on the stage of the connection
            fault = type(error).__name__
    if fault is not None:
        where = "Ray cannot start here" if address == "local" else f"Cannot connect to a Ray cluster at {address}"
        hint = "Use the cluster's versions of Ray and Python, and RAY_AUTH_MODE=token if it requires a token."
        raise UsageError(f"{where} ({fault}). {hint if address != 'local' else 'Use --runner local.'}")
    return ray


@contextmanager
def connected(address: str | None = None) -> Iterator[ModuleType]:
    """As `connect`; a connection made here is closed when the block ends."""
    ray = _ray()
    ours = not ray.is_initialized()
    try:
        yield connect(address)
    finally:
        if ours:
            with _our_signals():
                ray.shutdown()


def ordered(
    function: Callable[..., Any], tasks: Iterable[Any], *, in_flight: int, retries: int
) -> Generator[Any, Any, Any]:
    """function(task) for each task, in order, computed by the connected cluster; each task uses one CPU.

    `function` is sent once. At most `in_flight` tasks are pending. A task is retried `retries` times if its worker or
    machine is lost, and then raises a StoppedError. Exceptions of the function are raised as by `ordered_map`: a
    KvtraceError unchanged, any other by its place only, because its message could contain content.
    """
    import ray

    call = ray.remote(num_cpus=1, max_retries=retries)(_in_task)
    waiting: deque[Any] = deque()
    # call Ray in another thread: in the main thread, exceptions from signal handlers would be lost in its compiled code
    with WorkerPool(ThreadPoolExecutor(1)) as aside:
        shared = aside.result(aside.submit(ray.put, function))
        try:
            for task in tasks:
                waiting.append(aside.result(aside.submit(call.remote, shared, task)))
                if len(waiting) >= in_flight:
                    yield _result(ray, aside, waiting.popleft()).value()
            while waiting:
                yield _result(ray, aside, waiting.popleft()).value()
        finally:
            # a generator that is closed late may outlive the connection: `cancel` would start a new cluster
            for reference in waiting if ray.is_initialized() else ():
                with suppress(Exception):
                    aside.result(aside.submit(ray.cancel, reference, force=True))


def _in_task(function, item):
    """The result of a task, in a process of Ray, which may have read the text of a log."""
    forbid_core_dumps()
    return guarded(function, item)


def _ray() -> ModuleType:
    """The module, with settings made before its import: no statistics, no worker output on our stdout."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # an existing cluster has its own setting
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")  # log_to_driver=False lets some through
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed. Try `pip install 'kvtrace[ray]'`.") from None
    return ray


def _is_reachable(address: str) -> bool:
    """Whether host:port accepts connections. Checked first, because Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdecimal()):
        return address == "auto" or address.startswith("ray://")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S):
            return True
    except (OSError, OverflowError):
        return False


def _result(ray, pool, reference):
    """The result of a task, awaited in Python so that signals are handled at once."""
    fault: str | None = None
    with uninterrupted():
        task = pool.watch(reference.future())
    try:
        return pool.result(task)
    except ray.exceptions.RayError as error:
        fault = type(error).__name__.partition("(")[0]  # its message may contain the task's data
    raise StoppedError(
        f"Ray lost a task permanently ({fault}). Its machines need this version of kvtrace, and memory for one task "
        "on each CPU."
    )


@contextmanager
def _our_signals():
    """Restore the process's signal handlers: Ray replaces SIGTERM when it starts, and drops it when it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stopped = False
    try:
        yield
    except SystemExit:
        stopped = True  # raised by Ray's handler
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
    if stopped:
        signal.raise_signal(signal.SIGTERM)
