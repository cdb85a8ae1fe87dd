"""The bounded queue between receivers of requests and the digester: a full queue counts what it does not take.

It never blocks. Each request that comes is accepted, refused if its client sends it again, or dropped. The counts
survive a crash of their process: they are 64-bit numbers in a small file that is mapped into memory.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._base.errors import unwritable
from .._base.file_locks import is_own
from .._base.files import PLAIN

BYTES = 8 * 5  # a new count goes to the end: the files of earlier versions have the first ones


class _Count:
    """One of the numbers."""

    def __init__(self, place: int):
        self._place = place

    def __get__(self, ledger: Ledger, _: type) -> int:
        return ledger._values[self._place]

    def __set__(self, ledger: Ledger, count: int) -> None:
        ledger._values[self._place] = count


class Ledger:
    """What became of the requests that came, as numbers in a file of mode 0600; without a path in memory.

    Each request that comes is accepted, dropped (nobody sends it again), or refused (its client sends it again).

    A kill of the process loses no count. A power cut loses those that the system had not written yet.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Ledger(f"{folder}/counts").accepted += 3
    ...     Ledger(f"{folder}/counts").accepted
    3
    """

    accepted = _Count(0)  # requests that the queue took
    dropped = _Count(1)  # requests that are missing: the queue was full, or their copies found no memory
    refused = _Count(2)  # requests that a full queue refused, and that their clients send again; each time counts
    uncopied = _Count(3)  # dropped requests whose copies found no memory in the proxy
    ended = _Count(4)  # requests that were accepted before the newest window began

    def __init__(self, path: str | Path | None = None):
        is_older = False
        if path is None:
            self._map = mmap.mmap(-1, BYTES)
        else:
            try:
                handle = os.open(path, os.O_RDWR | os.O_CREAT | PLAIN, 0o600)
                with suppress(OSError):
                    if not is_own(os.fstat(handle)):
                        os.fchmod(handle, 0o600)
                is_older = 0 < os.fstat(handle).st_size < BYTES  # a file without the last count
                os.ftruncate(handle, BYTES)
                self._map = mmap.mmap(handle, BYTES)
                os.close(handle)
            except OSError as error:
                raise unwritable(path, error) from None
        self._values = memoryview(self._map).cast("Q")
        if any(count >> 62 for count in self._values):  # damaged: nobody counts so far, and more would not fit
            self._map[:] = bytes(BYTES)
        if is_older:
            self.ended = self.accepted


MAX_PAYLOADS = 100_000
QUEUE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Payload:
    """What a receiver got, as it came."""

    source: str
    data: bytes
    requests: int

    def __repr__(self) -> str:  # tracebacks must not show content
        return f"Payload({self.source!r}, {len(self.data)} bytes)"


@dataclass(frozen=True, slots=True)
class Mark:
    """A message to the digester that keeps its place among the payloads, such as the begin of a window."""

    message: dict[str, Any]

    def __repr__(self) -> str:  # it may hold a key
        return "Mark()"


class Intake:
    """Payloads in the order of their arrival, at most `max_bytes` of them. All methods may be called from any thread.

    >>> intake = Intake(max_bytes=10)
    >>> intake.put("otlp", b"12345678", 2), intake.put("otlp", b"12345678", 3), intake.ledger.dropped
    (True, False, 3)
    >>> intake.take().requests, intake.waiting_bytes
    (2, 0)
    """

    waiting_bytes: int  # of the payloads in the queue

    def __init__(self, max_bytes: int = QUEUE_BYTES, *, max_payloads: int = MAX_PAYLOADS, ledger: Ledger | None = None):
        self.max_bytes, self._max_payloads, self.ledger = max_bytes, max_payloads, ledger or Ledger()
        self.waiting_bytes = 0
        self._waiting: deque[Payload | Mark] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, source: str, payload: bytes, requests: int = 1, *, comes_again: bool = False) -> bool:
        """Add a payload; False if there is no room, or if the queue is closed.

        The requests of a payload that is not taken count as refused if it `comes_again`, else as dropped.
        """
        size = len(payload)
        with self._changed:
            if self._closed or self.waiting_bytes + size > self.max_bytes or len(self._waiting) >= self._max_payloads:
                if comes_again:
                    self.ledger.refused += requests
                else:
                    self.ledger.dropped += requests
                return False
            self.ledger.accepted += requests
            self.waiting_bytes += size
            self._waiting.append(Payload(source, payload, requests))
            self._changed.notify()
        return True

    def has_room(self, size: int) -> bool:
        """Whether a payload of so many bytes would be taken now."""
        return self.waiting_bytes + size <= self.max_bytes and len(self._waiting) < self._max_payloads

    def note_uncopied(self, requests: int) -> None:
        """Count requests as dropped whose copies found no memory before they came to the queue."""
        with self._changed:
            self.ledger.dropped += requests
            self.ledger.uncopied += requests

    def mark(self, message: dict[str, Any]) -> None:
        """Add a message, whether there is room or not, with the requests accepted and dropped before it."""
        with self._changed:
            counts = {"accepted": self.ledger.accepted, "dropped": self.ledger.dropped}
            self._waiting.append(Mark({**message, **counts}))
            self._changed.notify()

    def take(self, timeout_s: float | None = None) -> Payload | Mark | None:
        """The next payload or message; None if none came in time, or if the queue is closed and empty."""
        with self._changed:
            if not self._waiting and not self._closed:
                self._changed.wait(timeout_s)
            if not self._waiting:
                return None
            item = self._waiting.popleft()
            if isinstance(item, Payload):
                self.waiting_bytes -= len(item.data)
            return item

    @property
    def is_over(self) -> bool:
        """Whether the queue is closed and empty."""
        return self._closed and not self._waiting

    def close(self) -> None:
        """Take no more payloads. Those that wait can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
