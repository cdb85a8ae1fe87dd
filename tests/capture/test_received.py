"""Each request that comes is accepted, dropped or refused; each that is accepted is digested, rejected or left out."""

import errno
import os
import random
import resource
import signal
import subprocess
import sys
from hashlib import blake2b

import orjson
import pytest

import kvtrace
from kvtrace._base.errors import StoppedError
from kvtrace._base.row_counts import rounded
from kvtrace.capture.intake import Intake, Ledger
from kvtrace.capture.live import Live, LiveOptions, parse_address
from kvtrace.capture.metrics import Reading, registry_of
from kvtrace.capture.proxy.exchange import Exchange, Limits
from kvtrace.capture.recorder import Recorder
from kvtrace.capture.sinks import WindowSink
from kvtrace.capture.sources import SOURCES
from kvtrace.capture.sources.otlp import otlp_app
from kvtrace.capture.windows import WindowFile, read_window
from kvtrace.ingest.keys import load_key
from kvtrace.privacy.publishing import publish
from tests.capture import wire
from tests.capture.asgi import post
from tests.capture.exports import Telemetry
from tests.capture.test_litellm import call
from tests.capture.windows import header, sealed, waited
from tests.conftest import drawn
from tests.docs import ROOT

TINY = {"tokenizer": str(ROOT / "tests/data/tokenizers/tiny"), "block_size": 16}
LINES = (ROOT / "examples/raw_log.jsonl").read_bytes().splitlines()
JSON = "application/json"


def stopped(recorder):
    """Stop the digester; what it is sent afterwards, it does not read."""
    os.kill(recorder._feeder.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, recorder._feeder.pid, os.WSTOPPED)


@pytest.mark.parametrize("seed", range(drawn(5)))
def test_accepted_and_dropped_and_refused_are_all_that_came(seed, tmp_path):
    rng, came = random.Random(seed), 0
    intake = Intake(max_bytes=1000, ledger=Ledger(tmp_path / "counts"))
    for step in range(500):
        requests, kind = rng.randrange(1, 9), rng.randrange(4)
        came += requests if kind < 3 else 0
        if kind < 2:
            intake.put("otlp", bytes(rng.randrange(300)), requests, comes_again=kind == 1)
        elif kind == 2:
            intake.note_uncopied(requests)
        else:
            intake.take(0)
        if step == 450:
            intake.close()
    counts = Ledger(tmp_path / "counts")  # as the next process finds it
    assert counts.accepted + counts.dropped + counts.refused == came
    assert min(counts.accepted, counts.dropped, counts.refused, counts.uncopied) > 0
    assert counts.uncopied <= counts.dropped


def test_a_ledger_of_an_earlier_version_goes_on(tmp_path):
    (tmp_path / "counts").write_bytes((7).to_bytes(8, "little") + (3).to_bytes(8, "little"))
    counts = Ledger(tmp_path / "counts")
    assert (counts.accepted, counts.dropped, counts.refused, counts.uncopied) == (7, 3, 0, 0)


def test_only_clients_that_send_again_are_refused():
    assert [name for name, source in SOURCES.items() if source.comes_again] == ["otlp"]


def test_a_refused_export_that_comes_again_is_neither_dropped_nor_counted_twice(tmp_path):
    telemetry = Telemetry()
    telemetry.call("Is it on?")
    body = telemetry.traces().SerializeToString()
    with Recorder(tmp_path, queue_bytes=len(body) + 1, **TINY) as recorder:
        app = otlp_app(recorder.put)
        recorder._intake.max_bytes = 0  # as if other requests filled it
        assert [post(app, "/v1/traces", body).status for _ in range(3)] == [503] * 3
        assert post(app, "/litellm", orjson.dumps([call(), call(1)]), JSON).status == 503  # LiteLLM gives them up
        recorder._intake.max_bytes = len(body) + 1
        assert post(app, "/v1/traces", body).status == 200
    counts = recorder.counts()
    spans = counts.refused // 3
    assert spans >= 1 and counts.accepted == spans and counts.dropped == 2
    (window,) = sealed(tmp_path)
    assert kvtrace.read(window).meta["recording"]["dropped"] == rounded(2)
    values = registry_of(lambda: Reading(counts=vars(counts)))
    assert values.get_sample_value("kvtrace_received_requests_total") == spans + 2
    assert values.get_sample_value("kvtrace_refused_requests_total") == 3 * spans


def test_what_is_accepted_is_digested_rejected_malformed_or_left_out(tmp_path):
    unanswered = Exchange(b"{}", b"", arrived_ns=1, ended_ns=2, complete=False, streamed=False).packed()
    with Recorder(tmp_path, **TINY) as recorder:
        recorder.put("follow", LINES[0])
        recorder.put("follow", b"not json")
        recorder.put("proxy-openai", unanswered)  # as the log pipeline leaves out a failed call
        recorder.put("proxy-openai", unanswered)
        recorder.put("otlp", b"tnot protobuf", 3)
    counts = recorder.counts()
    kinds = (counts.digested, counts.rejected, counts.left_out, counts.malformed)
    assert kinds == (1, 1, 2, 3) and sum(kinds) == counts.accepted
    (window,) = sealed(tmp_path)
    assert kvtrace.read(window).meta["recording"]["lost"] == 0


def test_copies_that_find_no_memory_are_dropped_in_the_ledger_and_in_the_metrics(tmp_path, upstream, monkeypatch):
    monkeypatch.setattr("kvtrace.capture.proxy.app.Limits", lambda: Limits(max_held=500))
    options = LiveOptions(proxy=parse_address("0"), upstream=upstream)
    with Recorder(tmp_path, **TINY) as recorder, Live(options, recorder, on_message=print) as live:
        url = f"http://{live.addresses['proxy']}"
        for _ in range(2):
            assert wire.answered(url, wire.post(wire.chat_request()))[2].endswith(b"data: [DONE]\n\n")
    counts = recorder.counts()
    assert (counts.dropped, counts.uncopied, counts.accepted) == (2, 2, 0)
    assert counts.proxy == {
        "requests": 2,
        "recorded": 0,
        "dropped": 2,
        "refused": 0,
        "failed": 0,
        "left": 0,
        "errors": 0,
        "other": 0,
    }
    assert Ledger(tmp_path / ".recording/counts").uncopied == 2
    values = registry_of(lambda: Reading(counts=vars(counts)))
    assert values.get_sample_value("kvtrace_dropped_requests_total", {"reason": "proxy_memory"}) == 2
    assert values.get_sample_value("kvtrace_dropped_requests_total", {"reason": "queue_full"}) == 0
    assert values.get_sample_value("kvtrace_proxy_outcomes_total", {"outcome": "dropped"}) == 2


def test_what_a_dead_digester_had_not_digested_is_counted_as_lost(tmp_path):
    said = []
    with Recorder(tmp_path, on_message=said.append, **TINY) as recorder:
        for line in LINES:
            recorder.put("follow", line)
        waited(lambda: recorder.counts().digested == len(LINES))
        stopped(recorder)
        for line in LINES[:3]:
            recorder.put("follow", line)
        waited(lambda: not recorder.counts().waiting_bytes)  # they are in the digester's pipe
        os.kill(recorder._feeder.pid, signal.SIGKILL)
        waited(lambda: recorder.counts().restarts == 1)
        for line in LINES:
            recorder.put("follow", line)
    counts, (window,) = recorder.counts(), sealed(tmp_path)
    assert (counts.lost, counts.accepted, len(kvtrace.read(window))) == (3, 2 * len(LINES) + 3, 2 * len(LINES))
    assert "3 lost" in said[-1]


@pytest.mark.parametrize("written", [b"", b'{"kvtrace_window": 1, "name": "win'])
def test_a_digester_that_died_while_it_made_the_file_of_a_window_leaves_it_to_the_next(written, tmp_path):
    path = tmp_path / "window-20261123T100000Z.window"
    path.write_bytes(written)
    sink = WindowSink()
    message = {"path": str(path), "continues": True, "begin": header(path.stem), "accepted": 0, "dropped": 0}
    assert sink.begin(message) == {"begun": str(path), "found": 0}
    sink.close()
    assert read_window(path).name == path.stem


def test_a_digester_that_dies_before_it_ends_a_window_ends_it_when_it_starts_again(tmp_path):
    clock = [995.0]
    with Recorder(tmp_path, window_s=10, clock=lambda: clock[0], **TINY) as recorder:
        recorder.put("follow", LINES[0])
        waited(lambda: recorder.counts().digested == 1)
        stopped(recorder)
        clock[0] = 1001.0  # the message that ends the window waits
        waited(lambda: recorder._until > 1001)
        os.kill(recorder._feeder.pid, signal.SIGKILL)
        waited(lambda: recorder.counts().sealed == 1)
        recorder.put("follow", LINES[1])
    assert [len(kvtrace.read(window)) for window in sealed(tmp_path)] == [1, 1]
    assert (recorder.counts().lost, recorder.counts().digested, recorder.counts().restarts) == (0, 2, 1)


# -- full disks ------------------------------------------------------------------------------------------------------

needs_limits = pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no limits of another process")
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def test_a_ledger_whose_file_is_cut_by_another_program_goes_on(tmp_path):
    """A file that is mapped into memory would end the process with SIGBUS, as a sparse one does on a full disk."""
    code = (
        "import os, sys; from kvtrace.capture.intake import Ledger\n"
        "ledger = Ledger(sys.argv[1]); position = ledger.position('log')\n"
        "ledger.accepted = 7; os.truncate(sys.argv[1], 0); ledger.set(position.at(5, 9))\n"
    )
    path = tmp_path / "counts"
    assert subprocess.run([sys.executable, "-c", code, path], cwd=tmp_path).returncode == 0
    ledger = Ledger(path)
    position = ledger.position(tmp_path / "log")
    assert (ledger.accepted, position.file, position.offset) == (7, 5, 9)


def test_a_ledger_takes_its_room_when_it_is_made(tmp_path):
    Ledger(tmp_path / "counts")
    assert (tmp_path / "counts").read_bytes() == bytes(40)  # bytes, not a hole
    code = (
        "import resource, sys; from kvtrace.capture.intake import Ledger\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8)); Ledger(sys.argv[1])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, tmp_path / "new"], stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1].startswith("kvtrace._base.errors.StoppedError: ")


def test_one_write_moves_a_position_and_counts_its_requests(tmp_path, monkeypatch):
    """A kill between two writes would count lines twice, or pass over them."""
    intake, writes = Intake(ledger=Ledger(tmp_path / "counts")), []
    position = intake.ledger.position(tmp_path / "log")
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda *arguments: writes.append(arguments) or pwrite(*arguments))
    intake.put("follow", b"a\n", 1, moved=position.at(5, 2))
    assert len(writes) == 1 and Ledger(tmp_path / "counts").accepted == 1
    assert Ledger(tmp_path / "counts").position(tmp_path / "log").offset == 2


def test_the_position_of_an_earlier_version_is_taken_once(tmp_path):
    log, ledger = tmp_path / "log", Ledger(tmp_path / "counts")
    name = blake2b(os.path.realpath(log).encode(), digest_size=8).hexdigest()
    (tmp_path / f"follow-{name}").write_bytes((5).to_bytes(8, "little") + (9).to_bytes(8, "little"))
    for position in (ledger.position(log), Ledger(tmp_path / "counts").position(log)):
        assert (position.file, position.offset) == (5, 9)
    assert [path.name for path in tmp_path.iterdir()] == ["counts"]


def test_what_is_not_stored_is_given_back_to_its_log():
    intake = Intake(can_return=True)
    position = intake.ledger.position("log")
    intake.put("otlp", b"x", 4)
    for offset, requests in ((10, 3), (20, 2), (30, 2)):
        intake.put("follow", b"x", requests, moved=position.at(5, offset))
    intake.keep(3)
    intake.give_back()
    assert (intake.ledger.accepted, position.file, position.offset) == (7, 5, 10)


def digested(recorder, count):
    waited(lambda: recorder.counts().digested == count)


def fill(recorder):
    """Let the digester's files take no byte more."""
    (window,) = recorder.state.glob("*.window")
    resource.prlimit(recorder._feeder.pid, resource.RLIMIT_FSIZE, (window.stat().st_size, resource.RLIM_INFINITY))


@needs_limits
def test_requests_wait_while_the_disk_is_full_and_none_is_lost(tmp_path):
    said = []
    with Recorder(tmp_path, **TINY, profile="exact", on_message=said.append) as recorder:
        recorder.put("follow", LINES[0])
        digested(recorder, 1)
        fill(recorder)
        for line in LINES[1:9]:
            recorder.put("follow", line)
        waited(lambda: said)
        assert recorder.counts().digested == 1 and not recorder.has_room(1)
        assert recorder.problem() == "failing: digester"
        resource.prlimit(recorder._feeder.pid, resource.RLIMIT_FSIZE, NO_LIMIT)
        digested(recorder, 9)
        waited(lambda: recorder.has_room(1) and recorder.problem() is None)
    assert "cannot be written (File too large). Make room: requests wait in the queue until then." in said[0]
    assert said[1] == "the disk has room again: the recording goes on."
    (window,) = sealed(tmp_path)
    assert len(kvtrace.read(window)) == 9 and recorder.counts().lost == 0 and recorder.shortfall() is None


@needs_limits
def test_a_recording_that_ends_on_a_full_disk_says_what_is_missing(tmp_path):
    said = []
    recorder = Recorder(tmp_path, **TINY, profile="exact", on_message=said.append)
    recorder.put("follow", LINES[0])
    digested(recorder, 1)
    fill(recorder)
    for line in LINES[1:9]:
        recorder.put("follow", line)
    waited(lambda: said)
    recorder._intake.max_bytes = 0
    recorder.put("follow", LINES[9])  # dropped: the queue is full, because the disk is
    recorder.close()
    again = f"Remove the cause, and run the command again: it seals what is left in {tmp_path}."
    assert recorder.shortfall() == (
        f"9 requests were lost. The messages above say why. 1 window was not sealed. {again}"
    )
    later = Recorder(tmp_path, **TINY, profile="exact", on_message=said.append)
    later.close()
    assert "; 8 requests were lost." in said[-2] and "sealed; 1 request, 8 lost" in said[-1]
    assert later.shortfall() is None  # it lost nothing itself


@needs_limits
def test_a_followed_log_is_read_again_after_a_full_disk(tmp_path):
    log, folder, key = tmp_path / "log.jsonl", tmp_path / "recorded", load_key(tmp_path / "key")
    options = {"key": key, **TINY, "profile": "exact", "window_s": 366 * 86400}
    log.write_bytes(b"\n".join(LINES[:4]) + b"\n")
    said = []
    with (
        Recorder(folder, on_message=said.append, **options) as recorder,
        Live(LiveOptions(follow=(log,), from_start=True), recorder, ledger=recorder.ledger, on_message=said.append),
    ):
        digested(recorder, 4)
        fill(recorder)
        with log.open("ab") as file:
            file.write(b"\n".join(LINES[4:9]) + b"\n")
        waited(lambda: said)
    assert recorder.shortfall().startswith("1 window was not sealed.") and recorder.counts().lost == 0
    with (
        Recorder(folder, on_message=said.append, **options) as recorder,
        Live(LiveOptions(follow=(log,)), recorder, ledger=recorder.ledger, on_message=said.append),
    ):
        digested(recorder, 5)
    (window,) = sealed(folder)
    publish(kvtrace.ingest.anonymize(log, **TINY, profile="exact"), tmp_path / "whole.jsonl")
    assert window.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_window_that_finds_no_room_keeps_what_it_had(tmp_path, monkeypatch):
    """The header leaves no file; a source is noted once it is written, so that the batch after it is not alone."""
    begin = {**header("w"), "accepted": 0, "dropped": 0}
    meta = {"log": {}, "hash": "", "session_mode": ""}
    about = {"meta": meta, "block_size": 16, "tail": "kept", "outputs": False, "holds_hashes": False}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(StoppedError):
        patch.setattr(os, "pwrite", full)
        WindowFile(tmp_path / "w.window", begin)
    assert not list(tmp_path.iterdir())
    file = WindowFile(tmp_path / "w.window", begin)
    with monkeypatch.context() as patch, pytest.raises(StoppedError):
        patch.setattr(os, "pwrite", full)
        file.source("follow", about)
    file.source("follow", about)
    file.finish(accepted=0, dropped=0)
    assert read_window(tmp_path / "w.window").sources == {"follow": about}
