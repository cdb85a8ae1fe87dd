"""KV events of vLLM and SGLang, as their sockets publish them: what a prefix cache stores and removes.

`follow_events` subscribes to one publisher and puts each batch into the queue, unread. The digester decodes it and
keeps the state of each publisher, as it does for recorded batches (ingest/logs/kv_events.py), so that both make the
same rows. Batches hold token ids: they are in memory only, in the queue and as the blocks that a cache has, and are
hashed when their row is complete.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from ..._base.errors import RowError, UsageError
from ...ingest.logs.kv_batches import KvEventCounts
from ...ingest.logs.kv_events import KvPublisher
from ..source import Put, Source

NAME = "kv-events"
MAX_MESSAGE = 64 << 20  # bytes
MAX_QUEUE = 10_000  # messages that wait in the socket; the publisher drops what comes after, and never waits
POLL_S = 0.2
REPLAY_S = 2.0  # how long to wait for the next message of a replay
IDLE_S = 2.0  # without messages: what was lost last shows in no later number, so a replay is asked for
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
INVALID = "--kv-events: {address!r} is not an address such as tcp://host:5557."
_ADDRESS = re.compile(r"tcp://(?:[^\s:/@*]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})|ipc://\S+")
_FRAME = struct.Struct(">IQ")  # number of the publisher, number of the batch


def require_address(address: str) -> None:
    """UsageError if this is not the address of a socket.

    >>> require_address("tcp://host:5557"), require_address("ipc:///run/engine/events")
    (None, None)
    >>> require_address("host:5557")
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: --kv-events: 'host:5557' is not an address such as tcp://host:5557.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or (match[1] is not None and not 0 < int(match[1]) < 1 << 16):
        raise UsageError(INVALID.format(address=address))


@dataclass
class SocketCounts:
    """What one subscription got, in messages."""

    received: int = 0
    replayed: int = 0  # of these, asked for again after they were lost, or from before the start
    malformed: int = 0  # not (topic, number, batch)
    dropped: int = 0  # the queue was full


def payload_of(publisher: int, sequence: int, batch: bytes) -> bytes:
    """A payload of the queue: the numbers of the publisher and of its batch, and the batch as published.

    >>> payload_of(1, 7, b"...")
    b'\\x00\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x07...'
    """
    return _FRAME.pack(publisher, sequence) + batch


@dataclass(repr=False)
class KvEventRows:
    """Turns batches of KV events into rows, with the state of each publisher."""

    _publishers: dict[int, KvPublisher] = field(default_factory=dict)

    def of(self, payload: bytes) -> list[bytes]:
        """The rows that this batch completes. RowError, without content, if it is not a batch."""
        import msgspec
        import orjson

        if len(payload) < _FRAME.size:
            raise RowError("is not a batch of KV events.")
        number, sequence = _FRAME.unpack_from(payload)
        try:
            value = msgspec.msgpack.decode(memoryview(payload)[_FRAME.size :])
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            value = None
        if value is None:  # raised outside the handler: its error must not hold the batch
            raise RowError("is not valid msgpack.")
        publisher = self._publishers.setdefault(number, KvPublisher())
        return [orjson.dumps(row) for row in publisher.add(value, sequence)]

    def rest(self) -> list[bytes]:
        """The rows that may still go on, and now end."""
        import orjson

        return [orjson.dumps(row) for publisher in self._publishers.values() for row in publisher.rest()]

    def stores(self) -> KvEventCounts:
        """What all caches stored and removed since the start, and hold now."""
        total = KvEventCounts()
        for publisher in self._publishers.values():
            total += publisher.counts()
        return total


SOURCE: Source = Source(NAME, log_format="kv-events", time_unit="auto", rows=KvEventRows)


def follow_events(
    endpoint: str,
    put: Put,
    stop: Event,
    *,
    publisher: int = 0,
    replay: str | None = None,
    topic: str = "",
    counts: SocketCounts | None = None,
    on_ready: Callable[[], None] | None = None,
    on_round: Callable[[], None] | None = None,
) -> SocketCounts:
    """Put each batch that a publisher sends into the queue, until `stop` is set. It connects again by itself.

    Args:
        endpoint: Address of the publisher's PUB socket: `tcp://host:5557`, `ipc://path`.
        put: Takes a payload; a batch that it refuses is counted and lost.
        stop: Ends the loop, within POLL_S.
        publisher: Number of this publisher: batches of one number are of one engine, or one data-parallel rank.
        replay: Address of its ROUTER socket, if it has one: what was published before, or was lost, comes from there.
        topic: Beginning of the topics to take; empty = all.
        counts: Counts to add to, for a reader in another thread.
        on_ready: Called once the socket is subscribed, which does not mean connected.
        on_round: Called after each look at the socket.

    Returns:
        The counts.

    Raises:
        UsageError: an address is not valid.
    """
    import zmq

    counts = counts or SocketCounts()
    context = zmq.Context()
    try:
        with context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.RCVHWM, MAX_QUEUE)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SUBSCRIBE, topic.encode())
            _connect(socket, endpoint)
            subscription = _Subscription(put, publisher, counts, topic.encode(), context, replay)
            if on_ready is not None:
                on_ready()
            asked_s = float("-inf")
            while not stop.is_set():
                if replay is not None and time.monotonic() - asked_s > IDLE_S:
                    subscription.catch_up(stop)
                    asked_s = time.monotonic()
                if socket.poll(int(POLL_S * 1000)):
                    subscription.take(socket.recv_multipart(), stop)
                    asked_s = time.monotonic()
                if on_round is not None:
                    on_round()
    finally:
        context.destroy(linger=0)
    return counts


@dataclass(repr=False)
class _Subscription:
    """The batches of one publisher, in order of their numbers as far as a replay can bring them."""

    put: Put
    publisher: int
    counts: SocketCounts
    topic: bytes
    context: Any
    replay: str | None
    next: int = 0  # the number of the next batch
    latest: int | None = None  # the number of the latest message of the PUB socket, where numbers only rise

    def catch_up(self, stop: Event) -> None:
        """Take what was published before, or was lost."""
        self._take_replay(self.next, None, stop)

    def take(self, frames: list[bytes], stop: Event) -> None:
        """Put one message, after those that were lost before it. The digester drops what a replay brought already."""
        if len(frames) != 3 or len(frames[1]) != 8:
            self.counts.malformed += 1
            return
        sequence = int.from_bytes(frames[1], "big")
        if self.latest is not None and sequence <= self.latest:  # the engine started again
            self.next = 0
        self.latest = sequence
        if self.replay is not None and sequence > self.next:
            self._take_replay(self.next, sequence, stop)
        self._put(sequence, frames[2])

    def _put(self, sequence, batch) -> None:
        self.counts.received += 1
        self.next = sequence + 1
        if not self.put(NAME, payload_of(self.publisher, sequence, batch), 1):
            self.counts.dropped += 1

    def _take_replay(self, first, stop_at, stop) -> None:
        """Put the batches from a number on, up to another, as far as the publisher still has them."""
        import zmq

        with self.context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.RCVHWM, MAX_QUEUE)
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE)
            socket.setsockopt(zmq.LINGER, 0)
            _connect(socket, self.replay)
            if not socket.poll(int(REPLAY_S * 1000), zmq.POLLOUT):
                return
            socket.send_multipart([b"", first.to_bytes(8, "big")])
            until = time.monotonic() + REPLAY_S
            while not stop.is_set() and time.monotonic() < until:
                if not socket.poll(int(POLL_S * 1000)):
                    continue
                until = time.monotonic() + REPLAY_S
                frames = socket.recv_multipart()
                # older releases leave out the topic
                number, batch = frames[-2:] if len(frames) in (3, 4) else (b"", b"")
                if number == END_OF_REPLAY:
                    return
                sequence = int.from_bytes(number, "big")
                if len(number) != 8:
                    self.counts.malformed += 1
                elif len(frames) == 4 and not frames[1].startswith(self.topic):
                    continue
                elif first <= sequence and (stop_at is None or sequence < stop_at):
                    self.counts.replayed += 1
                    self._put(sequence, batch)


def _connect(socket, address) -> None:
    import zmq

    require_address(address)
    socket.setsockopt(zmq.IPV6, "[" in address)
    is_valid = True
    try:
        socket.connect(address)
    except zmq.ZMQError:
        is_valid = False
    if not is_valid:
        raise UsageError(INVALID.format(address=address))
