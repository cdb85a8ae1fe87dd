"""What a source of live requests is to the recorder: the format of its rows, and how its payloads become rows.

A receiver (an HTTP handler, a callback, a thread) puts payloads into the queue as they came, which costs the least. The
digester, a process of its own, turns each payload into the lines of the log that it stands for, and reads these as
`kvtrace anonymize` reads a log of the same format. So both give the same trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from ..ingest.logs.kv_batches import KvEventCounts

Put = Callable[[str, bytes, int], bool]
"""Puts a payload into the queue: (name of the source, payload, its number of requests).

It never blocks. It returns False if the queue is full: the requests of the payload are then counted, as refused if the
clients of the source send them again, else as dropped.
"""


class Rows(Protocol):
    """Turns the payloads of one source into lines of a log. It may keep state between payloads."""

    def of(self, payload: bytes) -> list[bytes]:
        """The lines that this payload completes, without newlines.

        RowError, without content, if it is not valid; NotARequest if it is valid, and not a request.
        """
        ...

    def rest(self) -> list[bytes]:
        """The lines of requests that are not complete yet; called before a window is sealed and at the end."""
        ...


@runtime_checkable
class StoreRows(Rows, Protocol):
    """Rows of a source that shows what caches store and remove."""

    def stores(self) -> KvEventCounts:
        """What all caches stored and removed since the start."""
        ...


@dataclass(frozen=True)
class Source:
    """One kind of live source."""

    name: str
    log_format: str  # the reader of its lines: a name of ingest.logs.READERS, or "auto"
    time_unit: str  # of times in its lines, or "auto"
    rows: Callable[[], Rows]  # makes the converter of payloads, once in a digester
    comes_again: bool = False  # clients send again what a full queue did not take


class Lines:
    """Rows of a source whose payloads are lines already.

    >>> Lines().of(b'{"a": 1}\\n{"a": 2}\\n')
    [b'{"a": 1}', b'{"a": 2}']
    """

    def of(self, payload: bytes) -> list[bytes]:
        """The lines of the payload."""
        return [line for line in payload.split(b"\n") if line]

    def rest(self) -> list[bytes]:
        """Nothing: each line is a request of its own."""
        return []
