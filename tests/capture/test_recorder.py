"""The recorder: a window has the bytes that `anonymize` makes of the same log, and what is missing is counted."""

import json
import os
import stat
from dataclasses import replace

import pytest

import kvtrace
from kvtrace.capture import sealing
from kvtrace.capture.intake import Ledger
from kvtrace.capture.live import LiveOptions
from kvtrace.capture.recorder import Recorder, RecorderCounts
from kvtrace.capture.sealing import Sealed, _verdict, seal, sentence_of
from kvtrace.capture.windows import STATE, WindowFile, remove_window
from kvtrace.cli import run
from kvtrace.cli.record import _summary
from kvtrace.privacy.checks.finding import Audit, Finding
from kvtrace.privacy.publishing import publish
from tests.capture.windows import header, sealed, waited
from tests.docs import ROOT

LOG = ROOT / "examples/raw_log.jsonl"
LINES = LOG.read_bytes().splitlines()
TINY = ROOT / "tests/data/tokenizers/tiny"
OPTIONS = {"block_size": 16, "tokenizer": str(TINY)}


@pytest.mark.parametrize("profile", ["exact", "standard", "strict"])
def test_a_window_has_the_bytes_of_the_anonymised_log(profile, tmp_path):
    with Recorder(tmp_path / "recorded", profile=profile, **OPTIONS) as recorder:
        assert all(recorder.put("follow", line) for line in LINES)
    (window,) = sealed(tmp_path / "recorded")
    publish(kvtrace.ingest.anonymize(LOG, profile=profile, **OPTIONS), tmp_path / "whole.jsonl")
    assert window.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_the_sidecar_names_the_source_and_what_is_missing(tmp_path):
    with Recorder(tmp_path, **OPTIONS) as recorder:
        recorder.put("follow", LINES[0])
    (window,) = sealed(tmp_path)
    section = kvtrace.read(window).meta["recording"]
    assert section == {"sources": ["follow"], "lost": 0, "dropped": 0}


def test_a_full_queue_drops_and_counts(tmp_path):
    with Recorder(tmp_path, queue_bytes=1 << 16, **OPTIONS) as recorder:
        taken = sum(recorder.put("follow", LINES[0]) for _ in range(2000))
        counts = recorder.counts()
        assert 0 < taken < 2000
        assert counts.accepted == taken and counts.dropped == 2000 - taken
        assert counts.waiting_bytes <= 1 << 16
    (window,) = sealed(tmp_path)
    trace = kvtrace.read(window)
    assert len(trace) == taken
    assert trace.meta["recording"]["dropped"] >= 2000 - taken


def test_bad_rows_are_counted_and_the_others_recorded(tmp_path):
    with Recorder(tmp_path, **OPTIONS) as recorder:
        for line in (LINES[0], b"not json", b'{"timestamp": 1}', LINES[1]):
            recorder.put("follow", line)
    (window,) = sealed(tmp_path)
    assert len(kvtrace.read(window)) == 2
    counts = recorder.counts()
    assert (counts.digested, counts.rejected) == (2, 2) and sum(counts.reasons.values()) == 2


def test_windows_end_at_multiples_of_their_length_and_share_no_key(tmp_path):
    clock = Clock(995.0)
    with Recorder(tmp_path, window_s=10, clock=clock, **OPTIONS) as recorder:
        recorder.put("follow", LINES[0])
        clock.now = 1001.0
        waited(lambda: len(list((tmp_path / STATE).glob("*.window"))) and recorder.counts().sealed == 1)
        recorder.put("follow", LINES[1])
    names = [path.name.split(".")[0] for path in sealed(tmp_path)]
    assert names == ["window-19700101T001635Z", "window-19700101T001641Z"]


def test_what_is_on_the_disk_before_the_seal_is_for_its_owner_alone(tmp_path):
    recorder = Recorder(tmp_path, **OPTIONS)
    recorder.put("follow", LINES[0])
    waited(lambda: recorder.counts().digested == 1)
    state = tmp_path / STATE
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    files = list(state.iterdir())
    assert len(files) == 3
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
        assert not any(word in path.read_bytes() for word in LINES[0].split() if len(word) > 12)
    recorder.close()
    assert sorted(path.name for path in state.iterdir()) == ["counts", "lock"]


def test_an_empty_window_leaves_no_file(tmp_path):
    Recorder(tmp_path, **OPTIONS).close()
    assert [path.name for path in tmp_path.iterdir()] == [STATE]


def test_what_is_no_window_in_the_folder_of_open_ones_is_named_and_left_there(tmp_path):
    state = tmp_path / STATE
    state.mkdir(mode=0o700)
    (tmp_path / "elsewhere").write_text("{}\n")
    (state / "broken.window").symlink_to("nowhere")
    (state / "link.window").symlink_to(tmp_path / "elsewhere")
    (state / "folder.window").mkdir()
    os.mkfifo(state / "pipe.window")
    (state / "endless.window").write_bytes(b"{" * (2 << 20))
    (state / "foreign.window").write_text('{"kvtrace_window": 9}\n')
    (state / "damaged.window").write_text('{"kvtrace_window": 1, "name": "../damaged"}\n')
    odd, told = sorted(path.name for path in state.iterdir()), []
    with Recorder(tmp_path, on_message=told.append, **OPTIONS) as recorder:
        recorder.put("follow", LINES[0])
        assert recorder.counts().failed == len(odd) == 7
    (window,) = sealed(tmp_path)
    assert len(kvtrace.read(window)) == 1
    unsealed = [sentence for sentence in told if "not sealed" in sentence]
    assert sorted(sentence.partition(":")[0] + ".window" for sentence in unsealed) == odd
    assert all(sentence.count("\n") == 0 and "Its digests are kept" in sentence for sentence in unsealed)
    assert sorted(path.name for path in state.glob("*.window")) == odd


def test_requests_that_came_between_two_windows_are_lost_once(tmp_path):
    Recorder(tmp_path, **OPTIONS).close()
    Ledger(tmp_path / STATE / "counts").accepted += 7  # a kill came after the last window ended
    for sentences in (["the recorder stopped before a window began; 7 requests were lost."], []):
        said = []
        recorder = Recorder(tmp_path, on_message=said.append, **OPTIONS)
        assert (said, recorder.counts().lost) == (sentences, 7 if sentences else 0)
        recorder.close()


def test_two_recorders_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("kvtrace.capture.recorder.WAIT_LOCK_S", 0)
    with Recorder(tmp_path, **OPTIONS), pytest.raises(kvtrace.KvtraceError, match="another recorder writes"):
        Recorder(tmp_path, **OPTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_s": 0}, "--window must be at least 1s"),
        ({"sample_sessions": 0}, "--sample-sessions is 0"),
        ({"profile": "loose"}, "is not a release profile"),
        ({"tokenizer": "/nowhere"}, "/nowhere"),
        ({"block_size": 0}, "--block-size is 0"),
        ({"suffix": ".txt"}, "txt"),
        ({"log_format": "nope"}, "'nope' is not a log format. Try auto"),
        ({"time_unit": "h"}, "'h' is not a --time-unit"),
    ],
)
def test_options_are_checked_before_anything_is_received(options, message, tmp_path):
    with pytest.raises(kvtrace.KvtraceError, match=message):
        Recorder(tmp_path / "recorded", **{**OPTIONS, **options})


def test_the_digester_starts_again_after_a_crash_and_goes_on_with_the_window(tmp_path):
    said = []
    with Recorder(tmp_path, on_message=said.append, **OPTIONS) as recorder:
        recorder.put("follow", LINES[0])
        waited(lambda: recorder.counts().digested == 1)
        os.kill(recorder._feeder.pid, 9)
        waited(lambda: recorder.counts().restarts == 1)
        recorder.put("follow", LINES[1])
    (window,) = sealed(tmp_path)
    assert len(kvtrace.read(window)) == 2 and recorder.counts().digested == 2
    assert "started again" in said[0]


class Clock:
    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


def test_the_summary_of_a_proxy_names_what_its_upstream_did_not_answer():
    counts = RecorderCounts(
        proxy={
            "requests": 9,
            "recorded": 2,
            "dropped": 0,
            "refused": 0,
            "failed": 2,
            "left": 1,
            "errors": 3,
            "other": 1,
        }
    )
    words = "9 requests: 2 recorded, 5 failed upstream, 1 not a generation, 1 left by the client"
    assert list(_summary(counts, LiveOptions()))[1:] == [f"proxy       {words}"]


def test_a_window_goes_after_the_lock_of_its_trace(tmp_path, monkeypatch):
    path, there = empty_window(tmp_path), []
    monkeypatch.setattr(sealing, "remove_window", lambda path: there.extend(os.listdir(tmp_path)))
    seal(path, tmp_path)  # a kill in this moment
    assert there == [path.name]
    monkeypatch.undo()
    remove_window(path)
    remove_window(path)  # two recorders may seal one window, one after the other


def test_a_window_with_a_source_and_no_request_leaves_no_file_and_says_what_is_lost(tmp_path):
    path = empty_window(tmp_path)
    done = seal(path, tmp_path)
    assert (done.files, done.lost) == ([], 5) and not path.exists()
    assert sentence_of(done) == f"{path.stem}: no request was recorded; 5 lost."


def empty_window(folder):
    """The file of a window that has ended, with a source, no request and five that were lost."""
    path = folder / "window-20261123T100000Z.window"
    file = WindowFile(path, header(path.stem, **OPTIONS) | {"accepted": 3, "dropped": 0})
    meta = {"log": {}, "hash": "", "session_mode": ""}
    file.source("follow", {"block_size": 16, "tail": "kept", "outputs": False, "holds_hashes": False, "meta": meta})
    file.finish(accepted=8, dropped=0)
    return path


def test_one_request_is_not_one_requests():
    assert sentence_of(Sealed("w", ["w.jsonl"], 1, audit="PASS")) == "w: sealed; 1 request; audit PASS."


def test_the_message_of_a_seal_names_the_checks_that_warn():
    levels = [("PASS", "ids"), ("WARN", "users"), ("WARN", "times")]
    findings = [Finding(level, {}, "A sentence.", name=name) for level, name in levels]
    assert _verdict(Audit(kvtrace.privacy.profile("standard"), None, findings)) == "WARN (users, times)"
    assert _verdict(Audit(kvtrace.privacy.profile("standard"), None, findings[:1])) == "PASS"


@pytest.mark.parametrize(("failed", "status"), [(0, 0), (1, 5)])
def test_a_recorder_that_leaves_a_window_unsealed_ends_with_status_5(tmp_path, capsys, monkeypatch, failed, status):
    log, folder = tmp_path / "log.jsonl", tmp_path / "recorded"
    log.write_text("")
    counts = Recorder.counts
    monkeypatch.setattr(Recorder, "counts", lambda self: replace(counts(self), failed=failed))
    arguments = ["record", "-o", str(folder), "--follow", str(log), "--for", "100ms", "--tokenizer", str(TINY), "-q"]
    assert run(arguments) == status
    remedy = f"Remove the cause, and run the command again: it seals what is left in {folder}."
    assert capsys.readouterr().err == (f"kvtrace: 1 window was not sealed. {remedy}\n" if failed else "")


def test_the_end_names_the_next_command(tmp_path, capsys):
    row = {"timestamp": 1_790_000_000, "input": [5, 6, 7, 8], "output": 1}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    arguments = ["-o", str(tmp_path / "live"), "--follow", str(tmp_path / "log.jsonl"), "--from-start", "--for", "2s"]
    assert run(["record", *arguments, "--tokenizer", str(TINY)]) == 0
    ((window,), shown) = (tmp_path / "live").glob("*.jsonl"), capsys.readouterr().err
    assert shown.splitlines()[-1] == f"next        kvtrace start {window}"
