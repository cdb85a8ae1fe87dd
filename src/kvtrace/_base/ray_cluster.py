"""Ray, for whoever has more machines: a connection that stays quiet, and tasks whose results come in order."""

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
from .workers import guarded

PATIENCE = 10  # seconds for somebody at an address to answer


def connect(address: str | None = None) -> ModuleType:
    """The module ray, connected to a cluster at an address (`auto`, `host:6379`), or to one of this machine alone.

    A connection that is there already is used as it is. UsageError where Ray is missing or nobody answers. Workers'
    output stays on their machines, nothing is logged here, no dashboard begins, and no usage statistics are sent.
    """
    ray = _ray()
    if ray.is_initialized():
        return ray
    if address is not None and not _answers(address):
        raise UsageError(f"nobody answers at {address}. Try the host:port that `ray start --head` names, or auto.")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address is None:
        address, options["include_dashboard"] = "local", False  # in spite of RAY_ADDRESS
    fault: str | None = None
    with _our_signals():
        try:
            ray.init(address=address, **options)
        except Exception as error:  # of many kinds, by how far the connection came
            fault = type(error).__name__
    if fault is not None:
        where = "Ray does not start here" if address == "local" else f"no Ray cluster is at {address}"
        hint = "Try the same versions of Ray and Python as there, and RAY_AUTH_MODE=token if it asks for a token."
        raise UsageError(f"{where} ({fault}). {hint if address != 'local' else 'Try --runner local.'}")
    return ray


@contextmanager
def connected(address: str | None = None) -> Iterator[ModuleType]:
    """As `connect`; what was begun here ends with the block."""
    ray = _ray()
    ours = not ray.is_initialized()
    try:
        yield connect(address)
    finally:
        if ours:
            with _our_signals():
                ray.shutdown()


def ordered(function: Callable, tasks: Iterable, *, in_flight: int, retries: int) -> Generator:
    """function(task) for each task, in order, computed by the cluster that `connect` gave; a task takes one CPU.

    `function` is sent once, tasks one by one, at most `in_flight` ahead of the results. A task whose worker or machine
    is lost is tried so many times again; then it is a StoppedError. What the function raises is told as by
    `ordered_map`: a KvtraceError as it is, anything else by its place alone, since its message could hold content.
    """
    import ray

    call = ray.remote(num_cpus=1, max_retries=retries)(guarded)
    waiting: deque = deque()
    # Ray is called aside: what a signal raises in the main thread would get lost in Ray's compiled part
    with ThreadPoolExecutor(1) as aside:
        shared = aside.submit(ray.put, function).result()
        try:
            for task in tasks:
                waiting.append(aside.submit(call.remote, shared, task).result())
                if len(waiting) >= in_flight:
                    yield _result(ray, waiting.popleft()).value()
            while waiting:
                yield _result(ray, waiting.popleft()).value()
        finally:
            for reference in waiting:
                with suppress(Exception):
                    aside.submit(ray.cancel, reference, force=True).result()


def _ray() -> ModuleType:
    """The module, told before it looks: send no statistics, and print no lines about workers on our stdout."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # a cluster that runs already has its own say
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")  # log_to_driver=False lets some through
    try:
        import ray
    except ImportError:
        raise UsageError("Ray is not installed here. Try pip install 'kvtrace[ray]'.") from None
    return ray


def _answers(address: str) -> bool:
    """Whether somebody listens at host:port. Asked first, since Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (colon and port.isdecimal()):
        return address == "auto" or address.startswith("ray://")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE):
            return True
    except (OSError, OverflowError):
        return False


def _result(ray, reference):
    """What a task gave, waited for in Python: so a signal is heard at once."""
    fault: str | None = None
    try:
        return reference.future().result()
    except ray.exceptions.RayError as error:
        fault = type(error).__name__.partition("(")[0]  # its message may hold what the task was about
    raise StoppedError(
        f"Ray lost a task for good ({fault}). Its machines need this version of kvtrace, and memory for a task a CPU."
    )


@contextmanager
def _our_signals():
    """Ray takes SIGTERM for its own when it begins, and forgets it when it ends; what the process did is put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stopped = False
    try:
        yield
    except SystemExit:
        stopped = True  # Ray's way
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
    if stopped:
        signal.raise_signal(signal.SIGTERM)
