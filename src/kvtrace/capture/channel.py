"""Messages between the service process and its digester, over a pair of connected sockets.

to the digester      kind (1 byte), requests (4), length of the source's name (1), length of the data (8), name, data
to the service       one JSON object a line: counts and sentences, never content
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from queue import Empty, Queue
from typing import Any, BinaryIO

from .intake import Mark, Payload
from .supervisor import Supervisor

HEAD = struct.Struct("<cIBQ")
MESSAGE, PAYLOAD = b"M", b"P"
BUFFER = 1 << 20
AHEAD = 2  # items that the digester reads ahead


class End(Enum):
    """The end of the connection."""

    END = "the service closed the connection, or died"


END = End.END


def framed(item: Payload | Mark) -> tuple[bytes, bytes]:
    """An item as it is sent: its head, and its data."""
    if isinstance(item, Mark):
        data = json.dumps(item.message).encode()
        return HEAD.pack(MESSAGE, 0, 0, len(data)), data
    name = item.source.encode()
    return HEAD.pack(PAYLOAD, item.requests, len(name), len(item.data)) + name, item.data


class ServiceEnd:
    """The service's end: it sends payloads and messages, and receives reports."""

    def __init__(self, connection: socket.socket):
        self._socket = connection

    def send(self, frame: tuple[bytes, bytes]) -> None:
        """Send one payload or message, as `framed` made it. OSError if the digester has ended."""
        for piece in frame:
            self._socket.sendall(piece)

    def reports(self) -> Iterator[dict[str, Any]]:
        """The digester's reports, until it ends."""
        with self._socket.makefile("rb") as lines:
            try:
                for line in lines:
                    if line.endswith(b"\n"):
                        yield json.loads(line)
            except OSError:
                return

    def close(self) -> None:
        """Close the connection: the digester finishes what it received, and ends."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def abandon(self) -> None:
        """Close both directions at once."""
        self.close()
        self._socket.close()


class DigesterEnd:
    """The digester's end. A thread reads ahead a little, so that waiting for a payload can have a time limit."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._ahead: Queue[Payload | Mark | End] = Queue(maxsize=AHEAD)
        self._has_begun = self._is_over = False
        Supervisor().part("payloads").start(self._read, lambda: self._is_over)

    def receive(self, timeout_s: float | None = None) -> Payload | Mark | End | None:
        """The next payload or message; END if the service closed the connection or died; None if none came in time."""
        try:
            return self._ahead.get(timeout=timeout_s)
        except Empty:
            return None

    def report(self, **values: Any) -> None:
        """Send a report. A service that has died receives none."""
        with suppress(OSError):
            self._socket.sendall(json.dumps(values).encode() + b"\n")

    def _read(self):
        """Read to the end. After an error, the place in the stream is not known: it counts as the end."""
        if not self._has_begun:
            self._has_begun = True
            with self._socket.makefile("rb", buffering=BUFFER) as file:
                while (item := _next(file)) is not None:
                    self._ahead.put(item)
        self._ahead.put(END)
        self._is_over = True


def _next(file: BinaryIO) -> Payload | Mark | None:
    """The next item; None at the end, and where the service died in the middle of one."""
    try:
        head = file.read(HEAD.size)
        if len(head) < HEAD.size:
            return None
        kind, requests, name_length, length = HEAD.unpack(head)
        name, data = file.read(name_length), file.read(length)
    except OSError:
        return None
    if len(data) < length:
        return None
    return Mark(json.loads(data)) if kind == MESSAGE else Payload(name.decode(), data, requests)
