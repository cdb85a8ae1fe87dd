"""The digester: a process that turns payloads into digests, beside the process that receives requests.

It ends when the service closes the connection or dies, after it has written what it received. It never shows content:
its reports hold counts, and reasons without values.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

from .._base.errors import KvtraceError, NotARequest, RowError, StoppedError, UsageError
from .._base.process import STOPPING, forbid_core_dumps
from .._base.workers import guarded
from ..ingest.encoding import Batch, Reject, RowPosition
from ..ingest.keys import Key
from .channel import END, DigesterEnd
from .encoders import LiveEncoding, SourceEncoder, loaded
from .intake import Mark, Payload
from .sinks import Sink, sink_of
from .source import Rows, StoreRows
from .sources import SOURCES, follow
from .supervisor import reason_of


@dataclass
class DigesterCounts:
    """What the digester has done since it started.

    >>> counts = DigesterCounts()
    >>> counts.add_malformed(2, RowError("is not valid JSON.", field="request"))
    >>> counts.malformed, dict(counts.reasons)
    (2, {'request: is not valid JSON.': 2})
    """

    covered: int = 0  # requests of payloads
    lines: int = 0  # of followed files among them
    requests: int = 0  # requests with digests
    tokens: int = 0
    rejected: int = 0  # rows that could not be read, or whose blocks do not fit
    left_out: int = 0  # rows and payloads that are not requests, and empty prompts
    malformed: int = 0  # requests of payloads that are not valid
    unknown_parents: int = 0  # stores of KV events whose parent was not received
    reasons: Counter[str] = field(default_factory=Counter)  # reason -> rejected rows

    def add(self, batch: Batch) -> None:
        """Count the rows of a batch."""
        self.requests += len(batch)
        self.tokens += int(batch.input_length.sum())
        self.rejected += len(batch.rejects)
        self.left_out += batch.empty + batch.others
        self.reasons.update(_reason(reject.error) for reject in batch.rejects)

    def add_malformed(self, requests: int, error: KvtraceError) -> None:
        """Count the requests of a payload that is not valid."""
        self.malformed += requests
        self.reasons[_reason(error)] += requests

    def to_dict(self) -> dict[str, Any]:
        """The counts by name."""
        return dict(vars(self))


def _reason(error: KvtraceError) -> str:
    """The reason of an error, with the JSON path and without a place in the log."""
    return error.fault if isinstance(error, RowError) else str(error)


FLUSH_S = 0.2  # how long lines wait for others to be encoded with them
FLUSH_BYTES = 1 << 20
FLUSH_LINES = 512
REPORT_S = 0.5
ROOM = "the disk has room again: the recording goes on."
ROOM_S = 0.5  # from one try to write on a full disk to the next
NICENESS = 5  # where processors are short, requests go first: what the digester cannot take waits in the queue


@dataclass
class _Pending:
    """Lines of one source that wait to be encoded."""

    lines: list[bytes] = field(default_factory=list, repr=False)
    bytes: int = 0
    covered: int = 0  # requests of the payloads
    malformed: int = 0  # those of payloads that are not valid
    others: int = 0  # those of payloads that are not requests


class Digester:
    """Encodes what arrives on a channel, and gives the batches to a sink.

    While the disk is full it waits, and so do the requests in the queue of the service. When the service ends or has
    died, it waits no more: what finds no room then is lost.
    """

    def __init__(self, channel: DigesterEnd, encoding: LiveEncoding, sink: Sink):
        self._channel, self._encoding, self._sink = channel, encoding, sink
        self._service, self._is_full = os.getppid(), False
        self._has_given_up = False  # nothing is written any more: what comes last is missing, and nothing before it
        self.is_ending = False  # set by a signal
        self._like = loaded(encoding)
        self._key = Key.random()
        self._rows: dict[str, Rows] = {}
        self._encoders: dict[str, SourceEncoder] = {}
        self._pending: dict[str, _Pending] = {}
        self._since = 0.0  # when the first of the pending lines came
        self.counts = DigesterCounts()
        self._followed = 0  # messages
        self._misfits: set[str] = set()  # sources that the operator knows not to fit
        self._reported = 0.0

    def run(self) -> None:
        """Work until the service closes the connection or dies."""
        while True:
            wait = REPORT_S if not self._pending else max(0.0, self._since + FLUSH_S - time.monotonic())
            item = self._channel.receive(wait)
            if item is END:
                self._flush(rest=True)
                self._stored(self._sink.close)
                return
            if isinstance(item, Mark):
                self._follow(item.message)
            elif isinstance(item, Payload):
                self._take(item)
            if self._pending and self._is_due():
                self._flush()
            if time.monotonic() - self._reported > REPORT_S:
                self._tell_stores()
                self._report(**self._stored(self._sink.tick) or {})

    def _follow(self, message: dict[str, Any]) -> None:
        """Carry out a message: end the window, and begin the next one with its own key."""
        values: dict[str, Any] = {}
        ended: dict[str, Any] | None = {}  # None: the disk was full to the end, and the window goes on
        if "finish" in message:
            self._flush(rest=True)
            self._tell_stores()
            ended = None if self._has_given_up else self._stored(partial(self._sink.finish, message))
            values |= {"gave_up": True} if ended is None else ended
        if "begin" in message and ended is not None:
            self._key = Key(bytes.fromhex(message.pop("key")))
            for encoder in self._encoders.values():
                encoder.rekey(self._key)
            values |= self._stored(partial(self._sink.begin, message)) or {}
        self._followed += 1
        self._report(**values)

    def _take(self, payload: Payload) -> None:
        if not self._pending:
            self._since = time.monotonic()
        pending = self._pending.setdefault(payload.source, _Pending())
        pending.covered += payload.requests
        try:
            lines = guarded(self._rows_of(payload.source).of, payload.data).value()
        except NotARequest:
            pending.others += payload.requests
            return
        except KvtraceError as error:
            pending.malformed += payload.requests
            self.counts.add_malformed(payload.requests, error)
            return
        pending.lines += lines
        pending.bytes += sum(map(len, lines))

    def _rows_of(self, source: str) -> Rows:
        if source not in self._rows:
            self._rows[source] = SOURCES[source].rows()
        return self._rows[source]

    def _is_due(self) -> bool:
        lines = sum(len(pending.lines) for pending in self._pending.values())
        size = sum(pending.bytes for pending in self._pending.values())
        return lines >= FLUSH_LINES or size >= FLUSH_BYTES or time.monotonic() >= self._since + FLUSH_S

    def _flush(self, *, rest: bool = False) -> None:
        """Encode all pending lines; `rest` also those of requests that are not complete yet."""
        for source, rows in self._rows.items() if rest else ():
            if lines := rows.rest():
                self._pending.setdefault(source, _Pending()).lines += lines
        pending, self._pending = self._pending, {}
        for source, work in pending.items():
            encoder = self._encoder_of(source)
            pieces = map(partial(self._batches, encoder, source), pieces_of(work.lines))
            batches = [self._fitting(encoder, source, batch) for piece in pieces for batch in piece]
            batches = batches or [Batch()]
            batches[0].others += work.others
            counts = {"covered": work.covered, "malformed": work.malformed}
            add = partial(self._sink.add, encoder, source, batches, **counts)
            if self._has_given_up or self._stored(add) is None:
                self._has_given_up = True
            else:
                self.counts.covered += work.covered
                self.counts.lines += work.covered if source == follow.SOURCE.name else 0
                for batch in batches:
                    self.counts.add(batch)

    def _stored(self, work: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
        """Do what writes to the disk, and wait while that is full; None if it is full when the service ends."""
        while True:
            try:
                values = work() or {}
            except StoppedError as error:
                if not self._is_full:
                    self._is_full = True
                    self._report(error=f"{error} Make room: requests wait in the queue until then.", full=True)
                if self.is_ending or os.getppid() != self._service:
                    return None
                time.sleep(ROOM_S)
                continue
            if self._is_full:
                self._is_full = False
                self._report(**({} if self.is_ending else {"error": ROOM}), full=False)
            return values

    def _encoder_of(self, source: str) -> SourceEncoder:
        if source not in self._encoders:
            self._encoders[source] = SourceEncoder(SOURCES[source], self._encoding, self._key, self._like)
        return self._encoders[source]

    def _batches(self, encoder: SourceEncoder, source: str, lines: list[bytes]) -> list[Batch]:
        """The lines as one batch; if a line breaks it, each line by itself. A line that cannot be read is a reject."""
        if not lines:
            return []
        try:
            batch = guarded(encoder.batch, lines).value()
            if encoder.note is not None:
                self._report(error=f"{source}: {encoder.note}")
                encoder.note = None
            return [batch]
        except KvtraceError as error:
            if isinstance(error, UsageError):
                self._say_once(source, str(error))
            if len(lines) == 1:
                return [Batch(lines=1, rejects=[Reject(RowPosition(0, 0, len(lines[0])), _row_error(error))])]
        return [batch for line in lines for batch in self._batches(encoder, source, [line])]

    def _fitting(self, encoder: SourceEncoder, source: str, batch: Batch) -> Batch:
        """The batch, or a batch that rejects its requests if their blocks do not fit those that the sink has."""
        reason = self._sink.misfit(encoder) if len(batch) else None
        if reason is None:
            return batch
        self._say_once(source, reason)
        rejects = [Reject(RowPosition(0, 0, 0), RowError(reason)) for _ in range(len(batch))]
        return Batch(lines=batch.lines, empty=batch.empty, others=batch.others, rejects=[*batch.rejects, *rejects])

    def _say_once(self, source: str, reason: str) -> None:
        if source not in self._misfits:
            self._misfits.add(source)
            self._report(error=f"{source}: {reason} Its requests are rejected.")

    def _tell_stores(self) -> None:
        for rows in self._rows.values():
            if isinstance(rows, StoreRows):
                stores = rows.stores()
                self.counts.unknown_parents = stores.unknown_parents
                self._sink.stores(stores)

    def _report(self, **values: Any) -> None:
        self._reported = time.monotonic()
        self._channel.report(counts=self.counts.to_dict(), followed=self._followed, **values)


def pieces_of(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Lines that are encoded together, with which one batch ends; one payload can hold 100,000 lines.

    >>> [len(piece) for piece in pieces_of([b"a"] * (FLUSH_LINES + 2))], list(pieces_of([]))
    ([512, 2], [])
    """
    piece, size = [], 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if len(piece) >= FLUSH_LINES or size >= FLUSH_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _row_error(error: KvtraceError) -> RowError:
    return error if isinstance(error, RowError) else RowError(str(error))


def run(handle: int) -> None:
    """Work as the digester of the service at the other end of a socket."""
    forbid_core_dumps()
    os.nice(NICENESS)
    sys.excepthook = lambda *_: None  # a traceback could show content
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)  # the service handles these, and ends this process
    channel = DigesterEnd(socket.socket(fileno=handle))
    first = channel.receive()
    if not isinstance(first, Mark):
        return
    try:
        settings = first.message
        digester = Digester(channel, LiveEncoding.from_message(settings["options"]), sink_of(settings["sink"]))
    except KvtraceError as error:
        channel.report(error=str(error), status=error.status)
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        digester.is_ending = True  # the service ends, and this process with it

    for number in STOPPING:
        signal.signal(number, end)
    channel.report(ready=True)
    try:
        digester.run()
    except Exception as error:
        channel.report(error=reason_of(error))
