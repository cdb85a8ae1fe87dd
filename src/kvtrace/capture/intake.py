"""The bounded queue between receivers of requests and the digester: a full queue counts what it does not take.

It never blocks. Each request that comes is accepted, refused if its client sends it again, or dropped. The counts
survive a crash of their process: they are 64-bit numbers in a small file.
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from array import array
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from .._base.errors import named_errors
from .._base.own_files import MOVE, open_own

ACCEPTED, DROPPED, REFUSED, UNCOPIED, ENDED = range(5)  # places of the counts: earlier versions have the first ones
COUNTS = 5


class _Count:
    """One of the numbers."""

    def __init__(self, place: int):
        self._place = place

    def __get__(self, ledger: Ledger, _: type) -> int:
        return ledger.numbers[self._place]

    def __set__(self, ledger: Ledger, count: int) -> None:
        ledger.set({self._place: count})


class Ledger:
    """What became of the requests that came, as numbers in a file of mode 0600; without a path in memory.

    Each request that comes is accepted, dropped (nobody sends it again), or refused (its client sends it again). The
    positions in followed files stand behind the counts, so that one write moves a position and counts its requests.

    A kill of the process loses no count. A power cut loses those that the system had not written yet. The file is not
    mapped into memory: a full disk, or a program that truncates the file, would end the process with SIGBUS.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Ledger(f"{folder}/counts").accepted += 3
    ...     Ledger(f"{folder}/counts").accepted
    3
    """

    accepted = _Count(ACCEPTED)  # requests that the queue took
    dropped = _Count(DROPPED)  # requests that are missing: the queue was full, or their copies found no memory
    refused = _Count(REFUSED)  # requests that a full queue refused, and that their clients send again; each time counts
    uncopied = _Count(UNCOPIED)  # dropped requests whose copies found no memory in the proxy
    ended = _Count(ENDED)  # requests that were accepted before the newest window began

    def __init__(self, path: str | Path | None = None):
        self.numbers, self._handle, self._lock = array("Q", bytes(8 * COUNTS)), -1, threading.Lock()
        self._path = None if path is None else Path(path)
        if path is None:
            return
        with named_errors(path):
            self._handle = open_own(path, private=True, remedy=MOVE)
            weakref.finalize(self, os.close, self._handle)
            data = os.pread(self._handle, os.fstat(self._handle).st_size, 0)
            earlier = array("Q", data[: len(data) // 8 * 8])
            self.numbers[: len(earlier)] = earlier
            del self.numbers[len(self.numbers) - (len(self.numbers) - COUNTS) % 3 :]  # half a position
            if is_damaged := any(count >> 62 for count in self.numbers[:COUNTS]):  # more would not fit
                self.numbers = array("Q", bytes(8 * COUNTS))
            elif 0 < len(earlier) < COUNTS:  # a file without the last count
                self.ended = self.accepted
            if is_damaged or len(earlier) < COUNTS:  # takes its room on the disk now: later changes need none
                self._save()

    def set(self, numbers: dict[int, int]) -> None:
        """Set numbers by their places; on the disk all of them change at once."""
        with self._lock:
            for place, number in numbers.items():
                self.numbers[place] = number
            with suppress(OSError):  # copy-on-write finds no room: the next change saves all numbers
                self._save()

    def position(self, path: str) -> Position:
        """The position in a followed file, 0 if it is new."""
        name = blake2b(os.path.realpath(path).encode(), digest_size=8)
        number = int.from_bytes(name.digest(), "little")
        with self._lock:
            for place in range(COUNTS, len(self.numbers), 3):
                if self.numbers[place] == number:
                    return Position(self, place + 1)
            self.numbers.extend([number, 0, 0])
            with named_errors(self._path or path):
                self._save()
        position = Position(self, len(self.numbers) - 2)
        if self._path is not None:
            earlier = self._path.parent / f"follow-{name.hexdigest()}"  # of an earlier version
            with suppress(OSError):
                data = earlier.read_bytes()
                self.set(position.at(*array("Q", data)))
                earlier.unlink()
        return position

    def _save(self) -> None:
        data = self.numbers.tobytes()
        if self._handle >= 0 and os.pwrite(self._handle, data, 0) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(frozen=True, slots=True)
class Position:
    """The number of a followed file and a place in it: the bytes that were put into the queue."""

    ledger: Ledger
    place: int

    @property
    def file(self) -> int:
        """The file's inode; 0 = none yet."""
        return self.ledger.numbers[self.place]

    @property
    def offset(self) -> int:
        """Bytes of the file that were put into the queue."""
        return self.ledger.numbers[self.place + 1]

    def at(self, file: int, offset: int) -> dict[int, int]:
        """The numbers of another position, for `Ledger.set` or `Intake.put`."""
        return {self.place: file, self.place + 1: offset}


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

    def __init__(
        self,
        max_bytes: int = QUEUE_BYTES,
        *,
        max_payloads: int = MAX_PAYLOADS,
        ledger: Ledger | None = None,
        can_return: bool = False,
    ):
        self.max_bytes, self._max_payloads, self.ledger = max_bytes, max_payloads, ledger or Ledger()
        self.waiting_bytes = 0
        self._waiting: deque[Payload | Mark] = deque()
        self._changed = threading.Condition()
        self._closed = False
        # payloads of followed files that may have to be read again: their requests, and the positions before them
        self._returnable: deque[tuple[int, dict[int, int]]] | None = deque() if can_return else None
        self._kept = 0  # requests that are stored, of the first of them

    def __len__(self) -> int:
        return len(self._waiting)

    def put(
        self,
        source: str,
        payload: bytes,
        requests: int = 1,
        *,
        comes_again: bool = False,
        moved: dict[int, int] | None = None,
    ) -> bool:
        """Add a payload; False if there is no room, or if the queue is closed.

        The requests of a payload that is not taken count as refused if it `comes_again`, else as dropped. `moved` is
        the position behind the payload in a followed file: a kill leaves both the position and the counts, or neither.
        """
        size, ledger = len(payload), self.ledger
        with self._changed:
            if self._closed or self.waiting_bytes + size > self.max_bytes or len(self._waiting) >= self._max_payloads:
                place = REFUSED if comes_again else DROPPED
                ledger.set({place: ledger.numbers[place] + requests, **(moved or {})})
                return False
            if self._returnable is not None and moved:
                self._returnable.append((requests, {place: ledger.numbers[place] for place in moved}))
            ledger.set({ACCEPTED: ledger.accepted + requests, **(moved or {})})
            self.waiting_bytes += size
            self._waiting.append(Payload(source, payload, requests))
            self._changed.notify()
        return True

    def keep(self, requests: int) -> None:
        """So many more requests of followed files are stored, and need not be read again."""
        with self._changed:
            self._kept += requests
            while self._returnable and self._kept >= self._returnable[0][0]:
                self._kept -= self._returnable.popleft()[0]

    def give_back(self) -> None:
        """Move the positions in followed files back before all that is not stored, as if it had not come yet."""
        with self._changed:
            accepted = self.ledger.accepted
            positions: dict[int, int] = {}
            while self._returnable:
                requests, before = self._returnable.pop()
                accepted -= requests
                positions |= before
            self.ledger.set({ACCEPTED: accepted, **positions})

    def has_room(self, size: int) -> bool:
        """Whether a payload of so many bytes would be taken now."""
        return self.waiting_bytes + size <= self.max_bytes and len(self._waiting) < self._max_payloads

    def note_uncopied(self, requests: int) -> None:
        """Count requests as dropped whose copies found no memory before they came to the queue."""
        with self._changed:
            ledger = self.ledger
            ledger.set({DROPPED: ledger.dropped + requests, UNCOPIED: ledger.uncopied + requests})

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
    def is_closed(self) -> bool:
        """Whether the queue takes no more payloads."""
        return self._closed

    @property
    def is_over(self) -> bool:
        """Whether the queue is closed and empty."""
        return self._closed and not self._waiting

    def close(self, last: dict[str, Any] | None = None) -> None:
        """Take no more payloads, after a `last` message. Those that wait can still be taken."""
        with self._changed:
            if last is not None:
                self.mark(last)
            self._closed = True
            self._changed.notify_all()
