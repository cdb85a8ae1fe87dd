"""KV events from a socket make the rows and the trace that the same events make from a file."""

import contextlib
import tempfile
import threading

import msgspec
import orjson
import pytest

import kvtrace
from kvtrace._base.errors import RowError, UsageError
from kvtrace.capture.live import LiveOptions
from kvtrace.capture.recorder import Recorder
from kvtrace.capture.sources import kv_events as source
from kvtrace.capture.sources.kv_events import KvEventRows, SocketCounts, follow_events, payload_of
from kvtrace.cli.record import _summary
from kvtrace.ingest.logs import kv_events
from kvtrace.privacy.publishing import publish
from tests.capture.publishing import Publisher
from tests.capture.windows import sealed, waited
from tests.docs import ROOT

SAMPLE = ROOT / "tests/data/logs/kv_events.jsonl"  # published by vLLM
BATCHES = [orjson.loads(line) for line in SAMPLE.read_bytes().splitlines()]
PAYLOADS = [msgspec.msgpack.encode(batch) for batch in BATCHES]
ROWS = list(kv_events.row_lines(SAMPLE.read_bytes().splitlines()))


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="kv") as name:  # a short one: addresses of sockets are
        yield name


@contextlib.contextmanager
def following(publisher, put, **options):
    """Counts of a thread that follows a publisher."""
    stop, counts = threading.Event(), SocketCounts()
    thread = threading.Thread(
        target=follow_events, args=(publisher.endpoint, put, stop), kwargs={"counts": counts} | options, daemon=True
    )
    thread.start()
    try:
        yield counts
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


class Kept(list):
    """What was put, as numbers of batches; it may have room for so many only."""

    room = 1 << 30

    def put(self, source, payload, requests):
        assert (source, requests) == ("kv-events", 1)
        if len(self) < self.room:
            self.append(payload)
            return True
        return False

    @property
    def numbers(self):
        return [int.from_bytes(payload[4:12], "big") for payload in self]


def test_payloads_make_the_rows_of_the_recorded_lines():
    rows = KvEventRows()
    lines = [line for i, payload in enumerate(PAYLOADS) for line in rows.of(payload_of(0, i, payload))]
    assert lines + rows.rest() == ROWS
    assert (rows.stores().first, rows.stores().again, rows.stores().resident) == (14, 1, 7)


def test_each_publisher_has_a_cache_of_its_own():
    rows = KvEventRows()
    for number in (0, 1):
        rows.of(payload_of(number, 0, PAYLOADS[0]))
    assert (rows.stores().first, rows.stores().copies) == (8, 0)


@pytest.mark.parametrize(
    "payload",
    [b"", b"short", payload_of(0, 0, b""), payload_of(0, 0, b"\xc1secret"), payload_of(0, 0, b"\xdd\xff\xff\xff\xff"),
     payload_of(0, 0, b"\x91" * 100_000), payload_of(0, 0, b"\xc0"), payload_of(0, 0, msgspec.msgpack.encode("secret")),
     payload_of(0, 0, msgspec.msgpack.encode({1: 2})), payload_of(0, 0, PAYLOADS[0][:-3])],
)  # fmt: skip
def test_a_malformed_payload_is_an_error_without_content(payload):
    with pytest.raises(RowError) as caught:
        KvEventRows().of(payload)
    assert "secret" not in str(caught.value) and caught.value.__context__ is None


def test_a_socket_gives_the_trace_of_the_file(folder, tmp_path):
    options = {"profile": "standard", "block_size": 16}
    publisher = Publisher(folder)
    with Recorder(tmp_path / "recorded", **options) as recorder, publisher, following(publisher, recorder.put):
        publisher.wait_for_subscriber()
        for payload in PAYLOADS:
            publisher.send(payload)
        waited(lambda: recorder.counts().accepted == len(PAYLOADS))
    (window,) = sealed(tmp_path / "recorded")
    publish(kvtrace.ingest.anonymize(SAMPLE, **options), tmp_path / "whole.jsonl")
    assert window.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize("old_replay", [False, True])
def test_what_came_before_and_what_was_lost_is_replayed(folder, old_replay):
    kept = Kept()
    with Publisher(folder, topic=b"kv", old_replay=old_replay) as publisher:
        for one in (b"a", b"b"):
            publisher.send(one)  # nobody listens yet
        with following(publisher, kept.put, replay=publisher.replay, topic="kv") as counts:
            publisher.wait_for_subscriber()
            waited(lambda: len(kept) == 2)
            publisher.send(b"c")
            publisher.send(b"d", lose=True)
            publisher.send(b"e")
            waited(lambda: len(kept) == 5)
    assert kept.numbers == [0, 1, 2, 3, 4] and [payload[12:] for payload in kept] == [b"a", b"b", b"c", b"d", b"e"]
    assert (counts.received, counts.replayed, counts.dropped) == (5, 3, 0)


def test_without_a_replay_a_gap_stays_and_the_digester_counts_it(folder):
    kept = Kept()
    with Publisher(folder) as publisher, following(publisher, kept.put):
        publisher.wait_for_subscriber()
        publisher.send(PAYLOADS[0]), publisher.send(PAYLOADS[1], lose=True), publisher.send(PAYLOADS[2])
        waited(lambda: len(kept) == 2)
    rows = KvEventRows()
    for payload in kept:
        rows.of(payload)
    assert rows.stores().lost == 1


def test_stores_whose_parents_were_not_received_are_counted_and_stated(tmp_path):
    event = {"type": "BlockStored", "block_hashes": [2], "parent_block_hash": 1, "token_ids": [*range(16)]}
    batch = msgspec.msgpack.encode([1.9e9, [event | {"block_size": 16}]])
    with Recorder(tmp_path / "recorded", profile="standard", block_size=16) as recorder:
        recorder.put("kv-events", payload_of(0, 7, batch), 1)
    counts = recorder.counts()
    assert (counts.digested, counts.unknown_parents) == (1, 1)
    requests, stated = _summary(counts, LiveOptions(kv_events=("ipc:///run/events",)))
    assert requests == "requests    1 from 1 batches of KV events, 16 prompt tokens"
    assert stated.startswith("kv events   1 stores continue blocks that were not received")


def test_malformed_messages_are_counted_and_other_topics_left_out(folder):
    kept = Kept()
    with Publisher(folder, topic=b"kv") as publisher, following(publisher, kept.put, topic="kv") as counts:
        publisher.wait_for_subscriber()
        publisher.send_frames(b"load", b"\0" * 8, b"x")
        publisher.send_frames(b"kv", b"short", b"x")
        publisher.send_frames(b"kv")
        publisher.send_frames(b"kv", b"\0" * 8, b"x", b"y")
        publisher.send(b"a")
        waited(lambda: len(kept) == 1)
    assert (counts.received, counts.malformed) == (1, 3)


def test_a_full_queue_drops_and_counts(folder):
    kept = Kept()
    kept.room = 1
    with Publisher(folder) as publisher, following(publisher, kept.put) as counts:
        publisher.wait_for_subscriber()
        for _ in range(3):
            publisher.send(b"a")
        waited(lambda: counts.received == 3)
    assert counts.dropped == 2


def test_it_connects_again_to_an_engine_that_started_again(folder):
    kept = Kept()
    publisher = Publisher(folder)
    with following(publisher, kept.put):
        with publisher:
            publisher.wait_for_subscriber()
            publisher.send(PAYLOADS[0]), publisher.send(PAYLOADS[1])
            waited(lambda: len(kept) == 2)
        with Publisher(folder) as again:
            again.wait_for_subscriber()
            again.send(PAYLOADS[3])
            waited(lambda: len(kept) == 3)
    rows = KvEventRows()
    for payload in kept:
        rows.of(payload)
    assert rows.stores().restarts == 1


def test_what_was_lost_last_is_asked_for_when_no_message_comes(folder, monkeypatch):
    monkeypatch.setattr(source, "IDLE_S", 0.1)
    kept = Kept()
    with Publisher(folder) as publisher, following(publisher, kept.put, replay=publisher.replay):
        publisher.wait_for_subscriber()
        publisher.send(b"a")
        waited(lambda: kept.numbers[-1:] == [0])
        publisher.send(b"b", lose=True)
        waited(lambda: kept.numbers[-1:] == [1])


def test_an_engine_that_started_again_is_replayed_from_its_start(folder):
    kept = Kept()
    publisher = Publisher(folder)
    with following(publisher, kept.put, replay=publisher.replay):
        with publisher:
            publisher.wait_for_subscriber()
            for payload in (b"a", b"b", b"c"):
                publisher.send(payload)
            waited(lambda: kept.numbers[-1:] == [2])
        with Publisher(folder) as again:
            again.wait_for_subscriber()
            again.send(b"d", lose=True), again.send(b"e")
            waited(lambda: kept.numbers[-1:] == [1])
    assert [payload[12:] for payload in kept][-2:] == [b"d", b"e"]


@pytest.mark.parametrize("has_replay", [True, False])
def test_a_slow_subscriber_does_not_stop_the_publisher(has_replay, folder, monkeypatch):
    """The receiver stands still while messages come: the socket keeps so many, and the others are lost."""
    monkeypatch.setattr(source, "MAX_QUEUE", 10)
    kept, goes_on, count, size = Kept(), threading.Event(), 400, 1 << 16

    def put(*payload):
        assert goes_on.wait(60)
        return kept.put(*payload)

    with Publisher(folder, room=10) as publisher:
        replay = publisher.replay if has_replay else None
        with following(publisher, put, replay=replay):
            publisher.wait_for_subscriber()
            for _ in range(count):
                publisher.send(bytes(size))  # it returns at once
            goes_on.set()
            if has_replay:
                publisher.send(b"last")
                waited(lambda: {*kept.numbers} == {*range(count + 1)})
            else:  # what is sent while the socket is still full is lost too
                waited(lambda: publisher.send(b"last") or b"last" in [payload[12:] for payload in kept])
    assert has_replay or sum(number < count for number in kept.numbers) < count / 2


@pytest.mark.parametrize(
    "address",
    ["", "host:5557", "tcp://", "tcp://host:port", "http://host:1", "tcp://*:5557", "tcp://host:99999", "ipc://"],
)
def test_an_address_that_is_not_valid(address):
    with pytest.raises(UsageError, match="is not an address such as tcp://host:5557"):
        follow_events(address, Kept().put, threading.Event())
