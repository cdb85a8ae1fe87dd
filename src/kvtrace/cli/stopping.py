"""The end of a service: Ctrl-C and SIGTERM set an event, so that what waits is finished first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .._base.process import STOPPING, forget_handlers


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """An event that the first signal sets; a second one ends the process at once. Signals are as before after the block.

    >>> with stop_event() as stopped:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stopped.is_set()
    True
    """
    stopped = threading.Event()

    def stop(*_: object) -> None:
        forget_handlers()
        stopped.set()

    before = {number: signal.getsignal(number) for number in STOPPING}
    ours = [number for number, handler in before.items() if handler not in (None, signal.SIG_IGN)]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number in ours:
            signal.signal(number, before[number])
