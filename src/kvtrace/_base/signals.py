"""Signals that end a run, and steps that they must not divide."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STOPPING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that arrive in the block are handled when it ends. The block must be short.

    >>> import os
    >>> done = []
    >>> try:
    ...     with uninterrupted():
    ...         signal.raise_signal(signal.SIGINT)
    ...         done.append("the step")
    ... except KeyboardInterrupt:
    ...     print(done)
    ['the step']
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread
        return
    arrived: list[int] = []
    handlers = ((number, signal.getsignal(number)) for number in STOPPING)
    before = {number: handler for number, handler in handlers if handler not in (None, signal.SIG_IGN)}
    held = True

    def handle(number, frame):
        """Also right if one signal ends the block while the handlers of the others are set or restored."""
        if held:
            arrived.append(number)
        elif callable(before[number]):
            before[number](number, frame)
        else:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    try:
        for number in before:
            signal.signal(number, handle)
        yield
    finally:
        held = False
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in arrived[:1]:
            signal.raise_signal(number)


def forget_handlers() -> None:
    """From here on, a signal ends the process at once, as the system does it: nothing is left to clean up."""
    for number in STOPPING:
        if signal.getsignal(number) not in (None, signal.SIG_IGN):
            signal.signal(number, signal.SIG_DFL)
