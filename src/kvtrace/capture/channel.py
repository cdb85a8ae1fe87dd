"""Messages between the service process and its digester, over a pair of connected sockets.

to the digester      kind (1 byte), requests (4), length of the source's name (1), length of the data (8), name, data
to the service       one JSON object a line: counts and sentences, never content
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from queue import Empty, Queue
from typing import Any, BinaryIO

from .intake import Mark, Payload

HEAD = struct.Struct("<cIBQ")
MESSAGE, PAYLOAD = b"M", b"P"
BUFFER = 1 << 20
AHEAD = 2  # items that the digester reads ahead


class End(Enum):
    """The end of the connection."""

    END = "the service closed the connection, or died"


END = End.END


class ServiceEnd:
    """The service's end: it sends payloads and messages, and receives reports."""

    def __init__(self, connection: socket.socket):
        self._socket = connection

    def send(self, item: Payload | Mark) -> None:
        """Send one payload or message. OSError if the digester has ended."""
        if isinstance(item, Mark):
            data = json.dumps(item.message).encode()
            self._socket.sendall(HEAD.pack(MESSAGE, 0, 0, len(data)) + data)
            return
        name = item.source.encode()
        self._socket.sendall(HEAD.pack(PAYLOAD, item.requests, len(name), len(item.data)) + name)
        self._socket.sendall(item.data)

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
        threading.Thread(target=self._read, daemon=True, name="payloads").start()

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
        with self._socket.makefile("rb", buffering=BUFFER) as file:
            while (item := _next(file)) is not None:
                self._ahead.put(item)
        self._ahead.put(END)


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
